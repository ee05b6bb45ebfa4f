"""Turns ordered records into changes: each row with the one before it.

Invariant  a change's previous row is that of the last record of its key before it, or the change is
           uncertain and says so. See `doubts`.
Threads    one.
"""

import operator
from collections.abc import Sequence
from functools import partial
from itertools import repeat, takewhile
from typing import Final, NamedTuple

from varve.kernels.row_texts import has_reordered
from varve.shapes.feed.change import Change, Transaction
from varve.shapes.feed.counts import FeedCounts
from varve.shapes.feed.decoder import Decoded, RecordKind, complete, transaction_ids
from varve.shapes.feed.doubts import Doubts
from varve.shapes.feed.journal import Range
from varve.shapes.feed.order import Taken
from varve.shapes.feed.partition_buffer import Entry
from varve.shapes.feed.reset import Reset, ResetKind
from varve.shapes.feed.row import get_row
from varve.shapes.feed.row_key import RowKey, RowKeys
from varve.shapes.feed.table import TopicTable
from varve.shapes.offset import Offset

_OP_STRIDE: Final = 2
_DECODED: Final = operator.itemgetter(3)
_SIZE: Final = operator.itemgetter(2)
_TEXT: Final = operator.itemgetter(2)
_UNAVAILABLE: Final = operator.itemgetter(3)
# Tuples are made without the detour by their classes, for many are.
_NEW_OFFSET: Final = partial(tuple.__new__, Offset)
_NEW_CHANGE: Final = partial(tuple.__new__, Change)
_NEW_TRANSACTION: Final = partial(tuple.__new__, Transaction)
_DELETE: Final = RecordKind.DELETE
_RESETS: Final = (RecordKind.TRUNCATE, RecordKind.SCHEMA_CHANGE)


class Made(NamedTuple):
    """The transactions of a range, and the part of it that they are of.

    That ends behind a record for which shapes start anew, and its source transaction, else where
    the range ends.
    """

    transactions: list[Transaction]
    done: Range


class _Compared(NamedTuple):
    """Changes, the rows that changed by key, and the bytes of their records."""

    changes: list[Change]
    rows: dict[str, bytes | None]
    size: int


class ChangeMaker:
    """Makes changes and advances the table by them."""

    def __init__(
        self,
        table: TopicTable,
        counts: FeedCounts,
        doubts: Doubts,
        *,
        prefix: str,
        is_grouped: bool,
    ) -> None:
        """With `is_grouped` the records of a source transaction become one transaction."""
        self._table = table
        self._counts = counts
        self._doubts = doubts
        self._keys = RowKeys(prefix)
        self._is_grouped = is_grouped
        self._deletions: dict[int, Change | None] = {}
        """What the last record of each partition took away."""

    def make(self, taken: Taken) -> Made:
        """Changes of a range, in order; the table has them when it returns."""
        kinds = [one[3].kind for one in taken.entries]
        if max(kinds, default=_DELETE) > _DELETE:
            stop = min((kinds.index(kind) for kind in _RESETS if kind in kinds), default=None)
            if stop is not None:
                return self._make_up_to_reset(taken, stop)
        return Made(self._advance(taken), taken.range)

    def _advance(self, taken: Taken) -> list[Transaction]:
        """Transactions of entries, none of which is a reset; the table has them."""
        transactions, changed, size = self._make_changes(taken)
        position = Offset(taken.range.next_tx - 1, 0)
        self._table.apply(changed, position=position, byte_count=size)
        return transactions

    def _make_up_to_reset(self, taken: Taken, stop: int) -> Made:
        """Goes on to the end of the reset's source transaction: shapes begin with all of it."""
        entries, kinds = taken.entries, [one[3].kind for one in taken.entries]
        end = stop + (_transaction_size(entries[stop:]) if self._is_grouped else 1)
        resets = [at for at in range(stop, end) if kinds[at] in _RESETS]
        done = taken.range._replace(end=entries[stop][0])
        transactions = self._advance(Taken(done, entries[:stop]))
        for at, until in zip(resets, [*resets[1:], end], strict=True):
            position = Offset(taken.range.first_tx + entries[at][0] - taken.range.start, 0)
            is_cleared = kinds[at] is RecordKind.TRUNCATE
            self._table.apply({}, position=position, byte_count=0, is_cleared=is_cleared)
            done = Range(done.partition, done.end, entries[until - 1][0] + 1, done.next_tx)
            self._advance(Taken(done, entries[at + 1 : until]))
        self._counts.records += len(resets)
        self._counts.resets += 1
        is_truncated = RecordKind.TRUNCATE in kinds[stop:end]
        where = f"partition {done.partition} says at offset {entries[stop][0]}"
        return Made([*transactions, Transaction([], _tell_reset(is_truncated, where))], done)

    def _make_changes(self, taken: Taken) -> tuple[list[Transaction], dict[str, bytes | None], int]:
        """Transactions, the rows that changed by key, and the bytes of their records."""
        entries = [one for one in taken.entries if one[3][0] <= _DELETE]
        keys = self._keys.get_all([one[3][1] for one in entries])
        # Whatever fails does so before doubts move on: what was not made is made again.
        rows = self._table.find_rows([key[0] for key in keys])
        judged = self._judge(taken, keys)
        shift = taken.range.first_tx - taken.range.start
        before = self._deletions.get(taken.range.partition)
        found = None if judged is not None else _find_plain(entries, keys, rows, shift)
        if found is None:
            found = _compare(entries, keys, rows, judged, shift, before)
        if keys:
            deletion = _find_deletion(found.changes, before, keys[-1])
            self._deletions[taken.range.partition] = deletion
        self._count(taken.entries, entries, len(found.changes), judged)
        if self._is_grouped:
            return _group(found.changes, entries, shift), found.rows, found.size
        alone = zip([[one] for one in found.changes], repeat(None))
        return list(map(_NEW_TRANSACTION, alone)), found.rows, found.size

    def _judge(self, taken: Taken, keys: Sequence[RowKey]) -> list[bool] | None:
        """For each record of a row whether what was before is uncertain; None where it never is."""
        if not self._doubts.concern(taken.range.partition):
            return None
        texts = iter([key.text for key in keys])
        is_row = [one[3].kind <= _DELETE for one in taken.entries]
        judged = self._doubts.judge(taken, [next(texts) if one else "" for one in is_row])
        return [is_uncertain for one, is_uncertain in zip(is_row, judged, strict=True) if one]

    def _count(
        self,
        entries: Sequence[Entry],
        of_rows: Sequence[Entry],
        changes: int,
        judged: list[bool] | None,
    ) -> None:
        counts = self._counts
        others = len(entries) - len(of_rows)
        skipped = sum([one[3].kind is RecordKind.SKIPPED for one in entries]) if others else 0
        counts.records += len(entries)
        counts.changes += changes
        counts.skipped += skipped
        counts.nothing += others - skipped
        counts.unchanged += len(of_rows) - changes
        counts.uncertain += 0 if judged is None else sum(judged)


def _find_plain(
    entries: Sequence[Entry], keys: Sequence[RowKey], rows: dict[str, bytes | None], shift: int
) -> _Compared | None:
    """What `_compare` gives where each record has its whole row and changes it, else None.

    Most records are so, and every record passes here: what can be is done by one call for all.
    """
    if any(map(_UNAVAILABLE, map(_DECODED, entries))):
        return None
    texts = list(map(_TEXT, map(_DECODED, entries)))
    current, previous = dict(rows), []
    for key, text in zip(keys, texts, strict=True):
        name = key[0]
        previous.append(current[name])
        current[name] = text
    if any(map(operator.eq, texts, previous)):
        return None
    offsets = map(_NEW_OFFSET, zip([one[0] + shift for one in entries], repeat(0)))
    parts = zip(offsets, keys, texts, previous, repeat(False))
    changes: list[Change] = list(map(_NEW_CHANGE, parts))
    if has_reordered(changes):
        return None
    return _Compared(changes, current, sum(map(_SIZE, entries)))


def _compare(
    entries: Sequence[Entry],
    keys: Sequence[RowKey],
    rows: dict[str, bytes | None],
    judged: list[bool] | None,
    shift: int,
    before: Change | None,
) -> _Compared:
    """Each record against the row that was there before it; `before` is a deletion.

    `rows` are those before the first record, and are changed.
    """
    changed: dict[str, bytes | None] = {}
    changes: list[Change] = []
    size = 0
    for number, ((at, _, record_size, decoded), key) in enumerate(zip(entries, keys, strict=True)):
        previous, row = rows[key.text], decoded.text
        if decoded.unavailable:
            deleted = _find_deletion(changes, before, keys[number - 1]) if number else before
            row = _complete(decoded, previous, deleted)
        is_uncertain = judged is not None and judged[number]
        if _is_same_row(row, previous) and not is_uncertain:
            continue
        rows[key.text] = changed[key.text] = row
        size += record_size
        changes.append(Change(Offset(at + shift, 0), key, row, previous, is_uncertain))
    return _Compared(changes, changed, size)


def _transaction_size(entries: Sequence[Entry]) -> int:
    """How many entries are of the first one's source transaction."""
    first, *ids = transaction_ids([one[3] for one in entries])
    return 1 + len(list(takewhile(lambda one: one is not None and one == first, ids)))


def _tell_reset(is_truncated: bool, where: str) -> Reset:
    if is_truncated:
        return Reset(ResetKind.TRUNCATED, f"the source was truncated, {where}")
    return Reset(ResetKind.SCHEMA_CHANGED, f"the source has another schema, {where}")


def _find_deletion(changes: Sequence[Change], before: Change | None, key: RowKey) -> Change | None:
    """The last change, where it took away the row of this key; `before` stands before them."""
    last = changes[-1] if changes else before
    is_found = last is not None and last.text is None and last.key == key.text
    return last if is_found else None


def _complete(decoded: Decoded, previous: bytes | None, deleted: Change | None) -> bytes | None:
    """The row with what the source left out, which for a moved one the row deleted before has."""
    if decoded.kind is RecordKind.MOVE and previous is None and deleted is not None:
        return complete(decoded, deleted.previous_text)
    return complete(decoded, previous)


def _is_same_row(row: bytes | None, previous: bytes | None) -> bool:
    """Whether two rows have the same columns with the same values, in whatever order."""
    if row is None or previous is None:
        return row is previous
    return row == previous or get_row(row) == get_row(previous)


def _group(changes: Sequence[Change], entries: Sequence[Entry], shift: int) -> list[Transaction]:
    """Gives the records of a source transaction, which stand together, one transaction.

    Operations count offsets: a record does not come to stand before its place if compaction takes
    away others, or clients would be ahead of shapes.
    """
    places: dict[int, Offset] = {}
    last: str | None = None
    first = 0
    ids = transaction_ids([one[3] for one in entries])
    for (at, _, _, _), found in zip(entries, ids, strict=True):
        if found is None or found != last:
            first = at
        places[at + shift] = Offset(first + shift, (at - first) * _OP_STRIDE)
        last = found
    transactions: list[Transaction] = []
    for change in changes:
        moved = change._replace(offset=places[change.offset.tx])
        if transactions and transactions[-1].changes[-1].offset.tx == moved.offset.tx:
            transactions[-1].changes.append(moved)
        else:
            transactions.append(Transaction([moved]))
    return transactions
