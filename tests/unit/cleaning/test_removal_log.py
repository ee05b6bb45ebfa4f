"""The evidence file keeps every line for good, and shows when one was changed or taken out."""

import errno
import json
from pathlib import Path

import pytest

from tests.support.balances import make_compaction, make_expiry
from varve.cleaning.removals.removal_log import (
    FIRST_CHAIN,
    REMOVAL_LOG_FILE,
    RemovalLog,
    read_removal_log,
)
from varve.disk import MemoryFileSystem
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
