"""Changes of a topic become entries of the shapes that they concern.

Invariant  a shape is told of a row exactly while its filter holds it: what comes in is an insert,
           what changes an update, what goes a delete, and nothing else. Where the previous row is
           uncertain, a row that is in is told whole and one that is not is deleted; both do no harm
           to who knows better. The last entry of a transaction for a shape says so.
Threads    one at a time, under the lock of the topic's shapes.
"""

from collections.abc import Collection, Iterable

from varve.shapes.feed.change import Change, Transaction
from varve.shapes.messages import DELETE, INSERT, UPDATE, MessageForm, ending, message_key
from varve.shapes.offset import BEFORE_ALL, Offset
from varve.shapes.query.filter_index import FilterIndex
from varve.shapes.shape import Shape
from varve.shapes.storage.entry import Entry

Outbox = dict[Shape, list[Entry]]


class _Told:
    """A change as one form tells it; the entry of a transaction's last is made once for all."""

    __slots__ = ("_body", "_key", "_last", "_offset", "_operation")

    def __init__(self, offset: Offset, key: bytes, operation: int, body: bytes) -> None:
        self._offset = offset
        self._key = key
        self._operation = operation
        self._body = body
        self._last: Entry | None = None

    def entry(self, *, is_last: bool) -> Entry:
        if is_last and self._last is not None:
            return self._last
        json = self._body + ending(self._offset, is_last=is_last)
        made = Entry(self._offset, self._key, self._operation, json)
        if is_last:
            self._last = made
        return made


class Distribution:
    """Who gets what of one topic: its shapes by their filters."""

    def __init__(self) -> None:
        self._index: FilterIndex[Shape] = FilterIndex()
        self._shapes: set[Shape] = set()
        self._start_max = BEFORE_ALL

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, shape: Shape) -> None:
        """From now on the shape is told of changes above its `start`."""
        self._index.add(shape, shape.definition.where)
        self._shapes.add(shape)
        self._start_max = max(self._start_max, shape.start)

    def remove(self, shape: Shape) -> None:
        if shape in self._shapes:
            self._shapes.remove(shape)
            self._index.remove(shape)

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def tell(self, transaction: Transaction, outbox: Outbox) -> None:
        """Puts the entries of one transaction behind those that are in the outbox."""
        waiting: dict[Shape, _Told] = {}
        for change in transaction.changes:
            for shape, told in self._told(change):
                earlier = waiting.get(shape)
                if earlier is not None:
                    outbox.setdefault(shape, []).append(earlier.entry(is_last=False))
                waiting[shape] = told
        for shape, told in waiting.items():
            entries = outbox.get(shape)
            if entries is None:
                outbox[shape] = [told.entry(is_last=True)]
            else:
                entries.append(told.entry(is_last=True))

    def _told(self, change: Change) -> Iterable[tuple[Shape, _Told]]:
        row, previous = change.row, change.previous
        now: Collection[Shape] = () if row is None else self._index.matches(row)
        if change.is_uncertain:
            gone = self._shapes.difference(now)
            return self._tellings(change, ((now, INSERT), (gone, DELETE)))
        was: Collection[Shape] = () if previous is None else self._index.matches(previous)
        if not was:
            return self._tellings(change, ((now, INSERT),))
        if not now:
            return self._tellings(change, ((was, DELETE),))
        if now == was:
            return self._tellings(change, ((now, UPDATE),))
        inside, before = set(now), set(was)
        return self._tellings(
            change,
            (
                (inside & before, UPDATE),
                (inside - before, INSERT),
                (before - inside, DELETE),
            ),
        )

    def _tellings(
        self, change: Change, groups: Iterable[tuple[Collection[Shape], int]]
    ) -> list[tuple[Shape, _Told]]:
        told: list[tuple[Shape, _Told]] = []
        is_late = change.offset > self._start_max
        key = None
        for shapes, operation in groups:
            by_form: dict[MessageForm, _Told | None] = {}
            for shape in shapes:
                if not is_late and change.offset <= shape.start:
                    continue
                form = shape.form
                if form in by_form:
                    made = by_form[form]
                else:
                    if key is None:
                        key = message_key(change.key)
                    made = by_form[form] = _tell(change, operation, form, key)
                if made is not None:
                    told.append((shape, made))
        return told


def _tell(change: Change, operation: int, form: MessageForm, key: bytes) -> _Told | None:
    row, previous = change.row, change.previous
    body: bytes | None
    if operation == UPDATE:
        assert row is not None
        assert previous is not None
        body = form.update(key, row, previous, change.key_columns)
    elif operation == INSERT:
        assert row is not None
        body = form.insert(key, row, change.key_columns)
    else:
        known = None if change.is_uncertain else previous
        body = form.delete(key, known, change.key_columns)
    if body is None:
        return None
    return _Told(change.offset, change.key.encode(errors="surrogatepass"), operation, body)
