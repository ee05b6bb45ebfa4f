"""Keys of a segment's records as sorted entries: scan and hash, sort, digest. docs/formats/keys.md

Layout     an entry is four words of 64 bits: hash_high, hash_low, offset | record << 32,
           size | flags << 32. The offset counts from the segment's base offset, the record from
           the segment's first, the size is that of the encoded record with its length.
Invariant  records are refused for all that `record_parse` refuses, and for offsets that do not
           ascend within their batch. Nothing outside the given ranges is read or written,
           whatever the bytes say.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_scan import FIELD_COUNT, HEADER_SIZE, Field
from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.key_hash import siphash
from varve.kernels.loads import Bytes
from varve.kernels.peeks import peek_u8, peek_u64, poke_u64, start_of
from varve.kernels.record_parse import RECORD_SIZE_MIN, Table
from varve.kernels.status import RecordStatus, ScanStatus
from varve.kernels.varint import VARINT_OUT_OF_BYTES, VARINT_TOO_LONG

Entries = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.uint8]

ENTRY_WORDS = 4
FLAG_TOMBSTONE = 1

_ENTRY_BYTES = 8 * ENTRY_WORDS
_POSITION = int(Field.POSITION)
_SIZE = int(Field.SIZE)
_BASE_OFFSET = int(Field.BASE_OFFSET)
_LAST_OFFSET = int(Field.LAST_OFFSET)
_RECORD_COUNT = int(Field.RECORD_COUNT)

_OK = int(RecordStatus.OK)
_FULL = int(ScanStatus.FULL)
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
_OFFSET_DELTA = int(RecordStatus.OFFSET_DELTA)

_UINT32_MAX = 0xFFFFFFFF
_LOW_HALF = np.uint64(_UINT32_MAX)
_HALF = np.uint64(32)
_TOMBSTONE = np.uint64(FLAG_TOMBSTONE << 32)

_MIX_OFFSET = np.uint64(0x9E3779B97F4A7C15)
_MIX_HIGH = np.uint64(0xBF58476D1CE4E5B9)
_MIX_LOW = np.uint64(0x94D049BB133111EB)


@inlined
def mix_entry(hash_high: Any, hash_low: Any, absolute_offset: Any) -> tuple[Any, Any]:
    """Two words that stand for a key at an offset; a digest is their sum, in any order."""
    high = np.uint64(hash_high) + np.uint64(absolute_offset) * _MIX_OFFSET
    high = (high ^ (high >> np.uint64(30))) * _MIX_HIGH
    low = (np.uint64(hash_low) + (high ^ (high >> np.uint64(27)))) * _MIX_LOW
    low ^= low >> np.uint64(31)
    return high ^ (low << np.uint64(32)), low


@inlined
def _read_groups(at: int, end: int, byte_count_max: int) -> tuple[Any, int]:
    """The bits of a varint of two bytes or more, and the address behind or a negative fault."""
    value = np.uint64(0)
    limit = min(end, at + byte_count_max)
    shift = np.uint64(0)
    address = at
    while address < limit:
        byte = peek_u8(address)
        value |= np.uint64(byte & 0x7F) << shift
        address += 1
        if byte < 0x80:
            return value, address
        shift += np.uint64(7)
    return value, VARINT_TOO_LONG if address - at == byte_count_max else VARINT_OUT_OF_BYTES


@inlined
def _read_varint(at: int, end: int) -> tuple[int, int]:
    """As `varint.read_varint`, by address."""
    if at < end:
        first = peek_u8(at)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
        if at + 1 < end:
            second = peek_u8(at + 1)
            if second < 0x80:
                bits = (first & 0x7F) | (second << 7)
                return (bits >> 1) ^ -(bits & 1), at + 2
    groups, after = _read_groups(at, end, 5)
    bits = as_int(groups & _LOW_HALF)
    return (bits >> 1) ^ -(bits & 1), after


@inlined
def _skip_varlong(at: int, end: int) -> int:
    """The address behind a varint of up to ten bytes, or a negative fault."""
    limit = min(end, at + 10)
    address = at
    while address < limit:
        if peek_u8(address) < 0x80:
            return address + 1
        address += 1
    return VARINT_TOO_LONG if address - at == 10 else VARINT_OUT_OF_BYTES


@inlined
def _field_fault(after: int) -> int:
    return _FIELD_OVERRUN if after == VARINT_OUT_OF_BYTES else _VARINT_TOO_LONG


@kernel
def _skip_headers(at: int, end: int) -> int:
    """Status of the headers of a record, of which nothing but themselves lies before `end`."""
    count, at = _read_varint(at, end)
    if at < 0:
        return _field_fault(at)
    if count < 0 or count > end - at:
        return _HEADER_COUNT
    for part in range(2 * count):
        size, after = _read_varint(at, end)
        if after < 0:
            return _field_fault(after)
        if size < 0 and part % 2 == 0:
            return _NEGATIVE_HEADER_KEY
        at = after
        if size > 0:
            if size > end - after:
                return _FIELD_OVERRUN
            at += size
    return _OK if at == end else _LENGTH_MISMATCH


@inlined
def _read_record(at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """Status, end of the record, offset delta, key, key size and value size; sizes -1 for null.

    With a fault the other numbers mean nothing.
    """
    length, start = _read_varint(at, end)
    if start < 0:
        fault = _TRUNCATED if start == VARINT_OUT_OF_BYTES else _VARINT_TOO_LONG
        return fault, 0, 0, 0, 0, 0
    if length < RECORD_SIZE_MIN - 1:
        return _CORRUPT_LENGTH, 0, 0, 0, 0, 0
    if length > end - start:
        return _TRUNCATED, 0, 0, 0, 0, 0
    record_end = start + length
    after = _skip_varlong(start + 1, record_end)
    if after < 0:
        return _field_fault(after), 0, 0, 0, 0, 0
    offset_delta, after = _read_varint(after, record_end)
    if after < 0:
        return _field_fault(after), 0, 0, 0, 0, 0
    key_size, key = _read_varint(after, record_end)
    if key < 0:
        return _field_fault(key), 0, 0, 0, 0, 0
    if key_size > record_end - key:
        return _FIELD_OVERRUN, 0, 0, 0, 0, 0
    value_size, after = _read_varint(key + max(key_size, 0), record_end)
    if after < 0:
        return _field_fault(after), 0, 0, 0, 0, 0
    if value_size > record_end - after:
        return _FIELD_OVERRUN, 0, 0, 0, 0, 0
    after += max(value_size, 0)
    if after + 1 != record_end or peek_u8(after) != 0:
        status = _skip_headers(after, record_end)
        if status != _OK:
            return status, 0, 0, 0, 0, 0
    return _OK, record_end, offset_delta, key, key_size, value_size


@inlined
def _scan_records(
    at: int,
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
    """Records from `index` on into entries from `out` on, as long as there is room.

    Gives status, the address and index of the first record not scanned, its predecessor's offset
    delta, the address behind the entries, and how many keys were null. `offset` and `number` are
    those of the batch's base offset and first record.
    """
    null_keys = 0
    while index < last_index:
        if out == out_end:
            return _FULL, at, index, previous_delta, out, null_keys
        status, after, delta, key, key_size, value_size = _read_record(at, end)
        if status != _OK:
            return status, at, index, previous_delta, out, null_keys
        if delta <= previous_delta or delta > last_delta:
            return _OFFSET_DELTA, at, index, previous_delta, out, null_keys
        if key_size < 0:
            null_keys += 1
        else:
            high, low = siphash(key, key_size, k0, k1)
            size = np.uint64(after - at)
            if value_size < 0:
                size |= _TOMBSTONE
            poke_u64(out, high)
            poke_u64(out + 8, low)
            poke_u64(out + 16, np.uint64(offset + delta) | (np.uint64(number + index) << _HALF))
            poke_u64(out + 24, size)
            out += _ENTRY_BYTES
        previous_delta = delta
        at = after
        index += 1
    return _OK, at, index, previous_delta, out, null_keys


@inlined
def _check_batch(count: int, size: int, base: int, last: int, first_number: int) -> int:
    """Whether `size` bytes may hold the records, and the segment's entries their numbers."""
    if count < 0:
        return _NEGATIVE_COUNT
    if count > size // RECORD_SIZE_MIN or count > _UINT32_MAX - first_number:
        return _COUNT_TOO_LARGE
    if base < 0 or last < base or last > _UINT32_MAX:
        return _OFFSET_DELTA
    return _OK


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

    Batches with `skip` set are only counted. Positions in `rows` are those of a file whose byte
    `buffer_start` begins the buffer; `base_offset` is the segment's. Gives the entries, the
    records of all batches, the null keys and the encoded bytes of those scanned, a status (a
    RecordStatus, or ScanStatus.FULL when `out` has no room for a batch's records) and the row it
    speaks of, `last_row` if none: everything before that row is done.
    """
    if first_row < 0 or first_row > last_row or last_row > rows.shape[0]:
        raise IndexError("first_row and last_row do not name a range of the rows")
    if rows.shape[1] < FIELD_COUNT or skip.size < last_row or out.shape[1] != ENTRY_WORDS:
        raise IndexError("rows, skip or out have too few columns or rows")
    start = start_of(buffer)
    target = start_of(out)
    target_end = target + out.shape[0] * _ENTRY_BYTES
    k0, k1 = np.uint64(k0), np.uint64(k1)
    entry_count, record_count, null_keys, record_bytes = 0, 0, 0, 0
    for row in range(first_row, last_row):
        count = rows[row, _RECORD_COUNT]
        if skip[row] != 0:
            if count < 0:
                return entry_count, record_count, null_keys, record_bytes, _NEGATIVE_COUNT, row
            record_count += count
            continue
        position = rows[row, _POSITION] - buffer_start
        size = rows[row, _SIZE]
        if position < 0 or size < HEADER_SIZE or size > buffer.size - position:
            raise IndexError("a batch lies outside the buffer")
        base = rows[row, _BASE_OFFSET] - base_offset
        last = rows[row, _LAST_OFFSET] - base_offset
        number = first_record_number + record_count
        status = _check_batch(count, size - HEADER_SIZE, base, last, number)
        at = target + entry_count * _ENTRY_BYTES
        if status == _OK and count > (target_end - at) // _ENTRY_BYTES:
            status = _FULL
        if status != _OK:
            return entry_count, record_count, null_keys, record_bytes, status, row
        records = start + position + HEADER_SIZE
        end = start + position + size
        status, behind, _index, _delta, after, nulls = _scan_records(
            records, end, 0, count, -1, last - base, base, number, k0, k1, at, target_end
        )
        if status == _OK and count != 0 and behind != end:
            status = _TRAILING_BYTES
        if status != _OK:
            return entry_count, record_count, null_keys, record_bytes, status, row
        entry_count += (after - at) // _ENTRY_BYTES
        record_count += count
        null_keys += nulls
        if count != 0:
            record_bytes += size - HEADER_SIZE
    return entry_count, record_count, null_keys, record_bytes, _OK, last_row


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
    segment's. Gives entries, null keys, status, and the position, index and previous delta to go
    on from when the status is ScanStatus.FULL, or of the record at fault.
    """
    if position < 0 or position > end or end > payload.size:
        raise IndexError("position and end do not name a range of the payload")
    if out.shape[1] != ENTRY_WORDS or index < 0 or previous_delta < -1:
        raise IndexError("out has not the columns of entries, or the start is none")
    if count == 0:
        return 0, 0, _OK, position, 0, previous_delta
    status = _check_batch(
        count - index if count >= 0 else count,
        end - position,
        offset,
        offset + last_delta,
        first_record_number + index,
    )
    if status != _OK:
        return 0, 0, status, position, index, previous_delta
    start = start_of(payload)
    target = start_of(out)
    status, behind, index, previous_delta, after, null_keys = _scan_records(
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
    if status == _OK and behind != start + end:
        status = _TRAILING_BYTES
    entry_count = (after - target) // _ENTRY_BYTES
    return entry_count, null_keys, status, behind - start, index, previous_delta


@kernel
def digest_entries(entries: Entries, base_offset: int) -> tuple[Any, Any]:
    """The sums of `mix_entry` over the entries, with their offsets made absolute."""
    if entries.shape[1] != ENTRY_WORDS:
        raise IndexError("entries have four words each")
    at = start_of(entries)
    high, low = np.uint64(0), np.uint64(0)
    for _ in range(entries.shape[0]):
        offset = (peek_u64(at + 16) & _LOW_HALF) + np.uint64(base_offset)
        first, second = mix_entry(peek_u64(at), peek_u64(at + 8), offset)
        high += first
        low += second
        at += _ENTRY_BYTES
    return high, low


def warm() -> None:
    """Compile for the argument types in use."""
    secret = np.uint64(0)
    record = bytes([0x0C, 0, 0, 0, 0, 1, 0])
    rows = np.zeros((1, FIELD_COUNT), np.int64)
    rows[0, _SIZE], rows[0, _RECORD_COUNT] = HEADER_SIZE + len(record), 1
    out = np.empty((1, ENTRY_WORDS), np.uint64)
    for buffer in byte_buffers(bytes(HEADER_SIZE) + record):
        end = buffer.size
        scan_keys(buffer, 0, rows, 0, 1, 0, 0, np.zeros(1, np.uint8), secret, secret, out)
        scan_payload_keys(buffer, HEADER_SIZE, end, 0, 1, -1, 0, 0, 0, secret, secret, out)
    digest_entries(out, 0)
