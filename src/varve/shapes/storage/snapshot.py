"""The snapshot of one shape: written once, by one writer, and read by any number meanwhile.

Invariant  a reader sees whole rows only, each once and in order; chunk n is seen before chunk n+1.
Crash      a snapshot whose writer did not finish cannot be opened; it is never resumed.
Threads    one writer, any number of readers; readers wait for the writer without asking the disk.
"""

import threading
from collections.abc import Iterator
from typing import Self

from varve.disk import FileSystem
from varve.foundation.errors import StoreError, Unavailable
from varve.shapes.storage.snapshot_chunks import SnapshotChunk, chunk_path, read_note
from varve.shapes.storage.snapshot_reader import read_pieces

CHUNK_WAIT_MS = 60_000
"""How long a reader waits for a chunk that is not begun yet."""
ROWS_WAIT_MS = 90_000
"""How long a reader waits for more rows of a chunk."""


class Snapshot:
    """What readers and the writer know of a snapshot."""

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
        snapshot._chunks = read_note(fs, directory)
        snapshot._is_complete = True
        return snapshot

    @property
    def is_started(self) -> bool:
        """Whether a reader finds rows, or knows that there are none."""
        return self._is_complete or bool(self._chunks) or self._open_size is not None

    @property
    def last_chunk(self) -> int | None:
        """The number of the last chunk; None as long as nobody knows."""
        return len(self._chunks) - 1 if self._is_complete else None

    @property
    def rows(self) -> int:
        """Rows in finished chunks, without the message at the end of the snapshot."""
        with self._changed:
            return sum(chunk.rows for chunk in self._chunks) - self._is_complete

    def read_chunk(self, number: int, *, wait_ms: int = CHUNK_WAIT_MS) -> Iterator[bytes] | None:
        """The rows of a chunk in pieces; None when the snapshot ended before it.

        Waits for a chunk that is not begun. Raises at the call what can be known by then, and while
        it gives pieces Corrupt, or Unavailable when the writer gave up or does not go on.
        """
        if not self._await_chunk(number, wait_ms):
            return None
        file = self.fs.open(chunk_path(self.directory, number))
        return read_pieces(file, lambda position: self._await_rows(number, position))

    # The writer's side

    def show(self, size: int) -> None:
        """The open chunk has so many bytes that may be read."""
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
        """Nobody writes on: readers get the error."""
        with self._changed:
            if not self._is_complete:
                self._failure = error
            self._changed.notify_all()

    # Waiting

    def _await_chunk(self, number: int, wait_ms: int) -> bool:
        with self._changed:
            is_known = self._changed.wait_for(
                lambda: self._is_begun_locked(number) or self._is_complete or self._failure,
                wait_ms / 1000,
            )
            if self._is_begun_locked(number):
                return True
            self._check_locked()
            if not is_known:
                raise Unavailable(
                    f"{chunk_path(self.directory, number)} was not begun within {wait_ms} ms: "
                    "the snapshot is being written, try again"
                )
            return False

    def _await_rows(self, number: int, position: int) -> tuple[int, SnapshotChunk | None]:
        """How much of a chunk may be read, more than `position`; the chunk if it is finished."""
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
        begun = len(self._chunks) + (self._open_size is not None)
        return number < begun

    def _visible_locked(self, number: int) -> int:
        if number < len(self._chunks):
            return self._chunks[number].size
        return self._open_size or 0

    def _check_locked(self) -> None:
        if self._failure is not None:
            raise self._failure.again()
