"""Append times of a partition: when the first and last record of each segment were appended.

They come from the local clock. Producers choose record timestamps, so retention needs an age of
each segment that does not depend on them.

An entry also has the checksum of the segment's transaction index, which has none itself.

Layout     `varve-append-times`: 32-byte entries of base offset, first and last append time in ms
           (i64 each), CRC32C of these 24 bytes (u32) and the complement of the CRC32C of the
           segment's transaction index (u32, 0 while it is unknown), little-endian; the last entry
           of a base offset applies. Specific to varve; Kafka ignores the file.
           docs/reference/formats/directory.md
Invariant  an entry is written with a segment's first append and when it is closed. An uncertain
           time is too late rather than too early, so that no record expires early.
Crash      entries that do not match their CRC are ignored; a segment without an entry uses the
           modification time of its data file. Synced with its segments.
Threads    one lock around the file and its size: a roll writes under the log's lock, a swap and a
           flush under the flush lock. The lock is not held during a sync. Lookups need no lock.
"""

import threading
from collections.abc import Collection, Iterator
from struct import Struct
from typing import Final, NamedTuple, Self

import numpy as np

from varve.commit_log.names import APPEND_TIMES_FILE
from varve.disk import FileSystem, write_atomically
from varve.kernels.crc import crc32c, crc32c_of

_TIMES: Final = Struct("<qqq")
_CHECKS: Final = Struct("<II")
ENTRY_BYTES: Final = _TIMES.size + _CHECKS.size
# Stale entries allowed besides as many as there are segments: a short file is rarely rewritten.
_STALE_ENTRIES_MIN: Final = 64


class AppendSpan(NamedTuple):
    """First and last append to a segment."""

    first_ms: int
    last_ms: int


UNKNOWN_CHECK: Final = 0


def txn_check_of(data: bytes) -> int:
    """The check of a transaction index with these bytes; empty ones stand for no file."""
    return crc32c_of(data) ^ 0xFFFFFFFF or 1


NO_TXN_INDEX: Final = txn_check_of(b"")
"""The check of a segment without aborted transactions."""


class AppendTimes:
    """The append times of one partition."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = f"{directory}/{APPEND_TIMES_FILE}"
        self._spans: dict[int, AppendSpan] = {}
        self._txn_checks: dict[int, int] = {}
        self._lock = threading.Lock()
        self._size = 0  # guarded by _lock
        self._is_unsynced = False  # guarded by _lock

    @classmethod
    def load(cls, fs: FileSystem, directory: str, bases: Collection[int]) -> Self:
        """Reads the entries of the given segments; rewrites a file that mostly has others."""
        times = cls(fs, directory)
        data = _read(fs, directory)
        if not data:
            return times
        stored = dict(decode_append_times(data))
        times._spans = {base: span for base, span in stored.items() if base in bases}
        times._txn_checks = {base: check for base, _, check in _decode(data) if base in bases}
        times._size = len(data) // ENTRY_BYTES * ENTRY_BYTES
        # A base offset beyond the log may be assigned again, to other records.
        if times._is_oversized() or max(stored, default=-1) > max(bases, default=0):
            times._rewrite_locked(times._spans)
        return times

    def _is_oversized(self) -> bool:
        return self._size > (2 * len(self._spans) + _STALE_ENTRIES_MIN) * ENTRY_BYTES

    def find(self, base_offset: int) -> AppendSpan | None:
        return self._spans.get(base_offset)

    def find_txn_check(self, base_offset: int) -> int:
        """`txn_check_of` the segment's transaction index; `UNKNOWN_CHECK` if none was written."""
        return self._txn_checks.get(base_offset, UNKNOWN_CHECK)

    def write(self, base_offset: int, span: AppendSpan, *, txn_check: int = UNKNOWN_CHECK) -> None:
        """Adds an entry; on disk after the next `sync`."""
        with self._lock:
            with self._fs.open_writable(self._path) as file:
                file.write_at(self._size, _encode(base_offset, span, txn_check))
            self._size += ENTRY_BYTES
            self._is_unsynced = True
            self._spans[base_offset] = span
            self._txn_checks[base_offset] = txn_check
            if self._is_oversized():
                self._rewrite_locked(self._spans.copy())

    def set_in_memory(self, base_offset: int, span: AppendSpan | None) -> None:
        """Sets or removes a span until the next load; the file stays as it is."""
        if span is None:
            self._spans.pop(base_offset, None)
        else:
            self._spans[base_offset] = span

    def drop_from(self, offset: int) -> None:
        """Removes, durably, the segments whose base offset is at or above an offset."""
        with self._lock:
            kept = {base: span for base, span in self._spans.items() if base < offset}
            if len(kept) < len(self._spans):
                self._rewrite_locked(kept)

    def forget(self, base_offset: int) -> None:
        """Removes a segment that left the log; its entry stays until the file is rewritten."""
        self._spans.pop(base_offset, None)

    def sync(self) -> None:
        with self._lock:
            is_unsynced, self._is_unsynced = self._is_unsynced, False
        if not is_unsynced:
            return
        try:
            with self._fs.open(self._path) as file:
                file.sync()
        except FileNotFoundError:
            with self._lock:
                self._rewrite_locked(self._spans.copy())

    def _rewrite_locked(self, spans: dict[int, AppendSpan]) -> None:
        data = b"".join(
            _encode(base, span, self.find_txn_check(base)) for base, span in sorted(spans.items())
        )
        write_atomically(self._fs, self._path, data)
        self._spans = spans
        self._size = len(data)
        self._is_unsynced = False


def _read(fs: FileSystem, directory: str) -> bytes:
    try:
        return fs.read(f"{directory}/{APPEND_TIMES_FILE}")
    except FileNotFoundError:
        return b""


def read_txn_checks(fs: FileSystem, directory: str) -> dict[int, int]:
    """By base offset, the check of the transaction index in the segment's last entry."""
    return {base_offset: check for base_offset, _, check in _decode(_read(fs, directory))}


def _encode(base_offset: int, span: AppendSpan, txn_check: int) -> bytes:
    data = _TIMES.pack(base_offset, *span)
    return data + _CHECKS.pack(crc32c_of(data), txn_check)


def decode_append_times(data: bytes) -> Iterator[tuple[int, AppendSpan]]:
    """The entries of a file that match their CRC, in order."""
    for base_offset, span, _ in _decode(data):
        yield base_offset, span


def _decode(data: bytes) -> Iterator[tuple[int, AppendSpan, int]]:
    buffer = np.frombuffer(data, np.uint8)
    for position in range(0, len(data) // ENTRY_BYTES * ENTRY_BYTES, ENTRY_BYTES):
        base_offset, first_ms, last_ms = _TIMES.unpack_from(data, position)
        crc, txn_check = _CHECKS.unpack_from(data, position + _TIMES.size)
        if crc == crc32c(buffer, position, position + _TIMES.size):
            yield base_offset, AppendSpan(first_ms, last_ms), txn_check
