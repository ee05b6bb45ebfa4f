"""Guesses the columns of JSON values from the first of them.

Invariant  a column is made only of a field that had one type wherever it was met: whole numbers and
           fractions are `double`, anything else that differs has no column and is kept in `_rest`.
           A text stays a text, whatever it looks like.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import count
from typing import Any, Final

from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from varve.jobs.table.schema import RESERVED, Fields, ValueField, is_column_name
from varve.jobs.table.values import Unfit, parse_json

_LONG: Final = 1 << 63
_COLUMNS_MAX: Final = 1000

Guess = str | tuple["Guess"] | dict[str, "Guess"]
"""A primitive by name, a list of one item, a structure; `_NULL` where nothing is known yet."""

_NUMBERS: Final = ("long", "double")
_NULL: Final = "null"
_MIXED: Final = "mixed"


def infer_fields(values: Iterable[bytes], known: Iterable[str] = ()) -> Fields:
    """Columns for the fields of these values that are not known; bad values are skipped."""
    guessed: dict[str, Guess] = {}
    for value in values:
        try:
            document = parse_json(value)
        except Unfit:
            continue
        for name, given in document.items():
            guessed[name] = _join(guessed.get(name, _NULL), _guess(given))
    taken = {name.lower() for name in (*RESERVED, *known)}
    fields: list[ValueField] = []
    for name, guess in guessed.items():
        type = _make_type(guess)
        if type is None or not is_column_name(name) or name.lower() in taken:
            continue
        taken.add(name.lower())
        fields.append(ValueField(name, type))
    return tuple(fields[:_COLUMNS_MAX])


def _guess(given: Any) -> Guess:
    match given:
        case None:
            return _NULL
        case bool():
            return "boolean"
        case int():
            return "long" if -_LONG <= given < _LONG else _MIXED
        case float() | Decimal():
            return "double"
        case str():
            return "string"
        case list():
            inner: Guess = _NULL
            for one in given:
                inner = _join(inner, _guess(one))
            return (inner,)
        case dict():
            return {name: _guess(one) for name, one in given.items()}
    return _MIXED


def _join(first: Guess, second: Guess) -> Guess:
    if first == second or second == _NULL:
        return first
    if first == _NULL:
        return second
    if isinstance(first, tuple) and isinstance(second, tuple):
        return (_join(first[0], second[0]),)
    if isinstance(first, dict) and isinstance(second, dict):
        names = [*first, *(name for name in second if name not in first)]
        return {name: _join(first.get(name, _NULL), second.get(name, _NULL)) for name in names}
    if first in _NUMBERS and second in _NUMBERS:
        return "double"
    return _MIXED


_PRIMITIVES: Final[Mapping[str, IcebergType]] = {
    "boolean": BooleanType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
}


def _make_type(guess: Guess) -> IcebergType | None:
    """None where no column can hold all of it."""
    if isinstance(guess, str):
        return _PRIMITIVES.get(guess)
    if isinstance(guess, tuple):
        inner = _make_type(guess[0])
        if inner is None:
            return None
        return ListType(element_id=1, element_type=inner, element_required=False)
    members: list[NestedField] = []
    taken: set[str] = set()
    ids = count(1)
    for name, one in guess.items():
        type = _make_type(one)
        if type is not None and is_column_name(name) and name.lower() not in taken:
            taken.add(name.lower())
            members.append(NestedField(next(ids), name, type, required=False))
    return StructType(*members) if members else None
