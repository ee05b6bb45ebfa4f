"""Functions of single values: casts, arithmetic, joined texts, members of JSON.

Invariant  what cannot be computed is None; only `compute` raises, for what has no number.
"""

from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from varve.shapes.filter.value import (
    ARITHMETIC,
    Untyped,
    Value,
    find_boolean,
    find_json,
    find_number,
    show,
)

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
    """A value where a number is asked for; what is none is unknown."""
    if type(value) is Untyped:
        return find_number(value)
    return value if type(value) in (int, Decimal) else None


def compute(operator: str, first: int | Decimal, second: int | Decimal) -> int | Decimal:
    """One of + - * / %; raises DecimalException and ZeroDivisionError for what has no number."""
    if isinstance(first, int) and isinstance(second, int):
        return _compute_integers(operator, first, second)
    left, right = Decimal(first), Decimal(second)
    match operator:
        case "+":
            return ARITHMETIC.add(left, right)
        case "-":
            return ARITHMETIC.subtract(left, right)
        case "*":
            return ARITHMETIC.multiply(left, right)
        case "/":
            return ARITHMETIC.divide(left, right)
        case _:
            return ARITHMETIC.remainder(left, right)


def _compute_integers(operator: str, first: int, second: int) -> int:
    """As PostgreSQL: a quotient is cut off towards zero, a remainder has the dividend's sign."""
    match operator:
        case "+":
            return first + second
        case "-":
            return first - second
        case "*":
            return first * second
        case "/":
            quotient = abs(first) // abs(second)
            return quotient if (first < 0) == (second < 0) else -quotient
        case _:
            remainder = abs(first) % abs(second)
            return -remainder if first < 0 else remainder


def absolute(number: int | Decimal | None) -> int | Decimal | None:
    # A Decimal's own abs() would round.
    return number.copy_abs() if isinstance(number, Decimal) else number and abs(number)


def member(value: Value, step: Value) -> Value:
    """The member of an object by name, or of an array by place, from its end if below 0."""
    if isinstance(value, dict):
        return value.get(str(step)) if isinstance(step, str) else None
    if isinstance(value, list):
        index = as_number(step)
        if isinstance(index, int) and -len(value) <= index < len(value):
            return value[index]
    return None
