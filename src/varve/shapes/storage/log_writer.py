"""Writes the entries of one shape to its log and chunk index, and publishes states for readers.

Invariant  persisted <= written <= latest in a `ShapeLogState`; the first and the last are ends of
           transactions. Everything up to `written` is in the log files, below `log_end`; the
           entries after it are the first `tail_count` of the tail. Lists only grow, and the writer
           starts new ones instead of clearing them, so a state stays valid while a reader uses it.
           The edges of the chunk index are written before the entries they cover; a chunk that is
           evicted from the cache is in the file. A compacted log ends where a chunk of the live
           log ends; the entries after it are copied to new files, and no file that readers may have
           open is changed.
Crash      nothing is durable before a flush; recovery cuts both files to the last persisted
           transaction.
Threads    all calls of the writer under the storage's lock; states are read by any thread.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from varve.disk import Buffer, File, FileSystem
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.shapes.kernels.log_entries import NUMBER_MAX, EntryStatus, encode_entries
from varve.shapes.offset import INFINITE_OP, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.chunk_index import (
    EDGE_BYTES,
    ChunkCache,
    ChunkEdge,
    ChunkIndexFile,
    encode_chunks,
    encode_edge,
    shift_chunk,
)
from varve.shapes.storage.layout import (
    Pointer,
    ShapeManifest,
    index_path,
    log_directory,
    log_path,
)

INSERT, UPDATE, DELETE, CONTROL = b"iudc"
TRANSACTION_END: Final = b'"last":true}}'
"""The end of the JSON of a transaction's last entry; a compaction removes it."""


class ShapeEntry(NamedTuple):
    """A message at its offset; `operation` is the code of i, u, d or c; c has an empty key.

    Kernels rely on the order of the fields.
    """

    offset: ShapeOffset
    key: bytes
    operation: int
    json: bytes


def kernel_offset(offset: ShapeOffset) -> tuple[int, int]:
    """An offset as the two numbers of kernels, in which NUMBER_MAX is infinity."""
    if offset.tx > NUMBER_MAX:
        return NUMBER_MAX, NUMBER_MAX
    return offset.tx, min(offset.op, NUMBER_MAX)


def from_kernel_offset(tx: int, op: int) -> ShapeOffset:
    return ShapeOffset(tx, INFINITE_OP if op == NUMBER_MAX else op)


_OFFSET: Final = itemgetter(0)


class Mark(NamedTuple):
    """A boundary between two entries of the live log: the offset before it, and its byte."""

    offset: ShapeOffset
    position: int


class ShapeLogState(NamedTuple):
    """A shape's log at one moment."""

    manifest: ShapeManifest
    written: ShapeOffset = SNAPSHOT_END
    persisted: ShapeOffset = SNAPSHOT_END
    latest: ShapeOffset = SNAPSHOT_END
    log_end: int = 0
    edge_count: int = 0
    """Edges of the live chunk index that are in its file."""
    cache: ChunkCache = ChunkCache()
    tail: tuple[ShapeEntry, ...] | list[ShapeEntry] = ()
    tail_count: int = 0
    marks: tuple[Mark, ...] | list[Mark] = ()
    mark_count: int = 0

    def find_mark(self, offset: ShapeOffset) -> Mark | None:
        """The last mark at or before an offset."""
        at = bisect_right(self.marks, offset, 0, self.mark_count, key=_OFFSET)
        return self.marks[at - 1] if at else None


def tail_pieces(
    state: ShapeLogState, after: ShapeOffset, until: ShapeOffset, size_max: int
) -> Iterator[bytes]:
    """Messages of the tail above one offset and up to another, joined by commas.

    The entries are taken at the call; a piece exceeds the size only when its first message does.
    """
    start = bisect_right(state.tail, after, 0, state.tail_count, key=_OFFSET)
    end = bisect_right(state.tail, until, start, state.tail_count, key=_OFFSET)
    return _join([entry.json for entry in state.tail[start:end]], size_max)


def _join(messages: list[bytes], size_max: int) -> Iterator[bytes]:
    start, size = 0, 0
    for index, message in enumerate(messages):
        if size and size + len(message) > size_max:
            yield b",".join(messages[start:index])
            start, size = index, 0
        size += len(message) + 1
    if start < len(messages):
        yield b",".join(messages[start:])


MARKS_MAX = 512
"""Marks kept in memory; they are at least `buffer_bytes` of the log apart."""

_FAULTS = {
    EntryStatus.BAD_FIELD: (
        "has a transaction below 1, an operation out of range or an operation type but i, u, d, c"
    ),
    EntryStatus.BAD_ORDER: "is not above the entry before it",
    EntryStatus.NOT_AN_ENTRY: "is not a ShapeEntry",
}


class LogEnd(NamedTuple):
    """Where a log and its index end: after `last`. With an odd `edge_count` a chunk is open."""

    last: ShapeOffset
    position: int = 0
    edge_count: int = 0
    chunk_json_bytes: int = 0
    """JSON bytes of the open chunk."""
    cache: ChunkCache = ChunkCache()


class LogWriter:
    """Appends entries to a live log."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        manifest: ShapeManifest,
        settings: StorageSettings,
        end: LogEnd,
    ) -> None:
        self.latest = end.last
        self.written = end.last
        self.cache = end.cache
        self.tail: list[ShapeEntry] = []
        self.marks: list[Mark] = [Mark(end.last, end.position)]
        self.log_end = end.position
        self.edge_count = end.edge_count
        self._fs = fs
        self._directory = directory
        self._manifest = manifest
        self._settings = settings
        self._is_chunk_open = end.edge_count % 2 == 1
        self._chunk_json_bytes = end.chunk_json_bytes
        self._buffers: list[Buffer] = []
        self._buffered_bytes = 0
        self._edges: list[bytes] = []
        self._log_file: File | None = None
        self._index_file: File | None = None
        self._is_named = False

    @property
    def position(self) -> int:
        """Where the next entry begins, once the buffer is written."""
        return self.log_end + self._buffered_bytes

    @property
    def is_synced(self) -> bool:
        """Whether nothing is buffered and nothing was written since the last sync."""
        return not self._buffers and self._log_file is None and self._index_file is None

    def append(self, entries: list[ShapeEntry], start: int) -> None:
        """Appends entries from an index on. Raises OSError."""
        while start < len(entries):
            status, count, data, json_bytes = encode_entries(
                entries,
                start=start,
                # A chunk that was started under another setting may exceed the limit.
                json_room=max(1, self._settings.chunk_bytes - self._chunk_json_bytes),
                byte_room=self._settings.buffer_bytes - self._buffered_bytes,
                last=kernel_offset(self.latest),
            )
            if status != EntryStatus.MORE:
                raise _invalid_entry(entries[start + count], EntryStatus(status), self._directory)
            if not self._is_chunk_open:
                self._open_chunk(entries[start].offset)
            self._buffers.append(memoryview(data))
            self._buffered_bytes += data.size
            self._chunk_json_bytes += json_bytes
            self.latest = entries[start + count - 1].offset
            if self._chunk_json_bytes >= self._settings.chunk_bytes:
                self._close_chunk()
                self.write_out()
            elif self._buffered_bytes >= self._settings.buffer_bytes:
                self.write_out()
            else:
                self.tail += entries[start:] if start else entries
            start += count

    def close_chunk(self) -> None:
        """Ends the open chunk after the last entry, however small it is. Raises OSError."""
        if self._is_chunk_open:
            self._close_chunk()
            self.write_out()

    def write_out(self) -> None:
        """Writes the buffer to the files and starts a new tail. Raises OSError."""
        if self._edges:
            index = self._index_file or self._open(index_path)
            self._index_file = index
            index.write_at(self.edge_count * EDGE_BYTES, *self._edges)
            self.edge_count += len(self._edges)
            self._edges = []
        if not self._buffers:
            return
        log = self._log_file or self._open(log_path)
        self._log_file = log
        log.write_at(self.log_end, *self._buffers)
        self.log_end += self._buffered_bytes
        self._buffers, self._buffered_bytes = [], 0
        self.written = self.latest
        self.tail = []
        self._add_mark()

    def take_unsynced(self) -> tuple[list[File], str | None]:
        """Writes the buffer; returns the files to sync, and the directory if they are new.

        The caller syncs and closes them.
        """
        self.write_out()
        files = [file for file in (self._index_file, self._log_file) if file is not None]
        directory = log_directory(self._directory) if files and not self._is_named else None
        self._index_file = self._log_file = None
        self._is_named = self._is_named or bool(files)
        return files, directory

    def move(self, manifest: ShapeManifest, position: int, edge_count: int) -> None:
        """Continues in the live log of a new manifest, which begins this many bytes later.

        The caller has written the buffer, and synced the new files and their directory.
        """
        self._manifest = manifest
        self.log_end -= position
        self.edge_count = edge_count
        self.cache = self.cache.moved(manifest.boundary, position)
        later = [mark for mark in self.marks if mark.position > position]
        moved = (Mark(mark.offset, mark.position - position) for mark in later)
        self.marks = [Mark(manifest.boundary, 0), *moved]
        self.close()

    def close(self) -> None:
        """Closes the files unsynced."""
        for file in (self._index_file, self._log_file):
            if file is not None:
                file.close()
        self._index_file = self._log_file = None

    def _open_chunk(self, first: ShapeOffset) -> None:
        self._edges.append(encode_edge(ChunkEdge(first, self.position)))
        self.cache = self.cache.with_opened(first, self.position)
        self._is_chunk_open = True

    def _close_chunk(self) -> None:
        self._edges.append(encode_edge(ChunkEdge(self.latest, self.position)))
        self.cache = self.cache.with_closed(self.latest, self.position)
        self._is_chunk_open = False
        self._chunk_json_bytes = 0

    def _open(self, path: Callable[[str, str], str]) -> File:
        return self._fs.open_writable(path(self._directory, self._manifest.latest))

    def _add_mark(self) -> None:
        if self.log_end - self.marks[-1].position < self._settings.buffer_bytes:
            return
        if len(self.marks) >= MARKS_MAX:
            self.marks = self.marks[MARKS_MAX // 2 :]
        self.marks.append(Mark(self.written, self.log_end))


def _invalid_entry(entry: object, status: EntryStatus, directory: str) -> InvalidRequest:
    shown = str(entry.offset) if isinstance(entry, ShapeEntry) else repr(entry)
    return InvalidRequest(f"entry {shown:.80} for the shape in {directory} {_FAULTS[status]}")


class LogFlush:
    """A flush of one log up to an offset: its files are synced, then its pointer."""

    __slots__ = ("_directory", "_fs", "_pointer", "error", "files", "is_done", "offset")

    def __init__(
        self,
        fs: FileSystem,
        files: list[File],
        directory: str | None,
        pointer: Pointer,
        offset: ShapeOffset,
    ) -> None:
        """`directory` is to be synced because files in it are new."""
        self.offset = offset
        self.files = files
        """To be synced before the next step."""
        self.error: OSError | None = None
        self.is_done = False
        self._directory = directory
        self._fs = fs
        self._pointer = pointer

    def write_pointer(self) -> None:
        """Writes the pointer once the log is synced. Raises OSError."""
        self.close()
        if self._directory is not None:
            self._fs.sync_directory(self._directory)
        if self.offset != self._pointer.offset:
            self.files = [self._pointer.write(self.offset)]

    def close(self) -> None:
        files, self.files = self.files, []
        for file in files:
            file.close()


def run_flushes(fs: FileSystem, flushes: Sequence[LogFlush]) -> None:
    """Runs flushes; on return each is done or has an error."""
    _sync(fs, flushes)
    for flush in flushes:
        if flush.error is None:
            try:
                flush.write_pointer()
            except OSError as error:
                flush.error = error
    _sync(fs, flushes)
    for flush in flushes:
        flush.close()
        flush.is_done = flush.error is None


def _sync(fs: FileSystem, flushes: Sequence[LogFlush]) -> None:
    waiting = [(flush, file) for flush in flushes if flush.error is None for file in flush.files]
    errors = fs.sync_files([file for _, file in waiting])
    for (flush, _), error in zip(waiting, errors, strict=True):
        flush.error = flush.error or error


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


class LogRemainderCopy:
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
