"""Sparse map from timestamp to offset within one segment.

Layout     12-byte entries: timestamp (i64), offset relative to the base (i32), big-endian.
           docs/formats/segment-and-indexes.md
Invariant  timestamps strictly ascend, offsets never descend; an entry says that the largest
           timestamp so far is this one, and that the earliest batch with it ends at this offset.
Crash      carries no checksum; a missing or broken index is rebuilt from its segment.
Threads    one appender under the log's lock; readers note the count first and need no lock.
"""

import struct
from bisect import bisect_left, bisect_right
from typing import Self

import numpy as np
from numpy.typing import NDArray

from varve.commit_log.entry_table import EntryTable
from varve.commit_log.offset_index import RELATIVE_OFFSET_MAX
from varve.foundation.errors import Corrupt, InvalidOffset

_ENTRY = struct.Struct(">qi")
_ENTRY_SIZE = _ENTRY.size
_NO_TIMESTAMP = -1


class TimeIndex(EntryTable):
    """The time index of one segment, in memory; its owner reads and writes the file."""

    __slots__ = ("_last_relative", "_last_timestamp")

    _last_relative: int
    _last_timestamp: int

    layout = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        super().__init__(base_offset, max_bytes)
        self._note_last()

    @classmethod
    def decode(
        cls,
        data: bytes | bytearray | memoryview,
        base_offset: int,
        max_bytes: int,
        where: str = "time index",
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

    def append(self, timestamp: int, offset: int, skip_full_check: bool = False) -> None:
        """Adds an entry if the timestamp is above the last one; does nothing if it is the same.

        `skip_full_check` opens the slot that is reserved for a segment's last entry. Raises
        InvalidOffset for an offset below the last or out of the segment's range, Corrupt for a
        timestamp below the last.
        """
        count = self._count
        assert skip_full_check or count < self.max_entries - 1, (
            f"time index of segment {self.base_offset} is full at {self.max_entries - 1} entries: "
            "the segment had to be rolled before"
        )
        relative = offset - self.base_offset
        if relative < self._last_relative or relative > RELATIVE_OFFSET_MAX:
            raise self._invalid(offset)
        if timestamp <= self._last_timestamp:
            self._require_same(timestamp)
            return
        if count == self._capacity:
            self._grow()
        _ENTRY.pack_into(self._buffer, count * _ENTRY_SIZE, timestamp, relative)
        self._last_timestamp = timestamp
        self._last_relative = relative
        self._count = count + 1

    def _invalid(self, offset: int) -> InvalidOffset:
        return InvalidOffset(
            f"time index of segment {self.base_offset} cannot take offset {offset}: it must lie in "
            f"{self.base_offset + self._last_relative}..{self.base_offset + RELATIVE_OFFSET_MAX}"
        )

    def _require_same(self, timestamp: int) -> None:
        if self._count and timestamp < self._last_timestamp:
            raise Corrupt(
                f"time index of segment {self.base_offset} cannot take timestamp {timestamp}: "
                f"it lies below the last entry's {self._last_timestamp}"
            )

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The greatest entry (timestamp, offset) at or below a time, else (-1, base offset)."""
        count = self._count
        return self._entry(bisect_right(self._rows["timestamp"], timestamp, 0, count) - 1)

    @property
    def last(self) -> tuple[int, int]:
        """The last entry (timestamp, offset), (-1, base offset) when there is none."""
        return self._entry(self._count - 1)

    def _entry(self, slot: int) -> tuple[int, int]:
        if slot < 0:
            return _NO_TIMESTAMP, self.base_offset
        timestamp, relative = _ENTRY.unpack_from(self._buffer, slot * _ENTRY_SIZE)
        return timestamp, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Drops the entries whose offset is at or above the given one."""
        relative = offset - self.base_offset
        self._keep_first(bisect_left(self._rows["offset"], relative, 0, self._count))

    def _keep_first(self, count: int) -> None:
        super()._keep_first(count)
        self._note_last()

    def _note_last(self) -> None:
        timestamp, offset = self.last
        self._last_timestamp = timestamp
        self._last_relative = max(offset - self.base_offset, 0)

    @property
    def is_full(self) -> bool:
        """Whether only the slot reserved for the segment's last entry is left."""
        return self._count >= self.max_entries - 1

    def entries(self) -> NDArray[np.int64]:
        """All entries as rows of (timestamp, offset)."""
        count = self._count
        rows = self._rows[:count]
        table = np.empty((count, 2), np.int64)
        table[:, 0] = rows["timestamp"]
        table[:, 1] = rows["offset"]
        table[:, 1] += self.base_offset
        return table

    def check(self, where: str) -> None:
        """Raises Corrupt when the file cannot be a true index and has to be rebuilt."""
        self._check_length(where)
        if not self._count:
            return
        last_timestamp, last_offset = self.last
        first_timestamp, _ = self._entry(0)
        if last_timestamp < first_timestamp:
            raise Corrupt(
                f"{where}: last timestamp {last_timestamp} lies below the first "
                f"{first_timestamp}: rebuild the index from its segment"
            )
        if last_offset < self.base_offset:
            raise Corrupt(
                f"{where}: last entry's offset {last_offset} lies below the base offset "
                f"{self.base_offset}: rebuild the index from its segment"
            )
