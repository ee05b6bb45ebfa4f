"""Encodes entries of a shape's log, extracts their JSON, and scans them for recovery.

Layout     tx (8), op (8), key size (4), key, operation (1), flag (1), json size (8), json, CRC-32C
           of all before it (4); big-endian. docs/reference/formats/shape-log.md
Invariant  nothing outside the given buffers is read or written, whatever the bytes are.
Threads    `encode_entries` reads Python objects and keeps the GIL; no Python code runs
           meanwhile, so the list cannot change under it.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from varve.kernels.compile import byte_buffers, inlined, kernel, object_kernel
from varve.kernels.crc import crc32c
from varve.kernels.memory import (
    Bytes,
    address_of,
    append_big_endian,
    bytes_address,
    bytes_size,
    clear_error,
    copy_bytes,
    int_value,
    list_item,
    list_size,
    load_i64,
    load_u8,
    load_u32,
    store_u8_at,
    tuple_item,
    tuple_size,
)

ENTRY_HEAD = 20
"""Bytes of an entry before its key."""
ENTRY_MIDDLE = 10
"""Bytes between key and JSON: operation, flag, JSON size."""
ENTRY_CRC = 4
ENTRY_BYTES_MIN = ENTRY_HEAD + ENTRY_MIDDLE + ENTRY_CRC
"""An entry of an empty key and empty JSON."""
NUMBER_MAX = (1 << 63) - 1
"""Transactions and operations stay below; as an operation it stands for infinity."""
_KEY_BYTES_MAX = (1 << 32) - 1
_JSON_BYTES_MAX = 1 << 48


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


WHOLE = -1
"""Not an EntryStatus: the entry is complete and valid."""
_INSERT, _UPDATE, _DELETE, _CONTROL = b"iudc"
_COMMA = ord(",")
_AS_RECEIVED = 0
# The fields of a Python entry: numbers, and the addresses and sizes of its texts.
_TX, _OP, _OPERATION, _KEY, _KEY_SIZE, _JSON, _JSON_SIZE = range(7)
_FIELDS = 7


@inlined
def is_operation(operation: int) -> bool:
    """Whether this byte is i, u, d or c."""
    return operation in (_INSERT, _UPDATE, _DELETE, _CONTROL)


@inlined
def is_after(tx: int, op: int, other_tx: int, other_op: int) -> bool:
    """Whether an offset is above another."""
    return tx > other_tx or (tx == other_tx and op > other_op)


@inlined
def _read_entry(entry: Any, row: Any, last_tx: int, last_op: int) -> int:
    """Reads the fields of a Python entry; returns MORE, or why it cannot follow the last one."""
    if tuple_size(entry) != 4 or tuple_size(tuple_item(entry, 0)) != 2:
        return EntryStatus.NOT_AN_ENTRY.value
    offset, key, json = tuple_item(entry, 0), tuple_item(entry, 1), tuple_item(entry, 3)
    row[_TX], row[_OP] = int_value(tuple_item(offset, 0)), int_value(tuple_item(offset, 1))
    row[_OPERATION] = int_value(tuple_item(entry, 2))
    row[_KEY_SIZE], row[_JSON_SIZE] = bytes_size(key), bytes_size(json)
    if row[_KEY_SIZE] < 0 or row[_JSON_SIZE] < 0:
        return EntryStatus.NOT_AN_ENTRY.value
    row[_KEY], row[_JSON] = bytes_address(key), bytes_address(json)
    if row[_TX] < 1 or row[_OP] < 0 or row[_OP] == NUMBER_MAX or row[_KEY_SIZE] > _KEY_BYTES_MAX:
        return EntryStatus.BAD_FIELD.value
    if not is_operation(row[_OPERATION]):
        return EntryStatus.BAD_FIELD.value
    return (
        EntryStatus.MORE.value
        if is_after(row[_TX], row[_OP], last_tx, last_op)
        else EntryStatus.BAD_ORDER.value
    )


@inlined
def _write_entry(at: int, row: Any) -> Any:
    """Writes an entry without its checksum; returns the address after it."""
    at = append_big_endian(append_big_endian(at, row[_TX], 8), row[_OP], 8)
    at = append_big_endian(at, row[_KEY_SIZE], 4)
    copy_bytes(at, row[_KEY], row[_KEY_SIZE])
    at += row[_KEY_SIZE]
    store_u8_at(at, np.uint64(row[_OPERATION]))
    store_u8_at(at + 1, np.uint64(_AS_RECEIVED))
    at = append_big_endian(at + 2, row[_JSON_SIZE], 8)
    copy_bytes(at, row[_JSON], row[_JSON_SIZE])
    return at + row[_JSON_SIZE]


@object_kernel
def _encode(
    entries: int,
    start: int,
    json_room: int,
    byte_room: int,
    last_tx: int,
    last_op: int,
) -> Any:
    limit = min(list_size(entries) - start, byte_room // ENTRY_BYTES_MIN + 1)
    rows = np.empty((max(limit, 0), _FIELDS), np.int64)
    total, json_bytes, count = 0, 0, 0
    while count < limit and json_bytes < json_room and total < byte_room:
        row = rows[count]
        status = _read_entry(list_item(entries, start + count), row, last_tx, last_op)
        if status != EntryStatus.MORE:
            clear_error()
            return status, count, np.empty(0, np.uint8), 0
        last_tx, last_op = row[_TX], row[_OP]
        total += ENTRY_BYTES_MIN + row[_KEY_SIZE] + row[_JSON_SIZE]
        json_bytes += row[_JSON_SIZE]
        count += 1
    data = np.empty(total, np.uint8)
    base = address_of(data)
    at = base
    for index in range(count):
        begin = at
        at = _write_entry(at, rows[index])
        at = append_big_endian(at, crc32c(data, begin - base, at - base), ENTRY_CRC)
    return EntryStatus.MORE.value, count, data, json_bytes


def encode_entries(
    entries: list[Any],
    *,
    start: int,
    json_room: int,
    byte_room: int,
    last: tuple[int, int],
) -> tuple[int, int, Bytes, int]:
    """(EntryStatus, count, bytes, JSON bytes) of entries from `start` on.

    It stops after the entry that reaches `json_room` or `byte_room`. `last` is the offset before
    the first entry. A status other than MORE is the fault of the entry at start + count; then there
    are no bytes.
    """
    encoded: tuple[int, int, Bytes, int] = _encode(
        id(entries), start, json_room, byte_room, last[0], last[1]
    )
    return encoded


@inlined
def check_entry(buffer: Bytes, at: int, end: int) -> Any:
    """WHOLE or the EntryStatus of the entry at `at`, its size, and the sizes of its key and JSON.

    For an entry that `end` cuts off the status is MORE, and its size is at least the one returned;
    the size of the key is -1 when it is cut off too.
    """
    if end - at < ENTRY_HEAD:
        return EntryStatus.MORE.value, ENTRY_HEAD + ENTRY_MIDDLE, -1, -1
    key_size = load_u32(buffer, at + 16)
    if end - at < ENTRY_HEAD + key_size + ENTRY_MIDDLE:
        return EntryStatus.MORE.value, ENTRY_HEAD + key_size + ENTRY_MIDDLE, key_size, -1
    json_size = load_i64(buffer, at + ENTRY_HEAD + key_size + 2)
    if json_size < 0 or json_size > _JSON_BYTES_MAX:
        return EntryStatus.BAD_FIELD.value, 0, key_size, -1
    size = ENTRY_BYTES_MIN + key_size + json_size
    if size > end - at:
        return EntryStatus.MORE.value, size, key_size, json_size
    crc_at = at + size - ENTRY_CRC
    if crc32c(buffer, at, crc_at) != load_u32(buffer, crc_at):
        return EntryStatus.BAD_CRC.value, 0, key_size, json_size
    return WHOLE, size, key_size, json_size


@kernel
def strip_entries(
    buffer: Bytes,
    after_tx: int,
    after_op: int,
    until_tx: int,
    until_op: int,
    out: Bytes,
) -> tuple[int, int, int, int]:
    """Copies the JSON of entries above one offset and up to another, joined by commas.

    Returns EntryStatus, the position where the next entry begins, the bytes of `out` in use, and
    the least size of an entry that the buffer's end cuts off. `out` is at least as long as the
    buffer.
    """
    end = buffer.size
    if out.size < end:
        raise IndexError("out is shorter than the buffer")
    source, target = address_of(buffer), address_of(out)
    at, used = 0, 0
    last_tx, last_op = 0, -1
    while at < end:
        # Skipped entries are checked too: with a damaged offset they would be left out unnoticed.
        status, size, key_size, json_size = check_entry(buffer, at, end)
        if status != WHOLE:
            return status, at, used, size
        tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
        if not is_after(tx, op, last_tx, last_op):
            return EntryStatus.BAD_ORDER.value, at, used, 0
        if is_after(tx, op, until_tx, until_op):
            return EntryStatus.DONE.value, at, used, 0
        last_tx, last_op = tx, op
        if is_after(tx, op, after_tx, after_op):
            if used > 0:
                store_u8_at(target + used, np.uint64(_COMMA))
                used += 1
            copy_bytes(target + used, source + at + ENTRY_HEAD + key_size + ENTRY_MIDDLE, json_size)
            used += json_size
        at += size
        if tx == until_tx and op == until_op:
            return EntryStatus.DONE.value, at, used, 0
    return EntryStatus.MORE.value, at, used, 0


@kernel
def scan_entries(
    buffer: Bytes, last_tx: int, last_op: int, until_tx: int, until_op: int
) -> tuple[int, int, int, int, int, int]:
    """Scans whole and valid entries above one offset and up to another.

    Returns EntryStatus, the position after the last entry scanned, its transaction and operation,
    the JSON bytes of all scanned, and the least size of an entry that is cut off. The scan ends
    before an entry above the limit.
    """
    end = buffer.size
    at, json_bytes = 0, 0
    while at < end:
        status, size, key_size, json_size = check_entry(buffer, at, end)
        tx, op = 1, 0
        if key_size >= 0:
            tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
            if is_after(tx, op, until_tx, until_op):
                return EntryStatus.DONE.value, at, last_tx, last_op, json_bytes, 0
        if tx < 1 or op < 0:
            return EntryStatus.BAD_FIELD.value, at, last_tx, last_op, json_bytes, 0
        if status != WHOLE:
            return status, at, last_tx, last_op, json_bytes, size
        if not is_after(tx, op, last_tx, last_op):
            return EntryStatus.BAD_ORDER.value, at, last_tx, last_op, json_bytes, 0
        if not is_operation(load_u8(buffer, at + ENTRY_HEAD + key_size)):
            return EntryStatus.BAD_FIELD.value, at, last_tx, last_op, json_bytes, 0
        last_tx, last_op = tx, op
        json_bytes += json_size
        at += size
        if tx == until_tx and op == until_op:
            return EntryStatus.DONE.value, at, last_tx, last_op, json_bytes, 0
    return EntryStatus.MORE.value, at, last_tx, last_op, json_bytes, 0


def warm() -> None:
    """Compile for the argument types in use."""
    entries = [((1, 0), b"k", _INSERT, b"{}")]
    _, _, data, _ = encode_entries(entries, start=0, json_room=9, byte_room=99, last=(0, 0))
    for buffer in byte_buffers(data.tobytes()):
        strip_entries(buffer, 0, 0, 1, 0, np.empty(buffer.size, np.uint8))
        scan_entries(buffer, 0, 0, 1, 0)
