"""Routes the changes of a topic to the shapes that they concern, as entries of their logs.

Invariant  a shape gets the changes of a row exactly while its filter matches: an insert when it
           starts to match, updates, and a delete when it stops. If the previous row is uncertain, a
           row that matches is sent as an insert and one that does not as a delete; both are
           harmless to a client that has the row right. The last entry of a transaction for a shape
           says so.
Threads    one at a time, under the topic's lock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from varve.shapes.feed.changes import Change, Transaction
from varve.shapes.feed.row import name_prefix
from varve.shapes.filter.filter_index import FilterIndex
from varve.shapes.kernels.row_texts import find_values
from varve.shapes.messages import MessageEncoder, without_last
from varve.shapes.offset import BEFORE_ALL
from varve.shapes.shape import Shape
from varve.shapes.storage.log_writer import ShapeEntry

EntriesByShape = defaultdict[Shape, list[ShapeEntry]]
Recipients = tuple[MessageEncoder, list[Shape]]
"""An encoder, and the shapes that get its messages."""
RoutedChange = tuple[Change, list[Recipients]]
"""A change as some shapes see it: an insert has no row before it, a delete none after it."""

_CACHE_ENTRIES_MAX: Final = 1 << 16
_CACHED_VALUES_BYTES_MAX: Final = 1 << 10
"""Rows with more bytes in the columns of filters are not cached."""
_NONE: Final[list[Recipients]] = []


class ChangeRouter:
    """The shapes of one topic by their filters.

    Rows with equal values in the columns of all filters have the same recipients; these are cached.
    """

    def __init__(self) -> None:
        self._index: FilterIndex[Shape] = FilterIndex()
        self._shapes: set[Shape] = set()
        self._column_counts: Counter[str] = Counter()
        self._columns: tuple[str, ...] = ()
        self._names: list[bytes] = []
        self._cache: dict[tuple[bytes | None, ...], list[Recipients]] = {}
        self._start_max = BEFORE_ALL

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, shape: Shape) -> None:
        """The shape gets changes above its `start` from now on."""
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
                # A topic that is created again counts from the beginning.
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
        self._cache.clear()

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def route(self, transactions: Sequence[Transaction], entries_by_shape: EntriesByShape) -> None:
        """Appends the entries of transactions to those of each shape."""
        changes = [change for transaction in transactions for change in transaction[0]]
        is_single = len(changes) == len(transactions)
        if is_single and not self._columns and not self._needs_checks(changes):
            self._route_to_all(changes, entries_by_shape)
            return
        encoded = _encode(self._split_changes(changes))
        if is_single:
            for entry, shapes in encoded:
                for shape in shapes:
                    entries_by_shape[shape].append(entry)
        else:
            for _, transaction in groupby(encoded, key=lambda pair: pair[0].offset.tx):
                _append_transaction(transaction, entries_by_shape)

    def _route_to_all(self, changes: list[Change], entries_by_shape: EntriesByShape) -> None:
        """Routes each change to all shapes, which have no filters."""
        for encoder, shapes in self._recipients(()):
            entries = [entry for entry in encoder.entries(changes) if entry is not None]
            for shape in shapes if entries else ():
                entries_by_shape[shape] += entries

    def _needs_checks(self, changes: Sequence[Change]) -> bool:
        """Whether rows are uncertain, or in the snapshots of some shapes."""
        is_in_snapshot = bool(changes) and changes[0].offset <= self._start_max
        return is_in_snapshot or True in [change.is_uncertain for change in changes]

    def _split_changes(self, changes: list[Change]) -> list[RoutedChange]:
        """Each change as the shapes that it concerns see it, in order."""
        after = self._recipients_of_rows([change[2] for change in changes])
        before = self._recipients_of_rows([change[3] for change in changes])
        needs_checks = self._needs_checks(changes)
        routed: list[RoutedChange] = []
        for change, now, earlier in zip(changes, after, before, strict=True):
            _, _, text, previous, _ = change
            if needs_checks:
                routed += self._split_checked(change, now, earlier)
            elif text is None:
                routed.append((change, earlier))
            elif previous is None or now is earlier or now == earlier:
                routed.append((change, now))
            else:
                routed += _split(change, _shapes_of(now), _shapes_of(earlier))
        return routed

    def _split_checked(
        self, change: Change, now: list[Recipients], earlier: list[Recipients]
    ) -> list[RoutedChange]:
        """The same for a change that is uncertain, or in the snapshots of some shapes."""
        inside, before = _shapes_of(now), _shapes_of(earlier)
        if change.is_uncertain:
            change = change._replace(previous_text=None)
            before = self._shapes - inside
        unaware = {shape for shape in inside | before if change.offset > shape.start}
        return _split(change, inside & unaware, before & unaware)

    def _recipients_of_rows(self, texts: list[bytes | None]) -> list[list[Recipients]]:
        """The shapes that each row matches; none if there is no row."""
        if not self._columns:
            all_shapes = self._recipients(())
            return [_NONE if text is None else all_shapes for text in texts]
        present = [text for text in texts if text is not None]
        recipients = map(self._recipients, find_values(present, self._names))
        return [_NONE if text is None else next(recipients) for text in texts]

    def _recipients(self, values: tuple[bytes | None, ...]) -> list[Recipients]:
        """The shapes that rows with these values match; usually the same list each time."""
        recipients = self._cache.get(values)
        if recipients is None:
            if len(self._cache) >= _CACHE_ENTRIES_MAX:
                self._cache.clear()
            pairs = zip(self._columns, values, strict=True)
            row = {name: text for name, text in pairs if text is not None}
            recipients = _group(self._index.matches(row))
            if sum(map(len, row.values())) <= _CACHED_VALUES_BYTES_MAX:
                self._cache[values] = recipients
        return recipients


def _split(change: Change, inside: set[Shape], before: set[Shape]) -> list[RoutedChange]:
    """A change as seen by shapes that match the row after it, and those that did before it."""
    insert, delete = change._replace(previous_text=None), change._replace(text=None)
    routed = [
        (change, _group(inside & before)),
        (insert, _group(inside - before)),
        (delete, _group(before - inside)),
    ]
    return [pair for pair in routed if pair[1]]


def _shapes_of(recipients: Iterable[Recipients]) -> set[Shape]:
    return {shape for _, shapes in recipients for shape in shapes}


def _encode(routed: Sequence[RoutedChange]) -> list[tuple[ShapeEntry, list[Shape]]]:
    """The entries of changes, in order, with the shapes that get them; one call per encoder."""
    by_encoder: dict[MessageEncoder, list[Change]] = {}
    for change, recipients in routed:
        for encoder, _ in recipients:
            if encoder in by_encoder:
                by_encoder[encoder].append(change)
            else:
                by_encoder[encoder] = [change]
    entries = {encoder: iter(encoder.entries(changes)) for encoder, changes in by_encoder.items()}
    return [
        (entry, shapes)
        for _, recipients in routed
        for encoder, shapes in recipients
        if (entry := next(entries[encoder])) is not None
    ]


def _append_transaction(
    encoded: Iterable[tuple[ShapeEntry, list[Shape]]], entries_by_shape: EntriesByShape
) -> None:
    """Appends the entries of one transaction; only the last one of each shape says that it is."""
    last: dict[Shape, ShapeEntry] = {}
    for entry, shapes in encoded:
        other = entry._replace(json=without_last(entry.json))
        for shape in shapes:
            entries_by_shape[shape].append(other)
            last[shape] = entry
    for shape, entry in last.items():
        entries_by_shape[shape][-1] = entry


def _group(shapes: Iterable[Shape]) -> list[Recipients]:
    by_encoder: dict[MessageEncoder, list[Shape]] = {}
    for shape in shapes:
        by_encoder.setdefault(shape.encoder, []).append(shape)
    return list(by_encoder.items())
