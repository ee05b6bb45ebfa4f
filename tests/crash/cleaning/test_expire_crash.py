"""Power loss and process end at every I/O step of a retention pass: G3, G5.

After each: the log begins where it did or where the pass would have left it, and holds all from
there on; what is gone stands in the evidence; the next pass ends where an undisturbed one does.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cleaning_bench import DIRECTORY, PARTITION, CleaningBench
from tests.support.crash_images import crash_images, named, record
from tests.support.log_model import check_equals
from varve.cleaning.removals.audit import audit_partition
from varve.cleaning.removals.removal_log import RemovalLog
from varve.commit_log import LogSettings
from varve.testing.faulty_disk import CrashMode

DAY = 86_400_000
VALUE = "v" * 50


def _bench(**settings: Any) -> CleaningBench:
    given: dict[str, Any] = {"file_delete_delay_ms": 1000, "index_interval_bytes": 150, **settings}
    return CleaningBench(LogSettings(**given))


def _write(bench: CleaningBench, *, segments: int) -> None:
    for number in range(segments):
        bench.put(f"key-{number}", VALUE)
        bench.put("tx", VALUE, producer_id=7, transactional=True)
        bench.end_transaction(7, committed=number % 2 == 0)
        bench.put("last", VALUE)
        bench.roll()


def _by_time() -> CleaningBench:
    """Three segments past their time and one that is not."""
    bench = _bench()
    _write(bench, segments=3)
    bench.advance(5 * DAY)
    bench.put("young", VALUE)
    bench.log.flush()
    bench.advance(3 * DAY)
    return bench


def _all_of_it() -> CleaningBench:
    """Everything is past its time, the active segment too."""
    bench = _bench()
    _write(bench, segments=2)
    bench.put("active", VALUE)
    bench.log.flush()
    bench.advance(8 * DAY)
    return bench


def _by_log_start_and_size() -> CleaningBench:
    bench = _bench(retention_bytes=500, retention_ms=-1)
    _write(bench, segments=5)
    bench.log.delete_records(6)
    bench.history.log_start_offset = 6
    bench.log.flush()
    return bench


def _in_two_passes() -> CleaningBench:
    """The files of the first pass wait for their delay while the second runs."""
    bench = _by_time()
    _expire(bench)
    bench.put("more", VALUE)
    bench.log.flush()
    bench.advance(8 * DAY)
    return bench


SCENARIOS: dict[str, Callable[[], CleaningBench]] = {
    "by time": _by_time,
    "all of it": _all_of_it,
    "by log start and size": _by_log_start_and_size,
    "in two passes": _in_two_passes,
}


def _expire(bench: CleaningBench) -> None:
    bench.cleaner.retention.run_once(bench.now_ms)
    bench.history.log_start_offset = bench.log.log_start_offset


def _modes(step: int, rounds_factor: int) -> list[tuple[CrashMode, int]]:
    modes = [(CrashMode.KEEP_ALL, 0), (CrashMode.LOSE_UNSYNCED, 0)]
    return modes + [(CrashMode.RANDOM, step * 100 + seed) for seed in range(rounds_factor)]


def _check(bench: CleaningBench, starts: tuple[int, int]) -> None:
    start = bench.log.log_start_offset
    assert start in starts
    before = [batch for batch in bench.history.batches if batch.last_offset >= start]
    assert bench.read_all() == [batch.data for batch in before]
    entries = RemovalLog(bench.disk, DIRECTORY).read()
    if start == starts[1]:
        assert entries
        assert entries[-1].removal.end_offset == start
    report = audit_partition(bench.disk, DIRECTORY, deep=True)
    assert [one for one in report.findings if one.rule != "torn-line"] == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_g3_g5_a_crash_at_any_step_leaves_the_state_before_or_after(
    name: str, rounds_factor: int
) -> None:
    prepared = SCENARIOS[name]()
    start = prepared.log.log_start_offset
    points = record(
        lambda: prepared.cleaner.retention.run_once(prepared.now_ms),
        lambda: None,
        disk=prepared.faulty,
    )
    end = prepared.log.log_start_offset
    assert end > start
    for image in crash_images(points, lambda step: _modes(step, rounds_factor)):
        with named(image):
            bench = prepared.on(image.disk)
            _check(bench, (start, end))
            # Times that only the lost process knew are taken anew, so it may be later.
            bench.advance(8 * DAY)
            _expire(bench)
            assert bench.log.log_start_offset >= end
            bench.put("after", VALUE)
            if image.step % 3 == 0:
                bench.reopen()
                assert bench.log.log_start_offset >= end


def test_g5_retention_frees_a_disk_that_is_full_to_the_last_byte() -> None:
    bench = _by_time()
    bench.faulty.full_at(bench.faulty.used_bytes())
    size = bench.log.size
    (expiry,) = bench.cleaner.retention.run_once(bench.now_ms)
    assert expiry.size > size // 2
    assert bench.cleaner.retention.failures == {}
    bench.advance(2000)
    bench.store.run_once(bench.now_ms)
    assert bench.cleaner.retention.run_once(bench.now_ms) == []
    (entry,) = RemovalLog(bench.disk, DIRECTORY).read()
    assert entry.is_done
    assert entry.removal.partition == PARTITION
    assert "the disk was full" in entry.removal.rule
    assert audit_partition(bench.disk, DIRECTORY, deep=True).findings == ()


def test_what_is_left_equals_the_model_after_an_undisturbed_pass() -> None:
    for prepare in SCENARIOS.values():
        bench = prepare()
        _expire(bench)
        check_equals(bench.log, bench.history)
