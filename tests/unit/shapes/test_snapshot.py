"""Snapshots of shapes: their bytes, chunks, readers that follow, and broken files."""

import threading
from collections.abc import Iterator

import pytest

from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, NotFound, Unavailable
from varve.shapes.storage.snapshot import ShapeSnapshot, SnapshotWriter

DIRECTORY = "/shape/log"


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory(DIRECTORY)
    return fs


def _write(fs: MemoryFileSystem, rows: list[bytes], *, chunk_bytes: int = 100) -> ShapeSnapshot:
    snapshot = ShapeSnapshot(fs, DIRECTORY, chunk_bytes)
    writer = SnapshotWriter(snapshot)
    for row in rows[:-1]:
        writer.add(row)
    writer.finish(rows[-1])
    return snapshot


def _rows(pieces: Iterator[bytes] | None) -> list[bytes]:
    assert pieces is not None
    return [row for piece in pieces for row in piece.split(b",\n")]


def _change(fs: MemoryFileSystem, path: str, position: int, data: bytes) -> None:
    with fs.open_writable(path) as file:
        file.write_at(position, data)


def test_the_bytes_of_a_chunk_are_lines_and_an_end(fs: MemoryFileSystem) -> None:
    _write(fs, [b'{"a":1}'])
    assert fs.read(f"{DIRECTORY}/0.jsonsnapshot").hex() == "7b2261223a317d2c0a04"


def test_a_snapshot_without_rows_is_one_chunk_with_its_end(fs: MemoryFileSystem) -> None:
    snapshot = _write(fs, [b'{"end":1}'], chunk_bytes=5)
    assert snapshot.last_chunk == 0
    assert _rows(snapshot.read_chunk(0)) == [b'{"end":1}']
    assert snapshot.read_chunk(1) is None


def test_the_row_that_reaches_the_size_is_the_last_of_its_chunk(fs: MemoryFileSystem) -> None:
    rows = [b'{"row":%d}' % number for number in range(10, 19)]
    snapshot = _write(fs, rows, chunk_bytes=33)
    assert snapshot.last_chunk == 2
    assert [_rows(snapshot.read_chunk(number)) for number in range(3)] == [
        rows[:3],
        rows[3:6],
        rows[6:],
    ]


def test_an_end_message_behind_a_full_chunk_stands_alone(fs: MemoryFileSystem) -> None:
    snapshot = _write(fs, [*[b'{"row":10}'] * 3, b'{"end":1}'], chunk_bytes=33)
    assert snapshot.last_chunk == 1
    assert _rows(snapshot.read_chunk(1)) == [b'{"end":1}']


def test_pieces_are_joined_by_commas_into_a_json_array(fs: MemoryFileSystem) -> None:
    rows = [b'{"row":"%s"}' % (b"x" * (7000 + number)) for number in range(120)]
    snapshot = _write(fs, rows, chunk_bytes=1 << 20)
    pieces = list(snapshot.read_chunk(0) or ())
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= 256 << 10
    assert b",".join(pieces).replace(b"\n", b"") == b",".join(rows)


def test_a_row_larger_than_a_piece_comes_whole(fs: MemoryFileSystem) -> None:
    rows = [b'"%s"' % (b"y" * 700_000), b"1", b'"%s"' % (b"z" * 300_000)]
    snapshot = _write(fs, rows, chunk_bytes=4 << 20)
    assert _rows(snapshot.read_chunk(0)) == rows


@pytest.mark.parametrize("row", [b"", b"{\n}"])
def test_a_row_that_is_not_one_line_is_refused(fs: MemoryFileSystem, row: bytes) -> None:
    writer = SnapshotWriter(ShapeSnapshot(fs, DIRECTORY, 100))
    with pytest.raises(InvalidRequest, match="one line"):
        writer.add(row)


def test_a_shape_has_one_snapshot_only(fs: MemoryFileSystem) -> None:
    snapshot = _write(fs, [b"1"])
    with pytest.raises(InvalidRequest, match="snapshot already"):
        SnapshotWriter(snapshot)
    with pytest.raises(Corrupt, match="before it was written"):
        _write(fs, [b"1"])


def test_nothing_is_added_behind_the_end(fs: MemoryFileSystem) -> None:
    writer = SnapshotWriter(ShapeSnapshot(fs, DIRECTORY, 100))
    writer.finish(b"1")
    with pytest.raises(Closed):
        writer.add(b"2")


def test_a_finished_snapshot_is_found_again(fs: MemoryFileSystem) -> None:
    rows = [b'{"row":%d}' % number for number in range(10, 20)]
    _write(fs, [*rows, b'{"end":1}'], chunk_bytes=33)
    snapshot = ShapeSnapshot.open(fs, DIRECTORY)
    assert snapshot.is_started
    assert snapshot.last_chunk == 3
    assert snapshot.rows == 10
    assert _rows(snapshot.read_chunk(0)) == rows[:3]


def test_a_snapshot_that_was_not_finished_is_not_found(fs: MemoryFileSystem) -> None:
    writer = SnapshotWriter(ShapeSnapshot(fs, DIRECTORY, 5))
    writer.add(b"123456")
    with pytest.raises(NotFound, match="never finished"):
        ShapeSnapshot.open(fs, DIRECTORY)


@pytest.mark.parametrize(
    "note", [b"", b"[]", b"{}", b'{"version":9,"chunks":[]}', b'{"version":1,"chunks":[]}']
)
def test_a_broken_note_is_refused(fs: MemoryFileSystem, note: bytes) -> None:
    with fs.open_writable(f"{DIRECTORY}/snapshot.json") as file:
        file.write_at(0, note)
    with pytest.raises(Corrupt):
        ShapeSnapshot.open(fs, DIRECTORY)


def test_a_changed_byte_is_seen_before_the_last_piece(fs: MemoryFileSystem) -> None:
    snapshot = _write(fs, [b'{"row":"%s"}' % (b"x" * 5000)] * 100, chunk_bytes=1 << 20)
    whole = list(snapshot.read_chunk(0) or ())
    _change(fs, f"{DIRECTORY}/0.jsonsnapshot", 100, b"y")
    seen: list[bytes] = []
    with pytest.raises(Corrupt, match="CRC-32C"):
        seen.extend(snapshot.read_chunk(0) or ())
    assert len(seen) <= len(whole) - 1


def test_a_short_file_is_refused(fs: MemoryFileSystem) -> None:
    snapshot = _write(fs, [b"1", b"2"])
    with fs.open_writable(f"{DIRECTORY}/0.jsonsnapshot") as file:
        file.truncate(3)
    with pytest.raises(Corrupt):
        list(snapshot.read_chunk(0) or ())


def test_rows_are_read_while_the_snapshot_is_written(fs: MemoryFileSystem) -> None:
    snapshot = ShapeSnapshot(fs, DIRECTORY, 1000)
    writer = SnapshotWriter(snapshot)
    assert not snapshot.is_started
    writer.add(b"1")
    writer.flush()
    assert snapshot.is_started
    assert snapshot.last_chunk is None
    pieces = snapshot.read_chunk(0)
    assert pieces is not None
    assert next(pieces) == b"1"
    writer.add(b"2")
    writer.add(b"3")
    writer.flush()
    assert next(pieces) == b"2,\n3"
    writer.finish(b"4")
    assert list(pieces) == [b"4"]
    assert snapshot.read_chunk(1) is None


def test_readers_in_other_threads_get_every_row_once(fs: MemoryFileSystem) -> None:
    rows = [b'{"row":"%d %s"}' % (number, b"x" * (number % 3000)) for number in range(400)]
    snapshot = ShapeSnapshot(fs, DIRECTORY, 150_000)
    result: list[list[bytes]] = [[], [], []]

    def follow(into: list[bytes]) -> None:
        number = 0
        while (pieces := snapshot.read_chunk(number)) is not None:
            into.extend(_rows(pieces))
            number += 1

    threads = [threading.Thread(target=follow, args=(into,)) for into in result]
    for thread in threads:
        thread.start()
    writer = SnapshotWriter(snapshot)
    for row in rows:
        writer.add(row)
    writer.finish(b"end")
    for thread in threads:
        thread.join(20)
    assert result == [[*rows, b"end"]] * 3


def test_readers_learn_that_the_writer_gave_up(fs: MemoryFileSystem) -> None:
    snapshot = ShapeSnapshot(fs, DIRECTORY, 1000)
    writer = SnapshotWriter(snapshot)
    writer.add(b"1")
    writer.flush()
    pieces = snapshot.read_chunk(0)
    assert pieces is not None
    next(pieces)
    writer.abandon()
    with pytest.raises(Unavailable, match="given up"):
        next(pieces)
    with pytest.raises(Unavailable):
        snapshot.read_chunk(1)
    with pytest.raises(Unavailable):
        ShapeSnapshot(fs, DIRECTORY, 1000).read_chunk(0, wait_ms=1)


def test_giving_up_after_the_end_changes_nothing(fs: MemoryFileSystem) -> None:
    snapshot = ShapeSnapshot(fs, DIRECTORY, 1000)
    writer = SnapshotWriter(snapshot)
    writer.finish(b"1")
    writer.abandon()
    assert _rows(snapshot.read_chunk(0)) == [b"1"]
