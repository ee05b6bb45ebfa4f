"""Entries of a shape's log: many into one buffer, a buffer into joined JSON, a walk for recovery.

Layout     tx (8), op (8), key size (4), key, operation (1), flag (1), json size (8), json, CRC-32C
           of all before it (4); big-endian. docs/formats/shape-log.md
Invariant  nothing outside the given buffers is read or written, whatever the bytes say.
Threads    `encode_entries` looks at Python objects and keeps the GIL; no Python code runs
           meanwhile, so the list cannot change under it.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from varve.kernels.batch_build import address_of, copy_bytes, store_byte
from varve.kernels.compile import byte_buffers, inlined, kernel, object_kernel
from varve.kernels.crc import crc32c
from varve.kernels.loads import Bytes, load_i64, load_u8, load_u32
from varve.kernels.objects import (
    bytes_address,
    bytes_size,
    clear_error,
    list_item,
    list_size,
    number_of,
    tuple_item,
    tuple_size,
)

ENTRY_BYTES_MIN = 34
"""An entry of an empty key and empty JSON."""
NUMBER_MAX = (1 << 63) - 1
"""Transactions and operations stay below; as an operation it stands for infinity."""

_HEAD = 20
_MIDDLE = 10
_CRC = 4


class EntryStatus(IntEnum):
    """How a walk over entries ended."""

    MORE = 0
    """The bytes ended, perhaps within an entry."""
    DONE = 1
    """The upper limit was reached."""
    BAD_CRC = 2
    BAD_FIELD = 3
    """A number or size that no entry has."""
    BAD_ORDER = 4
    """An offset that is not above the one before it."""
    NOT_AN_ENTRY = 5
    """A Python object of another shape."""


_MORE = int(EntryStatus.MORE)
_DONE = int(EntryStatus.DONE)
_BAD_CRC = int(EntryStatus.BAD_CRC)
_BAD_FIELD = int(EntryStatus.BAD_FIELD)
_BAD_ORDER = int(EntryStatus.BAD_ORDER)
_NOT_AN_ENTRY = int(EntryStatus.NOT_AN_ENTRY)
_INSERT, _UPDATE, _DELETE, _CONTROL = b"iudc"
_AS_RECEIVED = 0


@inlined
def _store_big(address: int, value: int, size: int) -> int:
    """Store a number in so many bytes; gives the address behind."""
    for index in range(size):
        store_byte(address + index, np.uint64(value) >> np.uint64(8 * (size - 1 - index)))
    return address + size


@inlined
def _is_operation(operation: int) -> bool:
    return operation in (_INSERT, _UPDATE, _DELETE, _CONTROL)


@inlined
def _is_after(tx: int, op: int, other_tx: int, other_op: int) -> bool:
    return tx > other_tx or (tx == other_tx and op > other_op)


@inlined
def _write_entry(at: int, row: Any) -> Any:
    at = _store_big(_store_big(at, row[0], 8), row[1], 8)
    at = _store_big(at, row[4], 4)
    copy_bytes(at, row[3], row[4])
    at += row[4]
    store_byte(at, np.uint64(row[2]))
    store_byte(at + 1, np.uint64(_AS_RECEIVED))
    at = _store_big(at + 2, row[6], 8)
    copy_bytes(at, row[5], row[6])
    return at + row[6]


@object_kernel
def _encode(
    entries: int,
    start: int,
    json_room: int,
    byte_room: int,
    last_tx: int,
    last_op: int,
) -> Any:
    count = list_size(entries)
    limit = min(count - start, byte_room // ENTRY_BYTES_MIN + 1)
    rows = np.empty((max(limit, 0), 7), np.int64)
    total, json_bytes, taken, status = 0, 0, 0, _MORE
    while taken < limit and json_bytes < json_room and total < byte_room:
        entry = list_item(entries, start + taken)
        status = _NOT_AN_ENTRY
        if tuple_size(entry) != 4 or tuple_size(tuple_item(entry, 0)) != 2:
            break
        row = rows[taken]
        offset = tuple_item(entry, 0)
        row[0] = number_of(tuple_item(offset, 0))
        row[1] = number_of(tuple_item(offset, 1))
        row[2] = number_of(tuple_item(entry, 2))
        key, json = tuple_item(entry, 1), tuple_item(entry, 3)
        row[4] = bytes_size(key)
        row[6] = bytes_size(json)
        if row[4] < 0 or row[6] < 0:
            break
        status = _BAD_FIELD
        if row[0] < 1 or row[1] < 0 or row[1] == NUMBER_MAX or row[4] > 0xFFFFFFFF:
            break
        if not _is_operation(row[2]):
            break
        status = _BAD_ORDER
        if not _is_after(row[0], row[1], last_tx, last_op):
            break
        status = _MORE
        row[3], row[5] = bytes_address(key), bytes_address(json)
        last_tx, last_op = row[0], row[1]
        total += ENTRY_BYTES_MIN + row[4] + row[6]
        json_bytes += row[6]
        taken += 1
    if status != _MORE:
        clear_error()
        return status, taken, np.empty(0, np.uint8), 0
    data = np.empty(total, np.uint8)
    base = address_of(data)
    at = base
    for index in range(taken):
        begin = at
        at = _write_entry(at, rows[index])
        at = _store_big(at, crc32c(data, begin - base, at - base), _CRC)
    return _MORE, taken, data, json_bytes


def encode_entries(
    entries: list[Any],
    *,
    start: int,
    json_room: int,
    byte_room: int,
    last: tuple[int, int],
) -> tuple[int, int, Bytes, int]:
    """(EntryStatus, count, bytes, JSON bytes) of entries from `start` on.

    It stops behind the entry that fills a room. `last` is the place before the first; a status but
    MORE names the fault of the entry at start + count, and no bytes are given.
    """
    encoded: tuple[int, int, Bytes, int] = _encode(
        id(entries), start, json_room, byte_room, last[0], last[1]
    )
    return encoded


@inlined
def _entry_sizes(buffer: Bytes, at: int, end: int) -> Any:
    """Sizes of the key and the JSON of an entry; -1 for what the bytes do not reach.

    Sizes above what memory could hold are given as -2.
    """
    if end - at < _HEAD:
        return -1, -1
    key_size = load_u32(buffer, at + 16)
    if end - at - _HEAD - _MIDDLE < key_size:
        return key_size, -1
    json_size = load_i64(buffer, at + _HEAD + key_size + 2)
    if json_size < 0 or json_size > (1 << 48):
        return key_size, -2
    return key_size, json_size


@inlined
def _has_crc(buffer: Bytes, at: int, size: int) -> bool:
    return crc32c(buffer, at, at + size - _CRC) == load_u32(buffer, at + size - _CRC)


@kernel
def strip_entries(
    buffer: Bytes,
    after_tx: int,
    after_op: int,
    until_tx: int,
    until_op: int,
    out: Bytes,
) -> tuple[int, int, int, int]:
    """JSON of entries above one offset and up to another, joined by commas.

    Gives EntryStatus, the position where the next entry begins, the bytes of `out` in use, and the
    size that an entry cut off by the buffer's end is known to have at least. `out` is at least as
    long as the buffer.
    """
    end = buffer.size
    if out.size < end:
        raise IndexError("out is shorter than the buffer")
    source, target = address_of(buffer), address_of(out)
    at, size = 0, 0
    last_tx, last_op = 0, -1
    while at < end:
        key_size, json_size = _entry_sizes(buffer, at, end)
        if json_size == -2:
            return _BAD_FIELD, at, size, 0
        if json_size == -1:
            return _MORE, at, size, _HEAD + _MIDDLE + max(key_size, 0)
        entry_size = ENTRY_BYTES_MIN + key_size + json_size
        if entry_size > end - at:
            return _MORE, at, size, entry_size
        # Entries that are passed over too: a changed offset would let them be left out unnoticed.
        if not _has_crc(buffer, at, entry_size):
            return _BAD_CRC, at, size, 0
        tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
        if not _is_after(tx, op, last_tx, last_op):
            return _BAD_ORDER, at, size, 0
        if _is_after(tx, op, until_tx, until_op):
            return _DONE, at, size, 0
        last_tx, last_op = tx, op
        if not _is_after(tx, op, after_tx, after_op):
            at += entry_size
            continue
        if size > 0:
            store_byte(target + size, np.uint64(44))
            size += 1
        copy_bytes(target + size, source + at + _HEAD + key_size + _MIDDLE, json_size)
        size += json_size
        at += entry_size
        if tx == until_tx and op == until_op:
            return _DONE, at, size, 0
    return _MORE, at, size, 0


@kernel
def scan_entries(
    buffer: Bytes, last_tx: int, last_op: int, until_tx: int, until_op: int
) -> tuple[int, int, int, int, int, int]:
    """Walk whole and sound entries up to an offset, above another.

    Gives EntryStatus, the position behind the last entry taken, its transaction and operation, the
    JSON bytes of all taken, and the size that an entry cut off is known to have at least. An entry
    above the limit ends the walk unread.
    """
    end = buffer.size
    at, json_bytes = 0, 0
    while at < end:
        key_size, json_size = _entry_sizes(buffer, at, end)
        if key_size >= 0:
            tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
            if tx < 1 or op < 0:
                return _BAD_FIELD, at, last_tx, last_op, json_bytes, 0
            if _is_after(tx, op, until_tx, until_op):
                return _DONE, at, last_tx, last_op, json_bytes, 0
        if json_size == -2:
            return _BAD_FIELD, at, last_tx, last_op, json_bytes, 0
        if json_size == -1:
            needed = _HEAD + _MIDDLE + max(key_size, 0)
            return _MORE, at, last_tx, last_op, json_bytes, needed
        entry_size = ENTRY_BYTES_MIN + key_size + json_size
        if entry_size > end - at:
            return _MORE, at, last_tx, last_op, json_bytes, entry_size
        if not _has_crc(buffer, at, entry_size):
            return _BAD_CRC, at, last_tx, last_op, json_bytes, 0
        tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
        if not _is_after(tx, op, last_tx, last_op):
            return _BAD_ORDER, at, last_tx, last_op, json_bytes, 0
        if not _is_operation(load_u8(buffer, at + _HEAD + key_size)):
            return _BAD_FIELD, at, last_tx, last_op, json_bytes, 0
        last_tx, last_op = tx, op
        json_bytes += json_size
        at += entry_size
        if tx == until_tx and op == until_op:
            return _DONE, at, last_tx, last_op, json_bytes, 0
    return _MORE, at, last_tx, last_op, json_bytes, 0


def warm() -> None:
    """Compile for the argument types in use."""
    entries = [((1, 0), b"k", _INSERT, b"{}")]
    _, _, data, _ = encode_entries(entries, start=0, json_room=9, byte_room=99, last=(0, 0))
    for buffer in byte_buffers(data.tobytes()):
        strip_entries(buffer, 0, 0, 1, 0, np.empty(buffer.size, np.uint8))
        scan_entries(buffer, 0, 0, 1, 0)
