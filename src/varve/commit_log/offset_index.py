"""Sparse map from offset to byte position within one segment.

Layout     8-byte entries: offset relative to the base (i32), position (i32), big-endian.
           docs/formats/segment-and-indexes.md
Invariant  appended offsets strictly ascend; the offset is the last of a set of batches, the
           position is where that set begins.
Crash      carries no checksum; a missing or broken index is rebuilt from its segment.
Threads    one appender under the log's lock; readers note the count first and need no lock.
"""

import struct
from bisect import bisect_left, bisect_right
from typing import Self

import numpy as np
from numpy.typing import NDArray

from varve.commit_log.entry_table import EntryTable
from varve.foundation.errors import Corrupt, InvalidOffset

RELATIVE_OFFSET_MAX = 2**31 - 1

_ENTRY = struct.Struct(">ii")
_ENTRY_SIZE = _ENTRY.size


class OffsetIndex(EntryTable):
    """The offset index of one segment, in memory; its owner reads and writes the file."""

    __slots__ = ("_last_relative",)

    layout = np.dtype([("offset", ">i4"), ("position", ">i4")])

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        super().__init__(base_offset, max_bytes)
        self._last_relative = -1

    @classmethod
    def decode(
        cls,
        data: bytes | bytearray | memoryview,
        base_offset: int,
        max_bytes: int,
        where: str = "offset index",
        *,
        trim_zero_tail: bool = False,
    ) -> Self:
        """The index a file holds, trusted as it is: `check` tells whether it can be true.

        `trim_zero_tail` ends the list at the preallocated zeros of a broker that is still
        running or has crashed. A file larger than `max_bytes` is kept whole and is full.
        """
        index = cls(base_offset, max(max_bytes, _ENTRY_SIZE))
        index._load(data, trim_zero_tail=trim_zero_tail)
        index._note_last()
        return index

    def append(self, offset: int, position: int) -> None:
        """Raises InvalidOffset for an offset not above the last, or out of the segment's range."""
        relative = offset - self.base_offset
        if relative <= self._last_relative or relative > RELATIVE_OFFSET_MAX:
            raise self._invalid(offset)
        count = self._count
        if count == self._capacity:
            self._grow()
        _ENTRY.pack_into(self._buffer, count * _ENTRY_SIZE, relative, position)
        self._last_relative = relative
        self._count = count + 1

    def _invalid(self, offset: int) -> InvalidOffset:
        return InvalidOffset(
            f"offset index of segment {self.base_offset} cannot take offset {offset}: it must be "
            f"above {self.base_offset + self._last_relative} and at most "
            f"{self.base_offset + RELATIVE_OFFSET_MAX}"
        )

    def lookup(self, offset: int) -> tuple[int, int]:
        """The greatest entry (offset, position) at or below the offset, else (base offset, 0)."""
        count = self._count
        slot = bisect_right(self._rows["offset"], offset - self.base_offset, 0, count) - 1
        if slot < 0:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack_from(self._buffer, slot * _ENTRY_SIZE)
        return self.base_offset + relative, position

    def find_upper_bound_offset(self, position: int) -> int | None:
        """The offset of the first entry at or after a position; None when there is none."""
        count = self._count
        slot = bisect_left(self._rows["position"], position, 0, count)
        if slot == count:
            return None
        relative: int = _ENTRY.unpack_from(self._buffer, slot * _ENTRY_SIZE)[0]
        return self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Drops the entries at or above the offset."""
        relative = offset - self.base_offset
        self._keep_first(bisect_left(self._rows["offset"], relative, 0, self._count))

    def _keep_first(self, count: int) -> None:
        super()._keep_first(count)
        self._note_last()

    def _note_last(self) -> None:
        self._last_relative = max(self.last_offset - self.base_offset, -1) if self._count else -1

    @property
    def is_full(self) -> bool:
        return self._count >= self.max_entries

    @property
    def last_offset(self) -> int:
        """The offset of the last entry, the base offset when there is none."""
        count = self._count
        if count == 0:
            return self.base_offset
        relative: int = _ENTRY.unpack_from(self._buffer, (count - 1) * _ENTRY_SIZE)[0]
        return self.base_offset + relative

    def entries(self) -> NDArray[np.int64]:
        """All entries as rows of (offset, position)."""
        count = self._count
        rows = self._rows[:count]
        table = np.empty((count, 2), np.int64)
        table[:, 0] = rows["offset"]
        table[:, 0] += self.base_offset
        table[:, 1] = rows["position"]
        return table

    def check(self, where: str) -> None:
        """Raises Corrupt when the file cannot be a true index and has to be rebuilt."""
        self._check_length(where)
        if self._count and self.last_offset < self.base_offset:
            raise Corrupt(
                f"{where}: last entry's offset {self.last_offset} lies below the base offset "
                f"{self.base_offset}: rebuild the index from its segment"
            )
