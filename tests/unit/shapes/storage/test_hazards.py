"""Hazards of the design that the log's storage avoids, by their numbers."""

import threading
from collections.abc import Callable
from itertools import accumulate

import pytest

from tests.support.shape_log import (
    CLOCK,
    HANDLE,
    ROOT,
    SMALL,
    LogModel,
    compact_plainly,
    create_storage,
    follow,
    joined,
    make_entry,
    messages_of,
    open_storage,
    read_messages,
    write_compacted,
)
from varve.disk import MemoryFileSystem
from varve.disk.memory import MemoryFile
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest
from varve.shapes.offset import LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.layout import index_path, log_directory, log_path, shape_directory
from varve.shapes.storage.log_writer import CompactedLog
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem


def _disk() -> MemoryFileSystem:
    return MemoryFileSystem(ManualClock())


def _filled(count: int, disk: MemoryFileSystem | None = None) -> tuple[ShapeStorage, LogModel]:
    storage, model = create_storage(disk or _disk()), LogModel()
    for tx in range(1, count + 1):
        _append(storage, model, tx)
    return storage, model


def _append(storage: ShapeStorage, model: LogModel, tx: int) -> None:
    storage.append([make_entry(tx)])
    model.append([make_entry(tx)])
    model.commit()


def _check(storage: ShapeStorage, model: LogModel) -> None:
    assert storage.latest == model.latest
    assert follow(storage) == read_messages(storage) == messages_of(model.committed)
    for entry in model.committed:
        assert read_messages(storage, entry.offset) == model.between(entry.offset, LAST)


def test_h3_the_writer_goes_on_behind_a_swap_as_if_there_had_been_none() -> None:
    storage, model = _filled(45)
    twin, _ = _filled(45)
    storage.flush()
    assert compact_plainly(storage, 1)
    for tx in range(30, 90):
        storage.append([make_entry(tx)])
        twin.append([make_entry(tx)])
        if tx > 45:
            model.append([make_entry(tx)])
            model.commit()
    _check(storage, model)
    place: ShapeOffset | None = model.committed[40].offset
    while place is not None:
        assert storage.chunk_end(place) == twin.chunk_end(place)
        place = storage.chunk_end(place)
    storage.close()
    _check(open_storage(storage.fs), model)


def test_h9_the_open_chunk_does_not_count_when_none_is_kept() -> None:
    storage, _ = _filled(3)
    storage.flush()
    assert storage.compaction_target(0) is None
    storage, model = _filled(20)
    storage.flush()
    first = storage.chunk_end(SNAPSHOT_END)
    assert first is not None
    target = storage.compaction_target(0)
    assert target is not None
    assert storage.chunk_end(target[0]) is None
    second = storage.compaction_target(1)
    assert second is not None
    assert second[0] == first
    assert storage.compaction_target(2) is None
    assert compact_plainly(storage, 0)
    _check(storage, model)


def test_h10_a_chunk_closed_within_a_transaction_is_seen_with_all_of_it() -> None:
    storage, model = _filled(3)
    transaction = [make_entry(9, op) for op in range(40)]
    wrong = make_entry(9, 0)
    with pytest.raises(InvalidRequest):
        storage.append([*transaction, wrong])
    assert storage.chunk_end(SNAPSHOT_END) is None
    _check(storage, model)
    storage = open_storage(storage.fs)
    _check(storage, LogModel())
    model.append(transaction)
    storage.append([*model.committed, *transaction])
    model.commit()
    end = storage.chunk_end(SNAPSHOT_END)
    assert end is not None
    assert end < storage.latest
    _check(storage, model)


class _CompactingFileSystem(MemoryFileSystem):
    """Compacts a shape between the moment a reader knows the files and the one it opens them."""

    storage: ShapeStorage | None = None

    def open(self, path: str) -> MemoryFile:
        if self.storage is not None:
            storage, self.storage = self.storage, None
            assert compact_plainly(storage, 1)
        return super().open(path)


@pytest.mark.parametrize("read", [read_messages, follow])
def test_h11_a_reader_whose_files_were_replaced_reads_the_new_ones(
    read: Callable[[ShapeStorage], list[object]],
) -> None:
    disk = _CompactingFileSystem(ManualClock())
    storage, model = _filled(60, disk)
    storage.flush()
    disk.storage = storage
    assert read(storage) == messages_of(model.committed)
    assert storage.manifest.compacted is not None
    assert not disk.exists(log_path(storage.directory, "latest.0"))
    _check(storage, model)


def test_h11_a_stream_in_flight_reads_on_while_its_file_is_removed() -> None:
    disk = _disk()
    storage, model = _filled(60, disk)
    storage.flush()
    stream = storage.read(SNAPSHOT_END, LAST)
    first = next(stream)
    assert compact_plainly(storage, 0)
    assert not disk.exists(log_path(storage.directory, "latest.0"))
    assert b",".join([first, *stream]) == b",".join(e.json for e in model.committed)


def test_h14_a_limit_between_entries_of_the_tail_is_exact() -> None:
    storage = create_storage(_disk(), StorageSettings())
    entries = [make_entry(10 * tx) for tx in range(1, 9)]
    for entry in entries[:4]:
        storage.append([entry])
    storage.flush()
    for entry in entries[4:]:
        storage.append([entry])
    for limit in range(5, 100, 5):
        expected = messages_of([e for e in entries if e.offset <= ShapeOffset(limit, 0)])
        assert read_messages(storage, SNAPSHOT_END, ShapeOffset(limit, 0)) == expected


def test_h15_what_is_not_durable_is_not_compacted() -> None:
    storage, _ = _filled(30)
    assert storage.persisted == SNAPSHOT_END
    assert storage.compaction_target(0) is None
    storage.flush()
    compacted = write_compacted(storage, 0)
    assert compacted is not None
    storage.append([make_entry(40, op) for op in range(40)])
    assert storage.compaction_target(0) is None
    beyond = CompactedLog(ShapeOffset(41, 0), compacted.position, compacted.suffix)
    with pytest.raises(InvalidRequest, match="durable"):
        storage.install(beyond)
    elsewhere = CompactedLog(compacted.boundary, compacted.position + 1, compacted.suffix)
    with pytest.raises(InvalidRequest, match="no chunk"):
        storage.install(elsewhere)
    nowhere = CompactedLog(compacted.boundary, compacted.position, "compacted.99")
    with pytest.raises(InvalidRequest, match="does not exist"):
        storage.install(nowhere)
    storage.install(compacted)
    assert len(read_messages(storage)) == 70


def test_h18_a_tail_that_a_reader_holds_is_never_cleared() -> None:
    storage = create_storage(_disk(), StorageSettings())
    entries = [make_entry(tx) for tx in range(1, 6)]
    storage.append(entries)
    stream = storage.read(SNAPSHOT_END, LAST)
    storage.flush()
    storage.append([make_entry(6)])
    storage.close()
    assert b",".join(stream) == b",".join(entry.json for entry in entries)


def test_h24_leftovers_without_a_manifest_are_wiped() -> None:
    disk = _disk()
    directory = shape_directory(ROOT, HANDLE)
    disk.make_directory(log_directory(directory))
    for path in (log_path(directory, "latest.0"), index_path(directory, "latest.0")):
        with disk.open_writable(path) as file:
            file.write_at(0, b"left over")
    storage, model = _filled(9, disk)
    storage.close()
    _check(open_storage(disk), model)


def test_readers_see_a_growing_prefix_while_another_thread_writes_and_swaps() -> None:
    """H4, H11, H14, H18 under threads: flushes, swaps and transactions beside two readers."""
    storage = create_storage(_disk(), SMALL)
    faults, is_over = list[BaseException](), threading.Event()
    transactions = [[make_entry(tx, op) for op in range(1 + tx % 4)] for tx in range(1, 301)]
    every = messages_of([entry for entries in transactions for entry in entries])
    counts = dict(zip(range(1, 301), accumulate(map(len, transactions)), strict=True))

    def read() -> None:
        try:
            while not is_over.is_set():
                latest = storage.latest
                result = read_messages(storage, SNAPSHOT_END, LAST)
                assert result == every[: len(result)]
                assert not result or len(result) in counts.values()
                assert latest == SNAPSHOT_END or len(result) >= counts[latest.tx]
        except BaseException as error:
            faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for tx, entries in enumerate(transactions, 1):
        storage.append(entries)
        if tx % 25 == 0:
            storage.flush()
        if tx % 100 == 0:
            assert compact_plainly(storage, 1, now_ms=CLOCK.now_ms())
    is_over.set()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()
    assert faults == []


def test_flushes_of_another_thread_beside_appends_keep_what_they_promise() -> None:
    disk = FaultyFileSystem(ManualClock())
    storage = create_storage(disk, SMALL)
    promised, is_over = list[ShapeOffset](), threading.Event()

    def flush() -> None:
        while not is_over.is_set():
            committed = storage.latest
            storage.flush()
            promised.append(committed)

    flusher = threading.Thread(target=flush)
    flusher.start()
    for tx in range(1, 300):
        storage.append([make_entry(tx, op) for op in range(1 + tx % 3)])
    is_over.set()
    flusher.join(30)
    assert not flusher.is_alive()
    assert storage.persisted >= promised[-1]
    reopened = open_storage(disk.after_crash(CrashMode.LOSE_UNSYNCED))
    assert reopened.latest >= promised[-1]
    left = [make_entry(tx, op) for tx in range(1, 300) for op in range(1 + tx % 3)]
    left = [entry for entry in left if entry.offset <= reopened.latest]
    assert follow(reopened) == read_messages(reopened) == messages_of(left)


def test_a_read_that_begins_before_recovery_is_not_cut_by_it() -> None:
    disk = MemoryFileSystem(CLOCK)
    crashed = create_storage(disk)
    crashed.append([make_entry(tx) for tx in range(1, 11)])
    crashed.flush()
    crashed.append([make_entry(tx) for tx in range(11, 31)])
    reopened = open_storage(disk)
    stream = reopened.read(SNAPSHOT_END, LAST)
    reopened.append([make_entry(tx) for tx in range(11, 13)])
    assert len(joined(stream)) == 10
