"""A failure stays with its partition: it is noted, tried again later, and forgotten once healed."""

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.cleaning_bench import DIRECTORY, PARTITION, TOPIC_ID, CleaningBench, compacted
from tests.support.cleaning_checks import check_promises
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.compaction.plan import CleaningPlan
from varve.cleaning.compaction.run import CompactionRun
from varve.cleaning.compaction.segment_plan import SegmentPlan
from varve.cleaning.key_index.key_index import ENTRY, HEADER_BYTES, KeyIndexHeader, Table
from varve.commit_log import TopicPartition
from varve.commit_log.names import INDEX, KEYS, LOG, log_name
from varve.disk import RealFileSystem
from varve.foundation.errors import DirectoryOffline, Unavailable, Unbalanced
from varve.kernels.crc import crc32c
from varve.records import Record, build_batch

OTHER = TopicPartition("orders", 1)


def _fill(bench: CleaningBench, partition: TopicPartition, rounds: int) -> None:
    log = bench.store.get(partition)
    for number in range(rounds):
        log.append(build_batch([Record(b"k", b"%d" % number), Record(b"%d" % number, b"")]))
        log.roll()


@pytest.mark.parametrize("error", [AssertionError("a bug"), MemoryError(), KeyError(5)])
def test_an_unexpected_error_starves_no_other_partition(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    bench.store.create(OTHER, TOPIC_ID)
    for partition in (PARTITION, OTHER):
        _fill(bench, partition, 3)
    plan = CompactionRun.plan

    def plan_or_fail(self: CompactionRun) -> CleaningPlan[SegmentPlan]:
        if self._log.topic_partition == PARTITION:
            raise error
        return plan(self)

    with monkeypatch.context() as patch:
        patch.setattr(CompactionRun, "plan", plan_or_fail)
        (report,) = bench.cleaner.run_once(bench.now_ms)
    assert report.partition == OTHER
    by_name = {health.partition: health for health in bench.cleaner.health()}
    assert type(error).__name__ in str(by_name[PARTITION].error)
    assert by_name[OTHER].is_healthy
    bench.advance(59_999)
    assert bench.cleaner.run_once(bench.now_ms) == []
    bench.advance(1)
    (report,) = bench.cleaner.run_once(bench.now_ms)
    assert report.partition == PARTITION


def test_a_full_disk_is_tried_again_soon_however_often_it_was_full() -> None:
    """Indexing is not tried before its time either, so that it does not push the time away."""
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench, PARTITION, 3)
    bench.faulty.full_at(bench.faulty.used_bytes() + 10)
    for _ in range(8):
        bench.cleaner.run_once(bench.now_ms)
        bench.advance(15_000)
    (health,) = bench.cleaner.health()
    assert health.failures == 2
    bench.faulty.full_at(None)
    assert health.retry_ms is not None
    bench.clock.advance(health.retry_ms - bench.now_ms)
    assert len(bench.cleaner.run_once(bench.now_ms)) == 1


def test_a_failure_is_forgotten_when_nothing_is_left_to_do() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=1.0))
    _fill(bench, PARTITION, 3)
    bench.faulty.full_at(bench.faulty.used_bytes() + 10)
    bench.cleaner.run_once(bench.now_ms)
    assert not bench.cleaner.health()[0].is_healthy
    bench.faulty.full_at(None)
    bench.advance(60_000)
    assert bench.cleaner.run_once(bench.now_ms) == []
    assert bench.cleaner.health()[0].is_healthy


def test_a_thread_that_comes_late_looks_again_what_may_be_cleaned() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench, PARTITION, 3)
    late = LogCleaner(bench.store, clock=bench.clock)
    picked = late._pick(bench.now_ms, set())
    assert picked is not None
    _fill(bench, PARTITION, 3)
    report = late._run(picked, bench.now_ms)
    assert report is not None
    assert report.end_offset == 12


def _check_stays_with_partition(bench: CleaningBench, told: str) -> None:
    """The failure shows in health with its remedy; the log, and other partitions, go on."""
    (report,) = bench.cleaner.run_once(bench.now_ms)
    assert report.partition == OTHER
    by_name = {health.partition: health for health in bench.cleaner.health()}
    assert by_name[OTHER].is_healthy
    assert told in str(by_name[PARTITION].error)
    assert by_name[PARTITION].retry_ms == bench.now_ms + 60_000
    assert bench.directory.failure is None
    with pytest.raises(Unavailable, match=re.escape(told)) as caught:
        bench.cleaner.clean(PARTITION, bench.now_ms)
    assert not isinstance(caught.value, DirectoryOffline)
    bench.append([Record(b"new", b"", timestamp=bench.now_ms)])
    record = bench.cleaner.find_key(PARTITION, b"k", bench.now_ms)
    assert record is not None
    assert record.value == b"2"


def _check_heals(bench: CleaningBench) -> None:
    bench.advance(60_000)
    assert PARTITION in [one.partition for one in bench.cleaner.run_once(bench.now_ms)]
    assert all(health.is_healthy for health in bench.cleaner.health())
    check_promises(bench)


@pytest.fixture
def two() -> CleaningBench:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    bench.store.create(OTHER, TOPIC_ID)
    for number in range(3):
        for key, value in ((b"k", b"%d" % number), (b"%d" % number, b"")):
            bench.append([Record(key, value, timestamp=bench.now_ms)])
        bench.roll()
    _fill(bench, OTHER, 3)
    return bench


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EFBIG, "ulimit -f"),
        (errno.EISDIR, "move away the file or directory"),
        (errno.EACCES, "or delete the file: it is rebuilt"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENOSPC, "free some space"),
    ],
)
@pytest.mark.parametrize("name", [log_name(0, KEYS), f"{log_name(0, KEYS)}.tmp"])
def test_a_key_index_that_cannot_be_written_takes_nothing_offline(
    two: CleaningBench, name: str, code: int, told: str
) -> None:
    two.faulty.fail_under(f"{DIRECTORY}/{name}", OSError(code, os.strerror(code)))
    _check_stays_with_partition(two, told)
    two.faulty.mend()
    _check_heals(two)


@pytest.mark.parametrize("kind", [LOG, INDEX, KEYS])
def test_a_new_segment_that_cannot_be_written_takes_nothing_offline(
    two: CleaningBench, kind: str
) -> None:
    path = f"{DIRECTORY}/{log_name(0, kind)}.cleaned"
    two.faulty.fail_under(path, OSError(errno.EFBIG, os.strerror(errno.EFBIG)))
    _check_stays_with_partition(two, "ulimit -f")
    two.faulty.mend()
    _check_heals(two)


def test_a_data_file_that_cannot_be_read_takes_the_directory_offline(two: CleaningBench) -> None:
    two.faulty.fail_under(f"{DIRECTORY}/{log_name(0, LOG)}", OSError(errno.EIO, "I/O error"))
    with pytest.raises(DirectoryOffline):
        two.cleaner.clean(PARTITION, two.now_ms)
    assert two.directory.failure is not None


def test_a_directory_in_place_of_a_key_index_takes_nothing_offline(tmp_path: Path) -> None:
    bench = CleaningBench(
        compacted(min_cleanable_dirty_ratio=0.0), disk=RealFileSystem(), path=str(tmp_path / "d")
    )
    for number in range(3):
        bench.append([Record(b"k", b"%d" % number, timestamp=bench.now_ms)])
        bench.roll()
    keys = tmp_path / "d" / str(PARTITION) / log_name(0, KEYS)
    keys.mkdir()
    with pytest.raises(
        Unavailable, match="move away the file or directory that has this name"
    ) as caught:
        bench.cleaner.clean(PARTITION, bench.now_ms)
    assert not isinstance(caught.value, DirectoryOffline)
    assert bench.cleaner.find_key(PARTITION, b"k", bench.now_ms) is not None
    assert bench.cleaner.find_key(PARTITION, b"nobody", bench.now_ms) is None
    keys.rmdir()
    bench.cleaner.clean(PARTITION, bench.now_ms)
    assert bench.offsets() == [2]


def test_a_bug_of_ours_does_not_delete_key_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    for _ in range(2):
        bench.put("a", "1")
        bench.roll()
    bench.cleaner.build_indexes(bench.now_ms)
    before = [name for name in bench.names() if name.endswith(".keys")]

    def fail(run: CompactionRun) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(CompactionRun, "plan", fail)
    assert bench.cleaner.run_once(bench.now_ms) == []
    (health,) = bench.cleaner.health()
    assert health.error == "IndexError: list index out of range"
    assert [name for name in bench.names() if name.endswith(".keys")] == before != []


# Nothing is swapped in that does not add up, and a key index that lies is found out: G5


@pytest.fixture
def bench() -> CleaningBench:
    """The first segment has one record that is superseded, and two that have to stay."""
    bench = CleaningBench(compacted(segment_bytes=300))
    keys = [b"old", b"new", b"other"]
    bench.append(Record(key, b"value", timestamp=bench.now_ms) for key in keys)
    bench.roll()
    bench.put("old", "later")
    bench.roll()
    bench.cleaner.build_indexes(bench.now_ms)
    return bench


def _forge(bench: CleaningBench, entries: Table) -> None:
    """Another key index in the place of the first segment's, found by the next start.

    Its checksums fit, so that only the balance can tell.
    """
    path = f"{bench.path}/{PARTITION}/{0:020d}.keys"
    data = bench.disk.read(path)
    header = KeyIndexHeader.decode(data[:HEADER_BYTES])
    sections = np.frombuffer(entries.tobytes() + data[header.batches_at :], np.uint8)
    forged = replace(header, sections_crc=crc32c(sections, 0, len(sections)))
    with bench.disk.open_writable(path) as file:
        file.write_at(0, forged.encode(), sections.tobytes())
    bench.reopen()


def _entries(bench: CleaningBench) -> Table:
    data = bench.disk.read(f"{bench.path}/{PARTITION}/{0:020d}.keys")
    count = KeyIndexHeader.decode(data[:HEADER_BYTES]).entry_count
    end = HEADER_BYTES + count * ENTRY.itemsize
    return np.frombuffer(data[HEADER_BYTES:end], ENTRY).copy()


@pytest.mark.parametrize("offset", [1, 2])
def test_g5_a_new_segment_that_misses_a_record_is_refused(
    bench: CleaningBench, offset: int
) -> None:
    """The index takes a record for the superseded one, which therefore would stay in its place."""
    entries = _entries(bench)
    entries["record"] = np.where(
        entries["record"] == 0, offset, np.where(entries["record"] == offset, 0, entries["record"])
    )
    _forge(bench, entries)
    stored = bench.read_all()
    with pytest.raises(Unbalanced, match="orders-0"):
        bench.clean()
    assert bench.read_all() == stored
    check_promises(bench)
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


def test_g5_a_failed_balance_shows_in_the_health_and_nothing_dies(bench: CleaningBench) -> None:
    entries = _entries(bench)
    entries["record"] = (entries["record"] + 1) % 3
    _forge(bench, entries)
    stored = bench.read_all()
    assert bench.cleaner.run_once(bench.now_ms) == []
    (health,) = bench.cleaner.health()
    assert not health.is_healthy
    assert health.error is not None
    assert health.retry_ms is not None
    assert bench.read_all() == stored


def test_g4_the_index_that_lied_is_built_anew_for_the_next_run(bench: CleaningBench) -> None:
    entries = _entries(bench)
    entries["record"] = (entries["record"] + 1) % 3
    _forge(bench, entries)
    bench.cleaner.run_once(bench.now_ms)
    bench.clean()
    assert bench.offsets() == [1, 2, 3]
    assert bench.cleaner.health()[0].is_healthy
