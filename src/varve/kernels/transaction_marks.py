"""Finds the batches of aborted transactions, and the types of control batches.

Invariant  nothing outside the given ranges is read or written, whatever the rows and bytes are.
"""

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import (
    BATCH_COLUMN_COUNT,
    CONTROL_KEY_BYTES,
    CONTROL_TYPE_AT,
    HEADER_BYTES,
    NO_LOG_APPEND_TIMESTAMP,
    RECORD_COLUMN_COUNT,
    BatchColumn,
    RecordColumn,
    RecordStatus,
)
from varve.kernels.compile import byte_buffers, kernel
from varve.kernels.memory import Bytes, load_i16
from varve.kernels.record_parse import Table, parse_records, record_table

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]

ABORTED_COLUMNS = 3
"""Producer id, first offset, and the largest last offset of the producer's rows up to this one."""


@kernel
def find_aborted(rows: Table, candidates: Flags, aborted: Table, out: Flags) -> None:
    """Sets out[i] to 1 for each candidate row inside an aborted transaction of its producer.

    `aborted` is sorted by producer id and first offset.
    """
    if rows.shape[1] < BATCH_COLUMN_COUNT or aborted.shape[1] != ABORTED_COLUMNS:
        raise IndexError("rows or aborted have too few columns")
    if candidates.size < rows.shape[0] or out.size < rows.shape[0]:
        raise IndexError("candidates or out have fewer cells than there are rows")
    for row in range(rows.shape[0]):
        out[row] = 0
        if candidates[row] == 0:
            continue
        producer_id, offset = rows[row, BatchColumn.PRODUCER_ID], rows[row, BatchColumn.BASE_OFFSET]
        low, high = 0, aborted.shape[0]
        while low < high:
            middle = (low + high) // 2
            other = aborted[middle, 0]
            if other < producer_id or (other == producer_id and aborted[middle, 1] <= offset):
                low = middle + 1
            else:
                high = middle
        if low > 0 and aborted[low - 1, 0] == producer_id and aborted[low - 1, 2] >= offset:
            out[row] = 1


@kernel
def read_control_types(
    buffer: Bytes, buffer_start: int, rows: Table, numbers: Numbers, out: Numbers
) -> tuple[int, int]:
    """Reads the control types of the batches in rows `numbers`, each uncompressed with one record.

    Returns a RecordStatus and the number of the bad row.
    """
    if rows.shape[1] < BATCH_COLUMN_COUNT or out.size < numbers.size:
        raise IndexError("rows or out have too few columns or cells")
    record = np.empty((1, RECORD_COLUMN_COUNT), np.int64)
    for index in range(numbers.size):
        row = numbers[index]
        if row < 0 or row >= rows.shape[0]:
            raise IndexError("numbers name a row that is not there")
        position = rows[row, BatchColumn.POSITION] - buffer_start
        size = rows[row, BatchColumn.SIZE]
        if position < 0 or size < HEADER_BYTES or size > buffer.size - position:
            raise IndexError("a batch lies outside the buffer")
        start, end = position + HEADER_BYTES, position + size
        status, _ = parse_records(buffer, start, end, 1, 0, 0, NO_LOG_APPEND_TIMESTAMP, record)
        if status == RecordStatus.OK and record[0, RecordColumn.KEY_SIZE] < CONTROL_KEY_BYTES:
            status = RecordStatus.FIELD_OVERRUN.value
        if status != RecordStatus.OK:
            return status, row
        out[index] = load_i16(buffer, record[0, RecordColumn.KEY_START] + CONTROL_TYPE_AT)
    return RecordStatus.OK.value, -1


def warm() -> None:
    """Compile for the argument types in use."""
    record = bytes([0x14, 0, 0, 0, 8, 0, 0, 0, 1, 1, 0])
    rows = np.zeros((1, BATCH_COLUMN_COUNT), np.int64)
    rows[0, BatchColumn.SIZE] = HEADER_BYTES + len(record)
    flags = np.ones(1, np.uint8)
    for buffer in byte_buffers(bytes(HEADER_BYTES) + record):
        read_control_types(buffer, 0, rows, np.zeros(1, np.int64), np.empty(1, np.int64))
    find_aborted(rows, flags, record_table(0)[:, :ABORTED_COLUMNS].copy(), flags.copy())
