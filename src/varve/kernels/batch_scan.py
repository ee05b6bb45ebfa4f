"""Finding record batches in a byte buffer and reading their headers. docs/formats/record-batch.md

Invariant  nothing outside [start, end) is read; only whole batches are listed, and nothing behind
           the first that is faulty. Only magic 2 is read.
"""

from enum import IntEnum

import numpy as np

from varve.kernels.compile import byte_buffers, inlined, kernel
from varve.kernels.crc import crc32c
from varve.kernels.loads import Bytes, load_i16, load_i32, load_i64, load_u8, load_u32
from varve.kernels.record_parse import INSPECTION_FIELD_COUNT, Row, Summary, Table, walk_records
from varve.kernels.status import RecordStatus, ScanStatus


class Field(IntEnum):
    """Columns of a scan, as Kafka names them; POSITION counts from the start of the buffer."""

    POSITION = 0
    SIZE = 1
    """All bytes of the batch, header included."""
    BASE_OFFSET = 2
    LAST_OFFSET = 3
    LEADER_EPOCH = 4
    MAGIC = 5
    CRC = 6
    ATTRIBUTES = 7
    BASE_TIMESTAMP = 8
    MAX_TIMESTAMP = 9
    PRODUCER_ID = 10
    PRODUCER_EPOCH = 11
    BASE_SEQUENCE = 12
    RECORD_COUNT = 13
    CRC_VALID = 14
    """1 verified, 0 found wrong, -1 not looked at."""


FIELD_COUNT = len(Field)
HEADER_SIZE = 61

_LENGTH_END = 12
_MAGIC_AT = 16
_CRC_START = 21
_OLD_LENGTH_MIN = 14
_CODEC_MASK = 0x07
_CONTROL_MASK = 0x20

_POSITION = int(Field.POSITION)
_SIZE = int(Field.SIZE)
_BASE_OFFSET = int(Field.BASE_OFFSET)
_LAST_OFFSET = int(Field.LAST_OFFSET)
_LEADER_EPOCH = int(Field.LEADER_EPOCH)
_MAGIC = int(Field.MAGIC)
_CRC = int(Field.CRC)
_ATTRIBUTES = int(Field.ATTRIBUTES)
_BASE_TIMESTAMP = int(Field.BASE_TIMESTAMP)
_MAX_TIMESTAMP = int(Field.MAX_TIMESTAMP)
_PRODUCER_ID = int(Field.PRODUCER_ID)
_PRODUCER_EPOCH = int(Field.PRODUCER_EPOCH)
_BASE_SEQUENCE = int(Field.BASE_SEQUENCE)
_RECORD_COUNT = int(Field.RECORD_COUNT)
_CRC_VALID = int(Field.CRC_VALID)

_OK = int(ScanStatus.OK)
_END = int(ScanStatus.END)
_INCOMPLETE = int(ScanStatus.INCOMPLETE)
_FULL = int(ScanStatus.FULL)
_CORRUPT_SIZE = int(ScanStatus.CORRUPT_SIZE)
_OLD_MAGIC = int(ScanStatus.OLD_MAGIC)
_BAD_MAGIC = int(ScanStatus.BAD_MAGIC)
_BAD_CRC = int(ScanStatus.BAD_CRC)

_RECORDS_STATUS = int(Summary.RECORDS_STATUS)
_NOT_WALKED = int(RecordStatus.NOT_WALKED)


def batch_table(capacity: int) -> Table:
    """Room for a scan of up to `capacity` batches."""
    return np.empty((capacity, FIELD_COUNT), np.int64)


def inspection_row() -> Row:
    """Room for one batch's header fields and the summary of its records."""
    return np.empty(INSPECTION_FIELD_COUNT, np.int64)


@inlined
def _measure(buffer: Bytes, position: int, end: int) -> tuple[int, int]:
    """Status and size of the batch at `position`, by its first 17 bytes."""
    remaining = end - position
    if remaining < _LENGTH_END:
        return _INCOMPLETE, 0
    length = load_i32(buffer, position + 8)
    if length < _OLD_LENGTH_MIN:
        return _CORRUPT_SIZE, 0
    if remaining <= _MAGIC_AT:
        return _INCOMPLETE, 0
    magic = load_u8(buffer, position + _MAGIC_AT)
    if magic != 2:
        return (_OLD_MAGIC if magic < 2 else _BAD_MAGIC), 0
    size = length + _LENGTH_END
    if size < HEADER_SIZE:
        return _CORRUPT_SIZE, 0
    return (_INCOMPLETE if size > remaining else _OK), size


@inlined
def _read_header(buffer: Bytes, position: int, size: int, row: Row) -> None:
    base_offset = load_i64(buffer, position)
    row[_POSITION] = position
    row[_SIZE] = size
    row[_BASE_OFFSET] = base_offset
    row[_LAST_OFFSET] = base_offset + load_i32(buffer, position + 23)
    row[_LEADER_EPOCH] = load_i32(buffer, position + 12)
    row[_MAGIC] = 2
    row[_CRC] = load_u32(buffer, position + 17)
    row[_ATTRIBUTES] = load_i16(buffer, position + 21)
    row[_BASE_TIMESTAMP] = load_i64(buffer, position + 27)
    row[_MAX_TIMESTAMP] = load_i64(buffer, position + 35)
    row[_PRODUCER_ID] = load_i64(buffer, position + 43)
    row[_PRODUCER_EPOCH] = load_i16(buffer, position + 51)
    row[_BASE_SEQUENCE] = load_i32(buffer, position + 53)
    row[_RECORD_COUNT] = load_i32(buffer, position + 57)
    row[_CRC_VALID] = -1


@kernel
def scan_batches(
    buffer: Bytes, start: int, end: int, verify_crc: bool, out: Table
) -> tuple[int, int, int]:
    """List the batches of buffer[start:end], one row each: count, next position, ScanStatus.

    The next position is where the first batch starts that is not listed, or `end`. With FULL, call
    again from there. A batch whose CRC is wrong (looked at only if `verify_crc`) is not listed.
    """
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    if out.shape[1] < FIELD_COUNT:
        raise IndexError("out has too few columns for a scan")
    position = start
    count = 0
    while position < end:
        if count == out.shape[0]:
            return count, position, _FULL
        status, size = _measure(buffer, position, end)
        if status != _OK:
            return count, position, status
        row = out[count]
        _read_header(buffer, position, size, row)
        if verify_crc:
            if crc32c(buffer, position + _CRC_START, position + size) != row[_CRC]:
                return count, position, _BAD_CRC
            row[_CRC_VALID] = 1
        position += size
        count += 1
    return count, position, _END


@kernel
def inspect_batch(buffer: Bytes, start: int, end: int, out: Row) -> int:
    """Header, CRC and records of the batch at `start`; gives a ScanStatus.

    OK (whole, CRC right) fills `Field` and, if the batch is neither compressed nor a control batch,
    `Summary`, where RECORDS_STATUS alone tells a fault of the records; else that is NOT_WALKED.
    BAD_CRC fills `Field`; any other status leaves `out` as it was. The batch may end before `end`.
    """
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    if out.size < INSPECTION_FIELD_COUNT:
        raise IndexError("out has too few fields for an inspection")
    status, size = _measure(buffer, start, end)
    if status != _OK:
        return status
    _read_header(buffer, start, size, out)
    out[_RECORDS_STATUS] = _NOT_WALKED
    batch_end = start + size
    if crc32c(buffer, start + _CRC_START, batch_end) != out[_CRC]:
        out[_CRC_VALID] = 0
        return _BAD_CRC
    out[_CRC_VALID] = 1
    if out[_ATTRIBUTES] & (_CODEC_MASK | _CONTROL_MASK) == 0:
        records = start + HEADER_SIZE
        walk_records(buffer, records, batch_end, out[_RECORD_COUNT], out[_BASE_TIMESTAMP], out)
    return _OK


def warm() -> None:
    """Compile for the argument types in use."""
    for buffer in byte_buffers(bytes(HEADER_SIZE)):
        scan_batches(buffer, 0, HEADER_SIZE, True, batch_table(1))
        inspect_batch(buffer, 0, HEADER_SIZE, inspection_row())
