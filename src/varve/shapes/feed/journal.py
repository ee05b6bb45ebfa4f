"""In which order the records of several partitions were taken.

Layout     records of 32 bytes, big-endian: partition u32, start offset u64, end offset u64, first
           transaction u64, CRC32C of the 28 bytes before u32. docs/shapes-feed.md
Invariant  transactions go on from record to record without a gap, one for each offset of a range.
           A range is on disk before a shape sees anything of it.
Crash      the file ends at the first record that is torn or does not go on from the one before:
           nothing behind it was shown.
Threads    one.
"""

import posixpath
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from varve.disk import FileSystem, make_durable_directory, write_atomically
from varve.kernels.crc import crc32c

_BODY: Final = struct.Struct(">IQQQ")
_CRC: Final = struct.Struct(">I")
RANGE_BYTES: Final = _BODY.size + _CRC.size
_CUT_BYTES: Final = 64 << 10
"""Ranges that the table has are cut off once the file is as large as this."""


class Range(NamedTuple):
    """Offsets [start, end) of a partition; the record at `start` is transaction `first_tx`."""

    partition: int
    start: int
    end: int
    first_tx: int

    @property
    def next_tx(self) -> int:
        return self.first_tx + self.end - self.start

    def encode(self) -> bytes:
        body = _BODY.pack(*self)
        return body + _CRC.pack(crc32c(np.frombuffer(body, np.uint8), 0, len(body)))


class Journal:
    """The order on disk; `ranges` are those that were not cut off yet."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.ranges: list[Range] = []
        self._fs = fs
        self._path = path
        self._size = 0

    def open(self) -> None:
        """Reads what is whole, and writes it anew."""
        directory = posixpath.dirname(self._path) or "."
        make_durable_directory(self._fs, directory)
        with self._fs.open_writable(self._path) as file:
            self.ranges = decode_ranges(file.read_at(0, file.size()))
        # A sync that failed may have left bytes that are read, and never reach the disk.
        self._rewrite()

    def append(self, ranges: Sequence[Range]) -> None:
        """Adds ranges; on disk when it returns."""
        data = b"".join([one.encode() for one in ranges])
        with self._fs.open_writable(self._path) as file:
            file.write_at(self._size, data)
            file.sync()
        self._size += len(data)
        self.ranges += ranges

    def cut(self, next_tx: int) -> None:
        """Lets go of ranges before a transaction; the table on disk must have them."""
        self.ranges = [one for one in self.ranges if one.next_tx > next_tx]
        if self._size >= _CUT_BYTES:
            self._rewrite()

    def restart(self, next_tx: int) -> None:
        """Goes on behind a table: what the file has before that transaction is gone from it."""
        self.ranges = [one for one in self.ranges if one.next_tx > next_tx]
        if len(self.ranges) * RANGE_BYTES != self._size:
            self._rewrite()

    def clear(self) -> None:
        """Forgets all: the numbers go on from the table alone."""
        self.ranges = []
        self._rewrite()

    def _rewrite(self) -> None:
        data = b"".join([one.encode() for one in self.ranges])
        write_atomically(self._fs, self._path, data)
        self._size = len(data)


def decode_ranges(data: bytes) -> list[Range]:
    """The ranges up to the first that is torn, damaged, or does not follow."""
    ranges: list[Range] = []
    for position in range(0, len(data) - RANGE_BYTES + 1, RANGE_BYTES):
        body = data[position : position + _BODY.size]
        (crc,) = _CRC.unpack_from(data, position + _BODY.size)
        one = Range(*_BODY.unpack(body))
        follows = not ranges or ranges[-1].next_tx == one.first_tx
        if crc != crc32c(np.frombuffer(body, np.uint8), 0, len(body)) or not follows:
            break
        if one.start >= one.end:
            break
        ranges.append(one)
    return ranges
