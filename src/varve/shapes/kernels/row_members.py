"""Finds and compares the members of rows, which are JSON objects; for use inside kernels.

Layout     `{"name":value,...}` without blanks. A span has five numbers: the address of the first
           quote of a member's name, that of the colon, that after its value, two for the caller.
Invariant  nothing outside the given range is read, whatever the bytes are; a result below 0 means
           that the text is not valid. Names are compared as they are spelled.
"""

from typing import Final

import numpy as np

from varve.kernels.compile import as_int, inlined
from varve.kernels.memory import load_u8_at, load_u64_at, store_u64_at
from varve.shapes.kernels.json_text import plain_end

SPAN_BYTES: Final = 40
SPAN_FIELDS: Final = 5
MEMBER_BYTES_MIN: Final = 4
"""No member is shorter, so a text bounds the spans it needs."""

_QUOTE, _COMMA, _COLON, _BACKSLASH = 0x22, 0x2C, 0x3A, 0x5C


@inlined
def span(spans: int, index: int, field: int) -> int:
    """A number of a member: 0 start of its name, 1 its colon, 2 its end, 3 and 4 the caller's."""
    return as_int(load_u64_at(spans + index * SPAN_BYTES + field * 8))


@inlined
def store_span(spans: int, index: int, field: int, number: int) -> None:
    """Sets a number of a member."""
    store_u64_at(spans + index * SPAN_BYTES + field * 8, np.uint64(number))


@inlined
def is_same(left: int, right: int, size: int) -> bool:
    """Whether `size` bytes are equal."""
    at = 0
    while at + 8 <= size:
        if load_u64_at(left + at) != load_u64_at(right + at):
            return False
        at += 8
    while at < size:
        if load_u8_at(left + at) != load_u8_at(right + at):
            return False
        at += 1
    return True


@inlined
def is_same_name(spans: int, index: int, others: int, other: int) -> bool:
    """Whether two members have the same name."""
    start, start_other = span(spans, index, 0), span(others, other, 0)
    size = span(spans, index, 1) - start
    return size == span(others, other, 1) - start_other and is_same(start, start_other, size)


@inlined
def is_same_value(spans: int, index: int, others: int, other: int) -> bool:
    """Whether two members have the same value."""
    start, start_other = span(spans, index, 1), span(others, other, 1)
    size = span(spans, index, 2) - start
    return size == span(others, other, 2) - start_other and is_same(start, start_other, size)


@inlined
def string_end(at: int, end: int) -> int:
    """The end of the string whose content starts here, closing quote included, or -1."""
    at = plain_end(at, end)
    while at < end:
        byte = load_u8_at(at)
        if byte == _QUOTE:
            return at + 1
        at += 2 if byte == _BACKSLASH else 1
    return -1


@inlined
def value_end(at: int, end: int) -> int:
    """The end of the value that starts here, or -1."""
    depth = 0
    while at < end:
        byte = load_u8_at(at)
        if byte == _QUOTE:
            at = string_end(at + 1, end)
            if at < 0:
                return -1
            if depth == 0:
                return at
            continue
        if byte == 0x7B or byte == 0x5B:
            depth += 1
        elif byte == 0x7D or byte == 0x5D:
            depth -= 1
            if depth <= 0:
                return at + 1 + depth
        elif byte == _COMMA and depth == 0:
            return at
        at += 1
    return at if depth == 0 else -1


@inlined
def find_spans(at: int, end: int, spans: int) -> int:
    """Stores the spans of the members between an object's braces; returns their number, or -1."""
    count = 0
    while at < end:
        if load_u8_at(at) != _QUOTE:
            return -1
        colon = string_end(at + 1, end)
        if colon < 0 or colon >= end or load_u8_at(colon) != _COLON:
            return -1
        after = value_end(colon + 1, end)
        if after <= colon + 1:
            return -1
        entry = spans + count * SPAN_BYTES
        store_u64_at(entry, np.uint64(at))
        store_u64_at(entry + 8, np.uint64(colon))
        store_u64_at(entry + 16, np.uint64(after))
        count += 1
        at = after
        if at < end:
            if load_u8_at(at) != _COMMA or at + 1 == end:
                return -1
            at += 1
    return count


@inlined
def find_name(spans: int, index: int, others: int, count: int, guess: int) -> int:
    """The one of `count` other members with the same name, searched from a guess on; or -1."""
    for step in range(count):
        other = guess + step
        if other >= count:
            other -= count
        if is_same_name(spans, index, others, other):
            return other
    return -1


@inlined
def is_object(address: int, size: int) -> bool:
    return size >= 2 and load_u8_at(address) == 0x7B and load_u8_at(address + size - 1) == 0x7D
