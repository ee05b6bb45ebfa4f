"""Rewrites batches without the records that a bitmap drops: whole batches are copied, others
filtered record by record.

Layout     record r of a segment is bit `r` of its bitmap, counting the records of all batches.
Invariant  surviving records keep offset, timestamp, key, value and headers. Header fields follow
           Kafka's cleaner: base and last offset, leader epoch, producer and sequence stay; the
           base timestamp becomes that of the first survivor unless the batch has, or gets, a
           delete horizon. Nothing outside the given ranges is read or written.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
)
from varve.kernels.compile import byte_buffers, kernel
from varve.kernels.crc import crc32c
from varve.kernels.memory import (
    Bytes,
    address_of,
    append_big_endian,
    copy_bytes,
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    store_u8_at,
)
from varve.kernels.varint import read_varint, read_varlong, varint_size, write_varint

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
Actions = npt.NDArray[np.uint8]

RECORD_GROWTH_MAX = 13
"""Bytes that a record can grow by: its timestamp delta from one to ten, its length from one to
five."""
KEEP_TIMESTAMP = -(1 << 63)
"""In place of a delete horizon: the batch gets none, and keeps one that it has."""


class Action(IntEnum):
    """What a rewrite does with a batch."""

    SKIP = 0
    COPY = 1
    FILTER = 2
    """Keeps the records of the bitmap, at least one; perhaps with a new delete horizon."""
    KEEP_HEADER = 3
    """Keeps an empty batch, which preserves the producer state or the last offset."""


class FilterStatus(IntEnum):
    """Why a rewrite stopped."""

    DONE = 0
    FULL = 1
    """The output may have no room for the next batch."""
    COMPRESSED = 2
    """The next batch must be decompressed before it can be filtered."""
    MISMATCH = 3
    """The batch in the buffer differs from the one in the tables."""
    BAD_CRC = 4
    BAD_RECORDS = 5


@kernel
def filter_records(
    payload: Bytes,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    is_log_append_time: bool,
    horizon: int,
    keep: Bits,
    first_bit: int,
    out: Bytes,
    out_start: int,
) -> tuple[int, int, int, int, int]:
    """Copies the records whose bits are set: status, end, count, base and largest timestamp.

    `horizon` becomes the base timestamp unless it is KEEP_TIMESTAMP, which makes that of the first
    survivor the base. The output needs room for the payload and RECORD_GROWTH_MAX per record.
    """
    if start < 0 or start > end or end > payload.size or count < 0:
        raise IndexError("start and end do not name a range of the payload")
    if first_bit < 0 or first_bit + count > keep.size * 8:
        raise IndexError("the records lie outside the bitmap")
    if out_start < 0 or out_start + (end - start) + count * RECORD_GROWTH_MAX > out.size:
        return FilterStatus.FULL.value, out_start, 0, -1, -1
    source = address_of(payload)
    target = address_of(out)
    at = target + out_start
    start, end = source + start, source + end
    new_base = horizon
    largest, kept = -1, 0
    run_start, run_end = start, start  # consecutive survivors that are copied unchanged
    position = start
    for index in range(count):
        length, body = read_varint(position, end)
        if body < 0 or length < 6 or length > end - body:
            return FilterStatus.BAD_RECORDS.value, out_start, 0, -1, -1
        after = body + length
        bit = first_bit + index
        if keep[bit >> 3] >> np.uint8(bit & 7) & np.uint8(1):
            delta, offset_at = read_varlong(body + 1, after)
            if offset_at < 0:
                return FilterStatus.BAD_RECORDS.value, out_start, 0, -1, -1
            timestamp = max_timestamp if is_log_append_time else base_timestamp + delta
            if new_base == KEEP_TIMESTAMP:
                new_base = timestamp
            largest = max(largest, timestamp)
            kept += 1
            if timestamp - new_base == delta:
                if run_end != position:
                    copy_bytes(at, run_start, run_end - run_start)
                    at += run_end - run_start
                    run_start = position
                run_end = after
            else:
                copy_bytes(at, run_start, run_end - run_start)
                at += run_end - run_start
                run_start, run_end = after, after
                body_size = 1 + varint_size(timestamp - new_base) + (after - offset_at)
                at = write_varint(at, body_size)
                store_u8_at(at, np.uint64(0))
                at = write_varint(at + 1, timestamp - new_base)
                copy_bytes(at, offset_at, after - offset_at)
                at += after - offset_at
        position = after
    if position != end:
        return FilterStatus.BAD_RECORDS.value, out_start, 0, -1, -1
    copy_bytes(at, run_start, run_end - run_start)
    at += run_end - run_start
    return FilterStatus.DONE.value, at - target, kept, new_base, largest


@kernel
def seal_batch(
    header: Bytes,
    header_start: int,
    out: Bytes,
    start: int,
    end: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
) -> None:
    """Writes the header of the batch out[start:end], whose records are in place.

    It is the old header with the given fields, and with the new length and CRC.
    """
    if header_start < 0 or header_start + HEADER_BYTES > header.size:
        raise IndexError("the old header lies outside its buffer")
    if start < 0 or start + HEADER_BYTES > end or end > out.size:
        raise IndexError("the batch lies outside the output")
    at = address_of(out) + start
    copy_bytes(at, address_of(header) + header_start, HEADER_BYTES)
    append_big_endian(at + LENGTH_AT, end - start - LENGTH_OVERHEAD, 4)
    append_big_endian(at + ATTRIBUTES_AT, attributes, 2)
    append_big_endian(at + BASE_TIMESTAMP_AT, base_timestamp, 8)
    append_big_endian(at + MAX_TIMESTAMP_AT, max_timestamp, 8)
    append_big_endian(at + RECORD_COUNT_AT, count, 4)
    append_big_endian(at + CRC_AT, crc32c(out, start + CRC_START, end), 4)


@kernel
def rewrite_batches(
    buffer: Bytes,
    buffer_position: int,
    positions: Integers,
    sizes: Integers,
    base_offsets: Integers,
    counts: Integers,
    first_bits: Integers,
    actions: Actions,
    horizons: Integers,
    keep: Bits,
    first: int,
    last: int,
    out: Bytes,
    out_start: int,
) -> tuple[int, int, int]:
    """Applies the actions to the batches [first, last): status, next batch, end of the output.

    `buffer` holds the data file from `buffer_position` on. `horizons` has the delete horizon that
    a filtered batch gets, or KEEP_TIMESTAMP. Skipped batches need not be in the buffer.
    """
    at = out_start
    for batch in range(first, last):
        action = actions[batch]
        if action == Action.SKIP:
            continue
        start = positions[batch] - buffer_position
        size = sizes[batch]
        end = start + size
        if start < 0 or size < HEADER_BYTES or end > buffer.size:
            raise IndexError("a batch lies outside the buffer")
        if (
            load_i64(buffer, start) != base_offsets[batch]
            or load_i32(buffer, start + LENGTH_AT) + LENGTH_OVERHEAD != size
            or load_i32(buffer, start + RECORD_COUNT_AT) != counts[batch]
        ):
            return FilterStatus.MISMATCH.value, batch, at
        if crc32c(buffer, start + CRC_START, end) != load_u32(buffer, start + CRC_AT):
            return FilterStatus.BAD_CRC.value, batch, at
        attributes = load_i16(buffer, start + ATTRIBUTES_AT)
        max_timestamp = load_i64(buffer, start + MAX_TIMESTAMP_AT)
        if action == Action.COPY:
            if size > out.size - at:
                return FilterStatus.FULL.value, batch, at
            copy_bytes(address_of(out) + at, address_of(buffer) + start, size)
            at += size
        elif action == Action.FILTER:
            if attributes & CODEC_MASK:
                return FilterStatus.COMPRESSED.value, batch, at
            if at + size + counts[batch] * RECORD_GROWTH_MAX > out.size:
                return FilterStatus.FULL.value, batch, at
            horizon = horizons[batch]
            base_timestamp = load_i64(buffer, start + BASE_TIMESTAMP_AT)
            if horizon != KEEP_TIMESTAMP:
                attributes |= DELETE_HORIZON_BIT
            elif attributes & DELETE_HORIZON_BIT:
                horizon = base_timestamp
            is_append = attributes & LOG_APPEND_TIME_BIT != 0
            status, after, kept, new_base, largest = filter_records(
                buffer,
                start + HEADER_BYTES,
                end,
                counts[batch],
                base_timestamp,
                max_timestamp,
                is_append,
                horizon,
                keep,
                first_bits[batch],
                out,
                at + HEADER_BYTES,
            )
            if status != FilterStatus.DONE:
                return status, batch, at
            if not is_append:
                max_timestamp = largest
            seal_batch(buffer, start, out, at, after, attributes, new_base, max_timestamp, kept)
            at = after
        else:
            if out.size - at < HEADER_BYTES:
                return FilterStatus.FULL.value, batch, at
            attributes &= ~(CODEC_MASK | DELETE_HORIZON_BIT)
            seal_batch(buffer, start, out, at, at + HEADER_BYTES, attributes, -1, max_timestamp, 0)
            at += HEADER_BYTES
    return FilterStatus.DONE.value, last, at


def warm() -> None:
    """Compile for the argument types in use."""
    one = np.zeros(1, np.int64)
    keep = np.zeros(1, np.uint8)
    out = np.zeros(2 * HEADER_BYTES, np.uint8)
    actions = np.zeros(1, np.uint8)
    for buffer in byte_buffers(bytes(HEADER_BYTES)):
        filter_records(buffer, 0, 0, 0, 0, 0, False, KEEP_TIMESTAMP, keep, 0, out, 0)
        seal_batch(buffer, 0, out, 0, HEADER_BYTES, 0, 0, 0, 0)
        rewrite_batches(buffer, 0, one, one, one, one, one, actions, one, keep, 0, 1, out, 0)
