"""The loops of the offset-map cleaner: key entries into the map, and against it; records copied.

Keys are parsed and hashed a chunk at a time by varve's own kernel (`scan_keys`), so that the loops
here do nothing but look up: the cache misses of one key then overlap with those of the next.

Layout     the map is uint64[slots, 3]: the two words of a key's SipHash-128 and its latest offset;
           a slot is empty while all three are 0, as in Kafka. Linear probing.
Invariant  records that stay are copied in runs, so a batch that stays whole is one copy.
"""

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

import varve.kernels
from varve.kernels.batch_layout import HEADER_BYTES, BatchColumn
from varve.kernels.compile import as_int, inlined
from varve.kernels.crc import crc32c
from varve.kernels.key_entries import Entries
from varve.kernels.memory import (
    Bytes,
    address_of,
    copy_bytes,
    load_u8_at,
    load_u64_at,
    store_u64_at,
)
from varve.kernels.record_parse import Table

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
    """Why a kernel came back before its end."""

    DONE = 0
    MAP_FULL = 1
    NO_ROOM = 2
    """The output cannot take the batch at hand; nothing of it was written."""
    NEEDS_HORIZON = 3
    """A tombstone stays for the first time: the batch gets a delete horizon."""
    EMPTY = 4
    """Nothing of the last batch of the range stays, and its shell must."""


class Fate(IntEnum):
    """What the map says of a record; records without a key keep GONE."""

    GONE = 0
    LATEST = 1
    LATEST_TOMBSTONE = 2


_POSITION = int(BatchColumn.POSITION)
_SIZE = int(BatchColumn.SIZE)
_BASE_OFFSET = int(BatchColumn.BASE_OFFSET)
_LAST_OFFSET = int(BatchColumn.LAST_OFFSET)
_ATTRIBUTES = int(BatchColumn.ATTRIBUTES)
_BASE_TIMESTAMP = int(BatchColumn.BASE_TIMESTAMP)
_RECORD_COUNT = int(BatchColumn.RECORD_COUNT)
_COUNT = int(MapState.COUNT)
_LATEST_OFFSET = int(MapState.LATEST_OFFSET)
_READ = int(FilterCount.READ)
_KEPT = int(FilterCount.KEPT)
_DONE = int(Step.DONE)
_MAP_FULL = int(Step.MAP_FULL)
_NO_ROOM = int(Step.NO_ROOM)
_NEEDS_HORIZON = int(Step.NEEDS_HORIZON)
_EMPTY = int(Step.EMPTY)
_GONE = int(Fate.GONE)
_LATEST_RECORD = int(Fate.LATEST)
_LATEST_TOMBSTONE = int(Fate.LATEST_TOMBSTONE)
_APPEND_TIME_BIT = 0x08
_HORIZON_BIT = 0x40
_LENGTH_AT = 8
_CRC_AT = 17
_CRC_START = 21
_MAX_TIMESTAMP_AT = 35
_COUNT_AT = 57
_LENGTH_OVERHEAD = 12
_SLOT_BYTES = 24
_ENTRY_BYTES = 32
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)


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
    while not (load_u64_at(at) == high and load_u64_at(at + 8) == low) and not _is_empty(at):
        at += _SLOT_BYTES
        if at == end:
            at = slots
    return at


@inlined
def _is_empty(at: int) -> bool:
    return bool((load_u64_at(at) | load_u64_at(at + 8) | load_u64_at(at + 16)) == np.uint64(0))


@_kernel
def map_entries(
    entries: Entries,
    base_offset: int,
    first_dirty_offset: int,
    capacity: int,
    slots: Slots,
    state: State,
) -> int:
    """Puts the keys from `first_dirty_offset` on into the map, in their order; gives a `Step`."""
    at, table, slot_count = address_of(entries), address_of(slots), slots.shape[0]
    key_count, latest = state[_COUNT], state[_LATEST_OFFSET]
    step = _DONE
    for _ in range(entries.shape[0]):
        offset = base_offset + as_int(load_u64_at(at + 16) & _LOW_HALF)
        if offset >= first_dirty_offset:
            if key_count >= capacity:
                step = _MAP_FULL
                break
            high, low = load_u64_at(at), load_u64_at(at + 8)
            slot = _find(table, slot_count, high, low)
            if _is_empty(slot):
                key_count += 1
                store_u64_at(slot, high)
                store_u64_at(slot + 8, low)
            store_u64_at(slot + 16, np.uint64(offset))
            latest = offset
        at += _ENTRY_BYTES
    state[_COUNT], state[_LATEST_OFFSET] = key_count, latest
    return step


@_kernel
def judge_entries(entries: Entries, base_offset: int, slots: Slots, fates: Bytes) -> None:
    """The `Fate` of every record with a key, by its number; the others are left as they are."""
    at, table, slot_count = address_of(entries), address_of(slots), slots.shape[0]
    for _ in range(entries.shape[0]):
        place, size = load_u64_at(at + 16), load_u64_at(at + 24)
        offset = base_offset + as_int(place & _LOW_HALF)
        slot = _find(table, slot_count, load_u64_at(at), load_u64_at(at + 8))
        fate = _GONE
        if _is_empty(slot) or offset >= as_int(load_u64_at(slot + 16)):
            fate = _LATEST_RECORD if size >> _HALF == np.uint64(0) else _LATEST_TOMBSTONE
        fates[as_int(place >> _HALF)] = fate
        at += _ENTRY_BYTES


@inlined
def _read_varint(at: int) -> tuple[int, int]:
    """A varint of records that were scanned before, and the address behind it."""
    value, shift = np.uint64(0), np.uint64(0)
    byte = load_u8_at(at)
    while byte >= 0x80:
        value |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
        at += 1
        byte = load_u8_at(at)
    value |= np.uint64(byte) << shift
    return as_int(value >> np.uint64(1)) ^ -as_int(value & np.uint64(1)), at + 1


@_kernel
def copy_records(
    payload: Bytes,
    start: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    latest_offset: int,
    is_expired: bool,
    fates: Bytes,
    out: Bytes,
    out_start: int,
) -> tuple[int, int, int, int]:
    """Copies the records that stay: how many, end in `out`, largest timestamp, tombstones kept.

    The records begin at payload[start] and were scanned; `out` has room for all of them. The
    fates of those that go are set to GONE.
    """
    source, target = address_of(payload), address_of(out)
    written, at, run = target + out_start, source + start, source + start
    kept, largest, tombstones = 0, -1, 0
    for index in range(count):
        length, body = _read_varint(at)
        after = body + length
        fate = fates[index]
        if fate == _GONE or (fate == _LATEST_TOMBSTONE and is_expired):
            _time, offset_at = _read_varint(body + 1)
            delta, _key = _read_varint(offset_at)
            fate = _LATEST_RECORD if base_offset + delta > latest_offset else _GONE
            fates[index] = fate
        if fate == _GONE:
            copy_bytes(written, run, at - run)
            written += at - run
            run = after
        else:
            kept += 1
            timestamp_delta, _offset = _read_varint(body + 1)
            largest = max(largest, base_timestamp + timestamp_delta)
            tombstones += 1 if fate == _LATEST_TOMBSTONE else 0
        at = after
    copy_bytes(written, run, at - run)
    return kept, written + (at - run) - target, largest, tombstones


@inlined
def _store_big_endian(out: Bytes, position: int, value: int, size: int) -> None:
    for i in range(size):
        out[position + i] = (value >> (8 * (size - 1 - i))) & 0xFF


@inlined
def _copy_header(buffer: Bytes, position: int, out: Bytes, start: int) -> None:
    copy_bytes(address_of(out) + start, address_of(buffer) + position, HEADER_BYTES)


@_kernel
def seal_batch(out: Bytes, start: int, end: int, attributes: int, kept: int, largest: int) -> None:
    """Makes the header at `start`, copied from the original, fit the records behind it."""
    _store_big_endian(out, start + _LENGTH_AT, end - start - _LENGTH_OVERHEAD, 4)
    if attributes & _APPEND_TIME_BIT == 0:
        _store_big_endian(out, start + _MAX_TIMESTAMP_AT, largest, 8)
    _store_big_endian(out, start + _COUNT_AT, kept, 4)
    _store_big_endian(out, start + _CRC_AT, crc32c(out, start + _CRC_START, end), 4)


@_kernel
def copy_batches(
    buffer: Bytes,
    buffer_start: int,
    rows: Table,
    first_row: int,
    first_record: int,
    latest_offset: int,
    shell_end: int,
    now_ms: int,
    fates: Bytes,
    out: Bytes,
    out_start: int,
    counts: State,
) -> tuple[int, int, int, int]:
    """Pass 2 over uncompressed batches, whose records' fates begin with row 0.

    Gives the row it stopped at, that row's first record, the end in `out`, and the `Step` that
    tells why. The batch that ends before offset `shell_end` keeps its shell. A row that is not
    DONE is neither written nor counted.
    """
    at = out_start
    for row in range(first_row, rows.shape[0]):
        attributes, count = rows[row, _ATTRIBUTES], rows[row, _RECORD_COUNT]
        position, size = rows[row, _POSITION] - buffer_start, rows[row, _SIZE]
        if size > out.size - at:
            return row, first_record, at, _NO_ROOM
        has_horizon = attributes & _HORIZON_BIT != 0
        kept, end, largest, tombstones = copy_records(
            buffer,
            position + HEADER_BYTES,
            count,
            rows[row, _BASE_OFFSET],
            rows[row, _BASE_TIMESTAMP],
            latest_offset,
            has_horizon and now_ms >= rows[row, _BASE_TIMESTAMP],
            fates[first_record : first_record + count],
            out,
            at + HEADER_BYTES,
        )
        if tombstones != 0 and not has_horizon:
            return row, first_record, at, _NEEDS_HORIZON
        if kept == 0 and rows[row, _LAST_OFFSET] + 1 == shell_end:
            return row, first_record, at, _EMPTY
        first_record += count
        counts[_READ] += count
        counts[_KEPT] += kept
        if kept == 0:
            continue
        _copy_header(buffer, position, out, at)
        if kept != count:
            seal_batch(out, at, end, attributes, kept, largest)
        at = end
    return rows.shape[0], first_record, at, _DONE
