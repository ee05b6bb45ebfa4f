"""When the first and the last record of each segment were appended, by our clock.

Record timestamps come from outside; retention must know how old a segment is whatever they say.

Layout     `varve-append-times`: 32-byte entries of base offset, first and last append time in ms
           (i64 each), CRC32C of these 24 bytes (u32) and four zero bytes, little-endian; the latest
           entry of a base offset counts. Varve's own; Kafka passes over it.
           docs/formats/directory.md
Invariant  an entry is written with a segment's first append and when it is closed. Where a time is
           in doubt it is too late rather than too early: nothing expires before its day.
Crash      entries that do not match their CRC are passed over; a segment without one counts as
           appended when its data file was last changed. Synced with the segments it tells of.
Threads    changes under the log's lock or before the log is in use; look-ups need no lock.
"""

from collections.abc import Collection, Iterator
from struct import Struct
from typing import Final, NamedTuple, Self

import numpy as np

from varve.commit_log.names import APPEND_TIMES_FILE
from varve.disk import FileSystem, write_atomically
from varve.kernels.crc import crc32c

_TIMES: Final = Struct("<qqq")
_CRC: Final = Struct("<I4x")
ENTRY_BYTES: Final = _TIMES.size + _CRC.size
_SPARE_ENTRIES: Final = 64


class AppendSpan(NamedTuple):
    """First and last append to a segment."""

    first_ms: int
    last_ms: int


class AppendTimes:
    """The append times of one partition."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = f"{directory}/{APPEND_TIMES_FILE}"
        self._spans: dict[int, AppendSpan] = {}
        self._size = 0
        self._is_unsynced = False

    @classmethod
    def load(cls, fs: FileSystem, directory: str, bases: Collection[int]) -> Self:
        """What the file tells of the segments there are; written anew when it tells much else."""
        times = cls(fs, directory)
        try:
            data = fs.read(times._path)
        except FileNotFoundError:
            return times
        known = dict(decode_append_times(data))
        times._spans = {base: span for base, span in known.items() if base in bases}
        times._size = len(data) // ENTRY_BYTES * ENTRY_BYTES
        count_max = 2 * len(times._spans) + _SPARE_ENTRIES
        # A base offset beyond the log may come again, with other records.
        if times._size > count_max * ENTRY_BYTES or max(known, default=-1) > max(bases, default=0):
            times._write_anew(times._spans)
        return times

    def find(self, base_offset: int) -> AppendSpan | None:
        return self._spans.get(base_offset)

    def write(self, base_offset: int, span: AppendSpan) -> None:
        """Adds an entry; on disk after the next `sync`."""
        with self._fs.open_writable(self._path) as file:
            file.write_at(self._size, _encode(base_offset, span))
        self._size += ENTRY_BYTES
        self._is_unsynced = True
        self._spans[base_offset] = span

    def put_back(self, base_offset: int, span: AppendSpan | None) -> None:
        """Lets an older span count again until the next load."""
        if span is None:
            self._spans.pop(base_offset, None)
        else:
            self._spans[base_offset] = span

    def drop_from(self, offset: int) -> None:
        """Forgets, durably, the segments that begin at or above an offset."""
        if any(base >= offset for base in self._spans):
            self._write_anew({base: span for base, span in self._spans.items() if base < offset})

    def forget(self, base_offset: int) -> None:
        """Forgets a segment that left the log; its entry goes when the file is written anew."""
        self._spans.pop(base_offset, None)

    def sync(self) -> None:
        if self._is_unsynced:
            with self._fs.open(self._path) as file:
                file.sync()
            self._is_unsynced = False

    def _write_anew(self, spans: dict[int, AppendSpan]) -> None:
        data = b"".join(_encode(base, span) for base, span in sorted(spans.items()))
        write_atomically(self._fs, self._path, data)
        self._spans = spans
        self._size = len(data)
        self._is_unsynced = False


def _encode(base_offset: int, span: AppendSpan) -> bytes:
    data = _TIMES.pack(base_offset, *span)
    return data + _CRC.pack(crc32c(np.frombuffer(data, np.uint8), 0, len(data)))


def decode_append_times(data: bytes) -> Iterator[tuple[int, AppendSpan]]:
    """The entries of a file that match their CRC, in order."""
    buffer = np.frombuffer(data, np.uint8)
    for position in range(0, len(data) // ENTRY_BYTES * ENTRY_BYTES, ENTRY_BYTES):
        base_offset, first_ms, last_ms = _TIMES.unpack_from(data, position)
        (crc,) = _CRC.unpack_from(data, position + _TIMES.size)
        if crc == crc32c(buffer, position, position + _TIMES.size):
            yield base_offset, AppendSpan(first_ms, last_ms)
