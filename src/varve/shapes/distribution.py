"""Changes of a topic become entries of the shapes that they concern.

Invariant  a shape is told of a row exactly while its filter holds it: what comes in is an insert,
           what changes an update, what goes a delete, and nothing else. Where the previous row is
           uncertain, a row that is in is told whole and one that is not is deleted; both do no harm
           to who knows better. The last entry of a transaction for a shape says so.
Threads    one at a time, under the lock of the topic's shapes.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from varve.shapes.feed.change import Change, Transaction
from varve.shapes.feed.row import Row
from varve.shapes.messages import DELETE, INSERT, UPDATE, MessageForm, ending, message_key
from varve.shapes.offset import BEFORE_ALL, Offset
from varve.shapes.query.filter_index import FilterIndex
from varve.shapes.shape import Shape
from varve.shapes.storage.entry import Entry

Outbox = dict[Shape, list[Entry]]


class Distribution:
    """Who gets what of one topic: its shapes by their filters."""

    def __init__(self) -> None:
        self._index: FilterIndex[Shape] = FilterIndex()
        self._shapes: set[Shape] = set()
        self._columns: Counter[str] = Counter()
        self._start_max = BEFORE_ALL

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, shape: Shape) -> None:
        """From now on the shape is told of changes above its `start`."""
        where = shape.definition.where
        self._index.add(shape, where)
        self._shapes.add(shape)
        self._columns.update(() if where is None else where.columns)
        self._start_max = max(self._start_max, shape.start)

    def remove(self, shape: Shape) -> None:
        if shape not in self._shapes:
            return
        where = shape.definition.where
        self._shapes.remove(shape)
        self._index.remove(shape)
        self._columns -= Counter(() if where is None else where.columns)

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def tell(self, transaction: Transaction, outbox: Outbox) -> None:
        """Puts the entries of one transaction behind those that are in the outbox."""
        changes = transaction.changes
        if len(changes) == 1:
            for shapes, entry in self._entries(changes[0], is_last=True):
                for shape in shapes:
                    entries = outbox.get(shape)
                    if entries is None:
                        outbox[shape] = [entry]
                    else:
                        entries.append(entry)
            return
        last: dict[Shape, Change] = {}
        for change in changes:
            for shapes, entry in self._entries(change, is_last=False):
                for shape in shapes:
                    outbox.setdefault(shape, []).append(entry)
                    last[shape] = change
        for shape, change in last.items():
            outbox[shape][-1] = _as_last(outbox[shape][-1], change.offset)

    def _entries(self, change: Change, *, is_last: bool) -> list[tuple[list[Shape], Entry]]:
        """The change as it is told, each way with the shapes that it goes to."""
        made: list[tuple[list[Shape], Entry]] = []
        is_after_starts = change.offset > self._start_max
        key = None
        for shapes, operation in self._groups(change):
            by_form: dict[MessageForm, list[Shape]] = {}
            for shape in shapes:
                if is_after_starts or change.offset > shape.start:
                    if shape.form in by_form:
                        by_form[shape.form].append(shape)
                    else:
                        by_form[shape.form] = [shape]
            for form, told in by_form.items():
                if key is None:
                    key = message_key(change.key)
                body = _body(change, operation, form, key)
                if body is not None:
                    json = body + ending(change.offset, is_last=is_last)
                    made.append((told, Entry(change.offset, change.key.encode(), operation, json)))
        return made

    def _groups(self, change: Change) -> Sequence[tuple[Collection[Shape], int]]:
        """The shapes that the change concerns, by what it is to them."""
        row, previous = change.row, change.previous
        now: Collection[Shape] = () if row is None else self._index.matches(row)
        if change.is_uncertain:
            return (now, INSERT), (self._shapes.difference(now), DELETE)
        if previous is None:
            return ((now, INSERT),)
        if row is None:
            return ((self._index.matches(previous), DELETE),)
        if not self._is_filtered_anew(row, previous):
            return ((now, UPDATE),)
        was = self._index.matches(previous)
        if now == was:
            return ((now, UPDATE),)
        inside, before = set(now), set(was)
        return (
            (inside & before, UPDATE),
            (inside - before, INSERT),
            (before - inside, DELETE),
        )

    def _is_filtered_anew(self, row: Row, previous: Row) -> bool:
        """Whether a column changed that some filter looks at."""
        columns = self._columns
        if len(columns) > len(row) + len(previous):
            return True
        return any(row.get(name) != previous.get(name) for name in columns)


def _body(change: Change, operation: int, form: MessageForm, key: bytes) -> bytes | None:
    row, previous = change.row, change.previous
    if operation == UPDATE:
        assert row is not None
        assert previous is not None
        return form.update(key, row, previous, change.key_columns)
    if operation == INSERT:
        assert row is not None
        return form.insert(key, row, change.key_columns)
    return form.delete(key, None if change.is_uncertain else previous, change.key_columns)


def _as_last(entry: Entry, offset: Offset) -> Entry:
    """The same entry as the last one of its transaction."""
    body = entry.json.removesuffix(ending(offset, is_last=False))
    return entry._replace(json=body + ending(offset, is_last=True))
