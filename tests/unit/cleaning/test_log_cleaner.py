"""The cleaner chooses, keeps going, and tells how it fares. G4, G5."""

import threading

import pytest

from tests.support.cleaning_bench import DIRECTORY, NOW_MS, PARTITION, CleaningBench, compacted
from tests.support.log_model import split_batches
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.compaction.run import CleaningStopped
from varve.cleaning.metrics import CleanProgress
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.retention import LogRetention
from varve.cleaning.settings import CleanerSettings
from varve.commit_log.names import KEYS, LOG, log_name
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Closed, PolicyViolation, StoreError
from varve.records import Record, build_batch
from varve.testing.faulty_disk import FaultyFileSystem


def _append(bench: CleaningBench, *pairs: tuple[bytes, bytes | None]) -> None:
    for key, value in pairs:
        record = Record(key=key, value=value, timestamp=bench.clock.now_ms())
        bench.log.append(build_batch([record]))


def _dirty(bench: CleaningBench, rounds: int = 3) -> None:
    """Segments of the same five keys, each superseding the one before."""
    for number in range(rounds):
        _append(bench, *((b"key-%d" % key, b"value-%d" % number) for key in range(5)))
        _append(bench, (b"own-%d" % number, b""))
        bench.log.roll()
    _append(bench, (b"tail", b""))


@pytest.fixture
def bench() -> CleaningBench:
    return CleaningBench()


def test_what_is_due_is_cleaned_and_the_rest_left() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.5))
    _dirty(bench)
    (report,) = bench.cleaner.run_once(NOW_MS)
    assert report.partition == PARTITION
    assert report.records[Reason.SUPERSEDED] == 10
    assert bench.cleaner.run_once(NOW_MS) == []


def test_the_cleaned_part_is_checkpointed(bench: CleaningBench) -> None:
    _dirty(bench)
    report = bench.cleaner.clean(PARTITION, NOW_MS)
    assert report.end_offset == 18
    directory = bench.store.directory_of(PARTITION)
    assert directory is not None
    assert directory.cleaner_offset(PARTITION) == 18


def test_a_dry_run_changes_no_record_and_says_what_would(bench: CleaningBench) -> None:
    _dirty(bench)
    before = bench.log.size
    dry = bench.cleaner.clean(PARTITION, NOW_MS, dry_run=True)
    assert bench.log.size == before
    assert dry.is_dry_run
    done = bench.cleaner.clean(PARTITION, NOW_MS)
    assert dry.records == done.records
    assert dry.segments_after == done.segments_after
    assert abs(dry.bytes_after - done.bytes_after) <= 16


def test_key_indexes_are_built_when_a_segment_is_decided(bench: CleaningBench) -> None:
    _dirty(bench, rounds=2)
    assert bench.cleaner.build_indexes(NOW_MS) == 2
    assert bench.cleaner.build_indexes(NOW_MS) == 0
    bench.disk.remove(f"{bench.log.directory}/{log_name(0, KEYS)}")
    assert bench.cleaner.build_indexes(NOW_MS) == 1


def test_a_damaged_key_index_is_built_anew(bench: CleaningBench) -> None:
    _dirty(bench, rounds=2)
    bench.cleaner.build_indexes(NOW_MS)
    path = f"{bench.log.directory}/{log_name(0, KEYS)}"
    with bench.disk.open_writable(path) as file:
        file.write_at(130, b"\xff\xff")
    fresh = LogCleaner(bench.store, clock=bench.clock)
    assert fresh.clean(PARTITION, NOW_MS).records[Reason.SUPERSEDED] == 5


def test_only_compacted_topics_are_compacted() -> None:
    bench = CleaningBench(compacted(cleanup_policy=("delete",)))
    with pytest.raises(PolicyViolation, match=r"cleanup\.policy"):
        bench.cleaner.clean(PARTITION, NOW_MS)
    assert bench.cleaner.run_once(NOW_MS) == []


def test_a_clean_segment_waits_until_enough_of_it_is_stale() -> None:
    bench = CleaningBench(compacted(min_stale_ratio=0.5))
    _append(bench, *((b"key-%d" % key, b"old") for key in range(10)))
    bench.log.roll()
    bench.cleaner.clean(PARTITION, NOW_MS)
    _append(bench, (b"key-1", b"new"))
    bench.log.roll()
    report = bench.cleaner.clean(PARTITION, NOW_MS)
    assert report.segments_rewritten == 0
    assert report.left_stale_bytes > 0
    _append(bench, *((b"key-%d" % key, b"new") for key in range(2, 7)))
    bench.log.roll()
    assert bench.cleaner.clean(PARTITION, NOW_MS).records[Reason.SUPERSEDED] == 6


def test_a_deleted_record_does_not_wait() -> None:
    bench = CleaningBench(compacted(min_stale_ratio=1.0))
    _append(bench, *((b"key-%d" % key, b"old") for key in range(10)))
    bench.log.roll()
    bench.cleaner.clean(PARTITION, NOW_MS)
    _append(bench, (b"key-1", None))
    bench.log.roll()
    assert bench.cleaner.clean(PARTITION, NOW_MS).records[Reason.SUPERSEDED] == 1


def test_a_record_that_waited_too_long_forces_everything_stale_out() -> None:
    bench = CleaningBench(compacted(min_stale_ratio=1.0, max_compaction_lag_ms=1000))
    _append(bench, *((b"key-%d" % key, b"old") for key in range(10)))
    bench.log.roll()
    bench.cleaner.clean(PARTITION, NOW_MS)
    _append(bench, (b"key-1", b"new"))
    bench.log.roll()
    bench.clock.advance(1001)
    (report,) = bench.cleaner.run_once(bench.clock.now_ms())
    assert report.records[Reason.SUPERSEDED] == 1


def test_a_key_is_found_in_every_part_of_the_log(bench: CleaningBench) -> None:
    _append(bench, (b"a", b"1"), (b"b", b"1"), (b"gone", b"1"))
    bench.log.roll()
    _append(bench, (b"b", b"2"), (b"gone", None))
    bench.log.roll()
    _append(bench, (b"c", b"3"))
    find = bench.cleaner.find_key
    values = {key: find(PARTITION, key, NOW_MS) for key in (b"a", b"b", b"c", b"gone", b"none")}
    assert values[b"none"] is None
    assert {key: record and (record.offset, record.value) for key, record in values.items()} == {
        b"a": (0, b"1"),
        b"b": (3, b"2"),
        b"c": (5, b"3"),
        b"gone": (4, None),
        b"none": None,
    }
    bench.cleaner.clean(PARTITION, NOW_MS)
    again = find(PARTITION, b"b", NOW_MS)
    assert again is not None
    assert again.value == b"2"


def test_an_aborted_or_open_transaction_has_no_latest_value(bench: CleaningBench) -> None:
    _append(bench, (b"k", b"committed"))
    log = bench.log
    for producer, value in ((7, b"aborted"), (8, b"open")):
        batch = build_batch(
            [Record(key=b"k", value=value, timestamp=NOW_MS)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(batch)
        if producer == 7:
            log.end_transaction(producer_id=7, producer_epoch=0, committed=False)
    found = bench.cleaner.find_key(PARTITION, b"k", NOW_MS)
    assert found is not None
    assert found.value == b"committed"


def test_progress_tells_the_phases_in_order(bench: CleaningBench) -> None:
    _dirty(bench)
    seen: list[CleanProgress] = []
    bench.cleaner.clean(PARTITION, NOW_MS, progress=seen.append)
    phases = list(dict.fromkeys(one.phase for one in seen))
    assert phases == ["index", "plan", "copy"]
    assert all(0 < one.done_bytes <= one.total_bytes for one in seen)


def test_a_failing_disk_is_noted_and_tried_again_later(bench: CleaningBench) -> None:
    _dirty(bench)
    disk = bench.disk
    assert isinstance(disk, FaultyFileSystem)
    disk.full_at(disk.used_bytes() + 10)
    assert bench.cleaner.run_once(NOW_MS) == []
    (health,) = bench.cleaner.health()
    assert not health.is_healthy
    assert "free some space" in str(health.error)
    assert health.retry_ms == NOW_MS + 60_000


def test_a_stopped_cleaner_leaves_the_log_as_it_was(bench: CleaningBench) -> None:
    _dirty(bench)
    before = bench.log.size
    bench.cleaner.stop()
    with pytest.raises(CleaningStopped):
        bench.cleaner.clean(PARTITION, NOW_MS)
    assert bench.log.size == before
    assert not [name for name in bench.disk.names(bench.log.directory) if "cleaned" in name]


def test_a_deletion_ends_a_run_before_another_log_may_use_the_directory(
    bench: CleaningBench,
) -> None:
    _dirty(bench)
    log = bench.log
    deletion = threading.Thread(target=bench.store.delete, args=(PARTITION,))

    def delete(progress: CleanProgress) -> None:
        if deletion.ident is None:
            deletion.start()
            while not log.is_retiring:
                threading.Event().wait(0.001)
        assert bench.disk.exists(log.directory)

    with pytest.raises(CleaningStopped, match="is being deleted"):
        bench.cleaner.clean(PARTITION, NOW_MS, progress=delete)
    deletion.join(10)
    assert not bench.disk.exists(log.directory)


def test_what_began_before_a_deletion_writes_nothing_after_it(bench: CleaningBench) -> None:
    _dirty(bench)
    cleaner, log = bench.cleaner._get_cleaner(PARTITION), bench.log
    retention = LogRetention(log, bench.cleaner.removals.get(log))
    bench.store.delete(PARTITION)
    bench.disk.make_directory(log.directory)
    with pytest.raises(Closed):
        retention.expire(NOW_MS)
    with pytest.raises(CleaningStopped), cleaner.work("compaction"):
        pass
    with cleaner.try_take() as may_build:
        assert not may_build
    assert list(bench.disk.names(log.directory)) == []


def test_threads_clean_in_the_background() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _dirty(bench)
    before = bench.log.size
    settings = CleanerSettings(log_cleaner_threads=2, log_cleaner_backoff_ms=1)
    cleaner = LogCleaner(bench.store, clock=SystemClock(), settings=settings)
    cleaner.start()
    try:
        waiting = threading.Event()
        for _ in range(500):
            if bench.log.size < before:
                break
            waiting.wait(0.01)
    finally:
        cleaner.stop()
    assert bench.log.size < before
    (health,) = cleaner.health()
    assert health.is_healthy


def test_a_damaged_segment_is_held_and_heals_by_itself() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _dirty(bench, rounds=3)
    path = f"{bench.log.directory}/{log_name(6, LOG)}"
    data = bench.disk.read(path)
    with bench.disk.open_writable(path) as file:
        file.write_at(len(data) - 2, b"\xff")
    (report,) = bench.cleaner.run_once(NOW_MS)
    (hold,) = report.holds
    assert (hold.base_offset, hold.bytes_held, hold.attempts) == (6, len(data), 1)
    assert "CRC" in hold.reason
    assert hold.oldest_ms == NOW_MS
    assert report.records[Reason.SUPERSEDED] == 5
    with bench.disk.open_writable(path) as file:
        file.write_at(0, data)
    assert bench.cleaner.run_once(hold.retry_ms - 1) == []
    (healed,) = bench.cleaner.run_once(hold.retry_ms)
    assert healed.holds == ()
    assert healed.records[Reason.SUPERSEDED] == 5
    (health,) = bench.cleaner.health()
    assert health.is_healthy


# A key is looked up among damage and changes: no answer is better than a wrong one


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    "position",
    [pytest.param(8, id="length"), pytest.param(16, id="magic"), pytest.param(66, id="key")],
)
def test_a_batch_that_cannot_be_read_may_hold_the_key(is_closed: bool, position: int) -> None:
    bench = CleaningBench(compacted())
    bench.put("k", "old")
    bench.put("k", "new")
    bench.put("other", "1")
    if is_closed:
        bench.roll()
        bench.put("tail", "1")
    path = f"{DIRECTORY}/{log_name(0, LOG)}"
    first = len(split_batches(bench.disk.read(path))[0])
    with bench.disk.open_writable(path) as file:
        file.write_at(first + position, b"\x7b")
    lock = bench.cleaner._get_cleaner(PARTITION).log.cleaning_lock
    for is_taken in (False, True):
        if is_taken:
            lock.acquire()
        with pytest.raises(StoreError):
            bench.cleaner.find_key(PARTITION, b"k", bench.now_ms)
