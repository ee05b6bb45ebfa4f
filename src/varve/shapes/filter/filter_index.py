"""FilterIndex: finds the filters that a row matches, without evaluating each of them.

Filters that compare columns with values are in hash tables, one for each set of columns; filters
for a range are sorted by their bounds; all others are evaluated. Equal filters are stored once.

Invariant  the result is that of evaluating every filter. An access path never misses a row for
           which the filter is true; an exact path includes no other row. New ranges wait in a list
           that is searched linearly and stays short compared with the sorted ones; removed ones
           are deleted when they are many.
Threads    the caller serialises calls.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from decimal import Decimal
from itertools import product
from typing import Final, Generic, NamedTuple, TypeVar

from varve.shapes.feed.row import Row
from varve.shapes.filter import expression as sql
from varve.shapes.filter.value import RowValues, Value, key_of, readings
from varve.shapes.filter.where import Where

KEYS_MAX: Final = 64
"""Limit of hash keys of a filter over several columns; an IN list of one column has no limit."""
ALTERNATIVES_MAX: Final = 16

Keys = dict[str, frozenset[Hashable]]
"""The values that columns may have."""


class EqualPath(NamedTuple):
    """Rows whose columns have given values, in one of several ways."""

    alternatives: tuple[Keys, ...]
    is_exact: bool


class Bounds(NamedTuple):
    """A closed range of one type; None means unbounded."""

    low: Value
    high: Value


class RangePath(NamedTuple):
    """Rows in which one column is within bounds, which depend on the type of its value."""

    column: str
    bounds: dict[type, Bounds]


RANGE_TYPES: Final[tuple[type, ...]] = (Decimal, str, bool)
"""Types that have an order; Decimal stands for all numbers."""
_ORDERS: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Order operators, each with the operator for exchanged operands."""


def find_path(node: sql.Node) -> EqualPath | RangePath | None:
    """The best access path of a filter, or None if it must be evaluated for every row."""
    return _find_equal(node) or _find_range(node)


def _find_equal(node: sql.Node) -> EqualPath | None:
    match node:
        case sql.Compare():
            compared = _find_comparison(node)
            if compared is None or compared.operator != "=":
                return None
            return EqualPath(({compared.column: _keys([compared.value])},), is_exact=True)
        case sql.Not(sql.Distinct(sql.Column(name), sql.Literal(value))) if value is not None:
            return EqualPath(({name: _keys([value])},), is_exact=True)
        case sql.Column(name) | sql.Is(sql.Column(name), "TRUE"):
            return EqualPath(({name: frozenset({key_of(True)})},), is_exact=True)
        case sql.In(sql.Column(name), choices):
            values = [choice.value for choice in choices if isinstance(choice, sql.Literal)]
            if len(values) < len(choices):
                return None
            return EqualPath(({name: _keys(values)},), is_exact=True)
        case sql.Or(items):
            return _either([_find_equal(item) for item in items])
        case sql.And(items):
            return _both([_find_equal(item) for item in items])
    return None


class _Comparison(NamedTuple):
    """A column compared with a literal, which is on the right."""

    column: str
    operator: str
    value: Value


def _find_comparison(node: sql.Node) -> _Comparison | None:
    match node:
        case sql.Compare(operator, sql.Column(name), sql.Literal(value)):
            return _Comparison(name, operator, value)
        case sql.Compare(operator, sql.Literal(value), sql.Column(name)):
            return _Comparison(name, _ORDERS.get(operator, operator), value)
    return None


def _keys(values: list[Value]) -> frozenset[Hashable]:
    by_literal = [readings(value) for value in values if value is not None]
    return frozenset([key_of(reading) for by_type in by_literal for reading in by_type.values()])


def _either(paths: list[EqualPath | None]) -> EqualPath | None:
    usable = [path for path in paths if path is not None]
    alternatives = tuple([keys for path in usable for keys in path.alternatives])
    if len(usable) < len(paths) or len(alternatives) > ALTERNATIVES_MAX:
        return None
    return EqualPath(alternatives, all(path.is_exact for path in usable))


def _both(paths: list[EqualPath | None]) -> EqualPath | None:
    """One key over as many columns as keep the number of keys small, else the shortest way."""
    usable = [path for path in paths if path is not None]
    single = sorted(
        [path for path in usable if len(path.alternatives) == 1],
        key=lambda path: sum(len(keys) for keys in path.alternatives[0].values()),
    )
    if not single:
        shortest = min(usable, key=lambda path: len(path.alternatives), default=None)
        return None if shortest is None else shortest._replace(is_exact=False)
    merged = dict(single[0].alternatives[0])
    left_out = len(paths) - 1 + (not single[0].is_exact)
    for path in single[1:]:
        (keys,) = path.alternatives
        shared = {name: values & merged.get(name, values) for name, values in keys.items()}
        together = {**merged, **shared}
        if math.prod(len(values) for values in together.values()) <= KEYS_MAX:
            merged = together
            left_out -= path.is_exact
    return EqualPath((merged,), is_exact=left_out == 0)


def _find_range(node: sql.Node) -> RangePath | None:
    """Bounds on the column with the most conditions."""
    items = node.items if isinstance(node, sql.And) else (node,)
    by_column: dict[str, list[_Comparison]] = {}
    for compared in map(_find_comparison, items):
        if compared is not None and compared.operator in _ORDERS:
            by_column.setdefault(compared.column, []).append(compared)
    if not by_column:
        return None
    column, comparisons = max(by_column.items(), key=lambda entry: len(entry[1]))
    bounds = {kind: _find_bounds(kind, comparisons) for kind in RANGE_TYPES}
    return RangePath(column, {kind: within for kind, within in bounds.items() if within})


def _find_bounds(kind: type, comparisons: list[_Comparison]) -> Bounds | None:
    """The range of one type; None when a comparison is unknown for it, and so never true."""
    lows: list[Value] = []
    highs: list[Value] = []
    for _, operator, literal in comparisons:
        reading = None if literal is None else readings(literal).get(kind)
        if reading is None:
            return None
        (lows if operator in (">", ">=") else highs).append(reading)
    return Bounds(max(lows, default=None), min(highs, default=None))


_WAITING_MIN: Final = 64


T = TypeVar("T", bound=Hashable)


class _RangeEntry(NamedTuple, Generic[T]):
    low: Value
    high: Value
    item: T


class IntervalIndex(Generic[T]):
    """Items by their ranges, one range per item. The caller serialises calls."""

    def __init__(self) -> None:
        self._entries: dict[T, _RangeEntry[T]] = {}
        self._waiting: dict[T, _RangeEntry[T]] = {}
        self._removed_count = 0
        self._sort()

    def add(self, item: T, bounds: Bounds) -> None:
        self._entries[item] = self._waiting[item] = _RangeEntry(bounds.low, bounds.high, item)

    def remove(self, item: T) -> None:
        del self._entries[item]
        if self._waiting.pop(item, None) is None:
            self._removed_count += 1

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, value: Value) -> Iterator[T]:
        """Items whose closed range holds the value, in no order."""
        if max(len(self._waiting), self._removed_count) > _WAITING_MIN + len(self._entries) // 8:
            self._sort()
        for entry in self._candidates(value):
            if self._entries.get(entry.item) is entry:
                yield entry.item

    def _candidates(self, value: Value) -> Iterator[_RangeEntry[T]]:
        for entry in self._waiting.values():
            low, high, _ = entry
            if (low is None or low <= value) and (high is None or value <= high):
                yield entry
        yield from self._above[: bisect_right(self._above_lows, value)]
        yield from self._below[bisect_left(self._below_highs, value) :]
        yield from self._stab(value)

    def _stab(self, value: Value) -> Iterator[_RangeEntry[T]]:
        """Walks down the tree where the greatest upper bound is not below the value."""
        end = bisect_right(self._lows, value)
        nodes = [(1, 0, len(self._tops) // 2)]
        while nodes:
            node, start, size = nodes.pop()
            top = self._tops[node]
            if start >= end or top is None or top < value:
                continue
            if size == 1:
                yield self._both[start]
            else:
                half = size // 2
                nodes += ((2 * node + 1, start + half, half), (2 * node, start, half))

    def _sort(self) -> None:
        self._waiting, self._removed_count = {}, 0
        with_low = [entry for entry in self._entries.values() if entry.low is not None]
        with_low.sort(key=lambda entry: entry.low)
        self._above = [entry for entry in with_low if entry.high is None]
        self._both = [entry for entry in with_low if entry.high is not None]
        self._below = [entry for entry in self._entries.values() if entry.low is None]
        self._below.sort(key=lambda entry: entry.high)
        self._above_lows = [entry.low for entry in self._above]
        self._below_highs = [entry.high for entry in self._below]
        self._lows = [entry.low for entry in self._both]
        self._tops = _tops([entry.high for entry in self._both])


def _tops(highs: list[Value]) -> list[Value]:
    """A tree of maxima in a list: node 1 is the root, node n has the children 2n and 2n + 1."""
    leaves = 1
    while leaves < len(highs):
        leaves *= 2
    tops: list[Value] = [None] * leaves + highs + [None] * (leaves - len(highs))
    for node in range(leaves - 1, 0, -1):
        below = [top for top in (tops[2 * node], tops[2 * node + 1]) if top is not None]
        tops[node] = max(below, default=None)
    return tops


class _FilterGroup(Generic[T]):
    """The items of one filter."""

    __slots__ = ("is_exact", "is_once", "items", "path", "where")

    def __init__(self, where: Where) -> None:
        self.where = where
        self.items: dict[T, None] = {}
        self.path = find_path(where.node)
        self.is_exact = isinstance(self.path, EqualPath) and self.path.is_exact
        self.is_once = not isinstance(self.path, EqualPath) or len(self.path.alternatives) == 1
        """Whether a row finds the group at most once."""


class FilterIndex(Generic[T]):
    """Items with their filters; an item without one gets every row."""

    def __init__(self) -> None:
        self._unfiltered: dict[T, None] = {}
        self._group_of: dict[T, _FilterGroup[T]] = {}
        self._groups: dict[Where, _FilterGroup[T]] = {}
        self._equal: dict[tuple[str, ...], dict[Hashable, dict[_FilterGroup[T], None]]] = {}
        self._ranges: dict[tuple[str, type], IntervalIndex[_FilterGroup[T]]] = {}
        self._others: dict[_FilterGroup[T], None] = {}

    def __contains__(self, item: T) -> bool:
        return item in self._unfiltered or item in self._group_of

    def add(self, item: T, where: Where | None) -> None:
        """Adds an item, or replaces its filter."""
        if item in self:
            self.remove(item)
        if where is None:
            self._unfiltered[item] = None
            return
        group = self._groups.get(where)
        if group is None:
            group = self._groups[where] = _FilterGroup(where)
            self._enter(group)
        group.items[item] = None
        self._group_of[item] = group

    def remove(self, item: T) -> None:
        """Harmless for an item that it does not have."""
        self._unfiltered.pop(item, None)
        group = self._group_of.pop(item, None)
        if group is None:
            return
        del group.items[item]
        if not group.items:
            del self._groups[group.where]
            self._leave(group)

    def matches(self, row: Row) -> list[T]:
        """The items whose filter is true for the row."""
        items = list(self._unfiltered)
        if self._groups:
            values = RowValues(row)
            seen: set[_FilterGroup[T]] = set()
            for group in self._candidates(values):
                if not group.is_once:
                    if group in seen:
                        continue
                    seen.add(group)
                if group.is_exact or group.where.is_true(values):
                    items.extend(group.items)
        return items

    def _candidates(self, values: RowValues) -> Iterator[_FilterGroup[T]]:
        for columns, table in self._equal.items():
            if len(columns) == 1:
                value = values[columns[0]]
                groups = table.get(value if type(value) is str else key_of(value))
            else:
                groups = table.get(tuple([key_of(values[name]) for name in columns]))
            if groups is not None:
                yield from groups
        for (column, kind), index in self._ranges.items():
            value = values[column]
            if type(value) is kind or (kind is Decimal and type(value) is int):
                yield from index.find(value)
        yield from self._others

    def _enter(self, group: _FilterGroup[T]) -> None:
        match group.path:
            case EqualPath():
                for table, key in self._table_keys(group.path):
                    table.setdefault(key, {})[group] = None
            case RangePath(column, bounds):
                for kind, range_bounds in bounds.items():
                    self._ranges.setdefault((column, kind), IntervalIndex()).add(
                        group, range_bounds
                    )
            case None:
                self._others[group] = None

    def _leave(self, group: _FilterGroup[T]) -> None:
        match group.path:
            case EqualPath():
                for table, key in self._table_keys(group.path):
                    table[key].pop(group, None)
                    if not table[key]:
                        del table[key]
                self._equal = {columns: table for columns, table in self._equal.items() if table}
            case RangePath(column, bounds):
                for kind in bounds:
                    self._ranges[column, kind].remove(group)
                    if not len(self._ranges[column, kind]):
                        del self._ranges[column, kind]
            case None:
                del self._others[group]

    def _table_keys(
        self, path: EqualPath
    ) -> Iterator[tuple[dict[Hashable, dict[_FilterGroup[T], None]], Hashable]]:
        """The table and the key of each combination of values on the path, each once."""
        keys: dict[tuple[tuple[str, ...], Hashable], None] = {}
        for alternative in path.alternatives:
            columns = tuple(sorted(alternative))
            for values in product(*[alternative[name] for name in columns]):
                keys[columns, values[0] if len(columns) == 1 else values] = None
        for columns, key in keys:
            yield self._equal.setdefault(columns, {}), key
