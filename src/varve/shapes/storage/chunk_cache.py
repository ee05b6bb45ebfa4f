"""The newest chunks of a live log, in memory.

Invariant  it answers for every offset from `lower` on; a value never changes, it is replaced.
"""

from typing import Final, NamedTuple

from varve.shapes.offset import SNAPSHOT_END, Offset
from varve.shapes.storage.chunk_index import Chunk

CACHED_COUNT: Final = 3


class ChunkCache(NamedTuple):
    """Up to three chunks, oldest first; `lower` is where the chunks before them end."""

    lower: Offset = SNAPSHOT_END
    chunks: tuple[Chunk, ...] = ()

    @classmethod
    def of(cls, chunks: list[Chunk], boundary: Offset) -> "ChunkCache":
        """The cache of a log's newest chunks: one more than it holds, or all there are."""
        lower = max(boundary, SNAPSHOT_END)
        if len(chunks) > CACHED_COUNT:
            lower = chunks[-CACHED_COUNT - 1].last or lower
        return cls(lower, tuple(chunks[-CACHED_COUNT:]))

    def covers(self, offset: Offset) -> bool:
        return self.lower <= offset

    def find(self, offset: Offset) -> Chunk | None:
        """The first chunk that reaches beyond an offset which the cache covers."""
        return next((chunk for chunk in self.chunks if chunk.reaches_beyond(offset)), None)

    def with_opened(self, first: Offset, start: int) -> "ChunkCache":
        chunks = (*self.chunks, Chunk(first, start))
        if len(chunks) <= CACHED_COUNT:
            return ChunkCache(self.lower, chunks)
        return ChunkCache(chunks[0].last or self.lower, chunks[1:])

    def with_closed(self, last: Offset, end: int) -> "ChunkCache":
        chunk = self.chunks[-1]._replace(last=last, end=end)
        return ChunkCache(self.lower, (*self.chunks[:-1], chunk))

    def moved(self, boundary: Offset, position: int) -> "ChunkCache":
        """The cache once everything up to a boundary, and so many bytes, left the log."""
        chunks = tuple(
            shift_chunk(chunk, position) for chunk in self.chunks if chunk.reaches_beyond(boundary)
        )
        return ChunkCache(max(self.lower, boundary), chunks)


def shift_chunk(chunk: Chunk, position: int) -> Chunk:
    """The chunk in a file that begins so many bytes later."""
    end = None if chunk.end is None else chunk.end - position
    return chunk._replace(start=chunk.start - position, end=end)
