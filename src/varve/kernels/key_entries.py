"""Scans records for their keys and writes the entries of a key index.

docs/reference/formats/keys.md

Layout     an entry is four words of 64 bits: hash_high, hash_low, offset | record << 32,
           size | flags << 32. The offset counts from the segment's base offset, the record from
           the segment's first, the size is that of the encoded record with its length.
Invariant  records are rejected for all that `record_parse` rejects, and for offsets that do not
           ascend within their batch. Nothing outside the given ranges is read or written,
           whatever the bytes say.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import (
    BATCH_COLUMN_COUNT,
    HEADER_BYTES,
    RECORD_SIZE_MIN,
    BatchColumn,
    RecordStatus,
    ScanStatus,
)
from varve.kernels.compile import byte_buffers, inlined, kernel
from varve.kernels.hashes import siphash
from varve.kernels.memory import Bytes, address_of, load_u64_at, store_u64_at
from varve.kernels.record_parse import Table, read_record

Entries = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.uint8]

ENTRY_WORDS = 4
FLAG_TOMBSTONE = 1

_ENTRY_BYTES = 8 * ENTRY_WORDS
_UINT32_MAX = 0xFFFFFFFF
_LOW_HALF = np.uint64(_UINT32_MAX)
_HALF = np.uint64(32)
_TOMBSTONE = np.uint64(FLAG_TOMBSTONE << 32)

_MIX_OFFSET = np.uint64(0x9E3779B97F4A7C15)
_MIX_HIGH = np.uint64(0xBF58476D1CE4E5B9)
_MIX_LOW = np.uint64(0x94D049BB133111EB)


@inlined
def mix_entry(hash_high: Any, hash_low: Any, absolute_offset: Any) -> tuple[Any, Any]:
    """Two words for a key at an offset; a digest is their sum over entries in any order."""
    high = np.uint64(hash_high) + np.uint64(absolute_offset) * _MIX_OFFSET
    high = (high ^ (high >> np.uint64(30))) * _MIX_HIGH
    low = (np.uint64(hash_low) + (high ^ (high >> np.uint64(27)))) * _MIX_LOW
    low ^= low >> np.uint64(31)
    return high ^ (low << np.uint64(32)), low


@inlined
def _scan_records(
    address: int,
    end: int,
    index: int,
    last_index: int,
    previous_delta: int,
    last_delta: int,
    offset: int,
    number: int,
    k0: Any,
    k1: Any,
    out: int,
    out_end: int,
) -> tuple[int, int, int, int, int, int]:
    """Writes the entries of the records from `index` on, as long as there is room.

    Returns the status, the address and index of the first record not scanned, its predecessor's
    offset delta, the address after the entries, and the number of null keys. `offset` is the
    batch's base offset relative to the segment's, `number` that of its first record.
    """
    null_keys = 0
    while index < last_index:
        if out == out_end:
            return ScanStatus.FULL.value, address, index, previous_delta, out, null_keys
        status, after, _time, delta, key, key_size, _value, value_size, _headers, _count = (
            read_record(address, end)
        )
        if status != RecordStatus.OK:
            return status, address, index, previous_delta, out, null_keys
        if delta <= previous_delta or delta > last_delta:
            return RecordStatus.OFFSET_DELTA.value, address, index, previous_delta, out, null_keys
        if key_size < 0:
            null_keys += 1
        else:
            high, low = siphash(key, key_size, k0, k1)
            size = np.uint64(after - address)
            if value_size < 0:
                size |= _TOMBSTONE
            store_u64_at(out, high)
            store_u64_at(out + 8, low)
            store_u64_at(out + 16, np.uint64(offset + delta) | (np.uint64(number + index) << _HALF))
            store_u64_at(out + 24, size)
            out += _ENTRY_BYTES
        previous_delta = delta
        address = after
        index += 1
    return RecordStatus.OK.value, address, index, previous_delta, out, null_keys


@inlined
def _check_batch(count: int, size: int, base: int, last: int, first_number: int) -> int:
    """Checks that `size` bytes can hold the records, and 32 bits their offsets and numbers."""
    if count < 0:
        return RecordStatus.NEGATIVE_COUNT.value
    if count > size // RECORD_SIZE_MIN or count > _UINT32_MAX - first_number:
        return RecordStatus.COUNT_TOO_LARGE.value
    if base < 0 or last < base or last > _UINT32_MAX:
        return RecordStatus.OFFSET_DELTA.value
    return RecordStatus.OK.value


@kernel
def scan_keys(
    buffer: Bytes,
    buffer_start: int,
    rows: Table,
    first_row: int,
    last_row: int,
    base_offset: int,
    first_record_number: int,
    skip: Flags,
    k0: Any,
    k1: Any,
    out: Entries,
) -> tuple[int, int, int, int, int, int]:
    """The keys of uncompressed batches, rows[first_row:last_row], as entries in file order.

    Batches with `skip` set are only counted. `buffer` holds the data file from position
    `buffer_start` on; `base_offset` is the segment's. Returns the number of entries, of records in
    all batches and of null keys, the encoded bytes of the scanned batches, a status (a
    RecordStatus, or ScanStatus.FULL when `out` has no room for a batch's records) and the row that
    the status is about, or `last_row`: all rows before it are done.
    """
    if first_row < 0 or first_row > last_row or last_row > rows.shape[0]:
        raise IndexError("first_row and last_row do not name a range of the rows")
    if rows.shape[1] < BATCH_COLUMN_COUNT or skip.size < last_row or out.shape[1] != ENTRY_WORDS:
        raise IndexError("rows, skip or out have too few columns or rows")
    start = address_of(buffer)
    target = address_of(out)
    target_end = target + out.shape[0] * _ENTRY_BYTES
    k0, k1 = np.uint64(k0), np.uint64(k1)
    entry_count, record_count, null_keys, record_bytes = 0, 0, 0, 0
    for row in range(first_row, last_row):
        count = rows[row, BatchColumn.RECORD_COUNT]
        if skip[row] != 0:
            if count < 0:
                return (
                    entry_count,
                    record_count,
                    null_keys,
                    record_bytes,
                    RecordStatus.NEGATIVE_COUNT.value,
                    row,
                )
            record_count += count
            continue
        position = rows[row, BatchColumn.POSITION] - buffer_start
        size = rows[row, BatchColumn.SIZE]
        if position < 0 or size < HEADER_BYTES or size > buffer.size - position:
            raise IndexError("a batch lies outside the buffer")
        base = rows[row, BatchColumn.BASE_OFFSET] - base_offset
        last = rows[row, BatchColumn.LAST_OFFSET] - base_offset
        number = first_record_number + record_count
        status = _check_batch(count, size - HEADER_BYTES, base, last, number)
        address = target + entry_count * _ENTRY_BYTES
        if status == RecordStatus.OK and count > (target_end - address) // _ENTRY_BYTES:
            status = ScanStatus.FULL.value
        if status != RecordStatus.OK:
            return entry_count, record_count, null_keys, record_bytes, status, row
        records = start + position + HEADER_BYTES
        end = start + position + size
        status, scanned_end, _index, _delta, after, nulls = _scan_records(
            records, end, 0, count, -1, last - base, base, number, k0, k1, address, target_end
        )
        if status == RecordStatus.OK and count != 0 and scanned_end != end:
            status = RecordStatus.TRAILING_BYTES.value
        if status != RecordStatus.OK:
            return entry_count, record_count, null_keys, record_bytes, status, row
        entry_count += (after - address) // _ENTRY_BYTES
        record_count += count
        null_keys += nulls
        if count != 0:
            record_bytes += size - HEADER_BYTES
    return entry_count, record_count, null_keys, record_bytes, RecordStatus.OK.value, last_row


@kernel
def scan_payload_keys(
    payload: Bytes,
    position: int,
    end: int,
    index: int,
    count: int,
    previous_delta: int,
    last_delta: int,
    offset: int,
    first_record_number: int,
    k0: Any,
    k1: Any,
    out: Entries,
) -> tuple[int, int, int, int, int, int]:
    """The keys of one batch's records, payload[position:end], as entries in their order.

    Begin with index 0 and previous_delta -1; `offset` is the batch's base offset relative to the
    segment's. Returns the number of entries and of null keys, the status, and a position, index and
    previous delta: with ScanStatus.FULL those to continue from, else those of the bad record.
    """
    if position < 0 or position > end or end > payload.size:
        raise IndexError("position and end do not name a range of the payload")
    if out.shape[1] != ENTRY_WORDS or index < 0 or previous_delta < -1:
        raise IndexError("out needs four columns, index at least 0 and previous_delta at least -1")
    if count == 0:
        return 0, 0, RecordStatus.OK.value, position, 0, previous_delta
    status = _check_batch(
        count - index if count >= 0 else count,
        end - position,
        offset,
        offset + last_delta,
        first_record_number + index,
    )
    if status != RecordStatus.OK:
        return 0, 0, status, position, index, previous_delta
    start = address_of(payload)
    target = address_of(out)
    status, scanned_end, index, previous_delta, after, null_keys = _scan_records(
        start + position,
        start + end,
        index,
        count,
        previous_delta,
        last_delta,
        offset,
        first_record_number,
        np.uint64(k0),
        np.uint64(k1),
        target,
        target + out.shape[0] * _ENTRY_BYTES,
    )
    if status == RecordStatus.OK and scanned_end != start + end:
        status = RecordStatus.TRAILING_BYTES.value
    entry_count = (after - target) // _ENTRY_BYTES
    return entry_count, null_keys, status, scanned_end - start, index, previous_delta


@kernel
def digest_entries(entries: Entries, base_offset: int) -> tuple[Any, Any]:
    """The sums of `mix_entry` over the entries, with their offsets made absolute."""
    if entries.shape[1] != ENTRY_WORDS:
        raise IndexError("entries have four words each")
    address = address_of(entries)
    high, low = np.uint64(0), np.uint64(0)
    for _ in range(entries.shape[0]):
        offset = (load_u64_at(address + 16) & _LOW_HALF) + np.uint64(base_offset)
        first, second = mix_entry(load_u64_at(address), load_u64_at(address + 8), offset)
        high += first
        low += second
        address += _ENTRY_BYTES
    return high, low


def warm() -> None:
    """Compile for the argument types in use."""
    secret = np.uint64(0)
    record = bytes([0x0C, 0, 0, 0, 0, 1, 0])
    rows = np.zeros((1, BATCH_COLUMN_COUNT), np.int64)
    rows[0, BatchColumn.SIZE], rows[0, BatchColumn.RECORD_COUNT] = HEADER_BYTES + len(record), 1
    out = np.empty((1, ENTRY_WORDS), np.uint64)
    for buffer in byte_buffers(bytes(HEADER_BYTES) + record):
        end = buffer.size
        scan_keys(buffer, 0, rows, 0, 1, 0, 0, np.zeros(1, np.uint8), secret, secret, out)
        scan_payload_keys(buffer, HEADER_BYTES, end, 0, 1, -1, 0, 0, 0, secret, secret, out)
    digest_entries(out, 0)
