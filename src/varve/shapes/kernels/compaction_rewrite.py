"""Rewrites entries of a shape's log for a compaction: folds updates, shortens headers.

A message is `{"key":…,"value":{…},"old_value":{…},"headers":{…}}` without blanks between its parts;
`old_value` may be missing. Column values are copied, never parsed.
docs/reference/formats/shape-compaction.md

Invariant  `index_entries` has checked the entries, but not their messages: nothing outside an entry
           is read, whatever its message is. A result is never longer than the entries it is built
           from, so `out` needs no more bytes than the buffer.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, inlined, kernel
from varve.kernels.crc import crc32c
from varve.kernels.memory import (
    Bytes,
    address_of,
    append_big_endian,
    append_byte,
    copy_bytes,
    load_i64,
    load_u8,
    load_u8_at,
    load_u32,
    store_u8_at,
)
from varve.shapes.kernels.compaction_plan import Action, Actions, Numbers
from varve.shapes.kernels.log_entries import ENTRY_CRC, ENTRY_HEAD, ENTRY_MIDDLE
from varve.shapes.kernels.row_members import is_same, string_end, value_end


class FoldStatus(IntEnum):
    """The result of a rewrite."""

    OK = 0
    BAD_MESSAGE = 1
    """An entry's JSON is not a message of the form above."""


_CONTROL = ord("c")
_REWRITTEN = 1
"""The flag of an entry that a compaction wrote."""
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE = b'",:{}'


def _text(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8)


_KEY = _text(b'"key":')
_VALUE = _text(b'"value":')
_OLD_VALUE = _text(b'"old_value":')
_HEADERS = _text(b'"headers":')
_OPERATION = _text(b'"operation":')
_RELATION = _text(b'"relation":')
_TXIDS = _text(b'"txids":')

# A message's parts as positions: start and end of key, value, old value, operation, relation, and
# of its transactions.
_PARTS = 12
# A column in the table: start and end of its name, start and end of its value.
_CELLS = 4


@kernel
def _next_member(at: int, end: int) -> tuple[int, int, int]:
    """The start and the end of a member's value, and the address of the next member.

    `at` is the address after a `{` or a `,`. The last number is 0 when the object ends with this
    member, -1 when there is no member.
    """
    if at >= end or load_u8_at(at) != _QUOTE:
        return 0, 0, -1
    colon = string_end(at + 1, end)
    if colon < 0 or colon >= end or load_u8_at(colon) != _COLON:
        return 0, 0, -1
    after = value_end(colon + 1, end)
    if after <= colon + 1 or after >= end:
        return 0, 0, -1
    separator = load_u8_at(after)
    if separator == _COMMA:
        return colon + 1, after, after + 1
    return (colon + 1, after, 0) if separator == _CLOSE else (0, 0, -1)


@inlined
def _is_named(at: int, value: int, name: Any) -> bool:
    """Whether the member at an address, whose value starts at another, has this name."""
    if value - at != name.size:
        return False
    index = 0
    while index < name.size and load_u8_at(at + index) == name[index]:
        index += 1
    return index == as_int(name.size)


@inlined
def _read_headers(at: int, end: int, parts: Numbers) -> bool:
    """Finds the parts of a message in its headers; False if these are not valid."""
    if load_u8_at(at) != _OPEN:
        return False
    member = at + 1
    while member > 0:
        value, after, following = _next_member(member, end)
        if following < 0:
            return False
        if _is_named(member, value, _OPERATION):
            parts[6], parts[7] = value, after
        elif _is_named(member, value, _RELATION):
            parts[8], parts[9] = value, after
        elif _is_named(member, value, _TXIDS):
            parts[10], parts[11] = value, after
        member = following
    return as_int(parts[6]) > 0


@kernel
def _read_message(at: int, end: int, parts: Numbers) -> bool:
    """Finds the parts of a message; a missing one starts at 0. False if it is not valid."""
    for index in range(_PARTS):
        parts[index] = 0
    if end - at < 2 or load_u8_at(at) != _OPEN or load_u8_at(end - 1) != _CLOSE:
        return False
    headers = 0
    member = at + 1
    while member > 0:
        value, after, following = _next_member(member, end)
        if following < 0 or (following == 0 and after != end - 1):
            return False
        if _is_named(member, value, _KEY):
            parts[0], parts[1] = value, after
        elif _is_named(member, value, _VALUE):
            parts[2], parts[3] = value, after
        elif _is_named(member, value, _OLD_VALUE):
            parts[4], parts[5] = value, after
        elif _is_named(member, value, _HEADERS):
            headers = value
        else:
            return False
        member = following
    return parts[0] > 0 and parts[2] > 0 and headers > 0 and _read_headers(headers, end, parts)


@inlined
def _find_column(table: Numbers, count: int, hint: int, name: int, size: int) -> int:
    """The row of a column's name, searched from a hint on; -1 without one."""
    for step in range(count):
        row = hint + step
        if row >= count:
            row -= count
        start = table[row, 0]
        if table[row, 1] - start == size and is_same(start, name, size):
            return row
    return -1


@inlined
def _grow(table: Numbers) -> Numbers:
    """A table of twice the rows that starts with the rows of this one."""
    larger = np.empty((2 * table.shape[0], _CELLS), np.int64)
    # Cell by cell: assigning to a slice compiles numpy's check of shapes, which takes 8 s.
    for row in range(table.shape[0]):
        for cell in range(_CELLS):
            larger[row, cell] = table[row, cell]
    return larger


@kernel
def _add_columns(
    table: Numbers, count: int, at: int, end: int, newer_wins: bool
) -> tuple[Numbers, int]:
    """Adds the members of an object to the table; returns a count of -1 if it is not valid.

    With `newer_wins` a member replaces one of the same name.
    """
    if end - at < 2 or load_u8_at(at) != _OPEN:
        return table, -1
    member = at + 1
    if end - at == 2:
        member = 0
    hint = 0
    while member > 0:
        value, after, following = _next_member(member, end)
        if following < 0:
            return table, -1
        row = _find_column(table, count, hint, member, value - 1 - member)
        if row < 0:
            if count == table.shape[0]:
                table = _grow(table)
            row = count
            count += 1
            table[row, 0], table[row, 1] = member, value - 1
            table[row, 2], table[row, 3] = value, after
        elif newer_wins:
            table[row, 2], table[row, 3] = value, after
        hint = row + 1 if row + 1 < count else 0
        member = following
    return table, count


@inlined
def _put_text(at: int, text: Any) -> int:
    for index in range(text.size):
        store_u8_at(at + index, np.uint64(text[index]))
    return at + as_int(text.size)


@inlined
def _put(at: int, start: int, end: int) -> int:
    copy_bytes(at, start, end - start)
    return at + end - start


@inlined
def _put_columns(at: int, table: Numbers, count: int) -> int:
    at = append_byte(at, _OPEN)
    for row in range(count):
        if row > 0:
            at = append_byte(at, _COMMA)
        at = _put(at, table[row, 0], table[row, 1])
        at = append_byte(at, _COLON)
        at = _put(at, table[row, 2], table[row, 3])
    return append_byte(at, _CLOSE)


@inlined
def _put_key(at: int, parts: Numbers) -> int:
    at = _put_text(append_byte(at, _OPEN), _KEY)
    at = append_byte(_put(at, parts[0], parts[1]), _COMMA)
    return _put_text(at, _VALUE)


@inlined
def _put_headers(at: int, parts: Numbers, newest: Numbers) -> int:
    """Writes the headers of a message, with the transactions of the newest update in it."""
    at = _put_text(append_byte(at, _COMMA), _HEADERS)
    at = _put_text(append_byte(at, _OPEN), _OPERATION)
    at = _put(at, parts[6], parts[7])
    if parts[8] > 0:
        at = _put_text(append_byte(at, _COMMA), _RELATION)
        at = _put(at, parts[8], parts[9])
    if newest[10] > 0:
        at = _put_text(append_byte(at, _COMMA), _TXIDS)
        at = _put(at, newest[10], newest[11])
    return append_byte(append_byte(at, _CLOSE), _CLOSE)


@inlined
def _json_of(buffer: Bytes, base: int, start: int) -> tuple[int, int]:
    """The addresses of an entry's JSON."""
    key_size = load_u32(buffer, start + 16)
    json = base + start + ENTRY_HEAD + key_size + ENTRY_MIDDLE
    return json, json + load_i64(buffer, start + ENTRY_HEAD + key_size + 2)


@inlined
def _put_message(at: int, parts: Numbers) -> int:
    """Copies a message, except for its headers."""
    at = _put(_put_key(at, parts), parts[2], parts[3])
    if parts[4] > 0:
        at = _put_text(append_byte(at, _COMMA), _OLD_VALUE)
        at = _put(at, parts[4], parts[5])
    return _put_headers(at, parts, parts)


@kernel
def _fold_run(
    buffer: Bytes, starts: Numbers, links: Numbers, target: int, parts: Numbers, at: int
) -> int:
    """Writes a run of updates as one message; returns the address after it.

    If an entry is not a message, returns -index - 1.
    """
    base = address_of(buffer)
    values, olds = np.empty((32, _CELLS), np.int64), np.empty((32, _CELLS), np.int64)
    value_count, old_count, has_old = 0, 0, False
    first = np.zeros(_PARTS, np.int64)
    index = as_int(links[target])
    while True:
        json, json_end = _json_of(buffer, base, starts[index])
        if not _read_message(json, json_end, parts):
            return -index - 1
        if first[0] == 0:
            for part in range(_PARTS):
                first[part] = parts[part]
        values, value_count = _add_columns(values, value_count, parts[2], parts[3], True)
        if parts[4] > 0:
            has_old = True
            olds, old_count = _add_columns(olds, old_count, parts[4], parts[5], False)
        if value_count < 0 or old_count < 0:
            return -index - 1
        if index == target:
            break
        index = as_int(links[index])
    at = _put_columns(_put_key(at, first), values, value_count)
    if has_old:
        at = _put_text(append_byte(at, _COMMA), _OLD_VALUE)
        at = _put_columns(at, olds, old_count)
    return _put_headers(at, first, parts)


@inlined
def _rewrite(
    buffer: Bytes, starts: Numbers, action: int, links: Numbers, index: int, parts: Numbers, at: int
) -> int:
    """Rewrites the message of an entry at an address; returns as `_fold_run` does."""
    if action == Action.FOLD:
        return _fold_run(buffer, starts, links, index, parts, at)
    json, json_end = _json_of(buffer, address_of(buffer), starts[index])
    return _put_message(at, parts) if _read_message(json, json_end, parts) else -index - 1


@kernel
def rewrite_entries(
    buffer: Bytes,
    starts: Numbers,
    actions: Actions,
    links: Numbers,
    out: Bytes,
    out_starts: Numbers,
) -> tuple[int, int, int]:
    """Writes the entries that stay: FoldStatus, their count, the bytes written.

    If an entry is not valid, the count is its index. `out` is as long as the buffer, and
    `out_starts` has an element for each entry that stays.
    """
    if out.size < buffer.size:
        raise IndexError("out is shorter than the buffer")
    base, target = address_of(buffer), address_of(out)
    parts = np.empty(_PARTS, np.int64)
    at, count = target, 0
    for index in range(starts.size):
        action, start = actions[index], starts[index]
        if action != Action.KEEP and action != Action.FOLD:
            continue
        begin = at
        out_starts[count] = begin - target
        count += 1
        middle = start + ENTRY_HEAD + load_u32(buffer, start + 16)
        is_final = load_u8(buffer, middle) == _CONTROL or load_u8(buffer, middle + 1) == _REWRITTEN
        if action == Action.KEEP and is_final:
            _, json_end = _json_of(buffer, base, start)
            at = _put(at, base + start, json_end + ENTRY_CRC)
            continue
        size_at = append_byte(_put(at, base + start, base + middle + 1), _REWRITTEN)
        at = _rewrite(buffer, starts, action, links, index, parts, size_at + 8)
        if at < 0:
            return FoldStatus.BAD_MESSAGE.value, -at - 1, 0
        append_big_endian(size_at, at - size_at - 8, 8)
        at = append_big_endian(at, crc32c(out, begin - target, at - target), ENTRY_CRC)
    return FoldStatus.OK.value, count, at - target


def warm() -> None:
    """Compile for the argument types in use."""
    buffer, numbers = np.empty(0, np.uint8), np.empty(0, np.int64)
    rewrite_entries(buffer, numbers, buffer, numbers, buffer, numbers)
