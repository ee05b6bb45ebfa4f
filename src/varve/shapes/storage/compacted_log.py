"""Replaces the start of a live log by a compacted log, and copies the remaining entries.

Invariant  a compacted log ends where a chunk of the live log ends. The entries after it are copied
           to new files; no file that readers may have open is changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.chunk_index import ChunkIndexFile, encode_chunks, shift_chunk
from varve.shapes.storage.layout import ShapeManifest, index_path, log_path

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactedLog:
    """A compacted log of all entries up to `boundary`: those of the previous compacted log, and of
    the live log up to `position`. Its files, named by `suffix`, are durable.
    """

    boundary: ShapeOffset
    position: int
    suffix: str


def check_compacted(index: ChunkIndexFile, compacted: CompactedLog, directory: str) -> None:
    """Raises InvalidRequest unless it ends with a chunk of the live log."""
    for chunk in index.complete():
        if chunk.last == compacted.boundary and chunk.end == compacted.position:
            return
    raise InvalidRequest(
        f"compacted log {compacted.suffix} of {directory} ends at {compacted.boundary}, byte "
        f"{compacted.position}, where no chunk of the live log ends: compact again"
    )


class RestCopy:
    """Copies the live log after a compacted part to new files."""

    def __init__(
        self, fs: FileSystem, directory: str, old: ShapeManifest, new: ShapeManifest, position: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._old = old
        self._new = new
        self._position = position
        self._copied = position

    def copy_to(self, end: int) -> None:
        """Copies entries up to this byte of the old log, and syncs them. Raises OSError."""
        with (
            self._fs.open(log_path(self._directory, self._old.latest)) as source,
            self._fs.open_writable(log_path(self._directory, self._new.latest)) as target,
        ):
            for data in _blocks(source, self._copied, end):
                target.write_at(self._copied - self._position, data)
                self._copied += len(data)
            target.sync()

    def write_index(self, edge_count: int) -> int:
        """Writes and syncs the chunks after the boundary; returns their edges. Raises OSError."""
        with self._fs.open(index_path(self._directory, self._old.latest)) as source:
            chunks = [
                shift_chunk(chunk, self._position)
                for chunk in ChunkIndexFile(source, edge_count).last_chunks(edge_count)
                if chunk.reaches_beyond(self._new.boundary)
            ]
        with self._fs.open_writable(index_path(self._directory, self._new.latest)) as target:
            target.write_at(0, encode_chunks(chunks))
            target.sync()
        return sum(1 if chunk.is_open else 2 for chunk in chunks)


def _blocks(source: File, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = source.read_at(start, min(_COPY_BYTES, end - start))
        if not data:
            raise Corrupt(f"{source.path} ends at {start}, and entries were written up to {end}")
        yield data
        start += len(data)
