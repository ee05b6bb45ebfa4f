"""Values in expressions: read from a row's JSON or PostgreSQL's arrays, compared, cast, computed.

A value is None (SQL's null), a bool, a number (int or Decimal, exact), a text, or what a JSON array
or object holds. `Untyped` is a literal or parameter in quotes: it takes the type of what it is
compared with. Arrays are written `{1,NULL,"a b"}`: an element that is empty, spells NULL or holds
`, { } " \\` is in double quotes, and a backslash escapes the next character.

Invariant  values of different types compare as unknown, never as an error; what cannot be computed
           is None. Nothing but `compute` raises for what a row may hold. Computing with a row reads
           at most WORK_MIN characters and WORK_FACTOR times those of the row: see `may_read`.
"""

import json
import operator
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from typing import Any, Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row, decode_text, split_texts

_BLANK: Final = r"[ \t\n\r\v\f]"
_PLAIN: Final = r"(?:[^\\\"{}, \t\n\r\v\f]|\\.)+"
_NO_ELEMENTS: Final = re.compile(rf"{_BLANK}*{{{_BLANK}*}}{_BLANK}*")
_START: Final = re.compile(rf"{_BLANK}*{{")
_ELEMENT: Final = re.compile(
    rf"{_BLANK}*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>{_PLAIN}(?:{_BLANK}+{_PLAIN})*))"
    rf"{_BLANK}*(?:,|(?P<end>}}{_BLANK}*\Z))",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def split_array(text: str) -> Iterator[str | None]:
    """The elements of an array of one dimension; raises InvalidRequest for another text."""
    if _NO_ELEMENTS.fullmatch(text):
        return
    match = _START.match(text)
    while match is not None:
        match = _ELEMENT.match(text, match.end())
        if match is None:
            break
        yield _element(match)
        if match["end"] is not None:
            return
    raise InvalidRequest(
        f"{text!r:.80} is not an array of one dimension: write {{1,2}}, "
        'and texts with , { } " \\ or blanks at an end in double quotes: {"a,b","c"}'
    )


def _element(match: re.Match[str]) -> str | None:
    plain = match["plain"]
    if plain is not None and plain.upper() == "NULL":
        return None
    return _ESCAPED.sub(r"\1", match["quoted"] if plain is None else plain)


Value = Any
"""None, bool, int, Decimal, str, Untyped, list or dict; closures pass them on unchecked."""

ARITHMETIC: Final = Context(prec=60)
"""Precision of arithmetic on decimal numbers, in digits."""
DIGITS_MAX: Final = 4000
"""Digits of the numbers that are computed with, and of an integer that is computed."""
_INTEGER_SHOWN_MAX: Final = 10**DIGITS_MAX
_BITS_MAX: Final = _INTEGER_SHOWN_MAX.bit_length()
_SHORT_DECIMAL_BYTES: Final = 1024
"""A Decimal of this size in memory has fewer digits than DIGITS_MAX."""
WORK_MIN: Final = 1 << 20
WORK_FACTOR: Final = 16
_ELEMENT_SIZE: Final = 16
"""A value within JSON takes as long as so many characters."""
_FREE_SIZE: Final = 256
"""Smaller values are read as often as the filter names them."""
_EXPONENT_SHOWN_MAX: Final = 400
_NUMBER: Final = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*", re.I | re.A)


def _prefixes(word: str, shortest: int = 1) -> set[str]:
    return {word[:size] for size in range(shortest, len(word) + 1)}


_TRUE: Final = frozenset({"1", "on"} | _prefixes("true") | _prefixes("yes"))
_FALSE: Final = frozenset({"0"} | _prefixes("false") | _prefixes("no") | _prefixes("off", 2))


class Untyped(str):
    """A literal in quotes, or a parameter."""

    __slots__ = ()


class RowValues(dict[str, Value]):
    """The values of a row's columns, each read when it is first requested."""

    __slots__ = ("_row", "_work_max", "work")

    def __init__(self, row: Row) -> None:
        super().__init__()
        self._row = row
        self._work_max: int | None = None
        self.work = 0
        """Characters that the filter being evaluated has read of large values."""

    def may_read(self, *values: Value) -> bool:
        """Whether the filter may compute with values that take a while to read."""
        if not self.may_spend(0):
            return False
        size = sum([_weigh(value) for value in values])
        return size < _FREE_SIZE or self.may_spend(size)

    def may_spend(self, size: int) -> bool:
        """Whether the filter may read so many more characters; counts them."""
        self.work += size
        if self.work <= WORK_MIN:
            return True
        if self._work_max is None:
            self._work_max = WORK_MIN + WORK_FACTOR * sum(map(len, self._row.values()))
        return self.work <= self._work_max

    def __missing__(self, name: str) -> Value:
        text = self._row.get(name)
        value = self[name] = None if text is None else decode_value(text)
        return value


def _weigh(value: Value) -> int:
    """About as many as the characters of the value."""
    kind = type(value)
    if kind is str or kind is Untyped:
        return len(value)
    if kind is int or kind is Decimal:
        return sys.getsizeof(value)
    if kind is list:
        return _ELEMENT_SIZE * len(value) + sum(map(_weigh, value))
    if kind is dict:
        names = sum(map(len, value)) + _ELEMENT_SIZE * len(value)
        return names + sum(map(_weigh, value.values()))
    return 1


def decode_value(text: bytes) -> Value:
    """The value of a column's JSON text."""
    first = text[0]
    if first == 0x22:
        return decode_text(text)
    if first == 0x6E:
        return None
    if first == 0x74 or first == 0x66:
        return first == 0x74
    if first == 0x7B or first == 0x5B:
        return json.loads(text, parse_int=parse_number, parse_float=parse_number)
    return parse_number(text.decode())


def parse_number(text: str) -> int | Decimal:
    """The number that a valid text spells."""
    if len(text) <= DIGITS_MAX and text.lstrip("+-").isdigit():
        return int(text)
    try:
        return Decimal(text)
    except DecimalException:
        # The exponent is beyond what a Decimal holds.
        sign = "-" if text.lstrip().startswith("-") else ""
        return Decimal(0) if "e-" in text.lower() else Decimal(f"{sign}Infinity")


def find_number(text: str) -> int | Decimal | None:
    """The number that a text spells, if it does."""
    return parse_number(text.strip()) if _NUMBER.fullmatch(text) else None


def find_boolean(text: str) -> bool | None:
    """The boolean that a text spells as PostgreSQL reads it, if it does."""
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def find_json(text: str) -> Value:
    """The value of a JSON text; None when it is not JSON, or null."""
    try:
        (split,) = split_texts([text.encode()])
    except UnicodeEncodeError:
        return None
    if split is None:
        return None
    return decode_value(text.strip().encode() if isinstance(split, dict) else split)


def show(value: Value) -> str | None:
    """A value as text, as a cast to text gives it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _INTEGER_SHOWN_MAX else str(Decimal(value))
    if isinstance(value, Decimal):
        is_short = value.is_finite() and abs(value.adjusted()) <= _EXPONENT_SHOWN_MAX
        return format(value, "f") if is_short else str(value)
    return show_json(value)


def show_json(value: Value) -> str:
    """A value as JSON text."""
    if isinstance(value, dict):
        members = [f"{json.dumps(name)}: {show_json(item)}" for name, item in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join([show_json(item) for item in value]) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(show(value))


def key_of(value: Value) -> Hashable:
    """Equal for equal values and for no others: numbers by value, and true is not 1."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple([key_of(item) for item in value]))
    if isinstance(value, dict):
        return ("object", frozenset([(name, key_of(item)) for name, item in value.items()]))
    return str(value) if type(value) is Untyped else value


def readings(literal: Value) -> Mapping[type, Value]:
    """The value of a literal when compared with each type; types it cannot have are missing."""
    if type(literal) is Untyped:
        by_type: dict[type, Value] = {str: str(literal), Untyped: str(literal)}
        number, truth = find_number(literal), find_boolean(literal)
        if number is not None:
            by_type |= {int: number, Decimal: number}
        if truth is not None:
            by_type[bool] = truth
        if literal.lstrip()[:1] in ("{", "["):
            value = find_json(literal)
            by_type |= {} if value is None else {type(value): value}
        return by_type
    if type(literal) in (int, Decimal):
        return {int: literal, Decimal: literal}
    return {type(literal): literal}


def compare(left: Value, right: Value) -> int | None:
    """Below 0, 0 or above 0 as left is less, equal or greater; None when that is unknown."""
    if left is None or right is None:
        return None
    if type(left) is Untyped and type(right) is not Untyped:
        left = readings(left).get(type(right))
    else:
        right = readings(right).get(type(left))
    if left is None or right is None:
        return None
    if isinstance(left, dict | list):
        return 0 if key_of(left) == key_of(right) else None
    return int(left > right) - int(left < right)


def is_equal(left: Value, right: Value) -> bool | None:
    """Whether two values are the same; unlike an order this is known of arrays and objects."""
    if isinstance(left, dict | list) and isinstance(right, dict | list):
        return key_of(left) == key_of(right)
    order = compare(left, right)
    return None if order is None else order == 0


_INTEGER_BITS: Final = {"smallint": 15, "integer": 31, "bigint": 63}


def cast_value(value: Value, type: str) -> Value:
    """The value as a type, or None when it has no such reading."""
    if value is None:
        return None
    if type == "text":
        return str(show(value))
    if type == "jsonb":
        return find_json(value) if isinstance(value, str) else value
    if type == "boolean":
        if isinstance(value, str):
            return find_boolean(value)
        return bool(value) if isinstance(value, int) else None
    number = find_number(value) if isinstance(value, str) else value
    if isinstance(number, list | dict) or number is None:
        return None
    return _cast_number(number, type)


def _cast_number(number: bool | int | Decimal, type: str) -> int | Decimal | None:
    bits = _INTEGER_BITS.get(type)
    if bits is not None:
        if isinstance(number, Decimal):
            if not number.is_finite() or number.adjusted() > 20:
                return None
            number = int(number.to_integral_value(ROUND_HALF_UP))
        return int(number) if -(1 << bits) <= number < 1 << bits else None
    if isinstance(number, bool):
        return None
    if type == "numeric":
        return number
    try:
        nearest = Decimal(repr(float(number)))
    except OverflowError:
        return None
    return nearest if nearest.is_finite() else None


def joined(first: Value, second: Value) -> str | None:
    """Both as one text."""
    if first is None or second is None:
        return None
    return f"{show(first)}{show(second)}"


def as_number(value: Value) -> int | Decimal | None:
    """A value where a number is required; any other value is unknown."""
    if type(value) is Untyped:
        return find_number(value)
    return value if type(value) in (int, Decimal) else None


def compute(symbol: str, first: int | Decimal, second: int | Decimal) -> int | Decimal:
    """Computes + - * / or %; raises ArithmeticError without a result, or for too many digits."""
    if isinstance(first, int) and isinstance(second, int):
        if symbol == "*" and first.bit_length() + second.bit_length() > _BITS_MAX + 1:
            raise OverflowError
        result = _OF_INTEGERS[symbol](first, second)
        if result.bit_length() >= _BITS_MAX and abs(result) >= _INTEGER_SHOWN_MAX:
            raise OverflowError
        return result
    return _OF_DECIMALS[symbol](_short_decimal(first), _short_decimal(second))


def _short_decimal(number: int | Decimal) -> Decimal:
    """The number; raises OverflowError for more digits than are computed with."""
    if isinstance(number, int):
        return Decimal(number)
    is_short = sys.getsizeof(number) <= _SHORT_DECIMAL_BYTES
    if not is_short and len(number.as_tuple().digits) > DIGITS_MAX:
        raise OverflowError
    return number


def _quotient(first: int, second: int) -> int:
    """As PostgreSQL: cut off towards zero."""
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def _remainder(first: int, second: int) -> int:
    """As PostgreSQL: with the sign of the dividend."""
    remainder = abs(first) % abs(second)
    return -remainder if first < 0 else remainder


_OF_INTEGERS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
}
_OF_DECIMALS: Final[Mapping[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": ARITHMETIC.add,
    "-": ARITHMETIC.subtract,
    "*": ARITHMETIC.multiply,
    "/": ARITHMETIC.divide,
    "%": ARITHMETIC.remainder,
}


def absolute(number: int | Decimal | None) -> int | Decimal | None:
    # A Decimal's own abs() would round.
    return number.copy_abs() if isinstance(number, Decimal) else number and abs(number)


def member(value: Value, step: Value) -> Value:
    """The member of an object by name, or of an array by index, from its end if below 0."""
    if isinstance(value, dict):
        return value.get(str(step)) if isinstance(step, str) else None
    if isinstance(value, list):
        index = as_number(step)
        if isinstance(index, int) and -len(value) <= index < len(value):
            return value[index]
    return None
