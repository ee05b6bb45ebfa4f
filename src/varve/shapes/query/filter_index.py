"""Which of many filters a row passes, without asking each of them.

Filters that ask for values of columns stand in hash tables, one per set of columns; filters that
ask for a range stand sorted; the rest are evaluated. Equal filters are one.

Invariant  the answer is that of evaluating every filter.
Threads    the caller serialises calls.
"""

from collections.abc import Hashable, Iterator
from decimal import Decimal
from typing import Generic, TypeVar

from varve.shapes.feed.row import Row
from varve.shapes.query.access_path import EqualPath, RangePath, find_path, keys_of
from varve.shapes.query.interval_index import IntervalIndex
from varve.shapes.query.value import RowValues, key_of
from varve.shapes.query.where import Where

T = TypeVar("T", bound=Hashable)


class _Group(Generic[T]):
    """The items of one filter."""

    __slots__ = ("is_exact", "is_once", "items", "path", "where")

    def __init__(self, where: Where) -> None:
        self.where = where
        self.items: dict[T, None] = {}
        self.path = find_path(where.node)
        self.is_exact = isinstance(self.path, EqualPath) and self.path.is_exact
        self.is_once = not isinstance(self.path, EqualPath) or len(self.path.alternatives) == 1
        """Whether a row can meet the group one time only."""


class FilterIndex(Generic[T]):
    """Items with their filters; an item without one gets every row."""

    def __init__(self) -> None:
        self._unfiltered: dict[T, None] = {}
        self._group_of: dict[T, _Group[T]] = {}
        self._groups: dict[Where, _Group[T]] = {}
        self._equal: dict[tuple[str, ...], dict[Hashable, dict[_Group[T], None]]] = {}
        self._ranges: dict[tuple[str, type], IntervalIndex[_Group[T]]] = {}
        self._others: dict[_Group[T], None] = {}

    def __contains__(self, item: T) -> bool:
        return item in self._unfiltered or item in self._group_of

    def add(self, item: T, where: Where | None) -> None:
        """An item that is there already takes the new filter."""
        if item in self:
            self.remove(item)
        if where is None:
            self._unfiltered[item] = None
            return
        group = self._groups.get(where)
        if group is None:
            group = self._groups[where] = _Group(where)
            self._enter(group)
        group.items[item] = None
        self._group_of[item] = group

    def remove(self, item: T) -> None:
        """An item that is not there is no error."""
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
        found = list(self._unfiltered)
        if self._groups:
            values = RowValues(row)
            seen: set[_Group[T]] = set()
            for group in self._candidates(values):
                if not group.is_once:
                    if group in seen:
                        continue
                    seen.add(group)
                if group.is_exact or group.where.truth(values) is True:
                    found.extend(group.items)
        return found

    def _candidates(self, values: RowValues) -> Iterator[_Group[T]]:
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

    def _enter(self, group: _Group[T]) -> None:
        match group.path:
            case EqualPath():
                for table, key in self._places(group.path):
                    table.setdefault(key, {})[group] = None
            case RangePath(column, bounds):
                for kind, held in bounds.items():
                    self._ranges.setdefault((column, kind), IntervalIndex()).add(group, held)
            case None:
                self._others[group] = None

    def _leave(self, group: _Group[T]) -> None:
        match group.path:
            case EqualPath():
                for table, key in self._places(group.path):
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

    def _places(
        self, path: EqualPath
    ) -> Iterator[tuple[dict[Hashable, dict[_Group[T], None]], Hashable]]:
        """The table and the key of each way to meet the path, each once."""
        places: dict[tuple[tuple[str, ...], Hashable], None] = {}
        for alternative in path.alternatives:
            columns = tuple(sorted(alternative))
            for key in keys_of(alternative, columns):
                places[columns, key[0] if len(columns) == 1 else key] = None
        for names, held in places:
            yield self._equal.setdefault(names, {}), held
