"""Changes of a topic become entries of the shapes that they concern.

Invariant  a shape is told of a row exactly while its filter holds it: what comes in is an insert,
           what changes an update, what goes a delete, and nothing else. Where the previous row is
           uncertain, a row that is in is told whole and one that is not is deleted; both do no harm
           to who knows better. The last entry of a transaction for a shape says so.
Threads    one at a time, under the lock of the topic's shapes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from varve.kernels.row_texts import find_values
from varve.shapes.feed.change import Change, Transaction
from varve.shapes.feed.row import name_prefix
from varve.shapes.messages import MessageForm, without_last
from varve.shapes.offset import BEFORE_ALL
from varve.shapes.query.filter_index import FilterIndex
from varve.shapes.shape import Shape
from varve.shapes.storage.entry import Entry

Outbox = defaultdict[Shape, list[Entry]]
Route = tuple[MessageForm, list[Shape]]
"""A way in which a row is told, and the shapes that it is told to so."""
Part = tuple[Change, list[Route]]
"""A change as what it is to some shapes: without a row before it comes in, without one after it
goes."""

_ROUTES_MAX: Final = 1 << 16
_VALUES_BYTES_MAX: Final = 1 << 10
"""Rows with more than this in the columns that filters look at are looked up each time."""
_NOBODY: Final[list[Route]] = []


class Distribution:
    """Who gets what of one topic: its shapes by their filters.

    Rows alike in the columns that filters look at have the same routes, which are remembered.
    """

    def __init__(self) -> None:
        self._index: FilterIndex[Shape] = FilterIndex()
        self._shapes: set[Shape] = set()
        self._column_counts: Counter[str] = Counter()
        self._columns: tuple[str, ...] = ()
        self._names: list[bytes] = []
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
            if not self._shapes:
                # A topic made anew counts from the beginning.
                self._start_max = BEFORE_ALL

    def _count_columns(self, shape: Shape, count: int) -> None:
        where = shape.definition.where
        for name in () if where is None else where.columns:
            self._column_counts[name] += count
            if not self._column_counts[name]:
                del self._column_counts[name]
        if len(self._columns) != len(self._column_counts):
            self._columns = tuple(self._column_counts)
            self._names = [name_prefix(name) for name in self._columns]
        self._routes.clear()

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def tell(self, transactions: Sequence[Transaction], outbox: Outbox) -> None:
        """Puts the entries of transactions behind those that are in the outbox."""
        changes = [change for one in transactions for change in one[0]]
        is_single = len(changes) == len(transactions)
        if is_single and not self._columns and not self._is_rare(changes):
            self._tell_all(changes, outbox)
            return
        told = _tell(self._parts(changes))
        if is_single:
            for entry, shapes in told:
                for shape in shapes:
                    outbox[shape].append(entry)
        else:
            for _, together in groupby(told, key=lambda one: one[0].offset.tx):
                _put_together(together, outbox)

    def _tell_all(self, changes: list[Change], outbox: Outbox) -> None:
        """Tells everybody of each change: the same as `_tell`, for shapes without filters."""
        for form, shapes in self._find_routes(()):
            entries = [entry for entry in form.entries(changes) if entry is not None]
            for shape in shapes if entries else ():
                outbox[shape] += entries

    def _is_rare(self, changes: Sequence[Change]) -> bool:
        """Whether rows are uncertain, or stand in the snapshots of some shapes."""
        is_seen = bool(changes) and changes[0].offset <= self._start_max
        return is_seen or True in [change.is_uncertain for change in changes]

    def _parts(self, changes: list[Change]) -> list[Part]:
        """Each change as what it is to the shapes that it concerns, in order."""
        now = self._routes_of([change[2] for change in changes])
        was = self._routes_of([change[3] for change in changes])
        is_rare = self._is_rare(changes)
        parts: list[Part] = []
        for change, routes, others in zip(changes, now, was, strict=True):
            _, _, text, previous, _ = change
            if is_rare:
                parts += self._rare_parts(change, routes, others)
            elif text is None:
                parts.append((change, others))
            elif previous is None or routes is others or routes == others:
                parts.append((change, routes))
            else:
                parts += _split(change, _shapes_of(routes), _shapes_of(others))
        return parts

    def _rare_parts(self, change: Change, now: list[Route], was: list[Route]) -> list[Part]:
        """The same where that is not sure."""
        inside, before = _shapes_of(now), _shapes_of(was)
        if change.is_uncertain:
            change = change._replace(previous_text=None)
            before = self._shapes - inside
        fresh = {shape for shape in inside | before if change.offset > shape.start}
        return _split(change, inside & fresh, before & fresh)

    def _routes_of(self, texts: list[bytes | None]) -> list[list[Route]]:
        """To whom each of the rows belongs; to nobody where there is none."""
        if not self._columns:
            everybody = self._find_routes(())
            return [_NOBODY if text is None else everybody for text in texts]
        present = [text for text in texts if text is not None]
        found = map(self._find_routes, find_values(present, self._names))
        return [_NOBODY if text is None else next(found) for text in texts]

    def _find_routes(self, values: tuple[bytes | None, ...]) -> list[Route]:
        """To whom rows belong that have these values; most often the same list each time."""
        routes = self._routes.get(values)
        if routes is None:
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            pairs = zip(self._columns, values, strict=True)
            row = {name: text for name, text in pairs if text is not None}
            routes = _group(self._index.matches(row))
            if sum(map(len, row.values())) <= _VALUES_BYTES_MAX:
                self._routes[values] = routes
        return routes


def _split(change: Change, inside: set[Shape], before: set[Shape]) -> list[Part]:
    """A change to those who hold the row after it, and those who hold the row before it."""
    came, went = change._replace(previous_text=None), change._replace(text=None)
    parts = [
        (change, _group(inside & before)),
        (came, _group(inside - before)),
        (went, _group(before - inside)),
    ]
    return [part for part in parts if part[1]]


def _shapes_of(routes: Iterable[Route]) -> set[Shape]:
    return {shape for _, shapes in routes for shape in shapes}


def _tell(parts: Sequence[Part]) -> list[tuple[Entry, list[Shape]]]:
    """The entries of changes, in order, with those who get them; a form makes its own at once."""
    by_form: dict[MessageForm, list[Change]] = {}
    for change, routes in parts:
        for form, _ in routes:
            if form in by_form:
                by_form[form].append(change)
            else:
                by_form[form] = [change]
    made = {form: iter(form.entries(changes)) for form, changes in by_form.items()}
    return [
        (entry, shapes)
        for _, routes in parts
        for form, shapes in routes
        if (entry := next(made[form])) is not None
    ]


def _put_together(told: Iterable[tuple[Entry, list[Shape]]], outbox: Outbox) -> None:
    """Puts the entries of one transaction, of which the last one for each shape says so."""
    last: dict[Shape, Entry] = {}
    for entry, shapes in told:
        other = entry._replace(json=without_last(entry.json))
        for shape in shapes:
            outbox[shape].append(other)
            last[shape] = entry
    for shape, entry in last.items():
        outbox[shape][-1] = entry


def _group(shapes: Iterable[Shape]) -> list[Route]:
    by_form: dict[MessageForm, list[Shape]] = {}
    for shape in shapes:
        by_form.setdefault(shape.form, []).append(shape)
    return list(by_form.items())
