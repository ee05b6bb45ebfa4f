"""The two sparse indexes of a segment: from offset to byte position, from timestamp to offset.

Layout     `OffsetIndex`: 8-byte entries, offset relative to the base (i32), position (i32).
           `TimeIndex`: 12-byte entries, timestamp (i64), offset relative to the base (i32).
           Big-endian, in memory as in the file. docs/reference/formats/segment-and-indexes.md
Invariant  offset entries: offsets and positions strictly ascend; the offset is the last of a set of
           batches, the position is where that set begins.
           Time entries: timestamps strictly ascend, offsets never descend; an entry says that the
           largest timestamp so far is this one, and that the earliest batch with it ends at this
           offset.
Crash      no checksum; a missing or damaged index is rebuilt from its segment.
Threads    one appender under the log's lock. Readers take the count first and the buffer after it:
           a grown buffer holds the same entries as the one it replaces, so either serves that
           count.
"""

import struct
from bisect import bisect_left, bisect_right
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from varve.commit_log.settings import LogSettings
from varve.foundation.errors import Corrupt, InvalidOffset, InvalidSetting, OffsetOverflow
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.batch_scan import (
    IndexBuildStatus,
    IndexState,
    build_index_entries,
    initial_index_state,
)

RELATIVE_OFFSET_MAX = 2**31 - 1

_CAPACITY_MIN = 64
_NO_TIMESTAMP = -1


class IndexEntries:
    """A growing table of fixed-size entries; a subclass defines their layout."""

    __slots__ = (
        "_buffer",
        "_capacity",
        "_count",
        "_rows",
        "_trailing_size",
        "base_offset",
        "max_entries",
    )

    layout: np.dtype[np.void]
    entry: struct.Struct
    """The same layout for single entries."""
    least_steps: tuple[int, int]
    """The least increase of each column from entry to entry."""

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        entry_size = self.entry.size
        if max_bytes < entry_size:
            raise InvalidSetting(
                f"an index of {max_bytes} bytes cannot hold one entry of {entry_size} bytes: "
                "raise segment.index.bytes"
            )
        self.base_offset = base_offset
        self.max_entries = max_bytes // entry_size
        self._trailing_size = 0
        self._count = 0
        self._replace_buffer(bytearray())

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, base_offset: int, max_bytes: int) -> Self:
        """Decodes an index file without checks: `check` raises if it has to be rebuilt.

        A file larger than `max_bytes` is kept whole and counts as full.
        """
        entry_size = cls.entry.size
        index = cls(base_offset, max(max_bytes, entry_size))
        index._count, index._trailing_size = divmod(len(data), entry_size)
        index._replace_buffer(bytearray(memoryview(data)[: index._count * entry_size]))
        return index

    def _replace_buffer(self, buffer: bytearray) -> None:
        self._rows: NDArray[Any] = np.frombuffer(buffer, self.layout)
        self._buffer = buffer
        self._capacity = len(buffer) // self.entry.size

    def _add(self, first: int, second: int) -> None:
        count = self._count
        if count == self._capacity:
            self._grow()
        self.entry.pack_into(self._buffer, count * self.entry.size, first, second)
        self._count = count + 1

    def _grow(self) -> None:
        assert self._count < self.max_entries, (
            f"index of segment {self.base_offset} is full at {self.max_entries} entries: "
            "the segment had to be rolled before"
        )
        capacity = min(max(_CAPACITY_MIN, 2 * self._capacity), self.max_entries)
        buffer = bytearray(capacity * self.entry.size)
        buffer[: len(self._buffer)] = self._buffer
        self._replace_buffer(buffer)

    def _columns_at(self, slot: int) -> tuple[int, int]:
        """The columns of an entry, with the offset relative to the base offset."""
        return self.entry.unpack_from(self._buffer, slot * self.entry.size)

    def truncate_to(self, offset: int) -> None:
        """Drops the entries at or above the offset."""
        relative = offset - self.base_offset
        self._count = bisect_left(self._rows["offset"], relative, 0, self._count)
        self._trailing_size = 0

    @property
    def count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """The size of the file that holds exactly these entries."""
        return self._count * self.entry.size

    def encode(self) -> bytes:
        """The content of the index file."""
        return bytes(memoryview(self._buffer)[: self.size_bytes])

    @classmethod
    def from_entries(cls, entries: NDArray[np.int64], base_offset: int, max_bytes: int) -> Self:
        """The index with these rows, in the form that `entries` returns."""
        packed = np.empty(len(entries), cls.layout)
        for column, name in enumerate(cls.layout.names or ()):
            packed[name] = entries[:, column] - (base_offset if name == "offset" else 0)
        return cls.decode(packed.tobytes(), base_offset, max_bytes)

    def entries(self) -> NDArray[np.int64]:
        """All entries as rows of (offset, position) or (timestamp, offset)."""
        rows = self._rows[: self._count]
        table = np.empty((len(rows), 2), np.int64)
        for column, name in enumerate(self.layout.names or ()):
            table[:, column] = rows[name]
            if name == "offset":
                table[:, column] += self.base_offset
        return table

    @property
    def is_ascending(self) -> bool:
        """Whether the entries ascend, offsets from the base offset, other columns from 0."""
        table = self.entries()
        lowest = [self.base_offset if name == "offset" else 0 for name in self.layout.names or ()]
        is_rising = np.diff(table, axis=0) >= self.least_steps
        return bool(is_rising.all() and (table[:1] >= lowest).all())

    @property
    def last_offset(self) -> int:
        """The offset of the last entry, the base offset when there is none."""
        raise NotImplementedError

    def check(self, where: str) -> None:
        """Raises Corrupt when the file cannot be a true index and has to be rebuilt."""
        if self._trailing_size:
            raise Corrupt(
                f"{where}: {self.size_bytes + self._trailing_size} bytes are not a multiple of the "
                f"entry size {self.entry.size}: rebuild the index from its segment"
            )
        if self.last_offset < self.base_offset:
            raise Corrupt(
                f"{where}: the last entry has offset {self.last_offset}, below the base offset "
                f"{self.base_offset}: rebuild the index from its segment"
            )


class OffsetIndex(IndexEntries):
    """The offset index of one segment, in memory; its owner reads and writes the file."""

    __slots__ = ()

    layout = np.dtype([("offset", ">i4"), ("position", ">i4")])
    entry = struct.Struct(">ii")
    least_steps = (1, 1)

    def append(self, offset: int, position: int) -> None:
        """Raises InvalidOffset for an offset not above the last, or out of the segment's range."""
        relative = offset - self.base_offset
        last = max(self._columns_at(self._count - 1)[0], -1) if self._count else -1
        if not last < relative <= RELATIVE_OFFSET_MAX:
            raise InvalidOffset(
                f"offset index of segment {self.base_offset} cannot take offset {offset}: it must "
                f"be above {self.base_offset + last} and at most "
                f"{self.base_offset + RELATIVE_OFFSET_MAX}"
            )
        self._add(relative, position)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The greatest entry (offset, position) at or below the offset, else (base offset, 0)."""
        count = self._count
        slot = bisect_right(self._rows["offset"], offset - self.base_offset, 0, count) - 1
        if slot < 0:
            return self.base_offset, 0
        relative, position = self._columns_at(slot)
        return self.base_offset + relative, position

    @property
    def is_full(self) -> bool:
        return self._count >= self.max_entries

    @property
    def last_offset(self) -> int:
        count = self._count
        return self.base_offset + (self._columns_at(count - 1)[0] if count else 0)


class TimeIndex(IndexEntries):
    """The time index of one segment, in memory; its owner reads and writes the file."""

    __slots__ = ()

    layout = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
    entry = struct.Struct(">qi")
    least_steps = (1, 0)

    def append(self, timestamp: int, offset: int, skip_full_check: bool = False) -> None:
        """Adds an entry if the timestamp is above the last one; does nothing if it is the same.

        `skip_full_check` opens the slot that is reserved for a segment's last entry. Raises
        InvalidOffset for an offset below the last or out of the segment's range, Corrupt for a
        timestamp below the last.
        """
        assert skip_full_check or self._count < self.max_entries - 1, (
            f"time index of segment {self.base_offset} is full at {self.max_entries - 1} entries: "
            "the segment had to be rolled before"
        )
        last_timestamp, last_offset = self.last
        low, high = max(last_offset, self.base_offset), self.base_offset + RELATIVE_OFFSET_MAX
        if not low <= offset <= high:
            raise InvalidOffset(
                f"time index of segment {self.base_offset} cannot take offset {offset}: it must "
                f"lie in {low}..{high}"
            )
        if timestamp > last_timestamp:
            self._add(timestamp, offset - self.base_offset)
        elif self._count and timestamp < last_timestamp:
            raise Corrupt(
                f"time index of segment {self.base_offset} cannot take timestamp {timestamp}: "
                f"it lies below the last entry's {last_timestamp}"
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
        timestamp, relative = self._columns_at(slot)
        return timestamp, self.base_offset + relative

    @property
    def is_full(self) -> bool:
        """Whether only the slot reserved for the segment's last entry is left."""
        return self._count >= self.max_entries - 1

    @property
    def last_offset(self) -> int:
        return self.last[1]

    def check(self, where: str) -> None:
        super().check(where)
        first_timestamp, _ = self._entry(0 if self._count else -1)
        last_timestamp, _ = self.last
        if last_timestamp < first_timestamp:
            raise Corrupt(
                f"{where}: last timestamp {last_timestamp} lies below the first "
                f"{first_timestamp}: rebuild the index from its segment"
            )


class SegmentIndexer:
    """Builds the sparse indexes of one segment from its batches, table by table."""

    def __init__(self, base_offset: int, settings: LogSettings, where: str) -> None:
        self._settings = settings
        self._where = where
        self._state = initial_index_state(base_offset)
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.first_timestamp = -1
        self._offset_entries: list[NDArray[np.int64]] = []
        self._time_entries: list[NDArray[np.int64]] = []

    def add(self, rows: NDArray[np.int64]) -> int:
        """Indexes scanned batches up to one whose offset does not ascend; returns how many.

        Raises OffsetOverflow at a batch beyond the 32-bit range of the segment.
        """
        if len(rows) and rows[0, BatchColumn.POSITION] == 0:
            self.first_timestamp = int(rows[0, BatchColumn.MAX_TIMESTAMP])
        offset_entries = np.empty((len(rows), 2), np.int64)
        time_entries = np.empty((len(rows), 2), np.int64)
        offset_count, time_count, status, done = build_index_entries(
            rows,
            self.base_offset,
            self._settings.index_interval_bytes,
            self._state,
            offset_entries,
            time_entries,
        )
        if status == IndexBuildStatus.OFFSET_OVERFLOW:
            raise OffsetOverflow(
                f"{self._where}: position {rows[done, BatchColumn.POSITION]}: last offset "
                f"{rows[done, BatchColumn.LAST_OFFSET]} lies beyond the 32-bit range of base "
                f"offset {self.base_offset}"
            )
        self._offset_entries.append(offset_entries[:offset_count])
        self._time_entries.append(time_entries[:time_count])
        if done:
            self.next_offset = int(rows[done - 1, BatchColumn.LAST_OFFSET]) + 1
        return done

    def offset_index(self) -> OffsetIndex:
        entries = np.concatenate([np.empty((0, 2), np.int64), *self._offset_entries])
        max_bytes = self._settings.segment_index_bytes
        return OffsetIndex.from_entries(entries, self.base_offset, max_bytes)

    def time_index(self) -> TimeIndex:
        """The time index with the final entry a closed segment has."""
        entries = np.concatenate([np.empty((0, 2), np.int64), *self._time_entries])
        state = self._state
        if state[IndexState.MAX_TIMESTAMP] > state[IndexState.INDEXED_TIMESTAMP]:
            final = state[[IndexState.MAX_TIMESTAMP, IndexState.MAX_TIMESTAMP_OFFSET]]
            entries = np.concatenate([entries, final.reshape(1, 2)])
        max_bytes = self._settings.segment_index_bytes
        return TimeIndex.from_entries(entries, self.base_offset, max_bytes)
