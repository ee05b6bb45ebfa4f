"""Reads batches out of one segment: by offset, by time, up to a limit.

Invariant  what is returned begins with the first batch that ends at or after the asked offset,
           holds whole batches only, and none that reaches the limit.
Threads    any; no lock. A segment that left the log meanwhile raises FileNotFoundError: look again.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from varve.commit_log.names import INDEX, LOG
from varve.commit_log.segment import ReadableSegment
from varve.commit_log.segment_scan import BatchTable, BatchWalk
from varve.disk import File
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.batch_scan import cut_batches
from varve.records import HEADER_BYTES, Batch, decode_header

# Base offset, batch length, magic and last offset delta: all that finding a batch needs.
_BOUNDS: Final = Struct(">qi4xb6xi")
_PROBE_BYTES: Final = 8192
_LENGTH_END: Final = 12
_MAGIC: Final = 2
_SMALLEST_LENGTH: Final = 49
_SMALLEST_OLD_LENGTH: Final = 14


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A record found by time."""

    timestamp: int
    offset: int


def find_batch_position(
    segment: ReadableSegment, offset: int, *, size: int
) -> tuple[int, int] | None:
    """Position and size of the first batch whose last offset is at least `offset`.

    None past the end.
    """
    position = segment.offset_index().lookup(offset)[1]
    file = segment.file()
    while position + _BOUNDS.size <= size:
        probe = file.read_at(position, min(_PROBE_BYTES, size - position))
        within = 0
        while within + _BOUNDS.size <= len(probe):
            base_offset, length, magic, last_delta = _BOUNDS.unpack_from(probe, within)
            if magic != _MAGIC or length < _SMALLEST_LENGTH:
                raise _not_a_batch(
                    f"{segment.path(LOG)}: position {position + within}", magic, length
                )
            batch_size = length + _LENGTH_END
            if position + within + batch_size > size:
                return None
            if base_offset + last_delta >= offset:
                return position + within, batch_size
            within += batch_size
        if within == 0:
            return None
        position += within
    return None


class BatchRun(NamedTuple):
    """Whole batches of one segment, the offset after them and where the next one begins."""

    data: memoryview
    next_offset: int
    end_position: int


def _not_a_batch(where: str, magic: int, length: int) -> Corrupt:
    if magic in (0, 1) and length >= _SMALLEST_OLD_LENGTH:
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
    """Whole batches from `start_offset` on; None when the segment has none of them.

    `position` is where the first of them begins, if the caller knows.
    """
    if position is None:
        found = find_batch_position(segment, start_offset, size=size)
        if found is None:
            return None
        position = found[0]
    elif position >= size:
        return None
    file = segment.file()
    data = file.read_at(position, min(max_bytes, size - position))
    end, next_offset = cut_batches(np.frombuffer(data, np.uint8), limit_offset)
    if end == 0 and min_one and max_bytes < size - position:
        first_size = _size_of_batch_at(file, position)
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
    """Raises Corrupt when the batch at the position is cut: an empty answer would look like the
    log's end to a reader that goes on.
    """
    length = int.from_bytes(data[8:_LENGTH_END], "big", signed=True)
    if len(data) < HEADER_BYTES or len(data) < _LENGTH_END + length:
        raise Corrupt(
            f"{segment.path(LOG)}: position {position}: the file ends before the batch does; "
            "run `varve check` on the directory"
        )


def _size_of_batch_at(file: File, position: int) -> int:
    prefix = file.read_at(position, _LENGTH_END)
    return int.from_bytes(prefix[8:], "big", signed=True) + _LENGTH_END


def find_offset_by_time(
    segment: ReadableSegment, *, timestamp: int, start_offset: int, size: int
) -> TimestampOffset | None:
    """The first record at or after `start_offset` that is not older than `timestamp`."""
    indexed_offset = segment.time_index().lookup(timestamp)[1]
    found = find_batch_position(segment, max(indexed_offset, start_offset), size=size)
    if found is None:
        return None
    walk = BatchWalk(segment.file(), start=found[0], end=size, verify_crc=False)
    for table in walk:
        candidates = table.rows[:, BatchColumn.MAX_TIMESTAMP] >= timestamp
        for row in np.flatnonzero(candidates):
            record = _first_record_at_or_after(table, int(row), timestamp, start_offset, segment)
            if record is not None:
                return record
    walk.check_ended(segment.path(LOG))
    return None


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


def find_max_timestamp(segment: ReadableSegment, *, size: int) -> TimestampOffset | None:
    """The first record that carries the segment's largest timestamp."""
    largest = segment.max_timestamp
    if largest < 0:
        return None
    return find_offset_by_time(
        segment, timestamp=largest, start_offset=segment.base_offset, size=size
    )


def find_end(segment: ReadableSegment, *, size: int) -> tuple[int, int]:
    """Offset and position after the last whole batch, found from the last index entry on."""
    index = segment.offset_index()
    position = index.lookup(index.last_offset)[1]
    next_offset = segment.base_offset
    walk = BatchWalk(segment.file(), start=position, end=size, verify_crc=False)
    for table in walk:
        next_offset = int(table.rows[-1, BatchColumn.LAST_OFFSET]) + 1
    if position and walk.position == position:
        raise Corrupt(
            f"{segment.path(INDEX)}: the last entry points to position {position}, where no batch "
            "begins; remove the index, it is rebuilt when the log is opened"
        )
    walk.check_ended(segment.path(LOG))
    return next_offset, walk.position


def first_batch_timestamp(segment: ReadableSegment, *, size: int) -> int:
    """The first batch's largest timestamp; -1 when it has none or the segment is empty."""
    if size < HEADER_BYTES:
        return -1
    return decode_header(
        segment.file().read_at(0, HEADER_BYTES), where=segment.path(LOG)
    ).max_timestamp
