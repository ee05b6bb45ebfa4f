"""Lay out the records of a batch from columns, in one pass and without an object per record.

Layout     a column of cells is three arrays: bytes, the start of each cell, its size (-1 is null).
           Headers arrive as cells too, each the encoded headers of one record, with their counts
           beside them; `encode_headers` makes such cells. docs/formats/record-batch.md
           Optional columns are empty arrays: no keys and no values read as null, no headers as
           none, no offset deltas as 0, 1, 2 and so on.
Invariant  no cell is read and no byte written outside its array, whatever starts and sizes say.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varve.kernels.compile import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

INT_MAX = 2**31 - 1


class BuildStatus(IntEnum):
    """Why records cannot be laid out; the index beside it names the first that cannot."""

    OK = 0
    BAD_CELL = 1  # a start or size points outside the column's bytes, or the column is too short
    BAD_TIMESTAMP = 2  # below -1, which stands for no timestamp
    BAD_OFFSET_DELTA = 3  # negative, above INT_MAX or not ascending
    BAD_HEADER_COUNT = 4  # negative, or headers without bytes
    TOO_LARGE = 5  # the records together exceed INT_MAX bytes
    NO_ROOM = 6  # the output is shorter than the records


_NULL = -1
_BAD = -2


def _copy_bytes() -> Callable[[Bytes, int, Bytes, int, int], None]:
    """An intrinsic `copy(target, target_start, source, source_start, size)`, unchecked."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0])
        source = context.make_array(signature.args[2])(context, builder, args[2])
        to = builder.gep(target.data, [args[1]])
        start = builder.gep(source.data, [args[3]])
        cgutils.raw_memcpy(builder, to, start, args[4], 1)  # type: ignore[no-untyped-call]  # numba ships no types
        return context.get_dummy_value()

    def typer(typing_context: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
        return types.void(target, types.int64, source, types.int64, types.int64), emit

    return cast(Callable[[Bytes, int, Bytes, int, int], None], intrinsic(typer))


_copy = _copy_bytes()


@inlined
def _zigzag(value: int) -> np.uint64:
    return np.uint64((np.int64(value) << 1) ^ (np.int64(value) >> 63))


@inlined
def _varint_size(value: int) -> int:
    rest = _zigzag(value)
    size = 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        size += 1
    return size


@inlined
def _write_varint(out: Bytes, position: int, value: int) -> int:
    rest = _zigzag(value)
    while rest >= np.uint64(128):
        out[position] = np.uint8((rest & np.uint64(127)) | np.uint64(128))
        rest >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(rest)
    return position + 1


@inlined
def _cell_size(data: Bytes, starts: Integers, sizes: Integers, index: int) -> Any:
    """The cell's size, -1 for null, -2 when it lies outside the column."""
    if len(sizes) == 0:
        return _NULL
    if index >= len(sizes) or index >= len(starts):
        return _BAD
    size = sizes[index]
    if size < 0:
        return _NULL if size == _NULL else _BAD
    start = starts[index]
    if size > INT_MAX or start < 0 or start > len(data) - size:
        return _BAD
    return size


@inlined
def _encoded_cell_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@inlined
def _write_cell(
    out: Bytes, position: int, data: Bytes, starts: Integers, size: int, index: int
) -> int:
    position = _write_varint(out, position, size)
    if size > 0:
        _copy(out, position, data, starts[index], size)
        position += size
    return position


@inlined
def _body_size(
    timestamp_delta: int,
    offset_delta: int,
    key_size: int,
    value_size: int,
    header_size: int,
    headers: int,
) -> int:
    size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
    size += _encoded_cell_size(key_size) + _encoded_cell_size(value_size)
    return size + _varint_size(headers) + header_size


@inlined
def _header_count(counts: Integers, index: int) -> int:
    if len(counts) == 0:
        return 0
    return counts[index] if index < len(counts) else -1


@kernel
def measure_records(
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
    """Check every record: (status, index of the bad one, size of all, largest timestamp)."""
    total = 0
    largest = -1
    previous = -1
    for index in range(len(timestamps)):
        timestamp = timestamps[index]
        if timestamp < -1:
            return BuildStatus.BAD_TIMESTAMP, index, total, largest
        largest = max(largest, timestamp)
        delta = index
        if len(offset_deltas) > 0:
            delta = offset_deltas[index] if index < len(offset_deltas) else -1
        if delta <= previous or delta > INT_MAX:
            return BuildStatus.BAD_OFFSET_DELTA, index, total, largest
        previous = delta
        key_size = _cell_size(key_data, key_starts, key_sizes, index)
        value_size = _cell_size(value_data, value_starts, value_sizes, index)
        header_size = _cell_size(header_data, header_starts, header_sizes, index)
        if key_size == _BAD or value_size == _BAD or header_size == _BAD:
            return BuildStatus.BAD_CELL, index, total, largest
        headers = _header_count(header_counts, index)
        if headers < 0 or headers > max(header_size, 0):
            return BuildStatus.BAD_HEADER_COUNT, index, total, largest
        body = _body_size(
            timestamp - base_timestamp, delta, key_size, value_size, max(header_size, 0), headers
        )
        total += _varint_size(body) + body
        if total > INT_MAX:
            return BuildStatus.TOO_LARGE, index, total, largest
    return BuildStatus.OK, -1, total, largest


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
) -> tuple[int, int]:
    """Write what `measure_records` accepted from `position` on: (status, end position)."""
    if position < 0:
        return BuildStatus.NO_ROOM, position
    for index in range(len(timestamps)):
        timestamp_delta = timestamps[index] - base_timestamp
        delta = index
        if len(offset_deltas) > 0:
            delta = offset_deltas[index] if index < len(offset_deltas) else -1
        key_size = _cell_size(key_data, key_starts, key_sizes, index)
        value_size = _cell_size(value_data, value_starts, value_sizes, index)
        header_size = _cell_size(header_data, header_starts, header_sizes, index)
        # Checked again: the caller's arrays are not ours, and may have changed since.
        if key_size == _BAD or value_size == _BAD or header_size == _BAD:
            return BuildStatus.BAD_CELL, position
        headers = _header_count(header_counts, index)
        body = _body_size(
            timestamp_delta, delta, key_size, value_size, max(header_size, 0), headers
        )
        if body > len(out) - position - _varint_size(body):
            return BuildStatus.NO_ROOM, position
        position = _write_varint(out, position, body)
        out[position] = 0
        position = _write_varint(out, position + 1, timestamp_delta)
        position = _write_varint(out, position, delta)
        position = _write_cell(out, position, key_data, key_starts, key_size, index)
        position = _write_cell(out, position, value_data, value_starts, value_size, index)
        position = _write_varint(out, position, headers)
        if header_size > 0:
            _copy(out, position, header_data, header_starts[index], header_size)
            position += header_size
    return BuildStatus.OK, position


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
    """Encode flattened headers, record i owning those before `record_ends[i]`: (status, record).

    `out` needs ten bytes more per header than its key and value; `out_starts` and `out_sizes` get
    one cell per record.
    """
    position = 0
    header = 0
    if len(out_starts) < len(record_ends) or len(out_sizes) < len(record_ends):
        return BuildStatus.NO_ROOM, 0
    for record in range(len(record_ends)):
        if record_ends[record] < header or record_ends[record] > len(key_sizes):
            return BuildStatus.BAD_HEADER_COUNT, record
        out_starts[record] = position
        while header < record_ends[record]:
            key_size = _cell_size(key_data, key_starts, key_sizes, header)
            value_size = _cell_size(value_data, value_starts, value_sizes, header)
            if key_size < 0 or value_size == _BAD:
                return BuildStatus.BAD_CELL, record
            if 10 + key_size + max(value_size, 0) > len(out) - position:
                return BuildStatus.NO_ROOM, record
            position = _write_cell(out, position, key_data, key_starts, key_size, header)
            position = _write_cell(out, position, value_data, value_starts, value_size, header)
            header += 1
        out_sizes[record] = position - out_starts[record]
    return BuildStatus.OK, -1
