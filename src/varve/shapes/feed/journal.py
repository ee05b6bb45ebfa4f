"""The journal of a feed: the order in which records of several partitions were read, and marks.

Layout     entries of 32 bytes, big-endian, with a CRC32C of the 28 bytes before it. A span:
           partition u32, start offset u64, end offset u64, first transaction u64. A mark: partition
           with its highest bit set, base offset u64, last offset u64, leader epoch i32, CRC of the
           batch u32. docs/how-to/feed-shapes.md
Invariant  transactions continue from span to span without a gap, one for each offset of a span.
           A span is on disk before a shape sees any of its records; a mark is written before, and
           on disk before any shape is synced.
Crash      the file ends at the first entry that is torn or does not continue the one before:
           no shape saw what is after it.
Threads    one.
"""

import posixpath
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from varve.disk import FileSystem, make_durable_directory, write_atomically
from varve.kernels.crc import crc32c_of
from varve.topics import HistoryMark

_SPAN: Final = struct.Struct(">IQQQ")
_MARK: Final = struct.Struct(">IQQiI")
_CRC: Final = struct.Struct(">I")
_MARK_BIT: Final = 1 << 31
ENTRY_BYTES: Final = _SPAN.size + _CRC.size
_CUT_BYTES: Final = 64 << 10
"""File size from which spans that the table has are removed."""


class OffsetSpan(NamedTuple):
    """Offsets [start, end) of a partition; the record at `start` is transaction `first_tx`."""

    partition: int
    start: int
    end: int
    first_tx: int

    @property
    def next_tx(self) -> int:
        return self.first_tx + self.end - self.start

    def encode(self) -> bytes:
        return _with_crc(_SPAN.pack(*self))


class Journal:
    """The journal of one topic; `spans` and `marks` are those that the table does not have."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.spans: list[OffsetSpan] = []
        self.marks: dict[int, HistoryMark] = {}
        """The last batch that was read, by partition."""
        self._fs = fs
        self._path = path
        self._size = 0
        self._is_synced = True

    def open(self) -> None:
        """Reads the valid entries, and rewrites the file with them."""
        directory = posixpath.dirname(self._path) or "."
        make_durable_directory(self._fs, directory)
        with self._fs.open_writable(self._path) as file:
            self.spans, self.marks = decode_journal(file.read_at(0, file.size()))
        # A failed sync may have left bytes that can be read but never reach the disk.
        self._rewrite()

    def append(self, spans: Sequence[OffsetSpan]) -> None:
        """Adds spans; they and all marks are on disk when it returns."""
        self._write(b"".join([span.encode() for span in spans]), sync=True)
        self.spans += spans

    def write_marks(self, marks: Mapping[int, HistoryMark]) -> None:
        """Writes the last batches that were read; `sync` makes them durable."""
        self._write(b"".join([_encode_mark(*entry) for entry in marks.items()]), sync=False)
        self.marks |= marks

    def sync(self) -> None:
        if not self._is_synced:
            self._write(b"", sync=True)

    def cut(self, next_tx: int) -> None:
        """Removes spans before a transaction; the table on disk must have them."""
        self.spans = [span for span in self.spans if span.next_tx > next_tx]
        if self._size >= _CUT_BYTES:
            self._rewrite()

    def restart(self, next_tx: int, marks: Mapping[int, HistoryMark]) -> None:
        """Removes spans and marks that the table on disk has: those before the transaction."""
        self.spans = [span for span in self.spans if span.next_tx > next_tx]
        self.marks = self.find_marks_after(marks)
        if (len(self.spans) + len(self.marks)) * ENTRY_BYTES != self._size:
            self._rewrite()

    def find_marks_after(self, marks: Mapping[int, HistoryMark]) -> dict[int, HistoryMark]:
        """The marks that lie after these, or are of other partitions."""
        return {
            number: mark
            for number, mark in self.marks.items()
            if number not in marks or marks[number].last_offset < mark.last_offset
        }

    def clear(self) -> None:
        """Removes everything: transactions continue from the table alone."""
        self.spans, self.marks = [], {}
        self._rewrite()

    def _write(self, data: bytes, *, sync: bool) -> None:
        with self._fs.open_writable(self._path) as file:
            file.write_at(self._size, data)
            if sync:
                file.sync()
        self._size += len(data)
        self._is_synced = sync

    def _rewrite(self) -> None:
        marks = [_encode_mark(*entry) for entry in self.marks.items()]
        data = b"".join([*marks, *(span.encode() for span in self.spans)])
        write_atomically(self._fs, self._path, data)
        self._size, self._is_synced = len(data), True


def decode_journal(data: bytes) -> tuple[list[OffsetSpan], dict[int, HistoryMark]]:
    """The spans, and the last mark of each partition, up to the first entry that is torn,
    damaged, or does not follow."""
    spans: list[OffsetSpan] = []
    marks: dict[int, HistoryMark] = {}
    for position in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        body = data[position : position + _SPAN.size]
        if data[position : position + ENTRY_BYTES] != _with_crc(body):
            break
        if body[0] & 0x80:
            number, base_offset, last_offset, leader_epoch, crc = _MARK.unpack(body)
            marks[number ^ _MARK_BIT] = HistoryMark(
                base_offset=base_offset, last_offset=last_offset, leader_epoch=leader_epoch, crc=crc
            )
            continue
        span = OffsetSpan(*_SPAN.unpack(body))
        if span.start >= span.end or (spans and spans[-1].next_tx != span.first_tx):
            break
        spans.append(span)
    return spans, marks


def _encode_mark(partition: int, mark: HistoryMark) -> bytes:
    return _with_crc(
        _MARK.pack(
            partition | _MARK_BIT, mark.base_offset, mark.last_offset, mark.leader_epoch, mark.crc
        )
    )


def _with_crc(body: bytes) -> bytes:
    return body + _CRC.pack(crc32c_of(body))
