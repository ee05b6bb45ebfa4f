"""Validates JSON texts and finds their top members; removes blanks; splits joined texts.

Layout     a row of spans per member: name start, name end (within the quotes), value start, value
           end, flags. A valid text that is not an object has one row, with an empty name.
Invariant  accepts RFC 8259 in UTF-8 without a byte order mark, nested at most DEPTH_MAX deep; the
           positions in a row of spans are within its text.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.memory import (
    Bytes,
    address_of,
    load_little_u64_at,
    load_u8,
    load_u8_at,
    store_u8_at,
)

Spans = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]

DEPTH_MAX: Final = 200
"""Keeps recursive walks over a value within Python's recursion limit."""
MEMBER_BYTES_MIN: Final = 4
"""No member is shorter: quotes, colon, value; so a text bounds the spans it needs."""
SPAN_FIELD_COUNT: Final = 5
VALUE_HAS_BLANKS: Final = 1

_MESSAGE_BYTES_MIN: Final = 2

NOT_OBJECT: Final = -1
"""A valid text that is an array, a string, a number, true, false or null."""


NO_JSON: Final = -2
"""A text that is not JSON, or nests too deep."""

_VALUE, _VALUE_OR_END, _NAME, _NAME_OR_END, _COLON, _AFTER = range(6)
_OBJECT, _ARRAY = 1, 2

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_TRUE = 0x65757274
_NULL = 0x6C6C756E
_ALSE = 0x65736C61


@inlined
def _is_blank(byte: int) -> bool:
    return byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09


@inlined
def _is_digit(byte: int) -> bool:
    return 0x30 <= byte <= 0x39


@inlined
def _is_hex(byte: int) -> bool:
    return _is_digit(byte) or 0x41 <= byte <= 0x46 or 0x61 <= byte <= 0x66


@inlined
def plain_end(position: int, end: int) -> int:
    """The end of whole words of plain ASCII within a string: no quote, backslash or control."""
    while position + 8 <= end:
        word = load_little_u64_at(position)
        quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
        special = (word - _SPACES) | (quotes - _ONES) | (slashes - _ONES) | word
        if special & _HIGHS:
            break
        position += 8
    return position


@inlined
def _utf8_end(position: int, end: int, lead: int) -> int:
    """The end of the character of several bytes that starts here; -1 if it is not valid."""
    low, high = 0x80, 0xBF
    if 0xC2 <= lead <= 0xDF:
        count = 1
    elif 0xE0 <= lead <= 0xEF:
        count = 2
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    elif 0xF0 <= lead <= 0xF4:
        count = 3
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    else:
        return -1
    if position + count >= end:
        return -1
    for step in range(1, count + 1):
        byte = load_u8_at(position + step)
        if byte < low or byte > high:
            return -1
        low, high = 0x80, 0xBF
    return position + count + 1


@inlined
def _escape_end(position: int, end: int) -> int:
    """The end of the escape whose backslash is here; -1 if it is not valid."""
    if position + 1 >= end:
        return -1
    letter = load_u8_at(position + 1)
    if letter == 0x75:
        if position + 6 > end:
            return -1
        for step in range(2, 6):
            if not _is_hex(load_u8_at(position + step)):
                return -1
        return position + 6
    if (
        letter == 0x22
        or letter == 0x5C
        or letter == 0x2F
        or letter == 0x62
        or letter == 0x66
        or letter == 0x6E
        or letter == 0x72
        or letter == 0x74
    ):
        return position + 2
    return -1


@inlined
def _string_end(position: int, end: int) -> int:
    """The end of the string whose content starts here, closing quote included, or -1."""
    while True:
        position = plain_end(position, end)
        if position >= end:
            return -1
        byte = load_u8_at(position)
        if byte == 0x22:
            return position + 1
        if byte == 0x5C:
            position = _escape_end(position, end)
        elif byte < 0x20:
            return -1
        elif byte < 0x80:
            position += 1
        else:
            position = _utf8_end(position, end, byte)
        if position < 0:
            return -1


@inlined
def _digits_end(position: int, end: int) -> int:
    """The end of a run of digits; -1 without a digit."""
    first = position
    while position < end and _is_digit(load_u8_at(position)):
        position += 1
    return position if position > first else -1


@inlined
def _number_end(position: int, end: int) -> int:
    """The end of the number that starts here, or -1."""
    if load_u8_at(position) == 0x2D:
        position += 1
    if position < end and load_u8_at(position) == 0x30:
        position += 1
    else:
        position = _digits_end(position, end)
    if position > 0 and position < end and load_u8_at(position) == 0x2E:
        position = _digits_end(position + 1, end)
    if position > 0 and position < end and (load_u8_at(position) | 0x20) == 0x65:
        position += 1
        if position < end and (load_u8_at(position) == 0x2B or load_u8_at(position) == 0x2D):
            position += 1
        position = _digits_end(position, end)
    return position


@inlined
def _is_word(position: int, end: int, letters: int) -> bool:
    if position + 4 > end:
        return False
    word = 0
    for step in range(4):
        word |= load_u8_at(position + step) << (8 * step)
    return word == letters


@inlined
def _scalar_end(position: int, end: int) -> int:
    """The end of the string, number or word that starts here, or -1."""
    byte = load_u8_at(position)
    if byte == 0x22:
        return _string_end(position + 1, end)
    if byte == 0x2D or _is_digit(byte):
        return _number_end(position, end)
    if _is_word(position, end, _TRUE) or _is_word(position, end, _NULL):
        return position + 4
    return position + 5 if byte == 0x66 and _is_word(position + 1, end, _ALSE) else -1


@inlined
def _blanks_end(position: int, end: int) -> int:
    while position < end and _is_blank(load_u8_at(position)):
        position += 1
    return position


@inlined
def _token_end(position: int, end: int, stack: Any, depth: int, expected: int) -> Any:
    """The end of the token that starts here or -1, the depth there, and what must follow."""
    byte = load_u8_at(position)
    if expected == _AFTER:
        is_object = stack[depth - 1] == _OBJECT
        if byte == 0x2C:
            return position + 1, depth, _NAME if is_object else _VALUE
        return position + 1 if byte == (0x7D if is_object else 0x5D) else -1, depth - 1, _AFTER
    if expected == _COLON:
        return position + 1 if byte == 0x3A else -1, depth, _VALUE
    if (byte == 0x7D and expected == _NAME_OR_END) or (byte == 0x5D and expected == _VALUE_OR_END):
        return position + 1, depth - 1, _AFTER
    if expected in (_NAME, _NAME_OR_END):
        return _string_end(position + 1, end) if byte == 0x22 else -1, depth, _COLON
    if byte == 0x7B or byte == 0x5B:
        if depth == DEPTH_MAX:
            return -1, depth, _VALUE
        stack[depth] = _OBJECT if byte == 0x7B else _ARRAY
        return position + 1, depth + 1, _NAME_OR_END if byte == 0x7B else _VALUE_OR_END
    return _scalar_end(position, end), depth, _AFTER


@inlined
def _value_end(position: int, end: int, stack: Any, outer: int) -> tuple[int, int]:
    """The end of the value that starts here, within `outer` others, or -1; and its flags."""
    depth, expected, flags = outer, _VALUE, 0
    while position < end:
        position, depth, expected = _token_end(position, end, stack, depth, expected)
        if position < 0 or (expected == _AFTER and depth == outer):
            return position, flags
        after = _blanks_end(position, end)
        if after > position:
            position, flags = after, VALUE_HAS_BLANKS
    return -1, flags


@inlined
def _put_span(
    spans: Any, row: int, name_start: int, name_end: int, start: int, end: int, flags: int
) -> None:
    spans[row, 0], spans[row, 1], spans[row, 2] = name_start, name_end, start
    spans[row, 3], spans[row, 4] = end, flags


@inlined
def _walk_object(
    base: int, position: int, end: int, stack: Any, spans: Any, row: int
) -> tuple[int, int]:
    """The end of the object whose brace precedes this position, or -1; and its members."""
    count = 0
    position = _blanks_end(position, end)
    if position < end and load_u8_at(position) == 0x7D:
        return position + 1, count
    while position < end and load_u8_at(position) == 0x22:
        name_end = _string_end(position + 1, end)
        colon = _blanks_end(name_end, end) if name_end > 0 else end
        if colon >= end or load_u8_at(colon) != 0x3A:
            break
        value = _blanks_end(colon + 1, end)
        after, flags = _value_end(value, end, stack, 1)
        separator = _blanks_end(after, end) if after > 0 else end
        if separator >= end:
            break
        names = position + 1 - base, name_end - 1 - base
        _put_span(spans, row + count, *names, value - base, after - base, flags)
        count += 1
        if load_u8_at(separator) != 0x2C:
            return separator + 1 if load_u8_at(separator) == 0x7D else -1, count
        position = _blanks_end(separator + 1, end)
    return -1, count


@inlined
def walk_members(base: int, start: int, end: int, stack: Any, spans: Any, row: int) -> int:
    """Validates one text, as `find_members` does."""
    last = base + end
    position = _blanks_end(base + start, last)
    if position < last and load_u8_at(position) == 0x7B:
        after, count = _walk_object(base, position + 1, last, stack, spans, row)
    else:
        after, flags = _value_end(position, last, stack, 0)
        _put_span(spans, row, start, start, position - base, after - base, flags)
        count = NOT_OBJECT
    return count if after > 0 and _blanks_end(after, last) == last else NO_JSON


@kernel
def find_members(data: Bytes, ends: Numbers, spans: Spans, counts: Numbers) -> int:
    """Finds the top members of adjacent texts; returns the number of rows filled in `spans`.

    Text i is data[ends[i]:ends[i + 1]]. counts[i] becomes the number of its members, NOT_OBJECT
    with one row in spans, or NO_JSON with none. Spans need a row for every MEMBER_BYTES_MIN
    bytes and one per text.
    """
    if counts.size >= ends.size or spans.shape[1] < SPAN_FIELD_COUNT:
        raise IndexError("ends are too few for the texts, or spans too narrow")
    if spans.shape[0] < data.size // MEMBER_BYTES_MIN + counts.size:
        raise IndexError("spans have too few rows for the texts")
    stack = np.zeros(DEPTH_MAX, np.uint8)
    base, row = address_of(data), 0
    for index in range(counts.size):
        start, end = ends[index], ends[index + 1]
        if start < 0 or end < start or end > data.size:
            raise IndexError("a text lies outside the data")
        count = walk_members(base, start, end, stack, spans, row)
        counts[index] = count
        row += max(as_int(count), 1 if count == NOT_OBJECT else 0)
    return row


@inlined
def squeeze(source: int, size: int, target: int) -> int:
    """Copies a valid JSON text, between addresses, without the blanks outside its strings."""
    written, is_string, is_escaped = 0, False, False
    for position in range(size):
        byte = load_u8_at(source + position)
        if is_escaped:
            is_escaped = False
        elif byte == 0x22:
            is_string = not is_string
        elif is_string:
            is_escaped = byte == 0x5C
        elif _is_blank(byte):
            continue
        store_u8_at(target + written, np.uint64(byte))
        written += 1
    return written


@kernel
def squeeze_blanks(data: Bytes, target: Bytes) -> int:
    """Copies a valid JSON text without the blanks outside its strings; returns the size."""
    if target.size < data.size:
        raise IndexError("the target is smaller than the text")
    return squeeze(address_of(data), data.size, address_of(target))


@kernel
def _find_commas(data: Bytes, positions: Numbers) -> int:
    """Finds the commas outside strings and brackets of valid JSON; returns their number."""
    count = 0
    depth = 0
    position = 0
    end = len(data)
    while position < end:
        byte = load_u8(data, position)
        if byte == 0x22:
            position += 1
            while position < end:
                inner = load_u8(data, position)
                if inner == 0x22:
                    break
                position += 2 if inner == 0x5C else 1
        elif byte == 0x7B or byte == 0x5B:
            depth += 1
        elif byte == 0x7D or byte == 0x5D:
            depth -= 1
        elif byte == 0x2C and depth == 0:
            positions[count] = position
            count += 1
        position += 1
    return count


def split_messages(joined: bytes) -> list[bytes]:
    """Splits texts that are joined by commas, and strips blanks around each."""
    data = np.frombuffer(joined, np.uint8)
    commas = np.empty(len(joined) // _MESSAGE_BYTES_MIN + 1, np.int64)
    count = _find_commas(data, commas)
    messages: list[bytes] = []
    start = 0
    for end in (*commas[:count].tolist(), len(joined)):
        message = joined[start:end].strip()
        if message:
            messages.append(message)
        start = end + 1
    return messages


def warm() -> None:
    """Compile for the argument types in use."""
    text = b'{"a":[1, 2]}'
    ends = np.array([0, len(text)])
    spans, counts = np.zeros((4, SPAN_FIELD_COUNT), np.int64), np.zeros(1, np.int64)
    for data in byte_buffers(text):
        find_members(data, ends, spans, counts)
    squeeze_blanks(np.frombuffer(text, np.uint8), np.empty(len(text), np.uint8))
    split_messages(b'{"a":"x,y"},\n[1,2]')
