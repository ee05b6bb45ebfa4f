"""Puts a compacted log in front of the live one: what is not compacted is copied to a new file.

Invariant  nothing that readers may hold is changed: only new files are written, and the manifest
           names them in one step.
Crash      before the manifest is replaced the new files are nobody's; recovery removes them.
"""

from collections.abc import Iterator

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.shapes.storage.chunk_cache import shift_chunk
from varve.shapes.storage.chunk_index import Chunk, ChunkIndexFile, encode_chunks
from varve.shapes.storage.compacted_log import CompactedLog
from varve.shapes.storage.layout import index_path, log_path
from varve.shapes.storage.manifest import Manifest

_COPY_BYTES = 1 << 20


class RestCopy:
    """The live log behind a compacted part, on its way to a file of its own."""

    def __init__(
        self, fs: FileSystem, directory: str, old: Manifest, new: Manifest, position: int
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

    def write_index(self, half_count: int) -> int:
        """Writes the chunks behind the boundary, synced; gives how many halves. Raises OSError."""
        with self._fs.open(index_path(self._directory, self._old.latest)) as source:
            chunks = _chunks_behind(ChunkIndexFile(source, half_count), self._new, self._position)
        data = encode_chunks(chunks)
        path = index_path(self._directory, self._new.latest)
        with self._fs.open_writable(path) as target:
            target.write_at(0, data)
            target.sync()
        return sum(1 if chunk.is_open else 2 for chunk in chunks)


def _blocks(source: File, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = source.read_at(start, min(_COPY_BYTES, end - start))
        if not data:
            raise Corrupt(f"{source.path} ends at {start}, and entries were written up to {end}")
        yield data
        start += len(data)


def _chunks_behind(index: ChunkIndexFile, new: Manifest, position: int) -> list[Chunk]:
    chunks = index.last_chunks(index.half_count)
    return [shift_chunk(chunk, position) for chunk in chunks if chunk.reaches_beyond(new.boundary)]


def check_compacted(index: ChunkIndexFile, compacted: CompactedLog, directory: str) -> None:
    """Raises InvalidRequest when it ends at no chunk of the live log."""
    for chunk in index.complete():
        if chunk.last == compacted.boundary and chunk.end == compacted.position:
            return
    raise InvalidRequest(
        f"compacted log {compacted.suffix} of {directory} ends at {compacted.boundary}, byte "
        f"{compacted.position}, where no chunk of the live log ends: compact again"
    )


def replaced_files(directory: str, old: Manifest, new: Manifest) -> list[str]:
    """Files that the old manifest names and the new one does not."""
    return [
        path_of(directory, suffix)
        for suffix in sorted(old.suffixes - new.suffixes)
        for path_of in (log_path, index_path)
    ]
