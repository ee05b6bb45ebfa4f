"""Entries of a window store: their keys as bytes, ranges of them, and iterators over ranges.

Layout     key, time (i64), sequence (i32); big-endian, no length, no separator.
           docs/reference/formats/window-store.md
Invariant  of one key, byte order is order of time, then of sequence. Keys of different lengths
           interleave, so bounds only narrow a scan and every entry is compared by its parts.
           An iterator reads the segments that existed when it was created, each as of its first
           read; a segment that is dropped meanwhile ends early, without an error. It ends with the
           opening of its store: after a close, a rebuild or a reopening it has no entry.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from varve.foundation.closing import Closing
from varve.foundation.errors import Closed, Corrupt, InvalidRequest
from varve.rocks.segments import Segment, Segments

TIME_MAX_MS: Final = 2**63 - 1
SEQUENCE_MAX: Final = 2**31 - 1
_SUFFIX: Final = struct.Struct(">qi")
SUFFIX_BYTES: Final = _SUFFIX.size


class WindowKey(NamedTuple):
    """The parts of an entry's key; the time is where its window starts."""

    key: bytes
    time_ms: int
    sequence: int


def encode_window_key(key: bytes, time_ms: int, sequence: int = 0) -> bytes:
    try:
        return key + _SUFFIX.pack(time_ms, sequence)
    except struct.error as error:
        raise InvalidRequest(f"time {time_ms!r:.40}, sequence {sequence!r:.40}: {error}") from error


def decode_window_key(data: bytes) -> WindowKey:
    """The parts; raises `Corrupt` for bytes that are not a window key."""
    if len(data) < SUFFIX_BYTES:
        raise Corrupt(f"window key of {len(data)} bytes; it has {SUFFIX_BYTES} or more")
    time_ms, sequence = _SUFFIX.unpack_from(data, len(data) - SUFFIX_BYTES)
    if time_ms < 0 or sequence < 0:
        raise Corrupt(f"window key with time {time_ms} and sequence {sequence}; neither is below 0")
    return WindowKey(data[:-SUFFIX_BYTES], time_ms, sequence)


def decode_time(data: bytes) -> int:
    """The time alone, for many keys in a loop; raises `Corrupt` as `decode_window_key` does."""
    size = len(data)
    if size >= SUFFIX_BYTES:
        time_ms: int
        time_ms, sequence = _SUFFIX.unpack_from(data, size - SUFFIX_BYTES)
        if time_ms >= 0 and sequence >= 0:
            return time_ms
    return decode_window_key(data).time_ms


def check_time(time_ms: int) -> None:
    check_whole(time_ms, "time")
    if not 0 <= time_ms <= TIME_MAX_MS:
        raise InvalidRequest(
            f"time {time_ms} is outside 0 to {TIME_MAX_MS}; give milliseconds since 1970"
        )


def check_whole(value: object, name: str) -> None:
    """Raises InvalidRequest for a time of another type; a whole number may be any."""
    if not isinstance(value, int):
        raise InvalidRequest(
            f"{name} {value!r:.40} is of type {type(value).__name__}; give milliseconds as an int"
        )


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Entries from key `first` to `last` and from one time to another, all inclusive.

    A key of None leaves that side unbounded.
    """

    first: bytes | None
    last: bytes | None
    from_ms: int
    to_ms: int

    def contains(self, key: bytes, time_ms: int) -> bool:
        return (
            self.from_ms <= time_ms <= self.to_ms
            and (self.first is None or key >= self.first)
            and (self.last is None or key <= self.last)
        )

    def lower(self) -> bytes | None:
        """No entry of the range has smaller bytes."""
        if self.first is None:
            return None
        if self.first == self.last:
            return encode_window_key(self.first, max(0, self.from_ms))
        # A longer key may continue with zeros where this one has its time.
        return self.first + bytes(SUFFIX_BYTES)

    def upper(self) -> bytes | None:
        """No entry of the range has greater bytes."""
        if self.last is None:
            return None
        suffix = _SUFFIX.pack(min(self.to_ms, TIME_MAX_MS), SEQUENCE_MAX)
        if self.first == self.last:
            return self.last + suffix
        return max(
            self.last[:size] + suffix for size in self._find_prefix_sizes(self.last, suffix[0])
        )

    def _find_prefix_sizes(self, last: bytes, time_byte: int) -> Iterator[int]:
        """Sizes of the prefixes of the last key that may have the greatest entry of the range.

        A key that is a prefix of the last one has its time where the last one continues, and sorts
        after it when the bytes of the time are greater.
        """
        yield len(last)
        for size in range(len(last)):
            if time_byte >= last[size] and (self.first is None or last[:size] >= self.first):
                yield size


class WindowEntry(NamedTuple):
    """An entry of a window store; the time is where its window starts."""

    key: bytes
    time_ms: int
    value: bytes


class WindowIterator(Closing):
    """Iterates over entries. Use it as a context manager: it keeps files open until closed."""

    def __init__(
        self,
        owner: Segments,
        segments: Sequence[Segment],
        key_range: KeyRange,
        *,
        backward: bool,
    ) -> None:
        self._owner = owner
        self._opening = owner.opening
        self._entries = _read_entries(segments, key_range, backward)
        self._next: WindowEntry | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WindowEntry:
        if not self.has_next():
            raise StopIteration
        entry, self._next = self._next, None
        assert entry is not None  # has_next has read it
        return entry

    def has_next(self) -> bool:
        if self._owner.opening != self._opening:
            self.close()
        if self._next is None:
            self._next = next(self._entries, None)
        return self._next is not None

    def close(self) -> None:
        """Releases its files and ends the iteration; closing twice is harmless."""
        self._next = None
        self._entries.close()


def _read_entries(
    segments: Sequence[Segment], key_range: KeyRange, backward: bool
) -> Generator[WindowEntry]:
    lower, upper = key_range.lower(), key_range.upper()
    for segment in segments:
        with (
            suppress(Closed),
            closing(segment.database.scan(lower, upper, backward=backward)) as scan,
        ):
            for data, value in scan:
                key, time_ms, _ = decode_window_key(data)
                if key_range.contains(key, time_ms):
                    yield WindowEntry(key, time_ms, value)
