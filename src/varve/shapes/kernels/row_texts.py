"""Joins keys and values to rows, which are JSON texts, and finds columns in them.

Layout     a row is the object of its key's columns, then the other columns. See `row_members`.
Invariant  a value fits if its names have no escapes, occur once and are none of the key's: then its
           members, without blanks and after the key's columns, are the row that splitting and
           joining would give. If that is uncertain the value does not fit.
Threads    these functions read Python objects and keep the GIL.
"""

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import inlined, object_kernel
from varve.kernels.memory import (
    address_of,
    append_byte,
    append_bytes,
    bytes_address,
    bytes_size,
    keep_alive,
    list_item,
    list_size,
    load_u8_at,
    tuple_item,
)
from varve.shapes.kernels.json_text import DEPTH_MAX, SPAN_FIELD_COUNT, squeeze, walk_members
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
)

Flags = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

_COMPARED_MAX: Final = 64
"""Values with more names are left to Python, whose dictionary compares them in linear time."""
_COMMA, _BACKSLASH = 0x2C, 0x5C
_UNFIT, _FIT, _BLANKS = range(3)


@inlined
def _longest(texts: int) -> int:
    longest = 0
    for index in range(list_size(texts)):
        longest = max(longest, bytes_size(list_item(texts, index)))
    return longest


@inlined
def _is_dense(spans: Any, count: int, size: int) -> bool:
    """Whether a text has no blanks, neither between nor within its members."""
    total = count + 1
    for index in range(count):
        if spans[index, 4]:
            return False
        total += spans[index, 1] - spans[index, 0] + spans[index, 3] - spans[index, 2] + 3
    return total == size


@inlined
def _has_name(address: int, spans: Any, count: int, name: int, size: int) -> bool:
    for index in range(count):
        start = spans[index, 0]
        if spans[index, 1] - start == size and is_same(address + start, name, size):
            return True
    return False


@inlined
def _has_names_of(address: int, spans: Any, count: int, previous: int, others: Any) -> bool:
    """Whether the names are those of another text, in the same order."""
    for index in range(count):
        start, other_start = spans[index, 0], others[index, 0]
        size = spans[index, 1] - start
        if size != others[index, 1] - other_start:
            return False
        if not is_same(address + start, previous + other_start, size):
            return False
    return True


@inlined
def _is_distinct(address: int, spans: Any, count: int) -> bool:
    """Whether each name occurs once, and is spelled without escapes."""
    if count > _COMPARED_MAX:
        return False
    for index in range(count):
        start, end = spans[index, 0], spans[index, 1]
        for at in range(start, end):
            if load_u8_at(address + at) == _BACKSLASH:
                return False
        if _has_name(address, spans, index, address + start, end - start):
            return False
    return True


@inlined
def _has_key_name(address: int, spans: Any, count: int, keys: int, key_count: int) -> bool:
    for index in range(key_count):
        start = span(keys, index, 0) + 1
        if _has_name(address, spans, count, start, span(keys, index, 1) - 1 - start):
            return True
    return False


@object_kernel
def _check_fits(keys: int, values: int, fits: Flags) -> None:
    count = list_size(values)
    if list_size(keys) != count or fits.size < count:
        raise IndexError("keys, values and flags differ in length")
    rows = _longest(values) // MEMBER_BYTES_MIN + 1
    spans = np.empty((rows, SPAN_FIELD_COUNT), np.int64)
    previous_spans = np.empty((rows, SPAN_FIELD_COUNT), np.int64)
    key_spans = np.empty((_longest(keys) // MEMBER_BYTES_MIN + 1, SPAN_FIELDS), np.int64)
    first_key_span = address_of(key_spans)
    stack = np.zeros(DEPTH_MAX, np.uint8)
    previous, previous_count = 0, -1
    for index in range(count):
        fits[index] = _UNFIT
        value, key = list_item(values, index), list_item(keys, index)
        size, key_size = bytes_size(value), bytes_size(key)
        address, key_address = bytes_address(value), bytes_address(key)
        member_count = walk_members(address, 0, size, stack, spans, 0)
        if member_count < 1 or not is_object(key_address, key_size):
            continue
        key_count = find_spans(key_address + 1, key_address + key_size - 1, first_key_span)
        if key_count < 1 or _has_key_name(address, spans, member_count, first_key_span, key_count):
            continue
        has_same_names = member_count == previous_count and _has_names_of(
            address, spans, member_count, previous, previous_spans
        )
        if not has_same_names and not _is_distinct(address, spans, member_count):
            continue
        fits[index] = _FIT if _is_dense(spans, member_count, size) else _BLANKS
        previous, previous_count = address, member_count
        spans, previous_spans = previous_spans, spans
    keep_alive(key_spans)


@object_kernel
def _join(keys: int, values: int, fits: Flags, ends: Places) -> Any:
    """Writes, for each value that fits, the members of its key and then its own."""
    total = 0
    for index in range(fits.size):
        if fits[index] != _UNFIT:
            total += bytes_size(list_item(keys, index)) + bytes_size(list_item(values, index))
    data = np.empty(total, np.uint8)
    base = address_of(data)
    at, ends[0] = base, 0
    for index in range(fits.size):
        if fits[index] != _UNFIT:
            key, value = list_item(keys, index), list_item(values, index)
            at = append_byte(append_bytes(at, bytes_address(key), bytes_size(key) - 1), _COMMA)
            if fits[index] == _FIT:
                at = append_bytes(at, bytes_address(value) + 1, bytes_size(value) - 1)
            else:
                # The opening brace of the value overwrites the comma, so write the comma again.
                size = squeeze(bytes_address(value), bytes_size(value), at - 1)
                append_byte(at - 1, _COMMA)
                at += size - 1
        ends[index + 1] = at - base
    return data[: at - base]


def join_rows(keys: list[bytes], values: list[bytes]) -> list[bytes]:
    """Joins the columns of each key and its value to a row; empty where a value does not fit."""
    fits = np.empty(len(values), np.uint8)
    ends = np.empty(len(values) + 1, np.int64)
    _check_fits(id(keys), id(values), fits)
    data = _join(id(keys), id(values), fits, ends).tobytes()
    return [data[start:end] for start, end in pairwise(ends.tolist())]


@object_kernel
def _are_rows(texts: int) -> bool:
    spans = np.empty((_longest(texts) // MEMBER_BYTES_MIN + 1, SPAN_FIELDS), np.int64)
    first_span = address_of(spans)
    for index in range(list_size(texts)):
        text = list_item(texts, index)
        address, size = bytes_address(text), bytes_size(text)
        if not is_object(address, size):
            return False
        if find_spans(address + 1, address + size - 1, first_span) < 0:
            return False
    keep_alive(spans)
    return True


def are_rows(texts: list[bytes]) -> bool:
    """Whether all texts have the form of rows; the values themselves are not checked."""
    return bool(_are_rows(id(texts)))


@inlined
def _may_be_same(first_span: int, count: int, others: int) -> bool:
    for index in range(count):
        other = index
        if not is_same_name(first_span, index, others, index):
            if count > _COMPARED_MAX:
                return True
            other = find_name(first_span, index, others, count, index)
        if other < 0 or not is_same_value(first_span, index, others, other):
            return False
    return True


@inlined
def _has_same_sum(left: int, right: int, size: int) -> bool:
    """Whether the bytes of two texts have the same sum, which does not depend on their order."""
    difference = 0
    for at in range(size):
        difference += load_u8_at(left + at) - load_u8_at(right + at)
    return difference == 0


@object_kernel
def _find_reordered(changes: int, none: int) -> bool:
    longest = 0
    for index in range(list_size(changes)):
        text = tuple_item(list_item(changes, index), 2)
        if text != none:
            longest = max(longest, bytes_size(text))
    rows = longest // MEMBER_BYTES_MIN + 1
    spans = np.empty((rows, SPAN_FIELDS), np.int64)
    other_spans = np.empty((rows, SPAN_FIELDS), np.int64)
    first_span, others = address_of(spans), address_of(other_spans)
    for index in range(list_size(changes)):
        change = list_item(changes, index)
        text, previous_text = tuple_item(change, 2), tuple_item(change, 3)
        if text == none or previous_text == none or bytes_size(text) != bytes_size(previous_text):
            continue
        size, address, other_address = (
            bytes_size(text),
            bytes_address(text),
            bytes_address(previous_text),
        )
        if not _has_same_sum(address, other_address, size):
            continue
        count = find_spans(address + 1, address + size - 1, first_span)
        other_count = find_spans(other_address + 1, other_address + size - 1, others)
        if count == other_count and _may_be_same(first_span, count, others):
            return True
    keep_alive(spans)
    keep_alive(other_spans)
    return False


def has_reordered(changes: list[Any]) -> bool:
    """Whether some row may equal its previous row except for the order of columns.

    A change is a tuple whose third and fourth items are the row and the previous row, as bytes or
    None. False is certain, True is not.
    """
    return bool(_find_reordered(id(changes), id(None)))


@object_kernel
def _find_values(texts: int, names: int, places: Places) -> None:
    spans = np.empty((_longest(texts) // MEMBER_BYTES_MIN + 1, SPAN_FIELDS), np.int64)
    first_span, name_count = address_of(spans), list_size(names)
    places[:] = -1
    for index in range(list_size(texts)):
        text = list_item(texts, index)
        address = bytes_address(text)
        count = find_spans(address + 1, address + bytes_size(text) - 1, first_span)
        for number in range(name_count):
            name = list_item(names, number)
            name_address, name_size = bytes_address(name), bytes_size(name)
            for member in range(count):
                start = span(first_span, member, 0)
                colon = span(first_span, member, 1)
                if colon + 1 - start == name_size and is_same(start, name_address, name_size):
                    places[number, 0, index] = colon + 1 - address
                    places[number, 1, index] = span(first_span, member, 2) - address
                    break
    keep_alive(spans)


def find_values(texts: list[bytes], names: list[bytes]) -> list[tuple[bytes | None, ...]]:
    """The texts of some columns of each row, None where it lacks one; names are `"name":`."""
    places = np.empty((len(names), 2, len(texts)), np.int64)
    _find_values(id(texts), id(names), places)
    columns = [
        [
            None if start < 0 else text[start:end]
            for text, start, end in zip(texts, starts, ends, strict=True)
        ]
        for starts, ends in places.tolist()
    ]
    return list(zip(*columns, strict=True))


def warm() -> None:
    """Compile for the argument types in use."""
    rows = [b'{"a":1,"b":[1]}']
    join_rows([b'{"k":1}'], [b'{"a": 1}'])
    are_rows(rows)
    has_reordered([(0, 0, rows[0], rows[0])])
    find_values(rows, [b'"a":'])
