"""A growing table of fixed-size big-endian entries: what both segment indexes are made of.

Layout     the entries exactly as their file holds them, so encoding is a copy.
Invariant  `count` entries are complete; bytes after them are room to grow.
Threads    one appender; readers note the count first and the buffer afterwards. A grown buffer
           holds the same entries as the one it replaces, so either is right for that count.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from varve.foundation.errors import Corrupt, InvalidSetting

_CAPACITY_MIN = 64


class EntryTable:
    """Room, growth and bytes of an index; the subclass knows what an entry means."""

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

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        entry_size = self.layout.itemsize
        if max_bytes < entry_size:
            raise InvalidSetting(
                f"an index of {max_bytes} bytes cannot hold one entry of {entry_size} bytes: "
                "raise segment.index.bytes"
            )
        self.base_offset = base_offset
        self.max_entries = max_bytes // entry_size
        self._trailing_size = 0
        self._hold(b"")

    def _hold(self, entries: bytes | memoryview) -> None:
        self._count = 0
        self._replace_buffer(bytearray(entries))
        self._count = self._capacity

    def _replace_buffer(self, buffer: bytearray) -> None:
        self._rows: NDArray[Any] = np.frombuffer(buffer, self.layout)
        self._buffer = buffer
        self._capacity = len(buffer) // self.layout.itemsize

    def _load(self, data: bytes | bytearray | memoryview, *, trim_zero_tail: bool) -> None:
        entry_size = self.layout.itemsize
        count = len(data) // entry_size
        if trim_zero_tail:
            count = self._count_before_zeros(data, count)
            self._trailing_size = 0
        else:
            self._trailing_size = len(data) % entry_size
        self._hold(memoryview(data)[: count * entry_size])

    def _count_before_zeros(self, data: bytes | bytearray | memoryview, count: int) -> int:
        """Entries before the first all-zero one; the very first entry counts even if zero."""
        cells = np.frombuffer(data, np.uint8, count * self.layout.itemsize)
        is_used = np.logical_or.reduce(cells.reshape(count, self.layout.itemsize), axis=1)
        zeros = np.flatnonzero(~is_used[1:])
        return int(zeros[0]) + 1 if zeros.size else count

    def _grow(self) -> None:
        assert self._count < self.max_entries, (
            f"index of segment {self.base_offset} is full at {self.max_entries} entries: "
            "the segment had to be rolled before"
        )
        capacity = min(max(_CAPACITY_MIN, 2 * self._capacity), self.max_entries)
        buffer = bytearray(capacity * self.layout.itemsize)
        buffer[: len(self._buffer)] = self._buffer
        self._replace_buffer(buffer)

    def _keep_first(self, count: int) -> None:
        self._count = count
        self._trailing_size = 0

    def truncate_all(self) -> None:
        """Drops every entry."""
        self._keep_first(0)

    @property
    def count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """The size of the file that holds exactly these entries."""
        return self._count * self.layout.itemsize

    def encode(self, start_entry: int = 0) -> bytes:
        """The file's bytes from an entry on, for writing at `start_entry` x entry size."""
        entry_size = self.layout.itemsize
        count = self._count
        return bytes(memoryview(self._buffer)[start_entry * entry_size : count * entry_size])

    def _check_length(self, where: str) -> None:
        if self._trailing_size:
            raise Corrupt(
                f"{where}: {self.size_bytes + self._trailing_size} bytes are not a multiple of the "
                f"entry size {self.layout.itemsize}: rebuild the index from its segment"
            )
