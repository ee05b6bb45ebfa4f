"""What a filter asks of single columns, by which an index finds it.

Invariant  a path never leaves a row out: a row for which the filter is true lies on it. An exact
           path also leaves no other row in.
"""

from collections.abc import Hashable, Iterator
from decimal import Decimal
from itertools import product
from typing import Final, NamedTuple

from varve.shapes.query.expression import (
    And,
    Column,
    Compare,
    Distinct,
    In,
    Is,
    Literal,
    Node,
    Not,
    Or,
)
from varve.shapes.query.value import Value, key_of, readings

KEYS_MAX: Final = 64
"""Keys that a filter over several columns may stand under; a list of one column has no bound."""
ALTERNATIVES_MAX: Final = 16

Keys = dict[str, frozenset[Hashable]]
"""The values that columns may have."""


class EqualPath(NamedTuple):
    """Rows whose columns have given values, in one of several ways."""

    alternatives: tuple[Keys, ...]
    is_exact: bool


class Bounds(NamedTuple):
    """A closed range of one type; None is no bound."""

    low: Value
    high: Value


class RangePath(NamedTuple):
    """Rows of which one column lies within bounds that depend on the type of its value."""

    column: str
    bounds: dict[type, Bounds]


RANGE_TYPES: Final[tuple[type, ...]] = (Decimal, str, bool)
"""Types that have an order; Decimal stands for all numbers."""
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def find_path(node: Node) -> EqualPath | RangePath | None:
    """The best path of a filter, or None when every row must be asked."""
    return _find_equal(node) or _find_range(node)


def _find_equal(node: Node) -> EqualPath | None:
    match node:
        case Compare("=", Column(name), Literal(value)) | Compare(
            "=", Literal(value), Column(name)
        ):
            return EqualPath(({name: _keys([value])},), is_exact=True)
        case Not(Distinct(Column(name), Literal(value))) if value is not None:
            return EqualPath(({name: _keys([value])},), is_exact=True)
        case Column(name) | Is(Column(name), "TRUE"):
            return EqualPath(({name: frozenset({key_of(True)})},), is_exact=True)
        case In(Column(name), choices):
            values = [choice.value for choice in choices if isinstance(choice, Literal)]
            if len(values) < len(choices):
                return None
            return EqualPath(({name: _keys(values)},), is_exact=True)
        case Or(items):
            return _either([_find_equal(item) for item in items])
        case And(items):
            return _both([_find_equal(item) for item in items])
    return None


def _keys(values: list[Value]) -> frozenset[Hashable]:
    found = [readings(value) for value in values if value is not None]
    return frozenset([key_of(reading) for by_type in found for reading in by_type.values()])


def _either(paths: list[EqualPath | None]) -> EqualPath | None:
    known = [path for path in paths if path is not None]
    alternatives = tuple([keys for path in known for keys in path.alternatives])
    if len(known) < len(paths) or len(alternatives) > ALTERNATIVES_MAX:
        return None
    return EqualPath(alternatives, all(path.is_exact for path in known))


def _both(paths: list[EqualPath | None]) -> EqualPath | None:
    """One key over as many columns as keep the number of keys small, else the shortest way."""
    known = [path for path in paths if path is not None]
    single = sorted(
        [path for path in known if len(path.alternatives) == 1],
        key=lambda path: sum(len(keys) for keys in path.alternatives[0].values()),
    )
    if not single:
        return (
            min(known, key=lambda path: len(path.alternatives))._replace(is_exact=False)
            if known
            else None
        )
    merged = dict(single[0].alternatives[0])
    left_out = len(paths) - 1 + (not single[0].is_exact)
    for path in single[1:]:
        (keys,) = path.alternatives
        together = _merge(merged, keys)
        if _count(together) <= KEYS_MAX:
            merged = together
            left_out -= path.is_exact
    return EqualPath((merged,), is_exact=left_out == 0)


def _merge(first: Keys, second: Keys) -> Keys:
    shared = {name: keys & first.get(name, keys) for name, keys in second.items()}
    return {**first, **shared}


def _count(keys: Keys) -> int:
    count = 1
    for held in keys.values():
        count *= len(held)
    return count


def keys_of(alternative: Keys, columns: tuple[str, ...]) -> Iterator[tuple[Hashable, ...]]:
    """Every combination of values, columns in the order given."""
    return product(*[alternative[name] for name in columns])


def _find_range(node: Node) -> RangePath | None:
    """Bounds on the column that most of the conditions speak of."""
    items = node.items if isinstance(node, And) else (node,)
    by_column: dict[str, list[tuple[str, Value]]] = {}
    for item in items:
        match item:
            case Compare(operator, Column(name), Literal(value)) if operator in _FLIPPED:
                by_column.setdefault(name, []).append((operator, value))
            case Compare(operator, Literal(value), Column(name)) if operator in _FLIPPED:
                by_column.setdefault(name, []).append((_FLIPPED[operator], value))
    if not by_column:
        return None
    column, comparisons = max(by_column.items(), key=lambda entry: len(entry[1]))
    bounds = {kind: _bounds(kind, comparisons) for kind in RANGE_TYPES}
    return RangePath(column, {kind: held for kind, held in bounds.items() if held is not None})


def _bounds(kind: type, comparisons: list[tuple[str, Value]]) -> Bounds | None:
    """The range of one type; None when a comparison is unknown for it, and so never true."""
    lows: list[Value] = []
    highs: list[Value] = []
    for operator, literal in comparisons:
        reading = None if literal is None else readings(literal).get(kind)
        if reading is None:
            return None
        (lows if operator in (">", ">=") else highs).append(reading)
    return Bounds(max(lows, default=None), min(highs, default=None))
