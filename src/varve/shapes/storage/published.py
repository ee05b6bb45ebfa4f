"""What readers know of a shape: one value, replaced as a whole.

Invariant  persisted <= written <= latest; the first and the last are ends of transactions.
           Everything up to `written` is in the log files, below `log_end`; what is behind it is the
           first `tail_count` entries of the tail. Lists only grow, and the writer begins new ones
           instead of clearing them, so a value stays true for as long as a reader holds it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from varve.shapes.offset import SNAPSHOT_END, Offset
from varve.shapes.storage.chunk_cache import ChunkCache
from varve.shapes.storage.entry import Entry
from varve.shapes.storage.manifest import Manifest


class Mark(NamedTuple):
    """A place between two entries of the live log: the offset before it, and its byte."""

    offset: Offset
    position: int


class Published(NamedTuple):
    """A shape's log at one moment."""

    manifest: Manifest
    written: Offset = SNAPSHOT_END
    persisted: Offset = SNAPSHOT_END
    latest: Offset = SNAPSHOT_END
    log_end: int = 0
    half_count: int = 0
    """Halves of the live chunk index that are in its file."""
    cache: ChunkCache = ChunkCache()
    tail: tuple[Entry, ...] | list[Entry] = ()
    tail_count: int = 0
    marks: tuple[Mark, ...] | list[Mark] = ()
    mark_count: int = 0

    def find_mark(self, offset: Offset) -> Mark | None:
        """The last mark at or before an offset."""
        at = bisect_right(self.marks, offset, 0, self.mark_count, key=_place)
        return self.marks[at - 1] if at else None


def tail_pieces(record: Published, after: Offset, until: Offset, size_max: int) -> Iterator[bytes]:
    """Messages of the tail above one offset and up to another, joined by commas.

    The entries are taken at the call; a piece exceeds the size only when its first message does.
    """
    start = bisect_right(record.tail, after, 0, record.tail_count, key=_offset)
    end = bisect_right(record.tail, until, start, record.tail_count, key=_offset)
    return _join([entry.json for entry in record.tail[start:end]], size_max)


def _join(messages: list[bytes], size_max: int) -> Iterator[bytes]:
    start, size = 0, 0
    for index, message in enumerate(messages):
        if size and size + len(message) > size_max:
            yield b",".join(messages[start:index])
            start, size = index, 0
        size += len(message) + 1
    if start < len(messages):
        yield b",".join(messages[start:])


def _place(mark: Mark) -> Offset:
    return mark.offset


def _offset(entry: Entry) -> Offset:
    return entry.offset
