"""The chunk index of a shape's log: the first and last entry of each chunk, and their positions.

Layout     edges of 36 bytes: tx (8), op (8), log position (8), zero (8), CRC-32C (4) of those;
           the even edge opens a chunk, the next closes it. docs/reference/formats/shape-log.md
Invariant  the index is written before the log bytes that it covers, so it never lags behind them.
           A torn edge at the end is ignored. A `ChunkCache` has the chunks of every offset from
           `lower` on; it is immutable.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.kernels.crc import crc32c_of
from varve.shapes.offset import SNAPSHOT_END, ShapeOffset

EDGE_BYTES: Final = 36
CHUNK_BYTES: Final = 2 * EDGE_BYTES

_FIELDS: Final = struct.Struct(">QQQQ")
_CRC: Final = struct.Struct(">I")
_NO_KEY_FILE: Final = 0


class ChunkEdge(NamedTuple):
    """A chunk's first entry and where it begins, or its last and where it ends."""

    offset: ShapeOffset
    position: int


class LogChunk(NamedTuple):
    """Entries from `first` to `last`, both included; an open chunk has no last one yet."""

    first: ShapeOffset
    start: int
    last: ShapeOffset | None = None
    end: int | None = None

    @property
    def is_open(self) -> bool:
        return self.last is None

    def reaches_beyond(self, offset: ShapeOffset) -> bool:
        """Whether it has entries above the offset, or may get some."""
        return self.last is None or self.last > offset


def encode_edge(edge: ChunkEdge) -> bytes:
    data = _FIELDS.pack(*edge.offset, edge.position, _NO_KEY_FILE)
    return data + _CRC.pack(crc32c_of(data))


def find_edge(data: bytes, position: int = 0) -> ChunkEdge | None:
    """The edge at a position; None for other bytes, such as a torn edge."""
    if len(data) - position < EDGE_BYTES:
        return None
    fields = data[position : position + _FIELDS.size]
    if _CRC.unpack_from(data, position + _FIELDS.size)[0] != crc32c_of(fields):
        return None
    tx, op, log_position, _ = _FIELDS.unpack(fields)
    return ChunkEdge(ShapeOffset(tx, op), log_position)


def encode_chunks(chunks: Iterable[LogChunk]) -> bytes:
    """The index that holds these chunks; only the last may be open."""
    parts = []
    for chunk in chunks:
        parts.append(encode_edge(ChunkEdge(chunk.first, chunk.start)))
        if chunk.last is not None and chunk.end is not None:
            parts.append(encode_edge(ChunkEdge(chunk.last, chunk.end)))
    return b"".join(parts)


class ChunkIndexFile:
    """Reads the chunks of an index file."""

    def __init__(self, file: File, edge_count: int | None = None) -> None:
        """Reads the first `edge_count` edges, by default all whole edges of the file."""
        self._file = file
        self._edge_count = file.size() // EDGE_BYTES if edge_count is None else edge_count

    @property
    def edge_count(self) -> int:
        """Whole edges, as of the opening."""
        return self._edge_count

    @property
    def complete_count(self) -> int:
        return self._edge_count // 2

    def get(self, number: int) -> LogChunk:
        """The chunk of a number, complete or open; raises Corrupt when its edges are damaged."""
        position = number * CHUNK_BYTES
        data = self._file.read_at(position, CHUNK_BYTES)
        opening = find_edge(data)
        if opening is None:
            raise Corrupt(
                f"{self._file.path}: the edge at {position} is torn or does not match its CRC-32C"
            )
        if number >= self.complete_count or len(data) < CHUNK_BYTES:
            return LogChunk(*opening)
        closing = find_edge(data, EDGE_BYTES)
        if closing is None:
            raise Corrupt(
                f"{self._file.path}: the edge at {position + EDGE_BYTES} does not match its CRC-32C"
            )
        return LogChunk(*opening, *closing)

    def find(self, offset: ShapeOffset) -> LogChunk | None:
        """The first complete chunk that reaches beyond the offset, or else the open one."""
        low, high = 0, self.complete_count
        while low < high:
            middle = (low + high) // 2
            if self.get(middle).reaches_beyond(offset):
                high = middle
            else:
                low = middle + 1
        return self.get(low) if low < (self._edge_count + 1) // 2 else None

    def last_chunks(self, count: int) -> list[LogChunk]:
        """The newest chunks, oldest first, the open one among them."""
        end = (self._edge_count + 1) // 2
        return [self.get(number) for number in range(max(0, end - count), end)]

    def complete(self) -> Iterator[LogChunk]:
        """All complete chunks; an open one does not count."""
        for number in range(self.complete_count):
            chunk = self.get(number)
            if chunk.is_open:
                return
            yield chunk


CACHED_COUNT: Final = 3
"""Chunks in memory: clients that follow a log read the open chunk or the one or two before it."""


class ChunkCache(NamedTuple):
    """Up to three chunks, oldest first; `lower` is where the chunks before them end."""

    lower: ShapeOffset = SNAPSHOT_END
    chunks: tuple[LogChunk, ...] = ()

    @classmethod
    def of(cls, chunks: list[LogChunk], boundary: ShapeOffset) -> "ChunkCache":
        """The cache of a log's newest chunks; pass one more than it holds, or all."""
        lower = max(boundary, SNAPSHOT_END)
        if len(chunks) > CACHED_COUNT:
            lower = chunks[-CACHED_COUNT - 1].last or lower
        return cls(lower, tuple(chunks[-CACHED_COUNT:]))

    def covers(self, offset: ShapeOffset) -> bool:
        return self.lower <= offset

    def find(self, offset: ShapeOffset) -> LogChunk | None:
        """The first chunk that reaches beyond an offset which the cache covers."""
        return next((chunk for chunk in self.chunks if chunk.reaches_beyond(offset)), None)

    def with_opened(self, first: ShapeOffset, start: int) -> "ChunkCache":
        chunks = (*self.chunks, LogChunk(first, start))
        if len(chunks) <= CACHED_COUNT:
            return ChunkCache(self.lower, chunks)
        return ChunkCache(chunks[0].last or self.lower, chunks[1:])

    def with_closed(self, last: ShapeOffset, end: int) -> "ChunkCache":
        chunk = self.chunks[-1]._replace(last=last, end=end)
        return ChunkCache(self.lower, (*self.chunks[:-1], chunk))

    def moved(self, boundary: ShapeOffset, position: int) -> "ChunkCache":
        """The cache after the log was cut at a boundary, by this many bytes."""
        chunks = tuple(
            shift_chunk(chunk, position) for chunk in self.chunks if chunk.reaches_beyond(boundary)
        )
        return ChunkCache(max(self.lower, boundary), chunks)


def shift_chunk(chunk: LogChunk, position: int) -> LogChunk:
    """The chunk in a file that begins this many bytes later."""
    end = None if chunk.end is None else chunk.end - position
    return chunk._replace(start=chunk.start - position, end=end)
