"""Scans, inspects, cuts and indexes the record batches in a byte buffer.

Layout     docs/reference/formats/record-batch.md
Invariant  nothing outside [start, end) is read; only whole batches are listed, and none after the
           first corrupt one. Only magic 2 is read.
"""

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_COLUMN_COUNT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    HEADER_BYTES,
    INSPECTION_COLUMN_COUNT,
    INT32_MAX,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    OLD_LENGTH_MIN,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    BatchColumn,
    InspectionColumn,
    RecordStatus,
    ScanStatus,
)
from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.crc import crc32c
from varve.kernels.memory import Bytes, load_i16, load_i32, load_i64, load_u8, load_u32
from varve.kernels.record_parse import Row, Table, summarize_range

VALID_AS_SENT: Final = -1
"""Status of `inspect_append`: the batch meets every rule that does not depend on a setting, and can
be stored as it was sent."""

_NOT_AS_SENT_BITS: Final = CODEC_MASK | CONTROL_BIT | LOG_APPEND_TIME_BIT


class IndexState(IntEnum):
    """The state of an index build between two tables of batches."""

    ENTRY_POSITION = 0
    PREVIOUS_OFFSET = 1
    MAX_TIMESTAMP = 2
    MAX_TIMESTAMP_OFFSET = 3
    INDEXED_TIMESTAMP = 4


class IndexBuildStatus(IntEnum):
    """Why building stopped; an offset below the segment's base does not ascend either."""

    DONE = 0
    OFFSET_OVERFLOW = 1
    OFFSET_NOT_ASCENDING = 2


def batch_table(capacity: int) -> Table:
    """An empty table for up to `capacity` batches."""
    return np.empty((capacity, BATCH_COLUMN_COUNT), np.int64)


def inspection_row() -> Row:
    """An empty row for the header fields of one batch and the summary of its records."""
    return np.empty(INSPECTION_COLUMN_COUNT, np.int64)


@inlined
def _measure(buffer: Bytes, position: int, end: int) -> tuple[int, int]:
    """Status and size of the batch at `position`, from its first 17 bytes."""
    remaining = end - position
    if remaining < LENGTH_OVERHEAD:
        return ScanStatus.INCOMPLETE.value, 0
    length = load_i32(buffer, position + LENGTH_AT)
    if length < OLD_LENGTH_MIN:
        return ScanStatus.CORRUPT_SIZE.value, 0
    if remaining <= MAGIC_AT:
        return ScanStatus.INCOMPLETE.value, 0
    magic = load_u8(buffer, position + MAGIC_AT)
    if magic != MAGIC:
        return (ScanStatus.OLD_MAGIC.value if magic < MAGIC else ScanStatus.BAD_MAGIC.value), 0
    size = length + LENGTH_OVERHEAD
    if size < HEADER_BYTES:
        return ScanStatus.CORRUPT_SIZE.value, 0
    return (ScanStatus.INCOMPLETE.value if size > remaining else ScanStatus.OK.value), size


@inlined
def _read_header(buffer: Bytes, position: int, size: int, row: Row) -> None:
    base_offset = load_i64(buffer, position)
    row[BatchColumn.POSITION] = position
    row[BatchColumn.SIZE] = size
    row[BatchColumn.BASE_OFFSET] = base_offset
    row[BatchColumn.LAST_OFFSET] = base_offset + load_i32(buffer, position + LAST_OFFSET_DELTA_AT)
    row[BatchColumn.LEADER_EPOCH] = load_i32(buffer, position + LEADER_EPOCH_AT)
    row[BatchColumn.CRC] = load_u32(buffer, position + CRC_AT)
    row[BatchColumn.ATTRIBUTES] = load_i16(buffer, position + ATTRIBUTES_AT)
    row[BatchColumn.BASE_TIMESTAMP] = load_i64(buffer, position + BASE_TIMESTAMP_AT)
    row[BatchColumn.MAX_TIMESTAMP] = load_i64(buffer, position + MAX_TIMESTAMP_AT)
    row[BatchColumn.PRODUCER_ID] = load_i64(buffer, position + PRODUCER_ID_AT)
    row[BatchColumn.PRODUCER_EPOCH] = load_i16(buffer, position + PRODUCER_EPOCH_AT)
    row[BatchColumn.BASE_SEQUENCE] = load_i32(buffer, position + BASE_SEQUENCE_AT)
    row[BatchColumn.RECORD_COUNT] = load_i32(buffer, position + RECORD_COUNT_AT)


@kernel
def scan_batches(
    buffer: Bytes, start: int, end: int, verify_crc: bool, out: Table
) -> tuple[int, int, int]:
    """Lists the batches of buffer[start:end], one row each: count, next position, ScanStatus.

    The next position is where the first batch starts that is not listed, or `end`. With FULL, call
    again from there. A batch whose CRC is wrong (checked only if `verify_crc`) is not listed.
    """
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    if out.shape[1] < BATCH_COLUMN_COUNT:
        raise IndexError("out has too few columns for a scan")
    position = start
    count = 0
    while position < end:
        if count == out.shape[0]:
            return count, position, ScanStatus.FULL.value
        status, size = _measure(buffer, position, end)
        if status != ScanStatus.OK:
            return count, position, status
        row = out[count]
        _read_header(buffer, position, size, row)
        if verify_crc:
            crc = crc32c(buffer, position + CRC_START, position + size)
            if crc != row[BatchColumn.CRC]:
                return count, position, ScanStatus.BAD_CRC.value
        position += size
        count += 1
    return count, position, ScanStatus.END.value


@kernel
def inspect_batch(buffer: Bytes, start: int, end: int, out: Row) -> int:
    """Inspects the header, CRC and records of the batch at `start`; returns a ScanStatus.

    OK (whole, CRC right) fills `BatchColumn` and, if the batch is neither compressed nor a control
    batch, `InspectionColumn`, whose RECORDS_STATUS is the fault of the records; otherwise
    RECORDS_STATUS is NOT_PARSED. BAD_CRC fills `BatchColumn`; any other status leaves `out` as it
    was. The batch may end before `end`.
    """
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    if out.size < INSPECTION_COLUMN_COUNT:
        raise IndexError("out has too few fields for an inspection")
    status, size = _measure(buffer, start, end)
    if status != ScanStatus.OK:
        return status
    _read_header(buffer, start, size, out)
    out[InspectionColumn.RECORDS_STATUS] = RecordStatus.NOT_PARSED.value
    batch_end = start + size
    if crc32c(buffer, start + CRC_START, batch_end) != out[BatchColumn.CRC]:
        return ScanStatus.BAD_CRC.value
    if out[BatchColumn.ATTRIBUTES] & (CODEC_MASK | CONTROL_BIT) == 0:
        records = start + HEADER_BYTES
        summarize_range(
            buffer,
            records,
            batch_end,
            out[BatchColumn.RECORD_COUNT],
            out[BatchColumn.BASE_TIMESTAMP],
            out,
        )
    return ScanStatus.OK.value


@kernel
def inspect_append(buffer: Bytes, out: Row) -> int:
    """As `inspect_batch`, for a buffer with one batch; VALID_AS_SENT if it needs no more checks."""
    status = inspect_batch(buffer, 0, buffer.size, out)
    if (
        status == ScanStatus.OK
        and out[InspectionColumn.RECORDS_STATUS] == RecordStatus.OK
        and out[BatchColumn.SIZE] == buffer.size
        and out[BatchColumn.BASE_OFFSET] == 0
        and out[BatchColumn.RECORD_COUNT] > 0
        and out[BatchColumn.LAST_OFFSET] + 1 == out[BatchColumn.RECORD_COUNT]
        and out[BatchColumn.ATTRIBUTES] & _NOT_AS_SENT_BITS == 0
        and (out[BatchColumn.PRODUCER_ID] < 0 or out[BatchColumn.BASE_SEQUENCE] >= 0)
        and out[InspectionColumn.RECORDS_MAX_TIMESTAMP] == out[BatchColumn.MAX_TIMESTAMP]
    ):
        return VALID_AS_SENT
    return status


@kernel
def cut_batches(buffer: Bytes, limit_offset: int) -> tuple[int, int]:
    """End of the last whole batch whose last offset is below the limit, and the offset after it.

    No such batch gives (0, -1); a buffer that does not begin with a batch of magic 2, (-1, -1).
    """
    size = buffer.size
    position = 0
    next_offset = as_int(-1)
    while position + BASE_TIMESTAMP_AT <= size:
        length = load_i32(buffer, position + LENGTH_AT)
        if length < LENGTH_MIN or buffer[position + MAGIC_AT] != MAGIC:
            if position == 0:
                return -1, as_int(-1)
            break
        last_offset = load_i64(buffer, position) + load_i32(buffer, position + LAST_OFFSET_DELTA_AT)
        end = position + LENGTH_OVERHEAD + length
        if end > size or last_offset >= limit_offset:
            break
        next_offset = last_offset + 1
        position = end
    return position, next_offset


def initial_index_state(base_offset: int) -> npt.NDArray[np.int64]:
    return np.array([0, base_offset - 1, -1, base_offset, -1], np.int64)


@kernel
def build_index_entries(
    rows: npt.NDArray[np.int64],
    base_offset: int,
    interval_bytes: int,
    state: npt.NDArray[np.int64],
    offset_entries: npt.NDArray[np.int64],
    time_entries: npt.NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Fills the entries of the offset and the time index; both tables are as long as `rows`.

    Returns the counts of offset and time entries, the status and the number of rows indexed.
    """
    offset_count = 0
    time_count = 0
    for i in range(rows.shape[0]):
        last_offset = rows[i, BatchColumn.LAST_OFFSET]
        # The CRC does not cover the base offset, which a torn write may leave incomplete.
        if (
            rows[i, BatchColumn.BASE_OFFSET] <= state[IndexState.PREVIOUS_OFFSET]
            or last_offset < rows[i, BatchColumn.BASE_OFFSET]
        ):
            return offset_count, time_count, IndexBuildStatus.OFFSET_NOT_ASCENDING.value, i
        if last_offset - base_offset > INT32_MAX:
            return offset_count, time_count, IndexBuildStatus.OFFSET_OVERFLOW.value, i
        state[IndexState.PREVIOUS_OFFSET] = last_offset
        if rows[i, BatchColumn.MAX_TIMESTAMP] > state[IndexState.MAX_TIMESTAMP]:
            state[IndexState.MAX_TIMESTAMP] = rows[i, BatchColumn.MAX_TIMESTAMP]
            state[IndexState.MAX_TIMESTAMP_OFFSET] = last_offset
        if rows[i, BatchColumn.POSITION] - state[IndexState.ENTRY_POSITION] <= interval_bytes:
            continue
        offset_entries[offset_count, 0] = last_offset
        offset_entries[offset_count, 1] = rows[i, BatchColumn.POSITION]
        offset_count += 1
        state[IndexState.ENTRY_POSITION] = rows[i, BatchColumn.POSITION]
        if state[IndexState.MAX_TIMESTAMP] > state[IndexState.INDEXED_TIMESTAMP]:
            time_entries[time_count, 0] = state[IndexState.MAX_TIMESTAMP]
            time_entries[time_count, 1] = state[IndexState.MAX_TIMESTAMP_OFFSET]
            time_count += 1
            state[IndexState.INDEXED_TIMESTAMP] = state[IndexState.MAX_TIMESTAMP]
    return offset_count, time_count, IndexBuildStatus.DONE.value, rows.shape[0]


def warm() -> None:
    """Compile for the argument types in use."""
    entries = np.empty((0, 2), np.int64)
    build_index_entries(batch_table(0), 0, 0, initial_index_state(0), entries, entries)
    for buffer in byte_buffers(bytes(HEADER_BYTES)):
        scan_batches(buffer, 0, HEADER_BYTES, True, batch_table(1))
        inspect_batch(buffer, 0, HEADER_BYTES, inspection_row())
        inspect_append(buffer, inspection_row())
        cut_batches(buffer, 0)
