"""Parses the records of many batches into one table, and copies cells into Arrow's columns.

Also a hash set of keys, to find the latest record of each key, and the join of byte strings into a
column.

A column has Arrow's variable-size binary layout: the bytes of all cells one after the other, and
the 32-bit offset of each cell.

Invariant  nothing outside the given buffers is read or written, whatever the tables and bytes are.
           The set of hashes needs a free slot: a search in a full one does not end.
Threads    `join_byte_strings` keeps the GIL: it reads Python objects. No Python code runs
           meanwhile, so the list cannot change.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import (
    NO_LOG_APPEND_TIMESTAMP,
    RECORD_COLUMN_COUNT,
    RecordColumn,
    RecordStatus,
)
from varve.kernels.compile import byte_buffers, kernel, object_kernel
from varve.kernels.memory import (
    Bytes,
    address_of,
    bytes_address,
    bytes_size,
    clear_error,
    copy_bytes,
    list_item,
    list_size,
)
from varve.kernels.record_parse import Table, parse_records, record_table
from varve.kernels.varint import read_varint

Numbers = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]


class BatchSpan(IntEnum):
    """Columns of a table of batches: where their records are in a payload, and what they need."""

    RECORDS_START = 0
    RECORDS_END = 1
    RECORD_COUNT = 2
    BASE_OFFSET = 3
    BASE_TIMESTAMP = 4
    LOG_APPEND_TIMESTAMP = 5
    """NO_LOG_APPEND_TIMESTAMP under CreateTime."""


BATCH_SPAN_COUNT = len(BatchSpan)
HEADER_CELL_COUNT = 4
"""Columns of header cells: start and size of the key, start and size of the value; -1 is null."""
COLUMN_BYTES_MAX = (1 << 31) - 1


@kernel
def parse_batches(payload: Bytes, spans: Table, out: Table) -> tuple[int, int, int]:
    """Fills a row of `out` per record of all batches; `spans` has a row per batch.

    Returns (status, batch, record): the RecordStatus and where parsing failed; -1, -1 if it did
    not. Starts in the rows of `out` count from the payload's first byte.
    """
    if spans.shape[1] != BATCH_SPAN_COUNT:
        raise IndexError("spans have too few columns")
    at = 0
    for batch in range(spans.shape[0]):
        count = spans[batch, BatchSpan.RECORD_COUNT]
        if count < 0 or count > out.shape[0] - at:
            raise IndexError("out has too few rows for the records")
        status, record = parse_records(
            payload,
            spans[batch, BatchSpan.RECORDS_START],
            spans[batch, BatchSpan.RECORDS_END],
            count,
            spans[batch, BatchSpan.BASE_OFFSET],
            spans[batch, BatchSpan.BASE_TIMESTAMP],
            spans[batch, BatchSpan.LOG_APPEND_TIMESTAMP],
            out[at : at + count],
        )
        if status != RecordStatus.OK:
            return status, batch, record
        at += count
    return RecordStatus.OK.value, -1, -1


@kernel
def column_offsets(cells: Table, size_field: int, chosen: Numbers, out: Offsets) -> int:
    """The offset of each chosen cell in a column, then the column's end; returns that end.

    -1 when the column is larger than 32-bit offsets allow.
    """
    if size_field < 0 or size_field >= cells.shape[1] or out.size < chosen.size + 1:
        raise IndexError("the field is not there, or out is too short")
    total = 0
    for index in range(chosen.size):
        row = chosen[index]
        if row < 0 or row >= cells.shape[0]:
            raise IndexError("chosen names a row that is not there")
        out[index] = total
        total += max(cells[row, size_field], 0)
        if total > COLUMN_BYTES_MAX:
            return -1
    out[chosen.size] = total
    return total


@kernel
def copy_cells(
    payload: Bytes, cells: Table, start_field: int, chosen: Numbers, offsets: Offsets, out: Bytes
) -> None:
    """Copies the chosen cells to their `column_offsets`."""
    if start_field < 0 or start_field >= cells.shape[1] or offsets.size < chosen.size + 1:
        raise IndexError("the field is not there, or offsets are too few")
    source, target = address_of(payload), address_of(out)
    for index in range(chosen.size):
        row = chosen[index]
        if row < 0 or row >= cells.shape[0]:
            raise IndexError("chosen names a row that is not there")
        begin = offsets[index]
        size = offsets[index + 1] - begin
        if size == 0:
            continue
        start = cells[row, start_field]
        if start < 0 or size < 0 or start > payload.size - size:
            raise IndexError("a cell lies outside the payload")
        if begin < 0 or begin > out.size - size:
            raise IndexError("out has no room for a cell")
        copy_bytes(target + begin, source + start, size)


@kernel
def find_header_cells(payload: Bytes, records: Table, chosen: Numbers, out: Table) -> int:
    """Fills a row of `out` per header of the chosen records, in order; returns a RecordStatus."""
    if records.shape[1] < RECORD_COLUMN_COUNT or out.shape[1] != HEADER_CELL_COUNT:
        raise IndexError("records or out have too few columns")
    base = address_of(payload)
    header = 0
    for index in range(chosen.size):
        row = chosen[index]
        if row < 0 or row >= records.shape[0]:
            raise IndexError("chosen names a row that is not there")
        position, end = (
            records[row, RecordColumn.HEADERS_START],
            records[row, RecordColumn.RECORD_END],
        )
        if position < 0 or end > payload.size:
            raise IndexError("a record lies outside the payload")
        at, end = base + position, base + end
        for _ in range(records[row, RecordColumn.HEADERS_COUNT]):
            if header >= out.shape[0]:
                raise IndexError("out has too few rows for the headers")
            for side in range(2):
                size, at = read_varint(at, end)
                if at < 0 or size > end - at:
                    return RecordStatus.FIELD_OVERRUN.value
                out[header, 2 * side] = at - base
                out[header, 2 * side + 1] = max(size, -1)
                at += max(size, 0)
            header += 1
    return RecordStatus.OK.value


@kernel
def add_hashes(hashes: Hashes, slots: Hashes) -> None:
    """Adds hashes to a set; a hash of zeros marks a free slot and is not added.

    The number of slots is a power of two, and larger than that of the hashes in the set.
    """
    if slots.shape[0] == 0 or slots.shape[1] != 2 or hashes.shape[1] != 2:
        raise IndexError("there are no slots, or hashes or slots have not two words")
    mask = np.uint64(slots.shape[0] - 1)
    for row in range(hashes.shape[0]):
        if hashes[row, 0] == 0 and hashes[row, 1] == 0:
            continue
        slot = hashes[row, 0] & mask
        while slots[slot, 0] != 0 or slots[slot, 1] != 0:
            if slots[slot, 0] == hashes[row, 0] and slots[slot, 1] == hashes[row, 1]:
                break
            slot = (slot + np.uint64(1)) & mask
        slots[slot, 0] = hashes[row, 0]
        slots[slot, 1] = hashes[row, 1]


@kernel
def mark_latest(hashes: Hashes, records: Table, keep: Flags, slots: Hashes) -> int:
    """Keeps, of the records marked in `keep`, the last one of each key that is not in the set.

    Adds their keys to the set, and unmarks all others and those without a key. The number of slots
    is a power of two, and larger than that of the hashes in the set afterwards; twice as many keep
    the searches short. Returns the number of keys added.
    """
    if slots.shape[0] == 0 or slots.shape[1] != 2 or hashes.shape[1] != 2:
        raise IndexError("there are no slots, or hashes or slots have not two words")
    if hashes.shape[0] < records.shape[0] or keep.size < records.shape[0]:
        raise IndexError("there are fewer hashes or flags than records")
    mask = np.uint64(slots.shape[0] - 1)
    added = 0
    for row in range(records.shape[0] - 1, -1, -1):
        if not keep[row]:
            continue
        keep[row] = False
        if records[row, RecordColumn.KEY_SIZE] < 0:
            continue
        slot = hashes[row, 0] & mask
        is_in_set = False
        while slots[slot, 0] != 0 or slots[slot, 1] != 0:
            if slots[slot, 0] == hashes[row, 0] and slots[slot, 1] == hashes[row, 1]:
                is_in_set = True
                break
            slot = (slot + np.uint64(1)) & mask
        if not is_in_set:
            slots[slot, 0] = hashes[row, 0]
            slots[slot, 1] = hashes[row, 1]
            keep[row] = True
            added += 1
    return added


@object_kernel
def _join_list(cells: int, none: int) -> Any:
    count = list_size(cells)
    starts = np.empty(count, np.int64)
    sizes = np.empty(count, np.int64)
    total = 0
    for index in range(count):
        cell = list_item(cells, index)
        starts[index] = total
        sizes[index] = -1
        if cell != none:
            size = bytes_size(cell)
            if size < 0:
                clear_error()
                return index, np.empty(0, np.uint8), starts, sizes
            sizes[index] = size
            total += size
    data = np.empty(total, np.uint8)
    at = address_of(data)
    for index in range(count):
        if sizes[index] > 0:
            copy_bytes(at + starts[index], bytes_address(list_item(cells, index)), sizes[index])
    return -1, data, starts, sizes


def join_byte_strings(cells: list[bytes | None]) -> tuple[int, Bytes, Numbers, Numbers]:
    """A list of byte strings as one column: (-1, bytes, starts, sizes); None has size -1.

    The first number is -1, or the index of the first item that is neither bytes nor None. Joining
    in Python would take longer than building the batch.
    """
    joined: tuple[int, Bytes, Numbers, Numbers] = _join_list(id(cells), id(None))
    return joined


def warm() -> None:
    """Compile for the argument types in use."""
    data = bytes([0x0C, 0, 0, 0, 1, 1, 0])
    spans = np.array([[0, len(data), 1, 0, 0, NO_LOG_APPEND_TIMESTAMP]], np.int64)
    records = record_table(1)
    chosen = np.zeros(1, np.int64)
    offsets = np.empty(2, np.int32)
    hashes, slots = np.ones((1, 2), np.uint64), np.zeros((4, 2), np.uint64)
    for payload in byte_buffers(data):
        parse_batches(payload, spans, records)
        column_offsets(records, RecordColumn.KEY_SIZE, chosen, offsets)
        copy_cells(payload, records, RecordColumn.KEY_START, chosen, offsets, np.empty(8, np.uint8))
        find_header_cells(payload, records, chosen, np.empty((0, HEADER_CELL_COUNT), np.int64))
    mark_latest(hashes, records, np.ones(1, np.bool_), slots)
    add_hashes(hashes, slots)
    join_byte_strings([b"", None])
