"""Encodes the records of a batch from columns, in one pass and without an object per record.

Layout     a column of cells is three arrays: bytes, the start of each cell, its size (-1 is null).
           Headers are cells too, each with the encoded headers of one record, and a column of
           their counts; `encode_headers` builds such cells. docs/reference/formats/record-batch.md
           A column may be an empty array: keys and values are then null, the headers of every
           record none, and the offset deltas 0, 1, 2 and so on.
Invariant  no cell is read and no byte written outside its array, whatever starts and sizes say.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import INT32_MAX
from varve.kernels.compile import inlined, kernel
from varve.kernels.memory import address_of, copy_bytes, store_u8_at
from varve.kernels.varint import varint_size, write_varint, zigzag

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class BuildStatus(IntEnum):
    """Why records cannot be encoded; kernels return it with the index of the first such record."""

    OK = 0
    BAD_COLUMN = 1
    """A column has neither one cell per record nor none."""
    BAD_CELL = 2
    """A cell lies outside its column, or is null where null is forbidden."""
    BAD_TIMESTAMP = 3
    """Below -1, which stands for no timestamp."""
    BAD_OFFSET_DELTA = 4
    """Negative, above INT32_MAX or not ascending."""
    BAD_HEADER_COUNT = 5
    """Negative, more than the headers' bytes can hold, or not ascending in the flat columns."""
    TOO_LARGE = 6
    """The record exceeds INT32_MAX bytes."""
    NO_ROOM = 7
    """The output is shorter than the records."""


_NULL = -1


@inlined
def _is_uneven(count: int, start_count: int, size_count: int) -> bool:
    """Whether a column has neither one cell per record nor none."""
    return start_count != size_count or (size_count != 0 and size_count != count)


@inlined
def _is_outside(start: int, size: int, data_size: int) -> bool:
    """Whether a cell lies outside its column; a null cell has no position."""
    if size < 0:
        return size != _NULL
    return size > INT32_MAX or start < 0 or start > data_size - size


@inlined
def _cell_size(size: int) -> int:
    return varint_size(size) + max(size, 0)


@inlined
def _write_cell(address: int, source: int, size: int) -> int:
    address = write_varint(address, size)
    if size > 0:
        copy_bytes(address, source, size)
        address += size
    return address


@inlined
def _body_size(
    timestamp_delta: int,
    offset_delta: int,
    key_size: int,
    value_size: int,
    header_size: int,
    headers: int,
) -> int:
    size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    size += _cell_size(key_size) + _cell_size(value_size)
    return size + varint_size(headers) + header_size


@inlined
def _varint_size_by_comparison(bits: Any, group_count_max: int) -> Any:
    """The size of a varint as a sum of comparisons, which the compiler vectorizes."""
    size = np.int64(1)
    for group in range(1, group_count_max):
        size += np.int64(bits >= np.uint64(1) << np.uint64(7 * group))
    return size


@kernel
def measure_records(
    timestamps: Integers,
    base_timestamp: int,
    offset_deltas: Integers,
    key_sizes: Integers,
    value_sizes: Integers,
    header_sizes: Integers,
    header_counts: Integers,
) -> int:
    """The encoded size of records that `write_records` accepts; meaningless for others."""
    count = len(timestamps)
    bodies = np.empty(count, np.int64)
    for index in range(count):
        bodies[index] = 1 + _varint_size_by_comparison(
            zigzag(timestamps[index] - base_timestamp), 10
        )
    if len(offset_deltas) == 0:
        for index in range(count):
            bodies[index] += _varint_size_by_comparison(zigzag(index), 5)
    for index in range(min(count, len(offset_deltas))):
        bodies[index] += _varint_size_by_comparison(zigzag(offset_deltas[index]), 5)
    for index in range(min(count, len(key_sizes))):
        bodies[index] += _varint_size_by_comparison(zigzag(key_sizes[index]), 5) + max(
            key_sizes[index], 0
        )
    for index in range(min(count, len(value_sizes))):
        bodies[index] += _varint_size_by_comparison(zigzag(value_sizes[index]), 5) + max(
            value_sizes[index], 0
        )
    for index in range(min(count, len(header_sizes), len(header_counts))):
        bodies[index] += (
            _varint_size_by_comparison(zigzag(header_counts[index]), 5) + header_sizes[index]
        )
    absent = 0
    for column in (len(key_sizes), len(value_sizes), len(header_counts)):
        absent += 1 if column == 0 else 0
    total = 0
    for index in range(count):
        body = bodies[index] + absent
        total += body + _varint_size_by_comparison(zigzag(body), 5)
    return total


@kernel
def write_records(
    out: Bytes,
    position: int,
    timestamps: Integers,
    base_timestamp: int,
    offset_deltas: Integers,
    key_data: Bytes,
    key_starts: Integers,
    key_sizes: Integers,
    value_data: Bytes,
    value_starts: Integers,
    value_sizes: Integers,
    header_data: Bytes,
    header_starts: Integers,
    header_sizes: Integers,
    header_counts: Integers,
) -> tuple[int, int, int, int]:
    """Writes records from `position` on: (status, end position, largest timestamp, bad record)."""
    count = len(timestamps)
    if position < 0 or position > len(out):
        return BuildStatus.NO_ROOM.value, position, -1, -1
    if (
        (len(offset_deltas) != 0 and len(offset_deltas) != count)
        or _is_uneven(count, len(key_starts), len(key_sizes))
        or _is_uneven(count, len(value_starts), len(value_sizes))
        or _is_uneven(count, len(header_starts), len(header_sizes))
        or len(header_counts) != len(header_sizes)
    ):
        return BuildStatus.BAD_COLUMN.value, position, -1, -1
    keys, values, encoded = address_of(key_data), address_of(value_data), address_of(header_data)
    start = address_of(out)
    address = start + position
    end = start + len(out)
    largest, previous = -1, -1
    key_start, key_size, value_start, value_size = 0, _NULL, 0, _NULL
    header_start, header_size, headers = 0, 0, 0
    for index in range(count):
        timestamp = timestamps[index]
        if timestamp < -1:
            return BuildStatus.BAD_TIMESTAMP.value, address - start, largest, index
        largest = max(largest, timestamp)
        timestamp_delta = timestamp - base_timestamp
        delta = index
        if len(offset_deltas) > 0:
            delta = offset_deltas[index]
        if delta <= previous or delta > INT32_MAX:
            return BuildStatus.BAD_OFFSET_DELTA.value, address - start, largest, index
        previous = delta
        if len(key_sizes) > 0:
            key_start, key_size = key_starts[index], key_sizes[index]
        if len(value_sizes) > 0:
            value_start, value_size = value_starts[index], value_sizes[index]
        if _is_outside(key_start, key_size, len(key_data)) or _is_outside(
            value_start, value_size, len(value_data)
        ):
            return BuildStatus.BAD_CELL.value, address - start, largest, index
        if len(header_sizes) > 0:
            header_start, header_size = header_starts[index], header_sizes[index]
            headers = header_counts[index]
            if header_size < 0 or _is_outside(header_start, header_size, len(header_data)):
                return BuildStatus.BAD_CELL.value, address - start, largest, index
            if headers < 0 or headers > header_size:
                return BuildStatus.BAD_HEADER_COUNT.value, address - start, largest, index
        body = _body_size(timestamp_delta, delta, key_size, value_size, header_size, headers)
        if body > INT32_MAX:
            return BuildStatus.TOO_LARGE.value, address - start, largest, index
        if body > end - address - varint_size(body):
            return BuildStatus.NO_ROOM.value, address - start, largest, index
        address = write_varint(address, body)
        store_u8_at(address, np.uint64(0))
        address = write_varint(address + 1, timestamp_delta)
        address = write_varint(address, delta)
        address = _write_cell(address, keys + key_start, key_size)
        address = _write_cell(address, values + value_start, value_size)
        address = write_varint(address, headers)
        if header_size > 0:
            copy_bytes(address, encoded + header_start, header_size)
            address += header_size
    return BuildStatus.OK.value, address - start, largest, -1


@kernel
def encode_headers(
    record_ends: Integers,
    key_data: Bytes,
    key_starts: Integers,
    key_sizes: Integers,
    value_data: Bytes,
    value_starts: Integers,
    value_sizes: Integers,
    out: Bytes,
    out_starts: Integers,
    out_sizes: Integers,
) -> tuple[int, int]:
    """Encodes the flattened headers of all records: (status, bad record).

    Record i has the headers before `record_ends[i]` that no earlier record has. `out` needs ten
    bytes more per header than its key and value; `out_starts` and `out_sizes` get one cell per
    record.
    """
    count = len(key_sizes)
    if len(key_starts) != count or len(value_sizes) != count or len(value_starts) != count:
        return BuildStatus.BAD_COLUMN.value, -1
    if len(out_starts) < len(record_ends) or len(out_sizes) < len(record_ends):
        return BuildStatus.NO_ROOM.value, -1
    keys, values = address_of(key_data), address_of(value_data)
    start = address_of(out)
    address = start
    header = 0
    for record in range(len(record_ends)):
        if record_ends[record] < header or record_ends[record] > count:
            return BuildStatus.BAD_HEADER_COUNT.value, record
        out_starts[record] = address - start
        while header < record_ends[record]:
            key_start, key_size = key_starts[header], key_sizes[header]
            value_start, value_size = value_starts[header], value_sizes[header]
            if key_size < 0 or _is_outside(key_start, key_size, len(key_data)):
                return BuildStatus.BAD_CELL.value, record
            if _is_outside(value_start, value_size, len(value_data)):
                return BuildStatus.BAD_CELL.value, record
            if 10 + key_size + max(value_size, 0) > start + len(out) - address:
                return BuildStatus.NO_ROOM.value, record
            address = _write_cell(address, keys + key_start, key_size)
            address = _write_cell(address, values + value_start, value_size)
            header += 1
        out_sizes[record] = address - start - out_starts[record]
    return BuildStatus.OK.value, -1


def warm() -> None:
    """Compile the kernels for the types that `varve.records` passes."""
    data = np.frombuffer(b"k", np.uint8)
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    for column in (zero, one):
        column.flags.writeable = False
    headers, starts, sizes = np.empty(12, np.uint8), np.empty(1, np.int64), np.empty(1, np.int64)
    encode_headers(one, data, zero, one, data, zero, one, headers, starts, sizes)
    cells = (data, zero, one)
    for timestamps in (zero, zero.copy()):
        measure_records(timestamps, 0, zero, one, one, one, one)
        out = np.empty(64, np.uint8)
        write_records(out, 0, timestamps, 0, zero, *cells, *cells, *cells, one)
