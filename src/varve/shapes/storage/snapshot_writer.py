"""Writes the snapshot of a shape as chunks, which readers follow.

Invariant  a row that reaches the size of a chunk is that chunk's last; no chunk is empty.
Crash      every chunk is synced before the note that makes the snapshot valid.
Threads    one thread.
"""

from typing import Final

import numpy as np

from varve.disk import File
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, Unavailable
from varve.kernels.crc import extend_crc32c
from varve.shapes.storage.snapshot import Snapshot
from varve.shapes.storage.snapshot_chunks import (
    END,
    ROW_END,
    SnapshotChunk,
    chunk_path,
    write_note,
)

BUFFER_BYTES: Final = 64 << 10


class SnapshotWriter:
    """Takes the rows in order; ends with `finish`, or with `abandon` when the rows did not come."""

    def __init__(self, snapshot: Snapshot) -> None:
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
        """Show readers what was added so far."""
        if self._buffer:
            self._write()

    def finish(self, last: bytes) -> None:
        """Ends with this message: the snapshot is complete and durable. Raises OSError."""
        self.add(last)
        if self._chunk_rows:
            self._close_chunk()
        self._is_ended = True
        write_note(self._fs, self._snapshot.directory, self._snapshot.finished_chunks())
        self._snapshot.complete()

    def abandon(self) -> None:
        """Gives up: those who read get an error. Harmless after `finish` and twice."""
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
        self._snapshot.show(self._position)

    def _write_buffer(self) -> File:
        file = self._file or self._create()
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        file.write_at(self._position, data)
        self._crc = extend_crc32c(self._crc, np.frombuffer(data, np.uint8), 0, len(data))
        self._position += len(data)
        return file

    def _create(self) -> File:
        path = chunk_path(self._snapshot.directory, self._number)
        if self._fs.exists(path):
            raise Corrupt(f"{path} is there before it was written: the directory is in use")
        self._file = self._fs.open_writable(path)
        return self._file
