"""A shape's storage: what is written can be read, from memory, from files and from both.

Carries S2.
"""

import errno

import pytest

from tests.support.compaction_bench import CompactionBench
from tests.support.shape_log import (
    HANDLE,
    ROOT,
    SMALL,
    create_storage,
    make_entry,
    messages_of,
    open_storage,
    read_messages,
)
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Closed,
    Corrupt,
    DiskFull,
    InvalidRequest,
    NotFound,
    StoreError,
    Unavailable,
)
from varve.shapes.offset import BEFORE_ALL, LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.chunk_index import ChunkIndexFile
from varve.shapes.storage.layout import index_path, log_path
from varve.shapes.storage.log_writer import INSERT, ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.storage.snapshot import SnapshotWriter
from varve.testing.faulty_disk import FaultyFileSystem


def _disk() -> MemoryFileSystem:
    return MemoryFileSystem(ManualClock())


def _filled(count: int, disk: MemoryFileSystem | None = None) -> ShapeStorage:
    storage = create_storage(disk or _disk())
    for tx in range(1, count + 1):
        storage.append([make_entry(tx)])
    return storage


def test_nothing_of_a_transaction_is_seen_when_its_end_fails() -> None:
    disk = FaultyFileSystem(ManualClock())
    storage = create_storage(disk)
    storage.append([make_entry(1)])
    storage.flush()
    disk.fail_at(disk.steps + 9, OSError(errno.EIO, "broken"))
    with pytest.raises(Unavailable):
        storage.append([make_entry(2, op) for op in range(40)])
    assert storage.live_bytes < len(disk.read(log_path(storage.directory, "latest.0")))
    assert storage.latest == ShapeOffset(1, 0)
    assert read_messages(storage) == messages_of([make_entry(1)])


def test_entries_out_of_order_are_refused_and_change_nothing() -> None:
    storage = create_storage(_disk(), StorageSettings())
    storage.append([make_entry(tx) for tx in range(1, 6)])
    with pytest.raises(InvalidRequest, match="6_0"):
        storage.append([make_entry(7), make_entry(6)])
    with pytest.raises(InvalidRequest, match="not a ShapeEntry"):
        storage.append([make_entry(6), None])  # type: ignore[list-item]  # the kernel is to notice
    storage.append([make_entry(6)])
    assert read_messages(storage) == messages_of([make_entry(tx) for tx in range(1, 7)])


def test_a_fault_behind_entries_that_were_taken_ends_writing() -> None:
    storage = _filled(1)
    wrong = ShapeEntry(ShapeOffset(9, 0), b"", ord("x"), b"")
    with pytest.raises(InvalidRequest, match="9_0"):
        storage.append([*(make_entry(tx) for tx in range(2, 9)), wrong])
    assert storage.failure is not None
    with pytest.raises(InvalidRequest):
        storage.append([make_entry(10)])
    assert read_messages(storage) == messages_of([make_entry(1)])


def test_a_chunk_closes_with_the_entry_that_reaches_its_size() -> None:
    disk = _disk()
    settings = StorageSettings(chunk_bytes=100)
    storage = create_storage(disk, settings)
    json = b'"' + b"x" * 110 + b'"'
    for tx in (1, 2, 3):
        storage.append([ShapeEntry(ShapeOffset(tx, 0), b"test_key", INSERT, json)])
    with disk.open(index_path(storage.directory, "latest.0")) as file:
        result = [(chunk.start, chunk.end) for chunk in ChunkIndexFile(file).complete()]
    # The reference's (0, 150), (150, 300), (300, 450), and four bytes of checksum for each entry.
    assert result == [(0, 154), (154, 308), (308, 462)]


def test_chunk_ends_lead_through_snapshot_and_log() -> None:
    storage = create_storage(_disk())
    assert storage.chunk_end(BEFORE_ALL) == ShapeOffset(0, 0)
    assert storage.chunk_end(ShapeOffset(0, 0)) is None
    for tx in range(1, 60):
        storage.append([make_entry(tx)])
    ends = []
    place = storage.chunk_end(ShapeOffset(0, 0))
    while place is not None:
        ends.append(place)
        place = storage.chunk_end(place)
    assert len(ends) > 4
    assert storage.chunk_end(SNAPSHOT_END) == storage.chunk_end(ShapeOffset(0, 5)) == ends[0]
    assert storage.chunk_end(ShapeOffset(1, 0)) == ends[0]
    storage.close()
    reopened = open_storage(storage.fs)
    assert [reopened.chunk_end(end) for end in ends] == [*ends[1:], None]


def test_snapshot_chunks_are_read_one_by_one() -> None:
    storage = ShapeStorage.create(_disk(), ROOT, HANDLE, SMALL, ManualClock())
    writer = SnapshotWriter(storage.snapshot)
    rows = [b'{"row":"%d","pad":"%s"}' % (n, b"x" * 60) for n in range(7)]
    for row in rows[:4]:
        writer.add(row)
    assert storage.chunk_end(ShapeOffset(0, 3)) == ShapeOffset(0, 4)
    for row in rows[4:]:
        writer.add(row)
    writer.finish(b'{"end":1}')
    storage.append([make_entry(1)])
    last = 2
    assert storage.snapshot.last_chunk == last
    pieces = [read_messages(storage, BEFORE_ALL, ShapeOffset(0, 0))]
    pieces += [
        read_messages(storage, ShapeOffset(0, n), ShapeOffset(0, n + 1)) for n in range(last)
    ]
    assert sum(map(len, pieces)) == 8
    assert read_messages(storage, BEFORE_ALL, LAST) == pieces[0]
    assert read_messages(storage, ShapeOffset(0, last), ShapeOffset(0, last + 1)) == []
    assert storage.chunk_end(ShapeOffset(0, last)) is None
    assert read_messages(storage, ShapeOffset(0, last), LAST) == messages_of([make_entry(1)])


def test_a_reader_knows_whether_the_tail_has_all_it_asks_for() -> None:
    storage = _filled(1)
    assert storage.is_in_memory(SNAPSHOT_END)
    assert not storage.is_in_memory(ShapeOffset(0, 0))
    storage.flush()
    assert not storage.is_in_memory(SNAPSHOT_END)
    assert storage.is_in_memory(ShapeOffset(1, 0))


def test_a_closed_shape_reads_on_and_takes_no_writes() -> None:
    storage = _filled(5)
    storage.close()
    storage.close()
    assert storage.persisted == ShapeOffset(5, 0)
    assert len(read_messages(storage)) == 5
    with pytest.raises(Closed):
        storage.append([make_entry(6)])


def test_a_chunk_that_is_overfull_under_new_settings_closes_with_the_next_entry() -> None:
    disk = _disk()
    storage = create_storage(disk, StorageSettings(chunk_bytes=10_000))
    storage.append([make_entry(tx) for tx in range(1, 21)])
    storage.close()
    storage = open_storage(disk, SMALL)
    storage.append([make_entry(21), make_entry(22)])
    assert storage.chunk_end(SNAPSHOT_END) == ShapeOffset(21, 0)
    assert read_messages(storage) == messages_of([make_entry(tx) for tx in range(1, 23)])


def test_a_handle_is_used_once() -> None:
    disk = _disk()
    create_storage(disk)
    with pytest.raises(InvalidRequest, match="exists"):
        create_storage(disk)


def test_a_dropped_shape_is_not_found_any_more_and_streams_in_flight_go_on() -> None:
    storage = _filled(20)
    storage.flush()
    stream = storage.read(SNAPSHOT_END, LAST)
    next(stream)
    assert storage.drop()
    assert not storage.drop()
    assert sum(1 for _ in stream) > 0
    for call in (
        lambda: storage.read(SNAPSHOT_END, LAST),
        lambda: storage.read(BEFORE_ALL, LAST),
        lambda: storage.chunk_end(SNAPSHOT_END),
        lambda: storage.append([make_entry(99)]),
        storage.flush,
        lambda: storage.compaction_target(0),
    ):
        with pytest.raises(NotFound):
            call()


def test_a_shape_whose_directory_went_is_gone_and_one_that_lost_a_file_is_corrupt() -> None:
    disk = _disk()
    storage = _filled(20, disk)
    storage.flush()
    path = log_path(storage.directory, "latest.0")
    disk.rename(path, path + ".away")
    with pytest.raises(Corrupt, match="missing"):
        storage.read(SNAPSHOT_END, LAST)
    disk.remove_tree(storage.directory)
    with pytest.raises(NotFound, match="gone"):
        storage.read(SNAPSHOT_END, LAST)


def test_a_changed_byte_of_the_log_is_never_given_to_a_client() -> None:
    disk = _disk()
    storage = _filled(20, disk)
    storage.close()
    with disk.open_writable(log_path(storage.directory, "latest.0")) as file:
        byte = file.read_at(70, 1)[0]
        file.write_at(70, bytes([byte ^ 4]))
    with pytest.raises(Corrupt, match="entry at"):
        read_messages(open_storage(disk))


def test_an_entry_larger_than_a_block_is_one_piece() -> None:
    storage = create_storage(_disk())
    entries = [make_entry(1), make_entry(2, size=5000), make_entry(3)]
    for entry in entries:
        storage.append([entry])
    for _ in range(2):
        assert max(map(len, storage.read(SNAPSHOT_END, LAST))) >= 4900
        assert read_messages(storage) == messages_of(entries)
        storage.flush()


def test_pieces_are_bounded() -> None:
    settings = StorageSettings(buffer_bytes=1 << 20, read_bytes=300)
    storage = create_storage(_disk(), settings)
    storage.append([make_entry(tx) for tx in range(1, 60)])
    for _ in range(2):
        assert max(map(len, storage.read(SNAPSHOT_END, LAST))) <= 300
        assert len(read_messages(storage)) == 59
        storage.flush()


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, Unavailable), (errno.ENOSPC, DiskFull)])
def test_a_failed_call_at_any_step_ends_writing_and_reading_goes_on(
    code: int, kind: type[StoreError]
) -> None:
    disk = FaultyFileSystem(ManualClock())
    create_storage(disk)
    first = disk.steps + 1
    step = first
    while True:
        disk = FaultyFileSystem(ManualClock())
        storage = create_storage(disk)
        disk.fail_at(step, OSError(code, "broken"))
        try:
            storage.append([make_entry(tx) for tx in range(1, 8)])
            storage.flush()
            storage.append([make_entry(8)])
            storage.flush()
        except kind:
            assert isinstance(storage.failure, kind)
            with pytest.raises(kind):
                storage.append([make_entry(9)])
            with pytest.raises(kind):
                storage.flush()
            seen = messages_of([make_entry(tx) for tx in range(1, storage.latest.tx + 1)])
            assert read_messages(storage) == (seen if storage.latest != SNAPSHOT_END else [])
            storage.close()
            step += 1
            continue
        break
    assert step > first + 5


def _bench() -> CompactionBench:
    return CompactionBench(MemoryFileSystem(ManualClock()))


def test_an_open_chunk_is_closed_behind_the_last_entry_and_durable() -> None:
    bench = _bench()
    bench.put("row", a=1)
    assert bench.storage.chunk_end(SNAPSHOT_END) is None
    bench.storage.close_chunk()
    assert bench.storage.chunk_end(SNAPSHOT_END) == ShapeOffset(1, 0)
    assert bench.storage.persisted == ShapeOffset(1, 0)
    assert bench.storage.compaction_target(0) == (ShapeOffset(1, 0), bench.storage.live_bytes)
    bench.check()


def test_a_chunk_is_closed_when_all_its_entries_are_flushed() -> None:
    bench = _bench()
    bench.put("row", a=1)
    bench.storage.flush()
    bench.storage.close_chunk()
    bench.storage.close_chunk()
    bench.put("row", a=2)
    bench.storage.flush()
    assert bench.storage.chunk_end(SNAPSHOT_END) == ShapeOffset(1, 0)
    assert bench.storage.chunk_end(ShapeOffset(1, 0)) is None
    bench.check()
    bench.storage.close()
    reopened = bench.reopen(bench.fs)
    assert reopened.chunk_end(SNAPSHOT_END) == ShapeOffset(1, 0)
    bench.check(reopened)
