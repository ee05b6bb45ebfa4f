"""Reads the messages of a shape's log from its files and from the tail in memory.

Invariant  a stream yields the entries above one offset and up to another, each once, in order; it
           ends at the first entry above its limit. No byte after `log_end` is read.
Threads    a stream belongs to one thread at a time; many may read one log.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.shapes.kernels.log_entries import EntryStatus, strip_entries
from varve.shapes.offset import SNAPSHOT_END, ShapeOffset
from varve.shapes.storage.chunk_index import ChunkIndexFile, LogChunk
from varve.shapes.storage.layout import index_path, log_path
from varve.shapes.storage.log_writer import ShapeLogState, kernel_offset, tail_pieces

FAULTS: Final = {
    EntryStatus.BAD_CRC: "its CRC-32C does not match its bytes",
    EntryStatus.BAD_FIELD: "it has a size or an operation that no entry has",
    EntryStatus.BAD_ORDER: "its offset is not above the one before it",
}


class LogRange(NamedTuple):
    """A range of an open log file that holds whole entries."""

    file: File
    start: int
    end: int


class LogView:
    """The files of a log as of one state."""

    def __init__(self, fs: FileSystem, directory: str, state: ShapeLogState) -> None:
        self._fs = fs
        self._directory = directory
        self._state = state

    def find_chunk(self, offset: ShapeOffset) -> LogChunk | None:
        """The first chunk that reaches beyond an offset, or the open one. Raises OSError."""
        state, offset = self._state, max(offset, SNAPSHOT_END)
        compacted = state.manifest.compacted
        if compacted is not None and offset < state.manifest.boundary:
            return self._search(compacted, offset, None)
        if state.cache.covers(offset):
            return state.cache.find(offset)
        return self._search(state.manifest.latest, offset, state.edge_count)

    def open_ranges(self, after: ShapeOffset, until: ShapeOffset) -> list[LogRange]:
        """Opens the files of the entries in (after, until] that are in files. Raises OSError."""
        state, ranges = self._state, []
        boundary, compacted = state.manifest.boundary, state.manifest.compacted
        with ExitStack() as stack:
            if compacted is not None and after < boundary:
                chunk = self._search(compacted, after, None)
                if chunk is not None:
                    file = stack.enter_context(self._open_log(compacted))
                    ranges.append(LogRange(file, chunk.start, file.size()))
                after = boundary
            if after < min(until, state.written):
                start = self._live_start(after)
                file = stack.enter_context(self._open_log(state.manifest.latest))
                ranges.append(LogRange(file, start, state.log_end))
            stack.pop_all()
        return ranges

    def _open_log(self, suffix: str) -> File:
        return self._fs.open(log_path(self._directory, suffix))

    def _live_start(self, after: ShapeOffset) -> int:
        """A position in the live log at or before the first entry above the offset."""
        mark = self._state.find_mark(after)
        if mark is not None:
            return mark.position
        chunk = self.find_chunk(after)
        if chunk is None:
            raise Corrupt(
                f"{index_path(self._directory, self._state.manifest.latest)} has no chunk beyond "
                f"{after}, and entries up to {self._state.written} are in the log"
            )
        return chunk.start

    def _search(self, suffix: str, offset: ShapeOffset, edge_count: int | None) -> LogChunk | None:
        with self._fs.open(index_path(self._directory, suffix)) as file:
            return ChunkIndexFile(file, edge_count).find(offset)


def open_stream(
    fs: FileSystem,
    directory: str,
    state: ShapeLogState,
    *,
    after: ShapeOffset,
    until: ShapeOffset,
    read_bytes: int,
) -> Iterator[bytes]:
    """The existing messages in (after, until], in pieces; messages are joined by commas.

    Files are opened at the call, which also fixes the tail; raises OSError then, Corrupt any time.
    """
    until = min(until, state.latest)
    if until <= after:
        return iter(())
    ranges = LogView(fs, directory, state).open_ranges(after, until)
    tail = tail_pieces(state, max(after, state.written), until, read_bytes)
    return _stream(ranges, tail, after, until, read_bytes)


def _stream(
    ranges: list[LogRange],
    tail: Iterator[bytes],
    after: ShapeOffset,
    until: ShapeOffset,
    read_bytes: int,
) -> Iterator[bytes]:
    for part in ranges:
        with part.file:
            yield from read_range(part, after, until, read_bytes)
    yield from tail


class _ReadBlock(NamedTuple):
    """The result of a read: messages, the bytes consumed, the bytes that the next entry needs."""

    messages: bytes
    consumed: int
    needed: int
    is_done: bool


def read_range(
    part: LogRange, after: ShapeOffset, until: ShapeOffset, read_bytes: int
) -> Iterator[bytes]:
    """Messages of one file in (after, until], in pieces of whole messages joined by commas.

    A piece is no larger than `read_bytes` unless a single entry is. Raises Corrupt.
    """
    limits = (*kernel_offset(after), *kernel_offset(until))
    position, needed = part.start, 0
    while position < part.end:
        size = min(max(read_bytes, needed), part.end - position)
        if needed > size:
            raise _corrupt(part, position, "it ends beyond the log")
        block = _read_block(part, position, size, limits)
        position, needed, is_done = position + block.consumed, block.needed, block.is_done
        if block.messages:
            yield block.messages
        if is_done:
            return


def _read_block(
    part: LogRange, position: int, size: int, limits: tuple[int, int, int, int]
) -> _ReadBlock:
    """Reads one block; no buffer is kept, so that a slow reader holds only its messages."""
    data = part.file.read_at(position, size)
    if len(data) < size:
        raise _corrupt(part, position + len(data), f"the file ends, and not at {part.end}")
    out = np.empty(size, np.uint8)
    status, consumed, used, needed = strip_entries(np.frombuffer(data, np.uint8), *limits, out)
    if status not in (EntryStatus.MORE, EntryStatus.DONE):
        raise _corrupt(part, position + consumed, FAULTS[EntryStatus(status)])
    return _ReadBlock(out[:used].tobytes(), consumed, needed, status == EntryStatus.DONE)


def _corrupt(part: LogRange, position: int, fault: str) -> Corrupt:
    return Corrupt(f"{part.file.path}: entry at {position}: {fault}")
