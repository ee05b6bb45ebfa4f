"""Records of one partition that were read and decoded, and are not given yet.

Invariant  entries are in the order of their offsets, from `start` on; what lies between entries, or
           between the last one and `next_offset`, holds no committed record.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from varve.records import RecordColumns
from varve.shapes.feed.decoder import Decoded, Decoder, Record


class Entry(NamedTuple):
    """A record; `size` counts the bytes of its key and value."""

    offset: int
    timestamp: int
    size: int
    decoded: Decoded


def decode_entries(columns: Iterable[RecordColumns], decoder: Decoder, *, end: int) -> list[Entry]:
    """The records before an offset, decoded."""
    places: list[tuple[int, int, int]] = []
    records: list[Record] = []
    for one in columns:
        payload = one.payload.tobytes()
        for row in one.table.tolist():
            offset, timestamp, key, key_size, value, value_size = row[:6]
            if offset >= end:
                break
            places.append((offset, timestamp, max(key_size, 0) + max(value_size, 0)))
            records.append(
                (
                    None if key_size < 0 else payload[key : key + key_size],
                    None if value_size < 0 else payload[value : value + value_size],
                )
            )
    if not records:
        return []
    return [
        Entry(offset, timestamp, size, decoded)
        for (offset, timestamp, size), decoded in zip(
            places, decoder.decode_many(records), strict=True
        )
    ]


class PartitionBuffer:
    """What was read ahead of one partition."""

    __slots__ = ("_entries", "_taken", "next_offset", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.next_offset = start
        self._entries: list[Entry] = []
        self._taken = 0

    @property
    def waiting(self) -> Sequence[Entry]:
        """What is not taken yet."""
        return self._entries[self._taken :] if self._taken else self._entries

    @property
    def is_empty(self) -> bool:
        return self._taken == len(self._entries)

    @property
    def has_news(self) -> bool:
        """Whether a take would move on, if only over offsets without records."""
        return self.next_offset > self.start

    def add(self, entries: Sequence[Entry], next_offset: int) -> None:
        self._entries = [*self.waiting, *entries]
        self._taken = 0
        self.next_offset = next_offset

    def take(self, count: int) -> tuple[int, int, list[Entry]]:
        """At most so many entries, and the offsets [start, end) that this covers."""
        entries = self._entries[self._taken : self._taken + count]
        self._taken += len(entries)
        start = self.start
        self.start = self.next_offset if self.is_empty else self._entries[self._taken].offset
        return start, self.start, entries
