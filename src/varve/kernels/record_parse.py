"""Parses the records of one batch into a table, or into a summary.

docs/reference/formats/record-batch.md

The records are in payload[start:end]: the bytes of the batch after its header, decompressed.

Invariant  nothing outside [start, end) is read, and no loop takes more steps than there are bytes,
           whatever they are: a record takes at least seven, and a count that cannot fit is
           rejected at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import (
    INSPECTION_COLUMN_COUNT,
    INT64_MAX,
    NO_LOG_APPEND_TIMESTAMP,
    RECORD_COLUMN_COUNT,
    RECORD_SIZE_MIN,
    InspectionColumn,
    RecordColumn,
    RecordStatus,
)
from varve.kernels.compile import byte_buffers, inlined, kernel
from varve.kernels.memory import Bytes, address_of
from varve.kernels.varint import VARINT_OUT_OF_BYTES, read_varint, read_varlong

Row = npt.NDArray[np.int64]
Table = npt.NDArray[np.int64]


def record_table(count: int) -> Table:
    """An empty table for `count` records. Check a count from outside with `count_fits` first."""
    return np.empty((count, RECORD_COLUMN_COUNT), np.int64)


def count_fits(count: int, size: int) -> bool:
    """Whether `size` bytes can hold `count` records at all."""
    return 0 <= count <= size // RECORD_SIZE_MIN


@inlined
def _check_count(count: int, size: int) -> int:
    if count < 0:
        return RecordStatus.NEGATIVE_COUNT.value
    if count > size // RECORD_SIZE_MIN:
        return RecordStatus.COUNT_TOO_LARGE.value
    return RecordStatus.OK.value


@inlined
def _field_fault(after: int) -> int:
    if after == VARINT_OUT_OF_BYTES:
        return RecordStatus.FIELD_OVERRUN.value
    return RecordStatus.VARINT_TOO_LONG.value


@inlined
def _skip_field(at: int, end: int) -> tuple[int, int, int, int]:
    """A field with its length before it: status, start, size (-1 if negative), address after it."""
    size, start = read_varint(at, end)
    if start < 0:
        return _field_fault(start), at, -1, at
    if size < 0:
        return RecordStatus.OK.value, start, -1, start
    if size > end - start:
        return RecordStatus.FIELD_OVERRUN.value, start, size, at
    return RecordStatus.OK.value, start, size, start + size


@kernel
def _skip_headers(at: int, end: int, count: int) -> tuple[int, int]:
    """Status and the address after `count` headers, each of at least two bytes."""
    for _ in range(count):
        status, _start, size, at = _skip_field(at, end)
        if status != RecordStatus.OK:
            return status, at
        if size < 0:
            return RecordStatus.NEGATIVE_HEADER_KEY.value, at
        status, _start, size, at = _skip_field(at, end)
        if status != RecordStatus.OK:
            return status, at
    return RecordStatus.OK.value, at


@inlined
def read_record(at: int, end: int) -> Any:
    """Status and the fields of the record at an address, as plain numbers.

    (status, end of record, timestamp delta, offset delta, key, key size, value, value size,
    headers, headers count). Starts are addresses; if the status is not OK, the other numbers are
    meaningless. The compiler removes what the caller does not use.
    """
    length, start = read_varint(at, end)
    if start < 0:
        is_cut = start == VARINT_OUT_OF_BYTES
        fault = RecordStatus.TRUNCATED.value if is_cut else RecordStatus.VARINT_TOO_LONG.value
        return fault, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if length < RECORD_SIZE_MIN - 1:
        return RecordStatus.CORRUPT_LENGTH.value, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if length > end - start:
        return RecordStatus.TRUNCATED.value, 0, 0, 0, 0, 0, 0, 0, 0, 0
    record_end = start + length
    timestamp_delta, at = read_varlong(start + 1, record_end)
    if at < 0:
        return _field_fault(at), 0, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = read_varint(at, record_end)
    if at < 0:
        return _field_fault(at), 0, 0, 0, 0, 0, 0, 0, 0, 0
    status, key, key_size, at = _skip_field(at, record_end)
    if status != RecordStatus.OK:
        return status, 0, 0, 0, 0, 0, 0, 0, 0, 0
    status, value, value_size, at = _skip_field(at, record_end)
    if status != RecordStatus.OK:
        return status, 0, 0, 0, 0, 0, 0, 0, 0, 0
    headers_count, headers = read_varint(at, record_end)
    if headers < 0:
        return _field_fault(headers), 0, 0, 0, 0, 0, 0, 0, 0, 0
    at = headers
    if headers_count != 0:
        if headers_count < 0 or headers_count > record_end - headers:
            return RecordStatus.HEADER_COUNT.value, 0, 0, 0, 0, 0, 0, 0, 0, 0
        status, at = _skip_headers(headers, record_end, headers_count)
        if status != RecordStatus.OK:
            return status, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if at != record_end:
        return RecordStatus.LENGTH_MISMATCH.value, 0, 0, 0, 0, 0, 0, 0, 0, 0
    return (
        RecordStatus.OK.value,
        record_end,
        timestamp_delta,
        offset_delta,
        key,
        key_size,
        value,
        value_size,
        headers,
        headers_count,
    )


@kernel
def parse_records(
    payload: Bytes,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_timestamp: int,
    out: Table,
) -> tuple[int, int]:
    """Fills a row of `out` for each record; returns a RecordStatus and the number of rows filled.

    `log_append_timestamp` is the batch's max timestamp if its records have the log append time,
    otherwise NO_LOG_APPEND_TIMESTAMP. If a record is bad, the second number is its index.
    """
    if start < 0 or start > end or end > payload.size:
        raise IndexError("start and end do not name a range of the payload")
    if count == 0:
        return RecordStatus.OK.value, 0
    status = _check_count(count, end - start)
    if status != RecordStatus.OK:
        return status, 0
    if out.shape[0] < count or out.shape[1] < RECORD_COLUMN_COUNT:
        raise IndexError("out has too few rows or columns for the records")
    base = address_of(payload)
    at, end = base + start, base + end
    for index in range(count):
        (
            status,
            after,
            timestamp,
            offset,
            key,
            key_size,
            value,
            value_size,
            headers,
            header_count,
        ) = read_record(at, end)
        if status != RecordStatus.OK:
            return status, index
        out[index, RecordColumn.OFFSET] = base_offset + offset
        out[index, RecordColumn.TIMESTAMP] = (
            base_timestamp + timestamp
            if log_append_timestamp == NO_LOG_APPEND_TIMESTAMP
            else log_append_timestamp
        )
        out[index, RecordColumn.KEY_START] = key - base
        out[index, RecordColumn.KEY_SIZE] = key_size
        out[index, RecordColumn.VALUE_START] = value - base
        out[index, RecordColumn.VALUE_SIZE] = value_size
        out[index, RecordColumn.HEADERS_START] = headers - base
        out[index, RecordColumn.HEADERS_COUNT] = header_count
        out[index, RecordColumn.RECORD_START] = at - base
        out[index, RecordColumn.RECORD_END] = after - base
        at = after
    if at != end:
        return RecordStatus.TRAILING_BYTES.value, count
    return RecordStatus.OK.value, count


@kernel
def summarize_range(
    payload: Bytes, start: int, end: int, count: int, base_timestamp: int, out: Row
) -> int:
    """`summarize_records` without the checks of the range and of `out`."""
    largest, smallest = -1, INT64_MAX
    null_keys, first_null_key, is_consecutive = 0, -1, 1
    status = RecordStatus.OK.value if count == 0 else _check_count(count, end - start)
    fault_index = -1 if status == RecordStatus.OK else 0
    base = address_of(payload)
    at, end = base + start, base + end
    index = 0
    while status == RecordStatus.OK and index < count:
        status, after, timestamp_delta, offset_delta, _key, key_size, _value, _vs, _h, _hc = (
            read_record(at, end)
        )
        if status != RecordStatus.OK:
            fault_index = index
            break
        timestamp = base_timestamp + timestamp_delta
        largest = max(largest, timestamp)
        if timestamp != -1 and timestamp < smallest:
            smallest = timestamp
        if key_size < 0:
            if null_keys == 0:
                first_null_key = index
            null_keys += 1
        if offset_delta != index:
            is_consecutive = 0
        at = after
        index += 1
    if status == RecordStatus.OK and count != 0 and at != end:
        status, fault_index = RecordStatus.TRAILING_BYTES.value, count
    out[InspectionColumn.RECORDS_STATUS] = status
    out[InspectionColumn.RECORDS_FAULT_INDEX] = fault_index
    out[InspectionColumn.RECORDS_MAX_TIMESTAMP] = largest
    out[InspectionColumn.RECORDS_MIN_TIMESTAMP] = -1 if smallest == INT64_MAX else smallest
    out[InspectionColumn.RECORDS_NULL_KEYS] = null_keys
    out[InspectionColumn.RECORDS_FIRST_NULL_KEY] = first_null_key
    out[InspectionColumn.RECORDS_CONSECUTIVE] = is_consecutive
    return status


@kernel
def summarize_records(
    payload: Bytes, start: int, end: int, count: int, base_timestamp: int, out: Row
) -> int:
    """Fills the `InspectionColumn` fields of `out` from a payload; returns the RecordStatus."""
    if start < 0 or start > end or end > payload.size:
        raise IndexError("start and end do not name a range of the payload")
    if out.size < INSPECTION_COLUMN_COUNT:
        raise IndexError("out has too few fields for a summary")
    return summarize_range(payload, start, end, count, base_timestamp, out)


def warm() -> None:
    """Compile for the argument types in use."""
    data = bytes([0x0C, 0, 0, 0, 1, 1, 0])
    for payload in byte_buffers(data):
        size = payload.size
        parse_records(payload, 0, size, 1, 0, 0, NO_LOG_APPEND_TIMESTAMP, record_table(1))
        row = np.empty(INSPECTION_COLUMN_COUNT, np.int64)
        summarize_records(payload, 0, size, 1, 0, row)
