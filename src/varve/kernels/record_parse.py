"""Records of one magic-2 batch into columns, or into a summary. docs/formats/record-batch.md

The records lie in payload[start:end]: the batch's own bytes behind its header, or what those
decompress to.

Invariant  nothing outside [start, end) is read and no loop outruns those bytes, whatever they say:
           a record takes at least seven, and a count that cannot fit is refused at once.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import byte_buffers, inlined, kernel
from varve.kernels.loads import Bytes
from varve.kernels.status import RecordStatus
from varve.kernels.varint import VARINT_OUT_OF_BYTES, read_varint, read_varlong

Row = npt.NDArray[np.int64]
Table = npt.NDArray[np.int64]

RECORD_SIZE_MIN = 7
"""Length, attributes, timestamp, offset, key length, value length, header count: a byte each."""
NO_LOG_APPEND_TIMESTAMP = -1 << 63


class RecordField(IntEnum):
    """Columns of parsed records. Starts count from the payload's first byte; size -1 is null."""

    OFFSET = 0
    TIMESTAMP = 1
    KEY_START = 2
    KEY_SIZE = 3
    VALUE_START = 4
    VALUE_SIZE = 5
    HEADERS_START = 6
    HEADERS_COUNT = 7
    RECORD_START = 8
    RECORD_END = 9


RECORD_FIELD_COUNT = len(RecordField)


class Summary(IntEnum):
    """What a walk over a batch's records tells; numbered on behind `batch_scan.Field`."""

    RECORDS_STATUS = 15
    RECORDS_FAULT_INDEX = 16
    """Which record is at fault, or -1."""
    RECORDS_MAX_TIMESTAMP = 17
    RECORDS_MIN_TIMESTAMP = 18
    """The smallest that is not -1; -1 if there is none."""
    RECORDS_NULL_KEYS = 19
    RECORDS_FIRST_NULL_KEY = 20
    RECORDS_CONSECUTIVE = 21
    """1 if the offset deltas are 0, 1, 2, …, else 0."""
    MAX_TIMESTAMP_OFFSET_DELTA = 22
    """Of the first record that has the largest timestamp; -1 if none has a timestamp."""


INSPECTION_FIELD_COUNT = max(Summary) + 1

_OFFSET = int(RecordField.OFFSET)
_TIMESTAMP = int(RecordField.TIMESTAMP)
_KEY_START = int(RecordField.KEY_START)
_KEY_SIZE = int(RecordField.KEY_SIZE)
_VALUE_START = int(RecordField.VALUE_START)
_VALUE_SIZE = int(RecordField.VALUE_SIZE)
_HEADERS_START = int(RecordField.HEADERS_START)
_HEADERS_COUNT = int(RecordField.HEADERS_COUNT)
_RECORD_START = int(RecordField.RECORD_START)
_RECORD_END = int(RecordField.RECORD_END)

_RECORDS_STATUS = int(Summary.RECORDS_STATUS)
_RECORDS_FAULT_INDEX = int(Summary.RECORDS_FAULT_INDEX)
_RECORDS_MAX_TIMESTAMP = int(Summary.RECORDS_MAX_TIMESTAMP)
_RECORDS_MIN_TIMESTAMP = int(Summary.RECORDS_MIN_TIMESTAMP)
_RECORDS_NULL_KEYS = int(Summary.RECORDS_NULL_KEYS)
_RECORDS_FIRST_NULL_KEY = int(Summary.RECORDS_FIRST_NULL_KEY)
_RECORDS_CONSECUTIVE = int(Summary.RECORDS_CONSECUTIVE)
_MAX_TIMESTAMP_OFFSET_DELTA = int(Summary.MAX_TIMESTAMP_OFFSET_DELTA)

_OK = int(RecordStatus.OK)
_NEGATIVE_COUNT = int(RecordStatus.NEGATIVE_COUNT)
_COUNT_TOO_LARGE = int(RecordStatus.COUNT_TOO_LARGE)
_TRUNCATED = int(RecordStatus.TRUNCATED)
_VARINT_TOO_LONG = int(RecordStatus.VARINT_TOO_LONG)
_CORRUPT_LENGTH = int(RecordStatus.CORRUPT_LENGTH)
_FIELD_OVERRUN = int(RecordStatus.FIELD_OVERRUN)
_LENGTH_MISMATCH = int(RecordStatus.LENGTH_MISMATCH)
_HEADER_COUNT = int(RecordStatus.HEADER_COUNT)
_NEGATIVE_HEADER_KEY = int(RecordStatus.NEGATIVE_HEADER_KEY)
_TRAILING_BYTES = int(RecordStatus.TRAILING_BYTES)

_INT64_MAX = (1 << 63) - 1


def record_table(count: int) -> Table:
    """Room for `count` parsed records. Check a count from outside with `count_fits` first."""
    return np.empty((count, RECORD_FIELD_COUNT), np.int64)


def count_fits(count: int, size: int) -> bool:
    """Whether `size` bytes can hold `count` records at all."""
    return 0 <= count <= size // RECORD_SIZE_MIN


@inlined
def _check_count(count: int, size: int) -> int:
    if count < 0:
        return _NEGATIVE_COUNT
    return _COUNT_TOO_LARGE if count > size // RECORD_SIZE_MIN else _OK


@inlined
def _field_fault(after: int) -> int:
    return _FIELD_OVERRUN if after == VARINT_OUT_OF_BYTES else _VARINT_TOO_LONG


@inlined
def _skip_bytes(buffer: Bytes, position: int, end: int) -> tuple[int, int, int, int]:
    """A field behind its length: status, start, size (-1 for any negative length), position."""
    size, start = read_varint(buffer, position, end)
    if start < 0:
        return _field_fault(start), position, -1, position
    if size < 0:
        return _OK, start, -1, start
    if size > end - start:
        return _FIELD_OVERRUN, start, size, position
    return _OK, start, size, start + size


@kernel
def _skip_headers(buffer: Bytes, position: int, end: int, count: int) -> tuple[int, int]:
    """Status and the position behind `count` headers, each of which takes at least two bytes."""
    for _ in range(count):
        status, _start, size, position = _skip_bytes(buffer, position, end)
        if status != _OK:
            return status, position
        if size < 0:
            return _NEGATIVE_HEADER_KEY, position
        status, _start, size, position = _skip_bytes(buffer, position, end)
        if status != _OK:
            return status, position
    return _OK, position


@inlined
def _read_record(buffer: Bytes, position: int, end: int) -> Any:
    """Status and the fields of the record at `position`, as plain numbers.

    (status, end of record, timestamp delta, offset delta, key start, key size, value start,
    value size, headers start, headers count); with a fault the numbers mean nothing.
    """
    length, start = read_varint(buffer, position, end)
    if start < 0:
        fault = _TRUNCATED if start == VARINT_OUT_OF_BYTES else _VARINT_TOO_LONG
        return fault, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if length < RECORD_SIZE_MIN - 1:
        return _CORRUPT_LENGTH, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if length > end - start:
        return _TRUNCATED, 0, 0, 0, 0, 0, 0, 0, 0, 0
    record_end = start + length
    timestamp_delta, at = read_varlong(buffer, start + 1, record_end)
    if at < 0:
        return _field_fault(at), 0, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = read_varint(buffer, at, record_end)
    if at < 0:
        return _field_fault(at), 0, 0, 0, 0, 0, 0, 0, 0, 0
    status, key_start, key_size, at = _skip_bytes(buffer, at, record_end)
    if status != _OK:
        return status, 0, 0, 0, 0, 0, 0, 0, 0, 0
    status, value_start, value_size, at = _skip_bytes(buffer, at, record_end)
    if status != _OK:
        return status, 0, 0, 0, 0, 0, 0, 0, 0, 0
    headers_count, headers_start = read_varint(buffer, at, record_end)
    if headers_start < 0:
        return _field_fault(headers_start), 0, 0, 0, 0, 0, 0, 0, 0, 0
    at = headers_start
    if headers_count != 0:
        if headers_count < 0 or headers_count > record_end - headers_start:
            return _HEADER_COUNT, 0, 0, 0, 0, 0, 0, 0, 0, 0
        status, at = _skip_headers(buffer, headers_start, record_end, headers_count)
        if status != _OK:
            return status, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if at != record_end:
        return _LENGTH_MISMATCH, 0, 0, 0, 0, 0, 0, 0, 0, 0
    return (
        _OK,
        record_end,
        timestamp_delta,
        offset_delta,
        key_start,
        key_size,
        value_start,
        value_size,
        headers_start,
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
    """Fill a row of `out` for each record; gives a RecordStatus and how many rows were filled.

    `log_append_timestamp` is the batch's max timestamp if its records bear the log append time,
    otherwise NO_LOG_APPEND_TIMESTAMP. With a fault, the second number tells which record has it.
    """
    if start < 0 or start > end or end > payload.size:
        raise IndexError("start and end do not name a range of the payload")
    if count == 0:
        return _OK, 0
    status = _check_count(count, end - start)
    if status != _OK:
        return status, 0
    if out.shape[0] < count or out.shape[1] < RECORD_FIELD_COUNT:
        raise IndexError("out has too few rows or columns for the records")
    position = start
    for index in range(count):
        record = _read_record(payload, position, end)
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
        ) = record
        if status != _OK:
            return status, index
        out[index, _OFFSET] = base_offset + offset
        out[index, _TIMESTAMP] = (
            base_timestamp + timestamp
            if log_append_timestamp == NO_LOG_APPEND_TIMESTAMP
            else log_append_timestamp
        )
        out[index, _KEY_START] = key
        out[index, _KEY_SIZE] = key_size
        out[index, _VALUE_START] = value
        out[index, _VALUE_SIZE] = value_size
        out[index, _HEADERS_START] = headers
        out[index, _HEADERS_COUNT] = header_count
        out[index, _RECORD_START] = position
        out[index, _RECORD_END] = after
        position = after
    if position != end:
        return _TRAILING_BYTES, count
    return _OK, count


@kernel
def walk_records(
    payload: Bytes, start: int, end: int, count: int, base_timestamp: int, out: Row
) -> int:
    """The work of `summarize_records` without its checks of the range and of `out`."""
    largest, smallest, largest_delta = -1, _INT64_MAX, -1
    null_keys, first_null_key, is_consecutive = 0, -1, 1
    status = _OK if count == 0 else _check_count(count, end - start)
    fault_index = -1 if status == _OK else 0
    position = start
    index = 0
    while status == _OK and index < count:
        status, after, timestamp_delta, offset_delta, _key, key_size, _value, _vs, _h, _hc = (
            _read_record(payload, position, end)
        )
        if status != _OK:
            fault_index = index
            break
        timestamp = base_timestamp + timestamp_delta
        if timestamp > largest:
            largest, largest_delta = timestamp, offset_delta
        if timestamp != -1 and timestamp < smallest:
            smallest = timestamp
        if key_size < 0:
            if null_keys == 0:
                first_null_key = index
            null_keys += 1
        if offset_delta != index:
            is_consecutive = 0
        position = after
        index += 1
    if status == _OK and count != 0 and position != end:
        status, fault_index = _TRAILING_BYTES, count
    out[_RECORDS_STATUS] = status
    out[_RECORDS_FAULT_INDEX] = fault_index
    out[_RECORDS_MAX_TIMESTAMP] = largest
    out[_RECORDS_MIN_TIMESTAMP] = -1 if smallest == _INT64_MAX else smallest
    out[_RECORDS_NULL_KEYS] = null_keys
    out[_RECORDS_FIRST_NULL_KEY] = first_null_key
    out[_RECORDS_CONSECUTIVE] = is_consecutive
    out[_MAX_TIMESTAMP_OFFSET_DELTA] = largest_delta
    return status


@kernel
def summarize_records(
    payload: Bytes, start: int, end: int, count: int, base_timestamp: int, out: Row
) -> int:
    """Fill the `Summary` fields of `out` from a payload; gives the RecordStatus too."""
    if start < 0 or start > end or end > payload.size:
        raise IndexError("start and end do not name a range of the payload")
    if out.size < INSPECTION_FIELD_COUNT:
        raise IndexError("out has too few fields for a summary")
    return walk_records(payload, start, end, count, base_timestamp, out)


def warm() -> None:
    """Compile for the argument types in use."""
    data = bytes([0x0C, 0, 0, 0, 1, 1, 0])
    for payload in byte_buffers(data):
        size = payload.size
        parse_records(payload, 0, size, 1, 0, 0, NO_LOG_APPEND_TIMESTAMP, record_table(1))
        row = np.empty(INSPECTION_FIELD_COUNT, np.int64)
        summarize_records(payload, 0, size, 1, 0, row)
