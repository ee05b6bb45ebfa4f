"""The snapshot of one shape: written once, by one writer, in chunks that readers follow meanwhile.

Layout     `<n>.jsonsnapshot`: rows as `<json>,\\n`, then the byte 0x04. `snapshot.json` has the
           bytes, rows and CRC-32C of each chunk. docs/reference/formats/shape-snapshot.md
Invariant  a reader gets whole rows only, each once and in order, in pieces joined by commas; the
           last piece of a chunk only after the checksum of the whole chunk was verified. A row that
           reaches the size of a chunk is that chunk's last; no chunk is empty.
Crash      every chunk is synced before snapshot.json is written, which makes the snapshot valid;
           an unfinished one cannot be opened and is never resumed.
Threads    one writer, any number of readers; readers wait for the writer without reading the disk.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from varve.disk import File, FileSystem, JsonDocument
from varve.foundation.errors import (
    Closed,
    Corrupt,
    InvalidRequest,
    NotFound,
    StoreError,
    Unavailable,
)
from varve.kernels.crc import crc32c_of

END: Final = b"\x04"
"""The last byte of every chunk."""
ROW_END: Final = b",\n"
CHUNK_LIST_NAME: Final = "snapshot.json"
_CHUNK_LIST: Final = JsonDocument(version=1, version_name="version", max_bytes=1 << 30, indent=None)


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A finished chunk: the size of its file, the messages in it, the checksum of all its bytes."""

    size: int
    rows: int
    crc: int


def chunk_path(directory: str, number: int) -> str:
    return f"{directory}/{number}.jsonsnapshot"


def write_chunk_list(fs: FileSystem, directory: str, chunks: list[SnapshotChunk]) -> None:
    """Marks the snapshot as complete, with its chunks; durable on return."""
    fields = [{"bytes": chunk.size, "rows": chunk.rows, "crc32c": chunk.crc} for chunk in chunks]
    _CHUNK_LIST.write(fs, f"{directory}/{CHUNK_LIST_NAME}", {"chunks": fields})


def read_chunk_list(fs: FileSystem, directory: str) -> list[SnapshotChunk]:
    """The chunks of a complete snapshot; raises NotFound when it is not complete, Corrupt."""
    path = f"{directory}/{CHUNK_LIST_NAME}"
    document = _CHUNK_LIST.read(fs, path)
    if document is None:
        raise NotFound(f"{path} is missing: the snapshot was never finished, drop the shape")
    try:
        chunks = [
            SnapshotChunk(_number(chunk["bytes"]), _number(chunk["rows"]), _number(chunk["crc32c"]))
            for chunk in document["chunks"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path} does not describe a snapshot: {error!r:.200}") from None
    if not chunks:
        raise Corrupt(f"{path} lists no chunk, and every snapshot has one: drop the shape")
    return chunks


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.60} is not a count")
    return value


PIECE_BYTES: Final = 256 << 10
"""Bytes of a piece, unless a single row is larger."""

Await = Callable[[int], tuple[int, SnapshotChunk | None]]
"""How much of the chunk may be read, once that is more than a position, and the chunk if it is
finished."""


def read_pieces(file: File, await_more: Await) -> Iterator[bytes]:
    """Reads the chunk to its end, as its writer proceeds; closes the file at the end."""
    with file:
        position, crc, carry = 0, 0, b""
        chunk: SnapshotChunk | None = None
        while chunk is None or position < chunk.size:
            visible, chunk = await_more(position)
            read_size = max(PIECE_BYTES - len(carry), len(carry))
            block = file.read_at(position, min(read_size, visible - position))
            if not block:
                raise Corrupt(f"{file.path} ends at byte {position}, {visible} bytes were written")
            position += len(block)
            crc = crc32c_of(block, crc)
            rows = carry + block if carry else block
            if chunk is not None and position >= chunk.size:
                rows = _checked(file, rows, crc, chunk)
            end = rows.rfind(b"\n") + 1
            carry = rows[end:]
            piece = _without_comma(file, rows, end) if end else b""
            # A client that stops reading keeps this generator alive: hold only the piece meanwhile.
            block = rows = b""
            if piece:
                yield piece
        if carry:
            raise Corrupt(f"{file.path} has {len(carry)} bytes after its last row")


def _checked(file: File, rows: bytes, crc: int, chunk: SnapshotChunk) -> bytes:
    if crc != chunk.crc:
        raise Corrupt(f"{file.path} has CRC-32C {crc:#010x}, {chunk.crc:#010x} was written")
    if not rows.endswith(END):
        raise Corrupt(f"{file.path} does not end with the byte 0x04")
    return rows[:-1]


def _without_comma(file: File, rows: bytes, end: int) -> bytes:
    if end < 3 or rows[end - 2 : end - 1] != b",":
        raise Corrupt(f"{file.path} has a row that does not end with a comma")
    return rows[: end - 2]


CHUNK_WAIT_MS = 60_000
"""How long a reader waits for a chunk to be started."""
ROWS_WAIT_MS = 90_000
"""How long a reader waits for more rows of a chunk."""


class ShapeSnapshot:
    """The state of a snapshot, shared by its readers and its writer."""

    def __init__(self, fs: FileSystem, directory: str, chunk_bytes: int) -> None:
        self.fs = fs
        self.directory = directory
        self.chunk_bytes = chunk_bytes
        self._changed = threading.Condition()
        self._chunks: list[SnapshotChunk] = []  # guarded by _changed
        self._open_size: int | None = None  # guarded by _changed; None: no chunk is open
        self._is_complete = False  # guarded by _changed
        self._failure: StoreError | None = None  # guarded by _changed

    @classmethod
    def open(cls, fs: FileSystem, directory: str) -> Self:
        """A complete snapshot; raises NotFound when it is not complete, Corrupt."""
        snapshot = cls(fs, directory, 0)
        snapshot._chunks = read_chunk_list(fs, directory)
        snapshot._is_complete = True
        return snapshot

    @property
    def is_started(self) -> bool:
        """Whether a reader gets rows, or learns that there are none."""
        return self._is_complete or bool(self._chunks) or self._open_size is not None

    @property
    def last_chunk(self) -> int | None:
        """The number of the last chunk; None until that is known."""
        return len(self._chunks) - 1 if self._is_complete else None

    @property
    def rows(self) -> int:
        """Rows in finished chunks, without the message at the end of the snapshot."""
        with self._changed:
            return sum(chunk.rows for chunk in self._chunks) - self._is_complete

    def read_chunk(self, number: int, *, wait_ms: int = CHUNK_WAIT_MS) -> Iterator[bytes] | None:
        """The rows of a chunk in pieces; None when the snapshot ended before it.

        Waits for a chunk that is not started. Raises at the call where possible, and between pieces
        Corrupt, or Unavailable when the writer failed or does not continue.
        """
        if not self._await_chunk(number, wait_ms):
            return None
        file = self.fs.open(chunk_path(self.directory, number))
        return read_pieces(file, lambda position: self._await_rows(number, position))

    # The writer's side

    def publish(self, size: int) -> None:
        """Sets how many bytes of the open chunk may be read."""
        with self._changed:
            self._open_size = size
            self._changed.notify_all()

    def close_chunk(self, chunk: SnapshotChunk) -> None:
        with self._changed:
            self._chunks.append(chunk)
            self._open_size = None
            self._changed.notify_all()

    def complete(self) -> None:
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()

    def finished_chunks(self) -> list[SnapshotChunk]:
        with self._changed:
            return list(self._chunks)

    def fail(self, error: StoreError) -> None:
        """Ends the snapshot with an error, which readers get."""
        with self._changed:
            if not self._is_complete:
                self._failure = error
            self._changed.notify_all()

    # Waiting

    def _await_chunk(self, number: int, wait_ms: int) -> bool:
        with self._changed:
            is_decided = self._changed.wait_for(
                lambda: self._is_begun_locked(number) or self._is_complete or self._failure,
                wait_ms / 1000,
            )
            if self._is_begun_locked(number):
                return True
            self._check_locked()
            if not is_decided:
                raise Unavailable(
                    f"{chunk_path(self.directory, number)} was not begun within {wait_ms} ms: "
                    "the snapshot is being written, try again"
                )
            return False

    def _await_rows(self, number: int, position: int) -> tuple[int, SnapshotChunk | None]:
        """The readable bytes of a chunk, more than `position`; and the chunk if it is finished."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._visible_locked(number) > position or self._failure,
                ROWS_WAIT_MS / 1000,
            )
            if number < len(self._chunks):
                return self._chunks[number].size, self._chunks[number]
            size = self._visible_locked(number)
            if size > position:
                return size, None
            self._check_locked()
            raise Unavailable(
                f"{chunk_path(self.directory, number)} did not grow beyond {position} bytes within "
                f"{ROWS_WAIT_MS} ms: the snapshot is being written, try again"
            )

    def _is_begun_locked(self, number: int) -> bool:
        started_count = len(self._chunks) + (self._open_size is not None)
        return number < started_count

    def _visible_locked(self, number: int) -> int:
        if number < len(self._chunks):
            return self._chunks[number].size
        return self._open_size or 0

    def _check_locked(self) -> None:
        if self._failure is not None:
            raise self._failure.again()


BUFFER_BYTES: Final = 64 << 10


class SnapshotWriter:
    """Writes the rows in order; ends with `finish`, or with `abandon` after a failure."""

    def __init__(self, snapshot: ShapeSnapshot) -> None:
        if snapshot.is_started:
            raise InvalidRequest(
                f"{snapshot.directory} has a snapshot already: a shape gets one, once"
            )
        self._snapshot = snapshot
        self._fs = snapshot.fs
        self._file: File | None = None
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._chunk_rows = 0
        self._chunk_bytes = 0
        self._position = 0
        self._crc = 0
        self._number = 0
        self._is_ended = False

    def add(self, json: bytes) -> None:
        """Appends one message; it may close the chunk. Raises OSError of the disk."""
        if self._is_ended:
            raise Closed(f"the snapshot in {self._snapshot.directory} was ended already")
        if not json or b"\n" in json:
            raise InvalidRequest(
                "a row of a snapshot is one line of JSON, and not empty: this one is "
                f"{len(json)} bytes {json[:40]!r}"
            )
        self._buffer += (json, ROW_END)
        self._buffered_bytes += len(json) + len(ROW_END)
        self._chunk_rows += 1
        self._chunk_bytes += len(json) + 1
        if self._chunk_bytes >= self._snapshot.chunk_bytes:
            self._close_chunk()
        elif self._buffered_bytes >= BUFFER_BYTES:
            self._write()

    def flush(self) -> None:
        """Makes the rows added so far visible to readers."""
        if self._buffer:
            self._write()

    def finish(self, last: bytes) -> None:
        """Ends with this message: the snapshot is complete and durable. Raises OSError."""
        self.add(last)
        if self._chunk_rows:
            self._close_chunk()
        self._is_ended = True
        write_chunk_list(self._fs, self._snapshot.directory, self._snapshot.finished_chunks())
        self._snapshot.complete()

    def abandon(self) -> None:
        """Ends the snapshot with an error for readers. Harmless after `finish`, and twice."""
        self._is_ended = True
        self._buffer.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        directory = self._snapshot.directory
        self._snapshot.fail(Unavailable(f"the snapshot in {directory} was given up"))

    def _close_chunk(self) -> None:
        self._buffer.append(END)
        file = self._write_buffer()
        file.sync()
        file.close()
        self._file = None
        self._snapshot.close_chunk(SnapshotChunk(self._position, self._chunk_rows, self._crc))
        self._number += 1
        self._chunk_rows = self._chunk_bytes = self._position = self._crc = 0

    def _write(self) -> None:
        self._write_buffer()
        self._snapshot.publish(self._position)

    def _write_buffer(self) -> File:
        file = self._file or self._create()
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        file.write_at(self._position, data)
        self._crc = crc32c_of(data, self._crc)
        self._position += len(data)
        return file

    def _create(self) -> File:
        path = chunk_path(self._snapshot.directory, self._number)
        if self._fs.exists(path):
            raise Corrupt(
                f"{path} exists before it was written: another process uses the directory"
            )
        self._file = self._fs.open_writable(path)
        return self._file
