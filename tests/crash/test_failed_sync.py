"""After a failed sync the machine may forget bytes that every read still shows (G1, G3)."""

import pytest

from tests.support.log_bench import BROKEN, FaultyBench, make_batch, read_all
from varve.commit_log import LogSettings
from varve.foundation.clock import ManualClock
from varve.foundation.errors import LogPoisoned
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem


@pytest.fixture
def bench() -> FaultyBench:
    clock = ManualClock()
    return FaultyBench(FaultyFileSystem(clock), clock, LogSettings(flush="ack"))


@pytest.mark.parametrize("rolled", [False, True])
def test_g1_what_is_acknowledged_after_a_failed_sync_survives_power_loss(
    bench: FaultyBench, rolled: bool
) -> None:
    bench.open()
    bench.log.append(make_batch())
    bench.fail_next(BROKEN, after_steps=1)  # the append writes, then syncs
    with pytest.raises(LogPoisoned):
        bench.log.append(make_batch())
    bench.crash()
    if rolled:
        bench.log.roll()
    bench.log.append(make_batch())
    bench.log.abandon()

    bench.fs = bench.fs.after_crash(CrashMode.LOSE_UNSYNCED)
    bench.open()
    assert read_all(bench.log) == [0, 1, 2]


def test_the_note_of_a_failed_sync_goes_once_its_bytes_are_written_anew(
    bench: FaultyBench,
) -> None:
    bench.open()
    bench.log.append(make_batch())
    bench.fail_next(BROKEN, after_steps=1)  # the append writes, then syncs
    with pytest.raises(LogPoisoned):
        bench.log.append(make_batch())
    noted = set(bench.fs.names("data/topic-0"))
    bench.crash()
    assert noted - set(bench.fs.names("data/topic-0")) == {"varve-sync-failed"}
