"""The transaction index of a segment: the aborted transactions whose markers are in it.

Layout     34-byte entries: version (i16, 0), producer id (i64), first offset (i64), last offset
           (i64, the abort marker), last stable offset (i64), big-endian.
           docs/reference/formats/segment-and-indexes.md
Invariant  appended last offsets strictly ascend.
Crash      carries no checksum; rebuilt from the segment together with producer state.
Threads    one appender under the log's lock; readers see a whole list and need no lock.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from varve.foundation.errors import Corrupt, InvalidOffset, UnsupportedFormat

VERSION = 0

_ENTRY = struct.Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One aborted transaction; `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The transaction index of one segment, in memory; its owner reads and writes the file."""

    __slots__ = ("_entries", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._entries: list[AbortedTransaction] = []

    @classmethod
    def decode(
        cls,
        data: bytes | bytearray | memoryview,
        base_offset: int,
        where: str = "transaction index",
    ) -> Self:
        """Decodes an index file; raises Corrupt for an unknown version or a torn entry.

        Ignoring a torn entry would show aborted records to readers.
        """
        if len(data) % _ENTRY.size:
            raise Corrupt(
                f"{where}: {len(data)} bytes are not a multiple of the entry size {_ENTRY.size}: "
                "rebuild the index from its segment"
            )
        index = cls(base_offset)
        for slot, (version, *fields) in enumerate(_ENTRY.iter_unpack(data)):
            if version != VERSION:
                raise UnsupportedFormat(
                    f"{where}: entry at position {slot * _ENTRY.size} has version {version}, only "
                    f"{VERSION} is known: rebuild the index from its segment"
                )
            index._entries.append(AbortedTransaction(*fields))
        return index

    def append(self, aborted: AbortedTransaction) -> None:
        """Raises InvalidOffset when the marker does not lie above the last one."""
        entries = self._entries
        if entries and aborted.last_offset <= entries[-1].last_offset:
            raise InvalidOffset(
                f"transaction index of segment {self.base_offset} cannot take a marker at offset "
                f"{aborted.last_offset}: it must be above {entries[-1].last_offset}"
            )
        entries.append(aborted)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """The aborted transactions that touch [fetch_offset, upper_bound), in marker order.

        The second value is False when later segments may hold more of them.
        """
        transactions = []
        for aborted in self._entries:
            if aborted.last_offset >= fetch_offset and aborted.first_offset < upper_bound:
                transactions.append(aborted)
            if aborted.last_stable_offset >= upper_bound:
                return transactions, True
        return transactions, False

    def truncate_to(self, offset: int) -> None:
        """Drops the entries from the first whose marker lies at or above the offset."""
        for slot, aborted in enumerate(self._entries):
            if aborted.last_offset >= offset:
                self._entries = self._entries[:slot]
                return

    @property
    def count(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The size of the file that holds exactly these entries."""
        return len(self._entries) * _ENTRY.size

    def entries(self) -> Sequence[AbortedTransaction]:
        return tuple(self._entries)

    def encode(self) -> bytes:
        """The content of the index file."""
        return b"".join(
            _ENTRY.pack(
                VERSION,
                aborted.producer_id,
                aborted.first_offset,
                aborted.last_offset,
                aborted.last_stable_offset,
            )
            for aborted in self._entries
        )

    def check(self, where: str) -> None:
        """Raises Corrupt when the file cannot be a true index and has to be rebuilt."""
        for aborted in self._entries:
            if aborted.last_offset < self.base_offset:
                raise Corrupt(
                    f"{where}: marker offset {aborted.last_offset} lies below the base offset "
                    f"{self.base_offset}: rebuild the index from its segment"
                )
