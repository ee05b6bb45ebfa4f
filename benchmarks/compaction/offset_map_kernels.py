"""The loops of the offset-map cleaner: keys into the map, records against the map.

Layout     the map is uint64[slots, 3]: the two words of a key's SipHash-128 and its latest offset;
           a slot is empty while all three are 0, as in Kafka. Linear probing.
Invariant  an uncompressed batch is walked once per pass; records that stay are copied in runs, so
           a batch that stays whole is one copy.
"""

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

import varve.kernels
from varve.kernels.batch_build import address_of, copy_bytes
from varve.kernels.batch_scan import HEADER_SIZE, Field
from varve.kernels.compile import as_int, inlined
from varve.kernels.crc import crc32c
from varve.kernels.key_entries import _read_record
from varve.kernels.key_hash import siphash
from varve.kernels.loads import Bytes
from varve.kernels.peeks import peek_u64, poke_u64, start_of
from varve.kernels.record_parse import Table
from varve.kernels.varint import read_varint, read_varlong

F = TypeVar("F", bound=Callable[..., Any])
Slots = npt.NDArray[np.uint64]
State = npt.NDArray[np.int64]


class MapState(IntEnum):
    """What pass 1 carries from one call to the next."""

    COUNT = 0
    LATEST_OFFSET = 1


class FilterCount(IntEnum):
    """What pass 2 counts."""

    READ = 0
    KEPT = 1


class Step(IntEnum):
    """Why a kernel came back before the last row."""

    DONE = 0
    COMPRESSED = 1
    """The row at hand must be decompressed first."""
    MAP_FULL = 2
    NO_ROOM = 3
    """The output cannot take the row at hand; nothing of it was written."""
    NEEDS_HORIZON = 4
    """A tombstone stays for the first time: the batch gets a delete horizon."""
    EMPTY = 5
    """Nothing of the last batch of the range stays, and its shell must."""
    FAULT = 6


_POSITION = int(Field.POSITION)
_SIZE = int(Field.SIZE)
_BASE_OFFSET = int(Field.BASE_OFFSET)
_LAST_OFFSET = int(Field.LAST_OFFSET)
_ATTRIBUTES = int(Field.ATTRIBUTES)
_BASE_TIMESTAMP = int(Field.BASE_TIMESTAMP)
_RECORD_COUNT = int(Field.RECORD_COUNT)
_COUNT = int(MapState.COUNT)
_LATEST = int(MapState.LATEST_OFFSET)
_READ = int(FilterCount.READ)
_KEPT = int(FilterCount.KEPT)
_DONE = int(Step.DONE)
_COMPRESSED = int(Step.COMPRESSED)
_MAP_FULL = int(Step.MAP_FULL)
_NO_ROOM = int(Step.NO_ROOM)
_NEEDS_HORIZON = int(Step.NEEDS_HORIZON)
_EMPTY = int(Step.EMPTY)
_FAULT = int(Step.FAULT)
_CODEC_MASK = 0x07
_APPEND_TIME_BIT = 0x08
_HORIZON_BIT = 0x40
_LENGTH_AT = 8
_CRC_AT = 17
_CRC_START = 21
_MAX_TIMESTAMP_AT = 35
_COUNT_AT = 57
_LENGTH_OVERHEAD = 12
_SLOT_BYTES = 24


def _kernel(function: F) -> F:
    """As the kernels of varve, but not theirs: stale with any change of this file or of theirs."""
    dispatcher: Any = njit(nogil=True, cache=True, error_model="numpy")(function)
    sources = [Path(__file__), *Path(varve.kernels.__path__[0]).glob("*.py")]
    stats = [source.stat() for source in sources]
    stamp = max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)
    dispatcher._cache._cache_file._source_stamp = stamp
    return cast(F, dispatcher)


# Addresses instead of arrays: an array handed to a function in a loop costs two reference counts.
@inlined
def _find(slots: int, slot_count: int, high: Any, low: Any) -> int:
    """The address of a hash's slot, or of the empty one where it would go; never all are taken."""
    slot = as_int(((high >> np.uint64(32)) * np.uint64(slot_count)) >> np.uint64(32))
    at = slots + slot * _SLOT_BYTES
    end = slots + slot_count * _SLOT_BYTES
    while not (peek_u64(at) == high and peek_u64(at + 8) == low) and not _is_empty(at):
        at += _SLOT_BYTES
        if at == end:
            at = slots
    return at


@inlined
def _is_empty(at: int) -> bool:
    return bool((peek_u64(at) | peek_u64(at + 8) | peek_u64(at + 16)) == np.uint64(0))


@_kernel
def map_records(
    payload: Bytes,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    first_dirty: int,
    capacity: int,
    k0: Any,
    k1: Any,
    slots: Slots,
    state: State,
) -> int:
    """Puts the keys of a batch from `first_dirty` on into the map; gives a `Step`."""
    source, table, slot_count = start_of(payload), start_of(slots), slots.shape[0]
    at, end_at = source + start, source + end
    key_count, latest = state[_COUNT], state[_LATEST]
    step = _DONE
    for _ in range(count):
        status, after, delta, key, key_size, _value_size = _read_record(at, end_at)
        if status != 0:
            return _FAULT
        if key_size >= 0 and base_offset + delta >= first_dirty:
            if key_count >= capacity:
                step = _MAP_FULL
                break
            high, low = siphash(key, key_size, np.uint64(k0), np.uint64(k1))
            slot = _find(table, slot_count, high, low)
            if _is_empty(slot):
                key_count += 1
                poke_u64(slot, high)
                poke_u64(slot + 8, low)
            latest = base_offset + delta
            poke_u64(slot + 16, np.uint64(latest))
        at = after
    state[_COUNT], state[_LATEST] = key_count, latest
    return step


@_kernel
def map_batches(
    buffer: Bytes,
    buffer_start: int,
    rows: Table,
    first_row: int,
    first_dirty: int,
    capacity: int,
    k0: Any,
    k1: Any,
    slots: Slots,
    state: State,
) -> tuple[int, int]:
    """Pass 1 over uncompressed batches: the row it stopped at, and the `Step` that tells why."""
    for row in range(first_row, rows.shape[0]):
        if rows[row, _ATTRIBUTES] & _CODEC_MASK != 0:
            return row, _COMPRESSED
        position = rows[row, _POSITION] - buffer_start
        step = map_records(
            buffer,
            position + HEADER_SIZE,
            position + rows[row, _SIZE],
            rows[row, _RECORD_COUNT],
            rows[row, _BASE_OFFSET],
            first_dirty,
            capacity,
            k0,
            k1,
            slots,
            state,
        )
        if step != _DONE:
            return row, step
        state[_LATEST] = rows[row, _LAST_OFFSET]
    return rows.shape[0], _DONE


@_kernel
def filter_records(
    payload: Bytes,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    latest_offset: int,
    is_expired: bool,
    k0: Any,
    k1: Any,
    slots: Slots,
    out: Bytes,
    out_start: int,
    keep: Bytes,
) -> tuple[int, int, int, int, int]:
    """Copies the records that stay: step, kept, end in `out`, largest timestamp, tombstones kept.

    `out` has room for all of payload[start:end] from `out_start` on. `keep` gets a 1 for each that
    stays, and has room for `count`.
    """
    source, target, table = start_of(payload), address_of(out), start_of(slots)
    slot_count = slots.shape[0]
    written, at, end_at, run = target + out_start, source + start, source + end, source + start
    kept, largest, tombstones = 0, -1, 0
    for index in range(count):
        status, after, delta, key, key_size, value_size = _read_record(at, end_at)
        if status != 0:
            return _FAULT, 0, out_start, -1, 0
        offset = base_offset + delta
        stays = True
        if offset <= latest_offset:
            if key_size < 0 or (value_size < 0 and is_expired):
                stays = False
            else:
                high, low = siphash(key, key_size, np.uint64(k0), np.uint64(k1))
                slot = _find(table, slot_count, high, low)
                stays = _is_empty(slot) or offset >= as_int(peek_u64(slot + 16))
        keep[index] = stays
        if stays:
            kept += 1
            _length, body = read_varint(payload, at - source, end)
            timestamp_delta, _after = read_varlong(payload, body + 1, end)
            largest = max(largest, base_timestamp + timestamp_delta)
            tombstones += 1 if value_size < 0 else 0
        else:
            copy_bytes(written, run, at - run)
            written += at - run
            run = after
        at = after
    copy_bytes(written, run, at - run)
    return _DONE, kept, written + (at - run) - target, largest, tombstones


@inlined
def _store_big_endian(out: Bytes, position: int, value: int, size: int) -> None:
    for i in range(size):
        out[position + i] = (value >> (8 * (size - 1 - i))) & 0xFF


@inlined
def _copy_header(buffer: Bytes, position: int, out: Bytes, start: int) -> None:
    copy_bytes(address_of(out) + start, address_of(buffer) + position, HEADER_SIZE)


@_kernel
def seal_batch(out: Bytes, start: int, end: int, attributes: int, kept: int, largest: int) -> None:
    """Makes the header at `start`, copied from the original, fit the records behind it."""
    _store_big_endian(out, start + _LENGTH_AT, end - start - _LENGTH_OVERHEAD, 4)
    if attributes & _APPEND_TIME_BIT == 0:
        _store_big_endian(out, start + _MAX_TIMESTAMP_AT, largest, 8)
    _store_big_endian(out, start + _COUNT_AT, kept, 4)
    _store_big_endian(out, start + _CRC_AT, crc32c(out, start + _CRC_START, end), 4)


@_kernel
def filter_batches(
    buffer: Bytes,
    buffer_start: int,
    rows: Table,
    first_row: int,
    latest_offset: int,
    shell_end: int,
    now_ms: int,
    k0: Any,
    k1: Any,
    slots: Slots,
    out: Bytes,
    out_start: int,
    keep: Bytes,
    counts: State,
) -> tuple[int, int, int]:
    """Pass 2 over uncompressed batches: the row it stopped at, the end in `out`, and the `Step`.

    The batch that ends before offset `shell_end` keeps its shell. A row that is not DONE is neither
    written nor counted.
    """
    at = out_start
    for row in range(first_row, rows.shape[0]):
        attributes, count = rows[row, _ATTRIBUTES], rows[row, _RECORD_COUNT]
        if attributes & _CODEC_MASK != 0:
            return row, at, _COMPRESSED
        position, size = rows[row, _POSITION] - buffer_start, rows[row, _SIZE]
        if size > out.size - at:
            return row, at, _NO_ROOM
        has_horizon = attributes & _HORIZON_BIT != 0
        step, kept, end, largest, tombstones = filter_records(
            buffer,
            position + HEADER_SIZE,
            position + size,
            count,
            rows[row, _BASE_OFFSET],
            rows[row, _BASE_TIMESTAMP],
            latest_offset,
            has_horizon and now_ms >= rows[row, _BASE_TIMESTAMP],
            k0,
            k1,
            slots,
            out,
            at + HEADER_SIZE,
            keep,
        )
        if step != _DONE:
            return row, at, step
        if tombstones != 0 and not has_horizon:
            return row, at, _NEEDS_HORIZON
        if kept == 0 and rows[row, _LAST_OFFSET] + 1 == shell_end:
            return row, at, _EMPTY
        counts[_READ] += count
        counts[_KEPT] += kept
        if kept == 0:
            continue
        _copy_header(buffer, position, out, at)
        if kept != count:
            seal_batch(out, at, end, attributes, kept, largest)
        at = end
    return rows.shape[0], at, _DONE
