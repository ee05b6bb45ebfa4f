"""A wrong or missing index costs a scan of its segment, never a record and never the directory."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.log_bench import (
    BROKEN,
    DIRECTORY,
    NOW_MS,
    Bench,
    FaultyBench,
    make_batch,
    offsets_in,
    read_all,
)
from varve.commit_log import Isolation, TimestampOffset
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.foundation.errors import Corrupt

SIZE = len(make_batch())
COUNT = 30


@pytest.fixture
def closed(bench: Bench) -> Bench:
    """A closed segment of 30 batches with an index entry for almost each, then an active one."""
    bench.set(index_interval_bytes=1).open()
    for number in range(COUNT):
        bench.log.append(make_batch(time=number))
    bench.log.roll()
    bench.log.append(make_batch(time=COUNT))
    return reopened(bench)


def reopened(bench: Bench) -> Bench:
    """The same log without anything in memory."""
    bench.reopen()
    return bench


def test_the_empty_index_of_a_log_without_records_is_not_rebuilt(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.open()
    reopened(bench)
    assert caplog.messages == []


def offset_entries(bench: Bench, base: int = 0) -> list[list[int]]:
    data = bench.read_file(base, ".index")
    return [list(entry) for entry in OffsetIndex.decode(data, base, len(data)).entries().tolist()]


def time_entries(bench: Bench, base: int = 0) -> list[list[int]]:
    data = bench.read_file(base, ".timeindex")
    return [list(entry) for entry in TimeIndex.decode(data, base, len(data)).entries().tolist()]


def encode_offsets(entries: list[list[int]]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def encode_times(entries: list[list[int]]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def shift_positions(entries: list[list[int]]) -> bytes:
    """Each position is that of the batch two later: a trusting reader skips two batches."""
    return encode_offsets([[offset, position + 2 * SIZE] for offset, position in entries])


def inside_batches(entries: list[list[int]]) -> bytes:
    return encode_offsets([[offset, position + 7] for offset, position in entries])


def behind_the_end(entries: list[list[int]]) -> bytes:
    return encode_offsets([[offset, position + 1_000_000] for offset, position in entries])


def negative(entries: list[list[int]]) -> bytes:
    return encode_offsets([[offset, position - 1_000_000] for offset, position in entries])


def lowered_offsets(entries: list[list[int]]) -> bytes:
    return encode_offsets([[offset - 1, position] for offset, position in entries])


def zeros(entries: list[list[int]]) -> bytes:
    return bytes(8 * len(entries))


def torn(entries: list[list[int]]) -> bytes:
    return encode_offsets(entries)[:-3]


def random_bytes(entries: list[list[int]]) -> bytes:
    return bytes((7 * at * at + 13) % 256 for at in range(8 * len(entries)))


DAMAGES = [
    shift_positions,
    inside_batches,
    behind_the_end,
    negative,
    lowered_offsets,
    zeros,
    torn,
    random_bytes,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_offset_index_hides_no_record(
    closed: Bench, damage: Callable[[list[list[int]]], bytes]
) -> None:
    closed.write(0, ".index", damage(offset_entries(closed)))
    for offset in range(COUNT):
        fetched = closed.log.read(start_offset=offset, max_bytes=1)
        assert offsets_in(fetched) == [offset]
    assert read_all(closed.log) == list(range(COUNT + 1))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_offset_index_is_replaced_by_maintenance(
    closed: Bench, damage: Callable[[list[list[int]]], bytes]
) -> None:
    closed.write(0, ".index", damage(offset_entries(closed)))
    closed.log.read(start_offset=COUNT - 1)
    closed.log.maintain(NOW_MS)
    data = closed.read_file(0, ".index")
    index = OffsetIndex.decode(data, 0, len(data))
    index.check("index")
    for offset, position in index.entries().tolist():
        assert position == offset * SIZE


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_a_damaged_index_is_replaced_when_the_log_closes(closed: Bench, kind: str) -> None:
    """A command opens, reads and closes a log; no maintenance runs between."""
    damaged = b"\xff" * len(closed.read_file(0, kind))
    closed.write(0, kind, damaged)
    closed.log.read(start_offset=COUNT - 1)
    closed.log.find_offset_by_time(NOW_MS + COUNT - 1)
    closed.log.close()
    assert closed.read_file(0, kind) != damaged


def test_an_offset_index_that_vanishes_while_the_log_is_open_is_rebuilt(closed: Bench) -> None:
    closed.fs.remove(closed.path(0, ".index"))
    assert offsets_in(closed.log.read(start_offset=17, max_bytes=1)) == [17]
    closed.log.maintain(NOW_MS)
    assert closed.fs.exists(closed.path(0, ".index"))


@pytest.mark.parametrize("is_reopened", [True, False])
def test_a_lost_index_is_rebuilt_by_the_index_interval_of_the_topic(
    bench: Bench, is_reopened: bool
) -> None:
    bench.set(index_interval_bytes=SIZE * 3).open()
    for number in range(COUNT):
        bench.log.append(make_batch(time=number))
    bench.log.roll()
    if is_reopened:
        bench.reopen()
    before = offset_entries(bench), time_entries(bench)
    assert len(before[0]) > 1
    for kind in (".index", ".timeindex"):
        bench.fs.remove(bench.path(0, kind))
    bench.log.read(start_offset=COUNT - 1)
    bench.log.maintain(NOW_MS)
    assert (offset_entries(bench), time_entries(bench)) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_of_the_last_segment_keeps_no_log_from_opening(
    bench: Bench, damage: Callable[[list[list[int]]], bytes]
) -> None:
    bench.set(index_interval_bytes=1).open()
    bench.fill(COUNT)
    bench.log.close()
    bench.write(0, ".index", damage(offset_entries(bench)))
    log = bench.open(clean=True)
    assert log.end_offset == COUNT
    for offset in range(COUNT):
        assert offsets_in(log.read(start_offset=offset, max_bytes=1)) == [offset]


def test_damage_in_front_of_the_last_entry_of_the_last_segment_hides_no_record(
    bench: Bench,
) -> None:
    bench.set(index_interval_bytes=1).open()
    bench.fill(COUNT)
    bench.log.close()
    entries = offset_entries(bench)
    for entry in entries[5:15]:
        entry[1] += 1
    bench.write(0, ".index", encode_offsets(entries))
    log = bench.open(clean=True)
    for offset in range(COUNT):
        assert offsets_in(log.read(start_offset=offset, max_bytes=1)) == [offset]


def test_a_damaged_data_file_keeps_its_index(closed: Bench) -> None:
    """The index leads past the damage to the batches behind it; a rebuilt one would not."""
    entries = offset_entries(closed)
    data = bytearray(closed.read_file(0))
    data[10 * SIZE + 16] = 77
    closed.write(0, ".log", bytes(data))
    wrong = [[offset, position + (offset == 5)] for offset, position in entries]
    closed.write(0, ".index", encode_offsets(wrong))
    assert offsets_in(closed.log.read(start_offset=5, max_bytes=1)) == [5]
    assert offsets_in(closed.log.read(start_offset=20, max_bytes=1)) == [20]
    closed.log.maintain(NOW_MS)
    assert offset_entries(closed) == wrong


def test_a_small_read_at_a_batch_of_zeros_is_an_error_and_not_the_end(closed: Bench) -> None:
    data = bytearray(closed.read_file(0))
    data[10 * SIZE : 11 * SIZE] = bytes(SIZE)
    closed.write(0, ".log", bytes(data))
    for max_bytes in (1, 20, SIZE, 2 * SIZE):
        closed.log.read(start_offset=9, max_bytes=1)
        with pytest.raises(Corrupt):
            closed.log.read(start_offset=10, max_bytes=max_bytes)


# By time


def later_offsets(entries: list[list[int]]) -> bytes:
    return encode_times([[timestamp, offset + 3] for timestamp, offset in entries])


def earlier_times(entries: list[list[int]]) -> bytes:
    return encode_times([[timestamp - 4, offset] for timestamp, offset in entries])


def negative_times(entries: list[list[int]]) -> bytes:
    return encode_times([[n - 1000, offset] for n, (_, offset) in enumerate(entries)])


def no_times(entries: list[list[int]]) -> bytes:
    return bytes(12 * len(entries))


TIME_DAMAGES = [later_offsets, earlier_times, negative_times, no_times]


@pytest.mark.parametrize("damage", TIME_DAMAGES)
def test_a_damaged_time_index_hides_no_record(
    closed: Bench, damage: Callable[[list[list[int]]], bytes]
) -> None:
    closed.write(0, ".timeindex", damage(time_entries(closed)))
    for number in range(COUNT + 1):
        found = closed.log.find_offset_by_time(NOW_MS + number)
        assert found == TimestampOffset(NOW_MS + number, number)


@pytest.mark.parametrize("damage", TIME_DAMAGES)
def test_the_largest_timestamp_is_not_taken_from_a_damaged_time_index(
    closed: Bench, damage: Callable[[list[list[int]]], bytes]
) -> None:
    closed.write(0, ".timeindex", damage(time_entries(closed)))
    (segment,) = closed.log.view.closed
    assert segment.max_timestamp == NOW_MS + COUNT - 1
    closed.log.maintain(NOW_MS)
    assert time_entries(closed)[-1] == [NOW_MS + COUNT - 1, COUNT - 1]


# Aborted transactions


@pytest.fixture
def aborted(bench: Bench) -> Bench:
    """An aborted transaction that begins in one segment and ends in the next."""
    bench.open()
    fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    bench.log.append(make_batch(base_sequence=0, **fields))
    bench.log.roll()
    bench.log.append(make_batch(base_sequence=1, **fields))
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    bench.log.roll()
    bench.log.append(make_batch())
    return reopened(bench)


@pytest.mark.parametrize("damage", ["removed", "torn", "version"])
def test_a_lost_index_of_aborted_transactions_shows_none_of_them(
    aborted: Bench, damage: str
) -> None:
    data = aborted.read_file(1, ".txnindex")
    if damage == "removed":
        aborted.fs.remove(aborted.path(1, ".txnindex"))
    else:
        aborted.write(1, ".txnindex", data[:-1] if damage == "torn" else b"\0\x09" + data[2:])
    segment = aborted.log.view.closed[1]
    segment._files.forget(segment)  # opening the log has read the index
    fetched = aborted.log.read(start_offset=0, isolation=Isolation.READ_COMMITTED)
    assert [(one.producer_id, one.first_offset) for one in fetched.aborted] == [(1, 0)]
    aborted.log.maintain(NOW_MS)
    assert aborted.read_file(1, ".txnindex") == data


# Files that vanish before a sync


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_an_index_that_vanishes_before_the_sync_is_written_again(
    bench: Bench, kind: str, is_reopened: bool
) -> None:
    bench.set(index_interval_bytes=1).open()
    fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    bench.log.append(make_batch(base_sequence=0, **fields))
    bench.log.append(make_batch(base_sequence=1, **fields))
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    bench.log.roll()
    bench.log.append(make_batch())
    if is_reopened:
        bench.crash(recovery_point=0)
    data = bench.read_file(0, kind)
    bench.fs.remove(bench.path(0, kind))
    bench.log.flush()
    assert bench.log.recovery_point == 4
    assert bench.read_file(0, kind) == data


def test_a_snapshot_that_vanishes_before_the_sync_is_passed_over(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=0))
    bench.log.roll()
    bench.fs.remove(bench.path(1, ".snapshot"))
    bench.log.flush()
    bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=1))
    bench.reopen()
    assert bench.log.active_producers().keys() == {1}
    repeated = bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=1))
    assert repeated.is_duplicate


def test_append_times_that_vanish_before_the_sync_are_written_again(bench: Bench) -> None:
    bench.open()
    bench.fill(1, 1)
    path = f"{bench.log.directory}/varve-append-times"
    bench.fs.remove(path)
    bench.log.flush()
    assert bench.fs.exists(path)


@pytest.mark.parametrize("batch", [0, COUNT // 2, COUNT - 2, COUNT - 1])
def test_a_damaged_batch_hides_no_time_in_later_segments(closed: Bench, batch: int) -> None:
    data = bytearray(closed.read_file(0))
    data[batch * SIZE : (batch + 1) * SIZE] = bytes(SIZE)
    closed.write(0, ".log", bytes(data))
    assert closed.log.find_offset_by_time(NOW_MS + COUNT) == TimestampOffset(NOW_MS + COUNT, COUNT)
    assert closed.log.find_max_timestamp() == TimestampOffset(NOW_MS + COUNT, COUNT)


@pytest.mark.parametrize("size", [0, 2 * SIZE, 20 * SIZE, 20 * SIZE + 9])
def test_a_data_file_that_lost_its_end_keeps_its_time_and_what_is_left(
    closed: Bench, size: int
) -> None:
    index = closed.read_file(0, ".timeindex")
    closed.write(0, ".timeindex", index[-12:])
    closed.write(0, ".log", closed.read_file(0)[:size])
    closed.reopen()
    first = 0 if size else COUNT
    assert closed.log.find_offset_by_time(NOW_MS) == TimestampOffset(NOW_MS + first, first)
    closed.log.close()
    if size % SIZE or not size:
        assert closed.read_file(0, ".timeindex") == index[-12:]


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex"])
def test_an_index_too_large_for_its_segment_is_not_read(tmp_path: Path, kind: str) -> None:
    with varve.open(tmp_path, maintain=False) as store:
        topic = store.create_topic("t")
        for number in range(COUNT):
            topic.append(str(number))
        topic.partition(0).log.roll()
    with (tmp_path / "t-0" / f"{0:020}{kind}").open("ab") as file:
        file.truncate(256 << 30)
    with varve.open(tmp_path, maintain=False) as store:
        topic = store.topic("t")
        assert [record.offset for record in topic.read(start=7)] == list(range(7, COUNT))
        found = topic.offset_for_time(0, partition=0)
        assert found is not None
        committed = topic.read(isolation="read_committed")
        assert len(list(committed)) == COUNT


# Files that cannot be read


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_a_derived_file_that_cannot_be_read_takes_nothing_offline(
    faulty: FaultyBench, kind: str
) -> None:
    faulty.open()
    fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    faulty.log.append(make_batch(base_sequence=0, time=3, **fields))
    faulty.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    faulty.log.roll()
    faulty.log.append(make_batch())
    faulty.log.close()
    (name, *_) = [n for n in faulty.fs.names(DIRECTORY) if n.endswith(kind)]
    faulty.fs.fail_under(f"{DIRECTORY}/{name}", BROKEN)
    log = faulty.open(clean=True, recovery_point=3)
    fetched = log.read(start_offset=0, isolation=Isolation.READ_COMMITTED)
    assert [(one.producer_id, one.first_offset) for one in fetched.aborted] == [(1, 0)]
    assert log.find_offset_by_time(NOW_MS + 3) == TimestampOffset(NOW_MS + 3, 0)
    assert log.active_producers().keys() == {1}
    assert log.health.is_usable
