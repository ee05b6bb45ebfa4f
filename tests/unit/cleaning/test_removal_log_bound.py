"""The removal log is bounded: old lines are dropped, and what is needed of them is kept."""

from dataclasses import replace

import pytest

from tests.support.audit_bench import AuditBench
from tests.support.balances import make_compaction, make_expiry
from varve.cleaning.removals.audit import audit_partition
from varve.cleaning.removals.removal import Reason, Removal, RemovalKind, SegmentSummary
from varve.cleaning.removals.removal_log import (
    REMOVAL_LOG_BYTES_MAX,
    REMOVAL_LOG_FILE,
    RemovalLog,
    read_removal_log,
)
from varve.disk import MemoryFileSystem, PowerLoss
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

DIRECTORY = "/orders-0"
PATH = f"{DIRECTORY}/{REMOVAL_LOG_FILE}"
MAX_BYTES = 20_000


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory(DIRECTORY)
    return fs


def record(log: RemovalLog, removal: Removal) -> int:
    removal = replace(removal, id=log.next_id())
    log.append(removal)
    log.mark_done(removal.id)
    return removal.id


def fill(log: RemovalLog, count: int = 200) -> list[int]:
    return [record(log, make_expiry()) for _ in range(count)]


def test_the_file_stays_below_twice_its_bound(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY)
    for _ in range(60):
        record(log, make_expiry(rule="x" * (1 << 19)))
        assert fs.info(PATH).size < 2 * REMOVAL_LOG_BYTES_MAX


def test_the_newest_lines_stay_chained_and_keep_their_ids(fs: MemoryFileSystem) -> None:
    ids = fill(RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES))
    history = read_removal_log(fs, DIRECTORY)
    assert history.faults == []
    kept = [entry.removal.id for entry in history.entries]
    assert kept == ids[-len(kept) :]
    assert len(kept) > 10
    assert all(entry.is_done for entry in history.entries)
    assert history.dropped > 200
    log = RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES)
    assert log.next_id() == 401
    record(log, make_expiry())
    assert log.read()[-1].removal.id == 401


def test_a_changed_byte_is_noticed_in_any_line(fs: MemoryFileSystem) -> None:
    bench = AuditBench(fs, "/logs", "orders-1")
    log = RemovalLog(fs, bench.directory, max_bytes=MAX_BYTES)
    left = bench.write(0, [0, 1])
    record(log, replace(bench.compaction([left], [left]), partition=bench.partition))
    fill(log)
    whole = fs.read(bench.evidence_path)
    for position in range(0, len(whole), 37):
        data = bytearray(whole)
        data[position] ^= 1
        with fs.open_writable(bench.evidence_path) as file:
            file.write_at(0, bytes(data))
        history = read_removal_log(fs, bench.directory)
        assert history.faults or history.torn_bytes


def test_the_removal_that_left_a_segment_is_still_audited(fs: MemoryFileSystem) -> None:
    bench = AuditBench(fs, "/logs", "orders-0")
    log = RemovalLog(fs, bench.directory, max_bytes=MAX_BYTES)
    taken, left = SegmentSummary(0, 10, 700, 7), bench.write(0, [0, 1])
    id = record(log, bench.compaction([taken], [left]))
    later = replace(make_expiry(), inputs=(SegmentSummary(100, 110, 700, 7),), end_offset=110)
    for _ in range(200):
        record(log, later)
    report = audit_partition(fs, bench.directory)
    assert report.is_clean
    assert report.entries[0].removal.id == id
    assert report.entries[0].verified == 1
    bench.write(0, [0, 1, 2])
    findings = audit_partition(fs, bench.directory).findings
    assert {(finding.rule, finding.id) for finding in findings} == {("output-changed", id)}


def test_a_superseded_removal_is_dropped_and_the_later_one_kept(fs: MemoryFileSystem) -> None:
    bench = AuditBench(fs, "/logs", "orders-0")
    log = RemovalLog(fs, bench.directory, max_bytes=MAX_BYTES)
    left = bench.write(0, [0, 1])
    other = replace(left, records=1, size=left.size - 10, log_crc=1)
    record(log, bench.compaction([SegmentSummary(0, 10, 700, 7)], [left]))
    record(log, bench.compaction([left], [other]))
    last = record(log, bench.compaction([other], [replace(other, size=left.size)]))
    for _ in range(200):
        record(log, replace(make_expiry(), inputs=(SegmentSummary(100, 110, 700, 7),)))
    first = read_removal_log(fs, bench.directory).entries[0]
    assert first.removal.id == last


def test_the_last_eviction_is_kept(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES)
    eviction = replace(
        make_expiry(), kind=RemovalKind.EVICTION, records={Reason.EVICTED: 7}, bytes={}
    )
    record(log, eviction)
    last = record(log, replace(eviction, end_offset=11))
    fill(log)
    evictions = [
        entry.removal for entry in log.read() if entry.removal.kind is RemovalKind.EVICTION
    ]
    assert [(one.id, one.end_offset) for one in evictions] == [(last, 11)]


def test_a_head_of_a_dropped_line_is_no_error(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES)
    record(log, make_expiry())
    head = read_removal_log(fs, DIRECTORY).head
    fill(log)
    report = audit_partition(fs, DIRECTORY, head=head)
    assert report.is_clean
    assert [finding.rule for finding in report.findings] == ["head"]
    assert not audit_partition(fs, DIRECTORY, head=report.head).findings


def test_a_file_with_a_fault_is_left_whole(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY)
    fill(log, 100)
    data = fs.read(PATH).replace(b'"id":5,', b'"id":6,', 1)
    with fs.open_writable(PATH) as file:
        file.write_at(0, data)
    record(RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES), make_expiry())
    assert fs.read(PATH).startswith(data)
    with pytest.raises(Corrupt, match="line 5"):
        log.read()


def test_a_line_about_dropped_lines_stands_first_or_is_a_fault(fs: MemoryFileSystem) -> None:
    fill(RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES))
    first, *others = fs.read(PATH).splitlines(keepends=True)
    with fs.open_writable(PATH) as file:
        file.truncate(0)
        file.write_at(0, b"".join([first, first, *others]))
    assert [fault.line_number for fault in read_removal_log(fs, DIRECTORY).faults] == [2, 2]


@pytest.mark.parametrize("mode", [CrashMode.KEEP_ALL, CrashMode.LOSE_UNSYNCED, CrashMode.RANDOM])
def test_a_crash_while_lines_are_dropped_loses_no_newer_line(mode: CrashMode) -> None:
    def new_disk() -> FaultyFileSystem:
        disk = FaultyFileSystem(ManualClock(), seed=3)
        disk.make_directory(DIRECTORY)
        disk.sync_directory("/")
        return disk

    def script(disk: FaultyFileSystem, ids: list[int]) -> None:
        log = RemovalLog(disk, DIRECTORY, max_bytes=3_000)
        for _ in range(8):
            removal = replace(make_compaction(), id=log.next_id())
            log.append(removal)
            ids.append(removal.id)

    disk = new_disk()
    first = disk.steps + 1
    script(disk, [])
    assert read_removal_log(disk, DIRECTORY).dropped
    for step in range(first, disk.steps + 1):
        ids: list[int] = []
        disk = new_disk()
        disk.crash_at(step)
        with pytest.raises(PowerLoss):
            script(disk, ids)
        left = disk.after_crash(mode)
        history = read_removal_log(left, DIRECTORY)
        assert not history.faults
        found = [entry.removal.id for entry in history.entries]
        assert set(found) >= set(ids[-2:])
        log = RemovalLog(left, DIRECTORY, max_bytes=3_000)
        log.append(replace(make_compaction(), id=log.next_id()))
        assert not read_removal_log(left, DIRECTORY).faults
