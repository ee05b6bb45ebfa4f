"""Encodes the messages of many changes into one buffer.

Layout     `{"key":...,"value":{...},"headers":{...}}`; a full update has `old_value` before the
           headers. See varve.shapes.messages, which encodes single changes.
Invariant  a message has the bytes that `MessageEncoder.encode` returns; if that is uncertain the
           result is UNSUPPORTED, and nothing is written. Nothing outside of the texts is read.
Threads    `_write` reads Python objects and keeps the GIL.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, inlined, object_kernel
from varve.kernels.memory import (
    address_of,
    append_byte,
    append_bytes,
    append_decimal,
    bytes_address,
    bytes_size,
    int_value,
    keep_alive,
    list_item,
    list_size,
    load_u8_at,
    load_u64_at,
    store_u8_at,
    tuple_item,
)
from varve.shapes.kernels.row_members import (
    MEMBER_BYTES_MIN,
    SPAN_FIELDS,
    find_name,
    find_spans,
    is_object,
    is_same,
    is_same_name,
    is_same_value,
    span,
    store_span,
)


class MessageResult(IntEnum):
    """Why a change has no message; other results are the code of its operation: i, u or d."""

    UNCHANGED = 0
    """No column that is shown has changed."""
    UNSUPPORTED = 1
    """The message of this change must be built in Python."""


class _Text(NamedTuple):
    """The address and size of a row; address 0 stands for no row."""

    address: int
    size: int


class _Form(NamedTuple):
    """The form of the messages: tables of fixed texts and of the columns shown.

    A `shown_count` below 0 shows all columns.
    """

    parts: int
    shown: int
    shown_count: int
    is_full: bool


class _Scratch(NamedTuple):
    """Addresses of buffers for members: of a row, of the row before it, and of removed ones."""

    spans: int
    others: int
    removed: int


_AS_INSERT, _AS_UPDATE, _AS_DELETE = b"iud"
_OTHER, _IS_CHANGED = 3, 4
_MOVED_MAX: Final = 64
"""Limit of members that are searched because they moved, and of removed columns."""
_FIXED_BYTES: Final = 256
"""An upper bound for the bytes around the texts of a message."""
_COMMA, _BACKSLASH, _OPEN, _CLOSE = 0x2C, 0x5C, 0x7B, 0x7D
_PARTS: Final = (
    b'{"key":',
    b',"value":',
    b',"old_value":',
    b"null",
    b',"lsn":"',
    b'","op_position":',
    b',"txids":[',
    b'],"last":true}}',
)
_KEY, _VALUE, _OLD_VALUE, _NULL, _LSN, _OP, _TXIDS, _LAST, _INSERT, _UPDATE, _DELETE = range(11)


@inlined
def _text_at(table: int, index: int) -> Any:
    """The text at an index of a table of texts."""
    entry = table + index * 16
    return _Text(as_int(load_u64_at(entry)), as_int(load_u64_at(entry + 8)))


@inlined
def _put_part(at: int, form: _Form, index: int) -> int:
    part = _text_at(form.parts, index)
    return append_bytes(at, part.address, part.size)


@inlined
def _put_member(at: int, spans: int, index: int) -> int:
    """Writes a comma and a member."""
    start = span(spans, index, 0)
    return append_bytes(append_byte(at, _COMMA), start, span(spans, index, 2) - start)


@inlined
def _put_null(at: int, form: _Form, spans: int, index: int) -> int:
    """Writes a comma, a member's name, and null."""
    start = span(spans, index, 0)
    at = append_bytes(append_byte(at, _COMMA), start, span(spans, index, 1) + 1 - start)
    return _put_part(at, form, _NULL)


@inlined
def _is_shown(form: _Form, spans: int, index: int) -> bool:
    """Whether a member is one of the columns shown."""
    if form.shown_count < 0:
        return True
    start = span(spans, index, 0)
    size = span(spans, index, 1) + 1 - start
    for number in range(form.shown_count):
        name = _text_at(form.shown, number)
        if name.size == size and is_same(start, name.address, size):
            return True
    return False


@inlined
def _find_other_columns(row: _Text, key: _Text, spans: int) -> int:
    """Finds the members after the key's columns; returns their number, -1 for another form."""
    text, size = row.address, row.size
    if key.size < 3 or size < key.size or not is_object(text, size):
        return -1
    if not is_same(text, key.address, key.size - 1):
        return -1
    if size == key.size:
        return 0
    if load_u8_at(text + key.size - 1) != _COMMA:
        return -1
    return find_spans(text + key.size, text + size - 1, spans)


@inlined
def _put_row(at: int, form: _Form, row: _Text, key: _Text, spans: int) -> int:
    """Writes a row, or its key's columns and those shown; returns 0 for a row of another form."""
    if form.shown_count < 0:
        return append_bytes(at, row.address, row.size)
    count = _find_other_columns(row, key, spans)
    if count < 0:
        return 0
    at = append_bytes(at, key.address, key.size - 1)
    for index in range(count):
        if _is_shown(form, spans, index):
            at = _put_member(at, spans, index)
    return append_byte(at, _CLOSE)


@inlined
def _match(spans: int, count: int, others: int, other_count: int) -> bool:
    """Matches members by name; False if too many have another position."""
    for other in range(other_count):
        store_span(others, other, _OTHER, -1)
    guess, moved = 0, 0
    for index in range(count):
        other = -1
        if guess < other_count and is_same_name(spans, index, others, guess):
            other = guess
        elif moved < _MOVED_MAX:
            moved += 1
            other = find_name(spans, index, others, other_count, guess % max(other_count, 1))
        else:
            return False
        store_span(spans, index, _OTHER, other)
        if other >= 0:
            store_span(others, other, _OTHER, index)
            guess = other + 1
    return True


@inlined
def _is_before(others: int, left: int, right: int) -> bool:
    """Whether one name precedes another in the order of their characters."""
    start, other_start = span(others, left, 0) + 1, span(others, right, 0) + 1
    size = span(others, left, 1) - 1 - start
    other_size = span(others, right, 1) - 1 - other_start
    for at in range(min(size, other_size)):
        left_byte, right_byte = load_u8_at(start + at), load_u8_at(other_start + at)
        if left_byte != right_byte:
            return bool(left_byte < right_byte)
    return size < other_size


@inlined
def _has_escape(others: int, index: int) -> bool:
    for at in range(span(others, index, 0), span(others, index, 1)):
        if load_u8_at(at) == _BACKSLASH:
            return True
    return False


@inlined
def _find_removed(form: _Form, scratch: _Scratch, other_count: int) -> int:
    """Finds the shown members that were removed, by name; their number, or -1 if unsupported."""
    count = 0
    for other in range(other_count):
        if span(scratch.others, other, _OTHER) >= 0 or not _is_shown(form, scratch.others, other):
            continue
        if count == _MOVED_MAX or _has_escape(scratch.others, other):
            return -1
        at = count
        while at > 0 and _is_before(scratch.others, other, span(scratch.removed, at - 1, 0)):
            store_span(scratch.removed, at, 0, span(scratch.removed, at - 1, 0))
            at -= 1
        store_span(scratch.removed, at, 0, other)
        count += 1
    return count


@inlined
def _find_changed(form: _Form, scratch: _Scratch, count: int) -> int:
    """Flags the shown members that are new or have another value; returns their number."""
    changed = 0
    for index in range(count):
        other = span(scratch.spans, index, _OTHER)
        is_equal = other >= 0 and is_same_value(scratch.spans, index, scratch.others, other)
        is_changed = not is_equal and _is_shown(form, scratch.spans, index)
        store_span(scratch.spans, index, _IS_CHANGED, 1 if is_changed else 0)
        changed += 1 if is_changed else 0
    return changed


@inlined
def _put_changed(at: int, form: _Form, scratch: _Scratch, count: int, removed_count: int) -> int:
    """Writes the changed columns, or in a full message all shown; null for removed ones."""
    for index in range(count):
        is_included = _is_shown(form, scratch.spans, index) if form.is_full else False
        if is_included or span(scratch.spans, index, _IS_CHANGED):
            at = _put_member(at, scratch.spans, index)
    for index in range(removed_count):
        at = _put_null(at, form, scratch.others, span(scratch.removed, index, 0))
    return append_byte(at, _CLOSE)


@inlined
def _put_old(at: int, form: _Form, scratch: _Scratch, count: int, removed_count: int) -> int:
    """Writes the previous values of the changed columns, null for new ones."""
    first = at
    for index in range(count):
        other = span(scratch.spans, index, _OTHER)
        if not span(scratch.spans, index, _IS_CHANGED):
            continue
        if other >= 0:
            at = _put_member(at, scratch.others, other)
        else:
            at = _put_null(at, form, scratch.spans, index)
    for index in range(removed_count):
        at = _put_member(at, scratch.others, span(scratch.removed, index, 0))
    # The brace replaces the first comma.
    store_u8_at(first, np.uint64(_OPEN))
    return append_byte(at, _CLOSE)


@inlined
def _put_update(
    at: int, form: _Form, row: _Text, previous: _Text, key: _Text, scratch: _Scratch
) -> tuple[int, int]:
    """Writes the value of an update; returns the result and the end address."""
    count = _find_other_columns(row, key, scratch.spans)
    other_count = _find_other_columns(previous, key, scratch.others)
    if (
        count < 0
        or other_count < 0
        or not _match(scratch.spans, count, scratch.others, other_count)
    ):
        return MessageResult.UNSUPPORTED.value, at
    removed_count = _find_removed(form, scratch, other_count)
    if removed_count < 0:
        return MessageResult.UNSUPPORTED.value, at
    if _find_changed(form, scratch, count) + removed_count == 0:
        return MessageResult.UNCHANGED.value, at
    at = _put_changed(
        append_bytes(at, key.address, key.size - 1), form, scratch, count, removed_count
    )
    if form.is_full:
        at = _put_old(_put_part(at, form, _OLD_VALUE), form, scratch, count, removed_count)
    return _AS_UPDATE, at


@inlined
def _put_value(
    at: int, form: _Form, row: _Text, previous: _Text, key: _Text, scratch: _Scratch
) -> tuple[int, int]:
    """Writes the value of a change; returns the result and the end address."""
    if row.address and previous.address:
        return _put_update(at, form, row, previous, key, scratch)
    if row.address:
        after = _put_row(at, form, row, key, scratch.spans)
        return (_AS_INSERT if after else MessageResult.UNSUPPORTED.value), after
    if previous.address and form.is_full:
        after = _put_row(at, form, previous, key, scratch.spans)
        return (_AS_DELETE if after else MessageResult.UNSUPPORTED.value), after
    return _AS_DELETE, append_bytes(at, key.address, key.size)


@inlined
def _put_end(at: int, form: _Form, result: int, tx: int, op: int) -> int:
    """Writes the headers of a transaction of one change, with its offset."""
    is_update, is_insert = result == _AS_UPDATE, result == _AS_INSERT
    at = _put_part(at, form, _UPDATE if is_update else _INSERT if is_insert else _DELETE)
    at = append_decimal(_put_part(at, form, _LSN), tx)
    at = append_decimal(_put_part(at, form, _OP), op)
    at = append_decimal(_put_part(at, form, _TXIDS), tx)
    return _put_part(at, form, _LAST)


@inlined
def _text_of(item: int, none: int) -> Any:
    if item == none:
        return _Text(0, 0)
    return _Text(bytes_address(item), bytes_size(item))


@object_kernel
def _write(
    changes: int,
    none: int,
    parts: npt.NDArray[np.int64],
    shown: npt.NDArray[np.int64],
    shown_count: int,
    is_full: bool,
    ends: npt.NDArray[np.int64],
    results: npt.NDArray[np.uint8],
) -> Any:
    count, longest, total = list_size(changes), 0, 0
    if ends.size <= count or results.size < count:
        raise IndexError("ends or results are too few for the changes")
    for index in range(count):
        change = list_item(changes, index)
        key = tuple_item(change, 1)
        row, previous = _text_of(tuple_item(change, 2), none), _text_of(tuple_item(change, 3), none)
        longest = max(longest, row.size, previous.size)
        total += bytes_size(tuple_item(key, 2)) + bytes_size(tuple_item(key, 3))
        total += 3 * (row.size + previous.size) + _FIXED_BYTES + parts[_UPDATE, 1]
    rows = longest // MEMBER_BYTES_MIN + 1
    spans = np.empty((2 * rows + _MOVED_MAX, SPAN_FIELDS), np.int64)
    first = address_of(spans)
    scratch = _Scratch(first, first + spans[:rows].nbytes, first + spans[: 2 * rows].nbytes)
    form = _Form(address_of(parts), address_of(shown), shown_count, is_full)
    data = np.empty(total, np.uint8)
    base = address_of(data)
    at, ends[0] = base, 0
    for index in range(count):
        change = list_item(changes, index)
        offset, names = tuple_item(change, 0), tuple_item(change, 1)
        row, previous = _text_of(tuple_item(change, 2), none), _text_of(tuple_item(change, 3), none)
        name, key = _text_of(tuple_item(names, 2), none), _text_of(tuple_item(names, 3), none)
        begin = append_bytes(_put_part(at, form, _KEY), name.address, name.size)
        begin = _put_part(begin, form, _VALUE)
        result, after = _put_value(begin, form, row, previous, key, scratch)
        if result > MessageResult.UNSUPPORTED.value:
            tx, op = int_value(tuple_item(offset, 0)), int_value(tuple_item(offset, 1))
            at = _put_end(after, form, result, tx, op)
        ends[index + 1] = at - base
        results[index] = result
    keep_alive(spans)
    return data[: at - base]


class MessageTexts:
    """The fixed texts of all messages of one form, and the encoder of their changes."""

    def __init__(
        self, headers: Sequence[bytes], shown: Sequence[bytes] | None, *, is_full: bool
    ) -> None:
        """`headers` are those of an insert, an update and a delete, up to the offset.

        `shown` are the columns shown, each as `"name":`, or None for all.
        """
        self._texts = ((*_PARTS, *headers), tuple(shown or ()))
        self._tables = [_table_of(texts) for texts in self._texts]
        self._shown_count = -1 if shown is None else len(shown)
        self._is_full = is_full

    def write(self, changes: list[Any]) -> tuple[list[int], list[bytes]]:
        """The result and the message of each change; the message is empty without one.

        A change is a tuple of its offset, its key, the row and the previous row, rows as bytes or
        None. A key is a tuple whose third and fourth items are the key as JSON and the object of
        its columns. Every change is a transaction.
        """
        ends = np.empty(len(changes) + 1, np.int64)
        results = np.empty(len(changes), np.uint8)
        parts, shown = self._tables
        count, is_full = self._shown_count, self._is_full
        messages = _write(id(changes), id(None), parts, shown, count, is_full, ends, results)
        data = messages.tobytes()
        return results.tolist(), [data[start:end] for start, end in pairwise(ends.tolist())]


def _table_of(texts: tuple[bytes, ...]) -> npt.NDArray[np.int64]:
    """Addresses and sizes; the texts must be kept as long as the table."""
    rows = [(np.frombuffer(text, np.uint8).ctypes.data, len(text)) for text in texts]
    return np.array(rows, np.int64).reshape(-1, 2)


def warm() -> None:
    """Compile for the argument types in use."""
    key = ("k", b"k", b'"k"', b'{"k":1}')
    change = ((1, 0), key, b'{"k":1,"a":1}', b'{"k":1,"b":1}')
    MessageTexts([b"", b"", b""], None, is_full=True).write([change])
