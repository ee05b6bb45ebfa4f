"""The removal log shows when a line was changed or taken out; old lines that none needs go."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.audit_bench import AuditBench
from tests.support.balances import make_compaction, make_expiry
from varve.cleaning.removals.audit import audit_partition
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    encode_removal,
)
from varve.cleaning.removals.removal_log import (
    FIRST_CHAIN,
    REMOVAL_LOG_BYTES_MAX,
    REMOVAL_LOG_FILE,
    RemovalLog,
    encode_line,
    read_removal_log,
)
from varve.disk import MemoryFileSystem, PowerLoss
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, InvalidRequest, Unbalanced
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

DIRECTORY = "/orders-0"
PATH = f"{DIRECTORY}/{REMOVAL_LOG_FILE}"


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory(DIRECTORY)
    return fs


def fill(fs: MemoryFileSystem) -> None:
    """Balances 1, 3 and 5, of which the first two are done."""
    evidence = RemovalLog(fs, DIRECTORY)
    evidence.append(make_compaction(1))
    evidence.mark_done(1)
    evidence.append(make_expiry(3))
    evidence.mark_done(3)
    evidence.append(make_compaction(5))


def overwrite(fs: MemoryFileSystem, data: bytes) -> None:
    with fs.open_writable(PATH) as file:
        file.truncate(0)
        file.write_at(0, data)


def lines(fs: MemoryFileSystem) -> list[bytes]:
    return fs.read(PATH).splitlines(keepends=True)


def faulty_lines(fs: MemoryFileSystem) -> list[int]:
    return sorted({fault.line_number for fault in read_removal_log(fs, DIRECTORY).faults})


def test_without_a_file_nothing_is_on_record(fs: MemoryFileSystem) -> None:
    evidence = RemovalLog(fs, DIRECTORY)
    assert evidence.read() == []
    assert evidence.next_id() == 1
    assert read_removal_log(fs, DIRECTORY).head == FIRST_CHAIN
    assert fs.names(DIRECTORY) == []


def test_what_was_put_on_record_is_read_back(fs: MemoryFileSystem) -> None:
    fill(fs)
    entries = RemovalLog(fs, DIRECTORY).read()
    assert [entry.removal for entry in entries] == [
        make_compaction(1),
        make_expiry(3),
        make_compaction(5),
    ]
    assert [entry.is_done for entry in entries] == [True, True, False]
    assert all(entry.is_intact for entry in entries)


def test_ids_go_on_in_another_object(fs: MemoryFileSystem) -> None:
    fill(fs)
    evidence = RemovalLog(fs, DIRECTORY)
    assert evidence.next_id() == 6
    evidence.append(make_expiry(6))
    assert [entry.removal.id for entry in evidence.read()] == [1, 3, 5, 6]


def test_two_objects_in_turn_keep_one_chain(fs: MemoryFileSystem) -> None:
    first, second = RemovalLog(fs, DIRECTORY), RemovalLog(fs, DIRECTORY)
    for number in range(1, 7):
        evidence = first if number % 2 else second
        assert evidence.next_id() == number
        evidence.append(make_expiry(number))
    assert len(first.read()) == 6


def test_an_id_out_of_turn_is_refused(fs: MemoryFileSystem) -> None:
    fill(fs)
    evidence = RemovalLog(fs, DIRECTORY)
    for id in (5, 7):
        with pytest.raises(InvalidRequest, match="the next id is 6"):
            evidence.append(make_expiry(id))
    with pytest.raises(InvalidRequest, match="the last id is 5"):
        evidence.mark_done(6)
    assert len(lines(fs)) == 5


def test_what_does_not_add_up_is_not_put_on_record(fs: MemoryFileSystem) -> None:
    balance = make_expiry(1)
    balance.records.clear()
    with pytest.raises(Unbalanced):
        RemovalLog(fs, DIRECTORY).append(balance)
    assert fs.names(DIRECTORY) == []


def test_lines_are_json_that_other_tools_read(fs: MemoryFileSystem) -> None:
    fill(fs)
    documents = [json.loads(line) for line in lines(fs)]
    assert [document["id"] for document in documents] == [1, 2, 3, 4, 5]
    assert documents[0]["records"] == {"kept": 8, "superseded": 3, "tombstone_expired": 1}
    assert documents[0]["inputs"] == [[0, 10, 700, 7, None], [10, 20, 500, 5, 77]]
    assert documents[1]["done"] == 1


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_changed_line_is_found_alone(fs: MemoryFileSystem, number: int) -> None:
    fill(fs)
    kept = lines(fs)
    kept[number - 1] = kept[number - 1].replace(b'"version":1', b'"version": 1')
    overwrite(fs, b"".join(kept))
    assert faulty_lines(fs) == [number]
    with pytest.raises(Corrupt, match=rf"line {number}: .*chain.*`varve audit`"):
        RemovalLog(fs, DIRECTORY).read()


def test_a_changed_line_stays_told_after_further_appends(fs: MemoryFileSystem) -> None:
    fill(fs)
    kept = lines(fs)
    kept[4] = kept[4].replace(b'"kept":8', b'"kept":9')
    overwrite(fs, b"".join(kept))
    RemovalLog(fs, DIRECTORY).append(make_expiry(6))
    assert faulty_lines(fs) == [5]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_line_that_was_taken_out_is_missed_by_the_next(fs: MemoryFileSystem, number: int) -> None:
    fill(fs)
    kept = lines(fs)
    del kept[number - 1]
    overwrite(fs, b"".join(kept))
    assert number in faulty_lines(fs)


def test_lines_in_another_order_are_found(fs: MemoryFileSystem) -> None:
    fill(fs)
    kept = lines(fs)
    overwrite(fs, b"".join([kept[0], kept[2], kept[1], *kept[3:]]))
    assert set(faulty_lines(fs)) >= {2, 3}


@pytest.mark.parametrize("id", [2, 3, 5])
def test_an_id_that_does_not_follow_is_found_though_its_chain_is_right(
    fs: MemoryFileSystem, id: int
) -> None:
    chain, data = FIRST_CHAIN, b""
    for number in (1, 2, 3, id if id < 4 else 5):
        document = {"version": 1, "id": number, **encode_removal(make_expiry(number))}
        line, chain = encode_line(document, chain)
        data += line
    overwrite(fs, data)
    assert faulty_lines(fs) == [4]


def test_a_line_that_is_no_line_is_found_and_appends_go_on(fs: MemoryFileSystem) -> None:
    fill(fs)
    with fs.open_writable(PATH) as file:
        file.write_at(file.size(), b"a note by hand\n")
    evidence = RemovalLog(fs, DIRECTORY)
    assert evidence.next_id() == 7
    evidence.append(make_expiry(7))
    assert faulty_lines(fs) == [6]


@pytest.mark.parametrize("keep", [1, 40, -76, -2, -1])
def test_a_torn_last_line_is_cut_by_the_next_append(fs: MemoryFileSystem, keep: int) -> None:
    fill(fs)
    kept = lines(fs)
    overwrite(fs, b"".join(kept[:4]) + kept[4][:keep])
    assert read_removal_log(fs, DIRECTORY).torn_bytes == len(kept[4][:keep])
    evidence = RemovalLog(fs, DIRECTORY)
    assert [entry.removal.id for entry in evidence.read()] == [1, 3]
    assert evidence.next_id() == 5
    evidence.append(make_compaction(5))
    assert lines(fs) == kept


def test_a_last_line_with_sectors_missing_is_torn_too(fs: MemoryFileSystem) -> None:
    fill(fs)
    kept = lines(fs)
    overwrite(fs, b"".join(kept[:4]) + bytes(100) + kept[4][100:])
    evidence = RemovalLog(fs, DIRECTORY)
    assert len(evidence.read()) == 2
    evidence.append(make_compaction(5))
    assert lines(fs) == kept


def test_a_first_line_that_is_torn_leaves_an_empty_file(fs: MemoryFileSystem) -> None:
    with fs.open_writable(PATH) as file:
        file.write_at(0, b'{"version":1,"id":1,')
    evidence = RemovalLog(fs, DIRECTORY)
    assert evidence.next_id() == 1
    evidence.append(make_expiry(1))
    assert len(evidence.read()) == len(lines(fs)) == 1


def test_lines_longer_than_what_is_read_at_once_are_continued(fs: MemoryFileSystem) -> None:
    long = "x" * 200_000
    RemovalLog(fs, DIRECTORY).append(make_expiry(1, rule=long))
    RemovalLog(fs, DIRECTORY).append(make_expiry(2, rule=long))
    RemovalLog(fs, DIRECTORY).mark_done(2)
    entries = RemovalLog(fs, DIRECTORY).read()
    assert [entry.is_done for entry in entries] == [False, True]


def test_a_line_of_a_later_version_is_named(fs: MemoryFileSystem) -> None:
    fill(fs)
    overwrite(fs, lines(fs)[0].replace(b'"version":1', b'"version":2'))
    messages = [fault.message for fault in read_removal_log(fs, DIRECTORY).faults]
    assert any("version 2 is not known" in message for message in messages)


def test_a_line_whose_sync_failed_is_made_due_again() -> None:
    disk = FaultyFileSystem(ManualClock())
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    evidence = RemovalLog(disk, DIRECTORY)
    evidence.append(make_expiry(1))
    disk.fail_at(disk.steps + 2, OSError(errno.EIO, "failed"))
    with pytest.raises(OSError, match="failed"):
        evidence.append(make_expiry(2))
    assert evidence.next_id() == 3
    evidence.append(make_expiry(3))
    left = disk.after_crash(CrashMode.LOSE_UNSYNCED)
    assert [entry.removal.id for entry in RemovalLog(left, DIRECTORY).read()] == [1, 2, 3]


def test_the_example_of_the_format_page_is_whole(fs: MemoryFileSystem) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "formats" / "evidence.md"
    example = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    overwrite(fs, example.encode())
    (entry,) = RemovalLog(fs, DIRECTORY).read()
    assert entry.is_done
    entry.removal.check()
    written = MemoryFileSystem(ManualClock())
    written.make_directory(DIRECTORY)
    RemovalLog(written, DIRECTORY).append(entry.removal)
    RemovalLog(written, DIRECTORY).mark_done(1)
    assert written.read(PATH) == example.encode()


# Old lines are dropped, and what is needed of them is kept


MAX_BYTES = 20_000


def append_done(log: RemovalLog, removal: Removal) -> int:
    removal = replace(removal, id=log.next_id())
    log.append(removal)
    log.mark_done(removal.id)
    return removal.id


def fill_up(log: RemovalLog, count: int = 200) -> list[int]:
    return [append_done(log, make_expiry()) for _ in range(count)]


def test_the_file_stays_below_twice_its_bound(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY)
    for _ in range(60):
        append_done(log, make_expiry(rule="x" * (1 << 19)))
        assert fs.info(PATH).size < 2 * REMOVAL_LOG_BYTES_MAX


def test_the_newest_lines_stay_chained_and_keep_their_ids(fs: MemoryFileSystem) -> None:
    ids = fill_up(RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES))
    history = read_removal_log(fs, DIRECTORY)
    assert history.faults == []
    kept = [entry.removal.id for entry in history.entries]
    assert kept == ids[-len(kept) :]
    assert len(kept) > 10
    assert all(entry.is_done for entry in history.entries)
    assert history.dropped > 200
    log = RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES)
    assert log.next_id() == 401
    append_done(log, make_expiry())
    assert log.read()[-1].removal.id == 401


def test_a_changed_byte_is_noticed_in_any_line(fs: MemoryFileSystem) -> None:
    bench = AuditBench(fs, "/logs", "orders-1")
    log = RemovalLog(fs, bench.directory, max_bytes=MAX_BYTES)
    left = bench.write(0, [0, 1])
    append_done(log, replace(bench.compaction([left], [left]), partition=bench.partition))
    fill_up(log)
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
    id = append_done(log, bench.compaction([taken], [left]))
    later = replace(make_expiry(), inputs=(SegmentSummary(100, 110, 700, 7),), end_offset=110)
    for _ in range(200):
        append_done(log, later)
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
    append_done(log, bench.compaction([SegmentSummary(0, 10, 700, 7)], [left]))
    append_done(log, bench.compaction([left], [other]))
    last = append_done(log, bench.compaction([other], [replace(other, size=left.size)]))
    for _ in range(200):
        append_done(log, replace(make_expiry(), inputs=(SegmentSummary(100, 110, 700, 7),)))
    first = read_removal_log(fs, bench.directory).entries[0]
    assert first.removal.id == last


def test_the_last_eviction_is_kept(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES)
    eviction = replace(
        make_expiry(), kind=RemovalKind.EVICTION, records={Reason.EVICTED: 7}, bytes={}
    )
    append_done(log, eviction)
    last = append_done(log, replace(eviction, end_offset=11))
    fill_up(log)
    evictions = [
        entry.removal for entry in log.read() if entry.removal.kind is RemovalKind.EVICTION
    ]
    assert [(one.id, one.end_offset) for one in evictions] == [(last, 11)]


def test_a_head_of_a_dropped_line_is_no_error(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES)
    append_done(log, make_expiry())
    head = read_removal_log(fs, DIRECTORY).head
    fill_up(log)
    report = audit_partition(fs, DIRECTORY, head=head)
    assert report.is_clean
    assert [finding.rule for finding in report.findings] == ["head"]
    assert not audit_partition(fs, DIRECTORY, head=report.head).findings


def test_a_file_with_a_fault_is_left_whole(fs: MemoryFileSystem) -> None:
    log = RemovalLog(fs, DIRECTORY)
    fill_up(log, 100)
    data = fs.read(PATH).replace(b'"id":5,', b'"id":6,', 1)
    with fs.open_writable(PATH) as file:
        file.write_at(0, data)
    append_done(RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES), make_expiry())
    assert fs.read(PATH).startswith(data)
    with pytest.raises(Corrupt, match="line 5"):
        log.read()


def test_a_line_about_dropped_lines_stands_first_or_is_a_fault(fs: MemoryFileSystem) -> None:
    fill_up(RemovalLog(fs, DIRECTORY, max_bytes=MAX_BYTES))
    first, *others = fs.read(PATH).splitlines(keepends=True)
    with fs.open_writable(PATH) as file:
        file.truncate(0)
        file.write_at(0, b"".join([first, first, *others]))
    assert faulty_lines(fs) in ([2], [2, 3])


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
