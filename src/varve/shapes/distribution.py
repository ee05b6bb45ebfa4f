"""Changes of a topic become entries of the shapes that they concern.

Invariant  a shape is told of a row exactly while its filter holds it: what comes in is an insert,
           what changes an update, what goes a delete, and nothing else. Where the previous row is
           uncertain, a row that is in is told whole and one that is not is deleted; both do no harm
           to who knows better. The last entry of a transaction for a shape says so.
Threads    one at a time, under the lock of the topic's shapes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from varve.shapes.feed.change import Change, Transaction
from varve.shapes.feed.row import Row
from varve.shapes.messages import DELETE, INSERT, UPDATE, MessageForm, ending, message_key
from varve.shapes.offset import BEFORE_ALL, Offset
from varve.shapes.query.filter_index import FilterIndex
from varve.shapes.shape import Shape
from varve.shapes.storage.entry import Entry

Outbox = dict[Shape, list[Entry]]
Route = tuple[MessageForm, list[Shape]]
"""A way in which a row is told, and the shapes that it is told to so."""

_ROUTES_MAX: Final = 1 << 16
_COLUMNS_MAX: Final = 8


class Distribution:
    """Who gets what of one topic: its shapes by their filters.

    Rows alike in the columns that filters look at have the same routes, which are remembered.
    """

    def __init__(self) -> None:
        self._index: FilterIndex[Shape] = FilterIndex()
        self._shapes: set[Shape] = set()
        self._column_counts: Counter[str] = Counter()
        self._columns: tuple[str, ...] = ()
        self._routes: dict[tuple[bytes | None, ...], list[Route]] = {}
        self._start_max = BEFORE_ALL

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, shape: Shape) -> None:
        """From now on the shape is told of changes above its `start`."""
        where = shape.definition.where
        self._index.add(shape, where)
        self._shapes.add(shape)
        self._start_max = max(self._start_max, shape.start)
        self._count_columns(shape, 1)

    def remove(self, shape: Shape) -> None:
        if shape in self._shapes:
            self._shapes.remove(shape)
            self._index.remove(shape)
            self._count_columns(shape, -1)

    def _count_columns(self, shape: Shape, count: int) -> None:
        where = shape.definition.where
        for name in () if where is None else where.columns:
            self._column_counts[name] += count
            if not self._column_counts[name]:
                del self._column_counts[name]
        if len(self._columns) != len(self._column_counts):
            self._columns = tuple(self._column_counts)
        self._routes.clear()

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def tell(self, transaction: Transaction, outbox: Outbox) -> None:
        """Puts the entries of one transaction behind those that are in the outbox."""
        changes = transaction.changes
        if len(changes) == 1:
            self._tell(changes[0], outbox, is_last=True)
            return
        last: dict[Shape, Offset] = {}
        for change in changes:
            for shape in self._tell(change, outbox, is_last=False):
                last[shape] = change.offset
        for shape, offset in last.items():
            outbox[shape][-1] = _as_last(outbox[shape][-1], offset)

    def _tell(self, change: Change, outbox: Outbox, *, is_last: bool) -> Sequence[Shape]:
        """Puts one change into the outbox; gives whom it concerns."""
        offset, text, key_columns, row, previous, is_uncertain, _ = change
        groups = self._groups(row, previous, is_uncertain=is_uncertain)
        if len(groups) == 1 and not groups[0][0]:
            return ()
        key = message_key(text)
        end = ending(offset, is_last=is_last)
        told: list[Shape] = []
        for routes, operation in groups:
            for form, shapes in routes:
                if operation == UPDATE and row is not None and previous is not None:
                    json = form.update(key, row, previous, key_columns, end)
                    if json is None:
                        continue
                elif operation == INSERT and row is not None:
                    json = form.insert(key, row, key_columns, end)
                else:
                    json = form.delete(key, None if is_uncertain else previous, key_columns, end)
                entry = Entry(offset, text.encode(), operation, json)
                if offset <= self._start_max:
                    shapes = [shape for shape in shapes if offset > shape.start]
                for shape in shapes:
                    if shape in outbox:
                        outbox[shape].append(entry)
                    else:
                        outbox[shape] = [entry]
                told += shapes
        return told

    def _groups(
        self, row: Row | None, previous: Row | None, *, is_uncertain: bool
    ) -> Sequence[tuple[list[Route], int]]:
        """The routes of a change, by what it is to the shapes there."""
        now = [] if row is None else self._find_routes(row)
        if is_uncertain:
            known = {shape for _, shapes in now for shape in shapes}
            return (now, INSERT), (_group(self._shapes - known), DELETE)
        if previous is None:
            return ((now, INSERT),)
        was = self._find_routes(previous)
        if row is None:
            return ((was, DELETE),)
        if now is was or now == was:
            return ((now, UPDATE),)
        inside = {shape for _, shapes in now for shape in shapes}
        before = {shape for _, shapes in was for shape in shapes}
        return (
            (_group(inside & before), UPDATE),
            (_group(inside - before), INSERT),
            (_group(before - inside), DELETE),
        )

    def _find_routes(self, row: Row) -> list[Route]:
        """To whom a row belongs; the same list for rows alike."""
        columns = self._columns
        if len(columns) > _COLUMNS_MAX:
            return _group(self._index.matches(row))
        alike = tuple([row.get(name) for name in columns]) if columns else ()
        routes = self._routes.get(alike)
        if routes is None:
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            routes = self._routes[alike] = _group(self._index.matches(row))
        return routes


def _group(shapes: Iterable[Shape]) -> list[Route]:
    by_form: dict[MessageForm, list[Shape]] = {}
    for shape in shapes:
        by_form.setdefault(shape.form, []).append(shape)
    return list(by_form.items())


def _as_last(entry: Entry, offset: Offset) -> Entry:
    """The same entry as the last one of its transaction."""
    body = entry.json.removesuffix(ending(offset, is_last=False))
    return entry._replace(json=body + ending(offset, is_last=True))
