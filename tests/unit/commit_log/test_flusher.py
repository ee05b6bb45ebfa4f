"""When records reach the disk, and what the recovery point then says."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.log_bench import BROKEN, Bench, FaultyBench, make_batch, read_all
from varve.commit_log.names import log_name
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DirectoryOffline, LogPoisoned
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem


def synced(faulty: FaultyBench, act: Callable[[], Any]) -> list[str]:
    """The names of the files and directories an action syncs."""
    before = len(faulty.fs.trace)
    act()
    steps = faulty.fs.trace[before:]
    return [step.path.rsplit("/", 1)[-1] for step in steps if step.operation.startswith("sync")]


def test_nothing_is_synced_by_default(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.log.append(make_batch())
    assert synced(faulty, lambda: faulty.log.append(make_batch())) == []
    assert faulty.log.recovery_point == 0


def test_flush_moves_the_recovery_point_to_the_log_end(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(3)
    assert log_name(0) in synced(faulty, faulty.log.flush)
    assert faulty.log.recovery_point == 3


def test_a_second_flush_has_nothing_to_do(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(3)
    faulty.log.flush()
    assert synced(faulty, faulty.log.flush) == []


def test_flush_syncs_every_file_of_rolled_segments_and_their_names(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    faulty.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    faulty.log.roll()
    faulty.fill(1)
    names = synced(faulty, faulty.log.flush)
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    expected = {log_name(0, kind) for kind in kinds} | {log_name(2), log_name(2, ".snapshot")}
    assert set(names) == expected | {"varve-append-times", "topic-0"}
    assert names[-1] == "topic-0"


def test_a_roll_at_the_recovery_point_syncs_the_indexes_and_the_name_of_a_new_one(
    faulty: FaultyBench,
) -> None:
    """Recovery starts in the next segment, and would not find the abort in the data of this one."""
    faulty.open()
    faulty.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    faulty.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    faulty.log.flush()
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    assert synced(faulty, faulty.log.roll) == [*(log_name(0, kind) for kind in kinds), "topic-0"]


def test_flush_messages_syncs_when_so_many_wait(faulty: FaultyBench) -> None:
    faulty.set(flush_messages=3).open()
    for expected in (0, 0, 3, 3, 3, 6):
        faulty.log.append(make_batch())
        assert faulty.log.recovery_point == expected


def test_flush_messages_counts_records(faulty: FaultyBench) -> None:
    faulty.set(flush_messages=3).open()
    faulty.log.append(make_batch(3))
    assert faulty.log.recovery_point == 3


def test_flush_ms_is_looked_at_by_maintenance(faulty: FaultyBench) -> None:
    faulty.set(flush_ms=1000).open()
    faulty.fill(2)
    faulty.clock.advance(999)
    faulty.log.maintain(faulty.clock.now_ms())
    assert faulty.log.recovery_point == 0
    faulty.clock.advance(1)
    faulty.log.maintain(faulty.clock.now_ms())
    assert faulty.log.recovery_point == 2


def test_flush_ms_counts_from_the_last_flush(faulty: FaultyBench) -> None:
    faulty.set(flush_ms=1000).open()
    faulty.fill(1)
    faulty.clock.advance(800)
    faulty.log.flush()
    faulty.fill(1)
    faulty.clock.advance(800)
    faulty.log.maintain(faulty.clock.now_ms())
    assert faulty.log.recovery_point == 1


def test_maintenance_syncs_what_was_rolled(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(2, 1)
    assert faulty.log.recovery_point == 0
    faulty.log.maintain(faulty.clock.now_ms())
    assert faulty.log.recovery_point == 2


def test_many_rolled_segments_are_synced_without_maintenance(faulty: FaultyBench) -> None:
    faulty.set(segment_bytes=len(make_batch())).open()
    faulty.fill(100)
    assert faulty.log.recovery_point > 0


def test_flush_ack_syncs_each_append_before_it_is_answered(faulty: FaultyBench) -> None:
    faulty.set(flush="ack").open()
    for end in (1, 2):
        assert log_name(0) in synced(faulty, lambda: faulty.log.append(make_batch()))
        assert (faulty.log.recovery_point, faulty.log.high_watermark) == (end, end)


def test_flush_ack_survives_a_power_loss(faulty: FaultyBench) -> None:
    faulty.set(flush="ack").open()
    faulty.fill(3)
    survivor = FaultyBench(faulty.fs.after_crash(CrashMode.LOSE_UNSYNCED), faulty.clock)
    survivor.open()
    assert read_all(survivor.log) == [0, 1, 2]


def test_flush_ack_shows_nothing_that_could_not_be_synced(faulty: FaultyBench) -> None:
    faulty.set(flush="ack").open()
    faulty.fill(2)
    faulty.fail_next(BROKEN, after_steps=1)
    with pytest.raises(LogPoisoned):
        faulty.log.append(make_batch())
    assert faulty.log.high_watermark == 2
    assert read_all(faulty.log) == [0, 1]


def test_flush_ack_makes_a_duplicate_wait_for_the_disk(faulty: FaultyBench) -> None:
    batch = make_batch(producer_id=1, producer_epoch=0, base_sequence=0)
    faulty.open()
    faulty.log.append(batch)
    faulty.set(flush="ack").crash()
    assert faulty.log.recovery_point == 0
    assert faulty.log.append(batch).is_duplicate
    assert faulty.log.recovery_point == 1


def test_flush_ack_with_followers_leaves_the_high_watermark_to_them(faulty: FaultyBench) -> None:
    faulty.is_alone = False
    faulty.set(flush="ack").open()
    faulty.fill(2)
    assert (faulty.log.recovery_point, faulty.log.high_watermark) == (2, 0)


def test_close_syncs_an_empty_active_segment_too(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(1)
    faulty.log.roll()
    assert log_name(1) in synced(faulty, faulty.log.close)


def test_close_takes_a_snapshot_at_the_log_end(bench: Bench) -> None:
    bench.open()
    bench.fill(3)
    bench.log.close()
    assert bench.names(".snapshot") == [log_name(3, ".snapshot")]


def test_a_new_empty_log_has_no_snapshot(bench: Bench) -> None:
    bench.open()
    bench.reopen()
    bench.log.close()
    assert bench.names(".snapshot") == []


def test_whatever_step_of_closing_fails_is_told(clock: ManualClock) -> None:
    twin = FaultyBench(FaultyFileSystem(clock), clock)
    twin.open()
    twin.fill(1)
    before = twin.fs.steps
    twin.log.close()
    for step in range(before + 1, twin.fs.steps + 1):
        bench = FaultyBench(FaultyFileSystem(clock), clock)
        bench.open()
        bench.fill(1)
        bench.fs.fail_at(step, BROKEN)
        is_sync = twin.fs.trace[step - 1].operation.startswith("sync")
        with pytest.raises(LogPoisoned if is_sync else DirectoryOffline):
            bench.log.close()


def test_raising_the_log_start_above_the_recovery_point_raises_it(bench: Bench) -> None:
    bench.open()
    bench.fill(4)
    bench.log.delete_records(3)
    assert bench.log.recovery_point == 3


def test_maintenance_syncs_ahead_of_a_roll_once_much_has_been_written(
    bench: Bench, clock: ManualClock
) -> None:
    bench.open()
    batch = make_batch(value=bytes(1_000_000))
    while bench.log.size <= 64 << 20:
        assert bench.log.recovery_point == 0
        bench.log.append(batch)
        end_offset = bench.log.end_offset
        bench.log.maintain(clock.now_ms())
    assert bench.log.recovery_point == end_offset


class RollingWriter:
    """The active segment's file, whose first sync is overtaken by a roll."""

    def __init__(self, bench: FaultyBench) -> None:
        self._bench = bench
        self._file = bench.log.view.active.writer
        self._is_overtaken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._file.sync()
        if not self._is_overtaken:
            self._is_overtaken = True
            self._bench.log.roll()


def test_a_roll_during_a_flush_keeps_the_recovery_point_in_its_segment(
    faulty: FaultyBench,
) -> None:
    faulty.open()
    faulty.fill(3)
    faulty.log.view.active.writer = RollingWriter(faulty)
    faulty.log.flush()
    assert faulty.log.recovery_point == 0
    assert log_name(0, ".index") in synced(faulty, faulty.log.flush)
    assert faulty.log.recovery_point == 3
