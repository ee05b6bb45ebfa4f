"""Reads one segment: batch by batch in large chunks, by offset, by time, up to a limit.

Invariant  `BatchWalk` lists only batches that lie wholly within its range; positions count from the
           start of the file. What `read_batches` returns begins with the first batch that ends at
           or after the requested offset, holds whole batches only, and none that reaches the limit.
           An index entry is used only if the batch it points to confirms it: index files have no
           checksum, and a wrong position would skip records.
Crash      a torn or damaged tail ends a walk with a status; nothing is raised for it there.
Threads    any; no lock. A segment that left the log meanwhile raises FileNotFoundError: retry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from varve.commit_log.names import LOG
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import File
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_layout import (
    BATCH_COLUMN_COUNT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    MAGIC,
    OLD_LENGTH_MIN,
    BatchColumn,
    ScanStatus,
    status_text,
)
from varve.kernels.batch_scan import cut_batches, scan_batches
from varve.records import Batch, decode_header

CHUNK_BYTES: Final = 4 << 20
_TABLE_ROWS: Final = 8192
# Base offset, batch length, magic and last offset delta: the fields that locate a batch.
_BOUNDS: Final = Struct(">qi4xb6xi")
_PROBE_BYTES: Final = 8192
REPAIR_REMEDY: Final = "`varve check --repair` truncates or rebuilds what can be repaired"


class ReadableSegment(Protocol):
    """A segment that can be read: closed, active or remote."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    def file(self) -> File: ...
    def offset_index(self) -> OffsetIndex: ...
    def time_index(self) -> TimeIndex: ...
    def txn_index(self) -> TransactionIndex: ...
    def path(self, kind: str) -> str: ...
    def rebuild_indexes(self) -> bool:
        """Rebuilds offset and time index from the data file; False if that is not possible."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Consecutive batches: a row each, with the columns of `BatchColumn`.

    A batch starts at `buffer[position - start]`. The next step of the walk overwrites the buffer:
    copy what is needed longer.
    """

    rows: npt.NDArray[np.int64]
    buffer: memoryview
    start: int
    end: int

    def first(self, count: int) -> "BatchTable":
        """A table of the first `count` batches."""
        if count == len(self.rows):
            return self
        end = int(self.rows[count, BatchColumn.POSITION])
        return BatchTable(self.rows[:count], self.buffer, self.start, end)

    def bytes_of(self, row: int) -> memoryview:
        position = int(self.rows[row, BatchColumn.POSITION]) - self.start
        return self.buffer[position : position + int(self.rows[row, BatchColumn.SIZE])]


class BatchWalk:
    """Iterates over the batches in `[start, end)` of a data file.

    Afterwards, `position` and `status` say where and why it ended.
    """

    def __init__(self, file: File, *, start: int, end: int, verify_crc: bool) -> None:
        self._file = file
        self._end = end
        self._verify_crc = verify_crc
        self._table = np.empty((_TABLE_ROWS, BATCH_COLUMN_COUNT), np.int64)
        self.position = start
        self.status = ScanStatus.END

    def __iter__(self) -> Iterator[BatchTable]:
        chunk = np.empty(min(CHUNK_BYTES, max(self._end - self.position, 1)), np.uint8)
        while self.position < self._end:
            base = self.position
            filled = self._file.read_into(base, memoryview(chunk)[: self._end - base])
            has_batches = False
            for table in self._tables(chunk, base, filled):
                has_batches = True
                yield table
            is_stopped = self.status not in (ScanStatus.END, ScanStatus.INCOMPLETE)
            # The walk also ends at the end of a file that is shorter than `end`.
            is_last = filled < chunk.size or base + filled >= self._end
            if is_stopped or is_last:
                return
            if not has_batches:
                chunk = self._grown(chunk, base)
                if chunk.size == 0:
                    return

    def _tables(self, chunk: npt.NDArray[np.uint8], base: int, filled: int) -> Iterator[BatchTable]:
        view = memoryview(chunk)
        start = 0
        while True:
            count, start, status = scan_batches(chunk, start, filled, self._verify_crc, self._table)
            self.status = ScanStatus(status)
            self.position = base + start
            if count:
                rows = self._table[:count]
                rows[:, BatchColumn.POSITION] += base
                yield BatchTable(rows, view, base, self.position)
            if self.status != ScanStatus.FULL:
                return

    def _grown(self, chunk: npt.NDArray[np.uint8], base: int) -> npt.NDArray[np.uint8]:
        """A buffer that can hold the batch at `base`; an empty one if the file ends inside it."""
        size = read_batch_size(self._file, base)
        if size > self._end - base:
            return chunk[:0]
        return np.empty(max(size, 2 * chunk.size), np.uint8)

    def check_ended(self, where: str, *, remedy: str | None = REPAIR_REMEDY) -> None:
        """Raises unless the walk ended after whole batches or at a torn tail.

        `remedy` is the advice for damage, None if the caller gives its own.
        """
        if self.status in (ScanStatus.END, ScanStatus.INCOMPLETE, ScanStatus.FULL):
            return
        message = f"{where}: position {self.position}: {status_text(self.status)}"
        if self.status == ScanStatus.OLD_MAGIC:
            raise UnsupportedFormat(
                f"{message}; rewrite the topic with a Kafka release that converts message "
                "formats 0 and 1"
            )
        raise Corrupt(message if remedy is None else f"{message}; {remedy}")


class TimestampOffset(NamedTuple):
    """A record found by time."""

    timestamp: int
    offset: int


class BatchRun(NamedTuple):
    """Whole batches of one segment, the offset after them and where the next one begins."""

    data: memoryview
    next_offset: int
    end_position: int


def find_batch_position(
    segment: ReadableSegment, offset: int, *, size: int
) -> tuple[int, int] | None:
    """Position and size of the first batch whose last offset is at least `offset`; None past it."""
    file = segment.file()
    position, probe = _find_start(segment, offset, size)
    while len(probe) >= _BOUNDS.size:
        within = 0
        while within + _BOUNDS.size <= len(probe):
            base_offset, length, magic, last_delta = _BOUNDS.unpack_from(probe, within)
            if magic != MAGIC or length < LENGTH_MIN:
                raise _not_a_batch(
                    f"{segment.path(LOG)}: position {position + within}", magic, length
                )
            batch_size = length + LENGTH_OVERHEAD
            if position + within + batch_size > size:
                return None
            if base_offset + last_delta >= offset:
                return position + within, batch_size
            within += batch_size
        position += within
        probe = _read_probe(file, position, size)
    return None


def _read_probe(file: File, position: int, size: int) -> bytes:
    """Up to `_PROBE_BYTES` at a position; no bytes if it lies outside the file."""
    if not 0 <= position < size:
        return b""
    return file.read_at(position, min(_PROBE_BYTES, size - position))


def _confirms(probe: bytes, segment_base: int, entry_offset: int, available_bytes: int) -> bool:
    """Whether the probe starts with a whole batch at or below the offset of its index entry.

    No earlier batch then contains an offset for which a lookup returns the entry.
    """
    if len(probe) < _BOUNDS.size:
        return False
    base_offset, length, magic, last_delta = _BOUNDS.unpack_from(probe)
    return bool(
        magic == MAGIC
        and LENGTH_MIN <= length <= available_bytes - LENGTH_OVERHEAD
        and segment_base <= base_offset <= entry_offset
        and last_delta >= 0
    )


def _find_start(segment: ReadableSegment, offset: int, size: int) -> tuple[int, bytes]:
    """As `find_start_position`, with the first bytes at that position."""
    entry_offset, position = segment.offset_index().lookup(offset)
    probe = _read_probe(segment.file(), position, size)
    if position and not _confirms(probe, segment.base_offset, entry_offset, size - position):
        segment.rebuild_indexes()
        index = segment.offset_index()
        position = find_confirmed_position(segment.file(), index, offset, size=size)
        probe = _read_probe(segment.file(), position, size)
    return position, probe


def find_start_position(segment: ReadableSegment, offset: int, *, size: int) -> int:
    """Where a scan for an offset starts: at a batch, with no batch of that offset before it.

    A wrong index entry makes the segment rebuild its indexes; if it cannot, an earlier entry is
    used.
    """
    return _find_start(segment, offset, size)[0]


def find_confirmed_position(file: File, index: OffsetIndex, offset: int, *, size: int) -> int:
    """As `find_start_position`, by the last index entry that its batch confirms."""
    entry_offset, position = index.lookup(offset)
    while position:
        probe = _read_probe(file, position, size)
        if _confirms(probe, index.base_offset, entry_offset, size - position):
            return position
        entry_offset, position = index.lookup(entry_offset - 1)
    return 0


def _not_a_batch(where: str, magic: int, length: int) -> Corrupt:
    if magic in (0, 1) and length >= OLD_LENGTH_MIN:
        return UnsupportedFormat(
            f"{where}: message format {magic}; rewrite the topic with a Kafka release that "
            "converts message formats 0 and 1"
        )
    return Corrupt(
        f"{where}: no batch of message format 2 begins here (magic {magic}, length {length}); "
        "run `varve check --repair` on the directory"
    )


def read_batches(
    segment: ReadableSegment,
    *,
    start_offset: int,
    limit_offset: int,
    max_bytes: int,
    min_one: bool,
    size: int,
    position: int | None = None,
) -> BatchRun | None:
    """Whole batches from `start_offset`; None when the segment has none.

    `position` is where the first of them begins, if the caller knows it.
    """
    if position is None:
        batch = find_batch_position(segment, start_offset, size=size)
        if batch is None:
            return None
        position = batch[0]
    elif position >= size:
        return None
    file = segment.file()
    data = file.read_at(position, min(max_bytes, size - position))
    end, next_offset = cut_batches(np.frombuffer(data, np.uint8), limit_offset)
    if end == 0 and min_one and max_bytes < size - position:
        # With its whole header a damaged batch is recognised, whatever size it has.
        first_size = max(read_batch_size(file, position), HEADER_BYTES)
        data = file.read_at(position, min(max(first_size, max_bytes), size - position))
        end, next_offset = cut_batches(np.frombuffer(data, np.uint8), limit_offset)
    if end < 0:
        raise Corrupt(
            f"{segment.path(LOG)}: position {position}: no batch of message format 2 begins "
            "here; run `varve check` on the directory"
        )
    if end == 0 and len(data) == size - position:
        _check_whole(segment, data, position)
    return BatchRun(memoryview(data)[:end], max(next_offset, start_offset), position + end)


def _check_whole(segment: ReadableSegment, data: bytes, position: int) -> None:
    """Raises Corrupt if the batch at the position is incomplete: a reader would take an empty
    result for the end of the log.
    """
    length = int.from_bytes(data[LENGTH_AT:LENGTH_OVERHEAD], "big", signed=True)
    if len(data) < HEADER_BYTES or len(data) < LENGTH_OVERHEAD + length:
        raise Corrupt(
            f"{segment.path(LOG)}: position {position}: the file ends before the batch does; "
            "run `varve check` on the directory"
        )


def is_zeros(file: File, start: int, end: int) -> bool:
    """Whether a range of a file holds nothing but zeros."""
    for position in range(start, end, CHUNK_BYTES):
        data = file.read_at(position, min(CHUNK_BYTES, end - position))
        if data.count(0) < len(data):
            return False
    return True


def read_batch_size(file: File, position: int) -> int:
    """The size of the batch at a position, from its header."""
    length = file.read_at(position + LENGTH_AT, LENGTH_OVERHEAD - LENGTH_AT)
    return int.from_bytes(length, "big", signed=True) + LENGTH_OVERHEAD


def find_offset_by_time(
    segment: ReadableSegment, *, timestamp: int, start_offset: int, size: int
) -> TimestampOffset | None:
    """The first record at or after `start_offset` that is not older than `timestamp`."""
    indexed_offset = _find_time_entry(segment, timestamp, size=size)[1]
    batch = find_batch_position(segment, max(indexed_offset, start_offset), size=size)
    if batch is None:
        return None
    walk = BatchWalk(segment.file(), start=batch[0], end=size, verify_crc=False)
    for table in walk:
        candidates = table.rows[:, BatchColumn.MAX_TIMESTAMP] >= timestamp
        for row in np.flatnonzero(candidates):
            record = _first_record_at_or_after(table, int(row), timestamp, start_offset, segment)
            if record is not None:
                return record
    walk.check_ended(segment.path(LOG))
    return None


def _find_time_entry(segment: ReadableSegment, timestamp: int, *, size: int) -> tuple[int, int]:
    """The greatest valid entry at or below a timestamp; (-1, base offset) if there is none.

    A wrong entry makes the segment rebuild its indexes; if it cannot, an earlier entry is used.
    """
    entry = segment.time_index().lookup(timestamp)
    if (
        entry[0] >= 0
        and not _is_valid_time_entry(segment, entry, size)
        and segment.rebuild_indexes()
    ):
        return segment.time_index().lookup(timestamp)
    while entry[0] >= 0:
        if _is_valid_time_entry(segment, entry, size):
            return entry
        entry = segment.time_index().lookup(entry[0] - 1)
    return -1, segment.base_offset


def _is_valid_time_entry(segment: ReadableSegment, entry: tuple[int, int], size: int) -> bool:
    """Whether the batch at the entry's offset has the entry's timestamp."""
    timestamp, offset = entry
    batch = find_batch_position(segment, offset, size=size)
    if batch is None:
        return False
    where = f"{segment.path(LOG)}: position {batch[0]}"
    header = decode_header(segment.file().read_at(batch[0], HEADER_BYTES), where=where)
    return header.base_offset <= offset and header.max_timestamp == timestamp


def _first_record_at_or_after(
    table: BatchTable, row: int, timestamp: int, start_offset: int, segment: ReadableSegment
) -> TimestampOffset | None:
    where = f"{segment.path(LOG)} at {int(table.rows[row, BatchColumn.POSITION])}"
    columns = Batch(bytes(table.bytes_of(row)), where=where).columns()
    matches = np.flatnonzero((columns.timestamps >= timestamp) & (columns.offsets >= start_offset))
    if not matches.size:
        return None
    first = matches[0]
    return TimestampOffset(int(columns.timestamps[first]), int(columns.offsets[first]))


def find_newest_entry(segment: ReadableSegment, *, size: int) -> tuple[int, int]:
    """The largest timestamp in the time index, and the last offset of its batch.

    A wrong entry makes the segment rebuild its indexes, and so does a later batch with a larger
    timestamp: an index that lost its end would expire the segment early and hide it from searches
    by time. If it cannot rebuild them, as its data is damaged, the entry is used anyway; an error
    would stop the retention of the log.
    """
    entry = segment.time_index().last
    try:
        is_valid = entry[0] < 0 or _is_valid_time_entry(segment, entry, size)
    except Corrupt:
        return entry
    if is_valid:
        times, offsets = segment.time_index(), segment.offset_index()
        is_valid = find_largest_timestamp(segment.file(), times, offsets, size=size) == entry
    return entry if is_valid or not segment.rebuild_indexes() else segment.time_index().last


def find_max_timestamp(segment: ReadableSegment, *, size: int) -> TimestampOffset | None:
    """The first record that carries the segment's largest timestamp."""
    largest = segment.max_timestamp
    if largest < 0:
        return None
    return find_offset_by_time(
        segment, timestamp=largest, start_offset=segment.base_offset, size=size
    )


def find_largest_timestamp(
    file: File, time_index: TimeIndex, offset_index: OffsetIndex, *, size: int
) -> tuple[int, int]:
    """Largest timestamp and the last offset of the earliest batch that holds it.

    The time index covers the batches up to its last entry; a walk covers those after it.
    """
    largest, offset = time_index.last
    position = find_confirmed_position(file, offset_index, offset, size=size)
    for table in BatchWalk(file, start=position, end=size, verify_crc=False):
        timestamps = table.rows[:, BatchColumn.MAX_TIMESTAMP]
        row = int(timestamps.argmax())
        if timestamps[row] > largest:
            largest = int(timestamps[row])
            offset = int(table.rows[row, BatchColumn.LAST_OFFSET])
    return largest, offset


def find_end(segment: ReadableSegment, *, size: int) -> tuple[int, int]:
    """Offset and position after the last whole batch; starts at the last index entry."""
    position = find_start_position(segment, segment.offset_index().last_offset, size=size)
    next_offset = segment.base_offset
    walk = BatchWalk(segment.file(), start=position, end=size, verify_crc=False)
    for table in walk:
        next_offset = int(table.rows[-1, BatchColumn.LAST_OFFSET]) + 1
    walk.check_ended(segment.path(LOG))
    return next_offset, walk.position


def first_batch_timestamp(segment: ReadableSegment, *, size: int) -> int:
    """The first batch's largest timestamp; -1 when it has none or the segment is empty."""
    if size < HEADER_BYTES:
        return -1
    return decode_header(
        segment.file().read_at(0, HEADER_BYTES), where=segment.path(LOG)
    ).max_timestamp
