"""Turns ordered records into changes: each row with its previous version.

A feed that is opened again reads records that shapes may have seen before: all before the end of
the log at that time, the horizon. Compaction leaves gaps among them. The records that superseded
the missing ones were in the log when the gap was read, so after a gap the first record of each key
is uncertain, up to the end of the log at the time of reading.

Invariant  offsets ascend from change to change, also across transactions, and are the same whenever
           the topic is read again. The previous row of a change is that of the last record of its
           key, or the change is flagged as uncertain. A change that was uncertain once is uncertain
           whenever it is read again: the state of the table has the gaps that its positions have
           passed, and keys are forgotten at the same offsets in each run.
Threads    one changes; any may read the counts.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat, takewhile
from typing import Final, NamedTuple

from varve.shapes.feed.decoders import Decoded, RecordKind, complete, transaction_ids
from varve.shapes.feed.journal import OffsetSpan
from varve.shapes.feed.order import Entry, SequencedRecords
from varve.shapes.feed.row import Row, RowKey, RowKeys, get_row
from varve.shapes.feed.table import TopicTable
from varve.shapes.feed.table_store import Reset, ResetKind
from varve.shapes.kernels.row_texts import has_reordered
from varve.shapes.offset import ShapeOffset
from varve.topics import TopicReader

_SEEN_BITS: Final = 18
_NO_GAP: Final = -1
_OP_STRIDE: Final = 2
_DECODED: Final = operator.itemgetter(3)
_SIZE: Final = operator.itemgetter(2)
_TEXT: Final = operator.itemgetter(2)
_UNAVAILABLE: Final = operator.itemgetter(3)
_NEW_OFFSET: Final = partial(tuple.__new__, ShapeOffset)
_DELETE: Final = RecordKind.DELETE
_RESETS: Final = (RecordKind.TRUNCATE, RecordKind.SCHEMA_CHANGE)


@dataclass(slots=True)
class FeedCounts:
    """Counts of records by result."""

    records: int = 0
    changes: int = 0
    unchanged: int = 0
    """Records that changed nothing: equal rows, and deletions of missing rows."""
    nothing: int = 0
    """Records that are not about a row."""
    skipped: int = 0
    """Records without a key, or of a form that the decoder does not know."""
    uncertain: int = 0
    """Changes whose previous row may differ from what shapes hold."""
    unfinished: int = 0
    """Source transactions that were passed on before their end was known."""
    resets: int = 0


class Change(NamedTuple):
    """One row before and after a record, as texts that begin with the key's columns.

    A tuple, because millions are created; kernels rely on the order of fields. `text` is None for
    a deleted row, `previous_text` for a row that did not exist. If `is_uncertain`, the previous row
    may be outdated: shapes may hold another one.
    """

    offset: ShapeOffset
    row_key: RowKey
    text: bytes | None
    previous_text: bytes | None
    is_uncertain: bool = False

    @property
    def key(self) -> str:
        return self.row_key.text

    @property
    def key_columns(self) -> Row:
        return get_row(self.row_key.columns)

    @property
    def row(self) -> Row | None:
        return None if self.text is None else get_row(self.text)

    @property
    def previous(self) -> Row | None:
        return None if self.previous_text is None else get_row(self.previous_text)


class Transaction(NamedTuple):
    """Changes that become visible together, or not at all.

    With a `reset` it has no changes: it is the reason to drop the shapes of the topic.
    """

    changes: list[Change]
    reset: Reset | None = None


@dataclass(slots=True)
class _UncertainPartition:
    """A partition: gaps matter before `horizon`, records are uncertain before `end`."""

    horizon: int
    end: int = 0
    gap_end: int = _NO_GAP
    block: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    """The last offset of each key, by its hash: keys may be of any size."""


class UncertainRows:
    """The gaps that one opening of a feed reads over, and the records that they make uncertain."""

    def __init__(
        self,
        reader: TopicReader,
        horizons: Mapping[int, int],
        uncertain_before: Mapping[int, int],
        positions: Mapping[int, int],
        *,
        seen_bits: int = _SEEN_BITS,
    ) -> None:
        """`uncertain_before` are the `ends` that the table has for these positions.

        About 2 ** `seen_bits` keys are remembered, by their hashes.
        """
        self._reader = reader
        self._parts = {number: _UncertainPartition(horizon) for number, horizon in horizons.items()}
        for number, part in self._parts.items():
            end = min(uncertain_before.get(number, 0), part.horizon)
            if end > positions[number]:
                part.end, part.gap_end = end, positions[number]
        # A power of two, so that with more partitions keys are forgotten at these offsets as well.
        self._seen_bits = max(0, seen_bits - max(0, len(horizons) - 1).bit_length())

    @property
    def ends(self) -> dict[int, int]:
        """The offset before which records are uncertain, for each partition with a gap."""
        return {n: part.end for n, part in self._parts.items() if part.gap_end != _NO_GAP}

    def applies_to(self, partition: int) -> bool:
        """Whether records of a partition may be uncertain."""
        return partition in self._parts

    def flag(self, records: SequencedRecords, keys: Sequence[str]) -> list[bool]:
        """Whether the previous row of each entry is uncertain; its partition `applies_to`.

        Entries that are not about a row have an empty key.
        """
        number, start, end, _ = records.span
        part = self._parts[number]
        if start < part.horizon and len(records.entries) < end - start:
            part.end = max(part.end, self._reader.offsets(number).end)
        uncertain = self._flag(part, records, keys)
        if end >= max(part.horizon, part.end):
            del self._parts[number]
        return uncertain

    def _flag(
        self, part: _UncertainPartition, records: SequencedRecords, keys: Sequence[str]
    ) -> list[bool]:
        expected, seen = records.span.start, part.seen
        uncertain = []
        for (offset, _, _, _), text in zip(records.entries, keys, strict=True):
            key = hash(text)
            if offset > expected:
                part.gap_end = offset
            expected = offset + 1
            if offset >> self._seen_bits != part.block:
                part.block = offset >> self._seen_bits
                seen.clear()
            uncertain.append(
                text != "" and seen.get(key, _NO_GAP) < part.gap_end <= offset < part.end
            )
            seen[key] = offset
        if records.span.end > expected:
            part.gap_end = records.span.end
        return uncertain


_NEW_CHANGE: Final = partial(tuple.__new__, Change)
_NEW_TRANSACTION: Final = partial(tuple.__new__, Transaction)


class ChangedSpan(NamedTuple):
    """The transactions of a range, and the part of the range that they cover.

    The part ends after a record that resets the shapes and its source transaction, or at the end
    of the range.
    """

    transactions: list[Transaction]
    done: OffsetSpan


class _ComparedRows(NamedTuple):
    """Changes, the rows that changed by key, and the bytes of their records."""

    changes: list[Change]
    rows: dict[str, bytes | None]
    size: int


class ChangeMaker:
    """Computes the changes of records, and applies them to the table."""

    def __init__(
        self,
        table: TopicTable,
        counts: FeedCounts,
        uncertain_rows: UncertainRows,
        *,
        prefix: str,
        is_grouped: bool,
    ) -> None:
        """With `is_grouped` the records of a source transaction become one transaction."""
        self._table = table
        self._counts = counts
        self._uncertain = uncertain_rows
        self._keys = RowKeys(prefix)
        self._is_grouped = is_grouped
        self._deletions: dict[int, Change | None] = {}
        """The deletion by the last record of each partition, if it was one."""

    def make(self, records: SequencedRecords) -> ChangedSpan:
        """The changes of a range, in order; the table has them on return."""
        kinds = [entry[3].kind for entry in records.entries]
        if max(kinds, default=_DELETE) > _DELETE:
            stop = min((kinds.index(kind) for kind in _RESETS if kind in kinds), default=None)
            if stop is not None:
                return self._make_up_to_reset(records, stop)
        return ChangedSpan(self._advance(records), records.span)

    def _advance(self, records: SequencedRecords) -> list[Transaction]:
        """The transactions of entries without a reset; the table has them on return."""
        transactions, changed, size = self._make_changes(records)
        position = ShapeOffset(records.span.next_tx - 1, 0)
        self._table.apply(changed, position=position, byte_count=size)
        return transactions

    def _make_up_to_reset(self, records: SequencedRecords, stop: int) -> ChangedSpan:
        """Continues to the end of the reset's source transaction: shapes begin with all of it."""
        entries, kinds = records.entries, [entry[3].kind for entry in records.entries]
        end = stop + (_transaction_size(entries[stop:]) if self._is_grouped else 1)
        resets = [at for at in range(stop, end) if kinds[at] in _RESETS]
        done = records.span._replace(end=entries[stop][0])
        transactions = self._advance(SequencedRecords(done, entries[:stop]))
        for at, until in zip(resets, [*resets[1:], end], strict=True):
            position = ShapeOffset(records.span.first_tx + entries[at][0] - records.span.start, 0)
            is_cleared = kinds[at] is RecordKind.TRUNCATE
            self._table.apply({}, position=position, byte_count=0, is_cleared=is_cleared)
            done = OffsetSpan(done.partition, done.end, entries[until - 1][0] + 1, done.next_tx)
            self._advance(SequencedRecords(done, entries[at + 1 : until]))
        self._counts.records += len(resets)
        self._counts.resets += 1
        is_truncated = RecordKind.TRUNCATE in kinds[stop:end]
        where = f"partition {done.partition} says at offset {entries[stop][0]}"
        return ChangedSpan([*transactions, Transaction([], _make_reset(is_truncated, where))], done)

    def _make_changes(
        self, records: SequencedRecords
    ) -> tuple[list[Transaction], dict[str, bytes | None], int]:
        """Transactions, the rows that changed by key, and the bytes of their records."""
        entries = [entry for entry in records.entries if entry[3][0] <= _DELETE]
        keys = self._keys.get_all([entry[3][1] for entry in entries])
        # Reads come first: if one fails, the uncertain rows are unchanged, and `make` is repeated.
        rows = self._table.find_rows([key[0] for key in keys])
        uncertain = self._flag(records, keys)
        shift = records.span.first_tx - records.span.start
        before = self._deletions.get(records.span.partition)
        compared = None if uncertain is not None else _find_plain(entries, keys, rows, shift)
        if compared is None:
            compared = _compare(entries, keys, rows, uncertain, shift, before)
        if keys:
            deletion = _find_deletion(compared.changes, before, keys[-1])
            self._deletions[records.span.partition] = deletion
        self._count(records.entries, entries, len(compared.changes), uncertain)
        if self._is_grouped:
            return _group(compared.changes, entries, shift), compared.rows, compared.size
        single_changes = zip([[change] for change in compared.changes], repeat(None))
        return list(map(_NEW_TRANSACTION, single_changes)), compared.rows, compared.size

    def _flag(self, records: SequencedRecords, keys: Sequence[RowKey]) -> list[bool] | None:
        """Whether the previous row of each record is uncertain; None if none ever is."""
        if not self._uncertain.applies_to(records.span.partition):
            return None
        texts = iter([key.text for key in keys])
        is_row = [entry[3].kind <= _DELETE for entry in records.entries]
        uncertain = self._uncertain.flag(
            records, [next(texts) if has_row else "" for has_row in is_row]
        )
        return [flag for has_row, flag in zip(is_row, uncertain, strict=True) if has_row]

    def _count(
        self,
        entries: Sequence[Entry],
        of_rows: Sequence[Entry],
        changes: int,
        uncertain: list[bool] | None,
    ) -> None:
        counts = self._counts
        others = len(entries) - len(of_rows)
        skipped = sum([entry[3].kind is RecordKind.SKIPPED for entry in entries]) if others else 0
        counts.records += len(entries)
        counts.changes += changes
        counts.skipped += skipped
        counts.nothing += others - skipped
        counts.unchanged += len(of_rows) - changes
        counts.uncertain += 0 if uncertain is None else sum(uncertain)


def _find_plain(
    entries: Sequence[Entry], keys: Sequence[RowKey], rows: dict[str, bytes | None], shift: int
) -> _ComparedRows | None:
    """The fast path of `_compare`: None unless each record has its whole row and changes it.

    Most records do.
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
    offsets = map(_NEW_OFFSET, zip([entry[0] + shift for entry in entries], repeat(0)))
    parts = zip(offsets, keys, texts, previous, repeat(False))
    changes: list[Change] = list(map(_NEW_CHANGE, parts))
    if has_reordered(changes):
        return None
    return _ComparedRows(changes, current, sum(map(_SIZE, entries)))


def _compare(
    entries: Sequence[Entry],
    keys: Sequence[RowKey],
    rows: dict[str, bytes | None],
    uncertain: list[bool] | None,
    shift: int,
    before: Change | None,
) -> _ComparedRows:
    """Compares each record with the previous row of its key.

    `rows` are those before the first record, and are updated. `before` is the deletion by the
    record before these, if it was one.
    """
    changed: dict[str, bytes | None] = {}
    changes: list[Change] = []
    size = 0
    for number, ((at, _, record_size, decoded), key) in enumerate(zip(entries, keys, strict=True)):
        previous, row = rows[key.text], decoded.text
        if decoded.unavailable:
            deleted = _find_deletion(changes, before, keys[number - 1]) if number else before
            row = _complete(decoded, previous, deleted)
        is_uncertain = uncertain is not None and uncertain[number]
        if _is_same_row(row, previous) and not is_uncertain:
            continue
        rows[key.text] = changed[key.text] = row
        size += record_size
        changes.append(Change(ShapeOffset(at + shift, 0), key, row, previous, is_uncertain))
    return _ComparedRows(changes, changed, size)


def _transaction_size(entries: Sequence[Entry]) -> int:
    """The number of entries that belong to the source transaction of the first."""
    first, *ids = transaction_ids([entry[3] for entry in entries])
    return 1 + len(list(takewhile(lambda name: name is not None and name == first, ids)))


def _make_reset(is_truncated: bool, where: str) -> Reset:
    if is_truncated:
        return Reset(ResetKind.TRUNCATED, f"the source was truncated, {where}")
    return Reset(ResetKind.SCHEMA_CHANGED, f"the source has another schema, {where}")


def _find_deletion(changes: Sequence[Change], before: Change | None, key: RowKey) -> Change | None:
    """The last change, if it deleted the row of this key; `before` precedes the changes."""
    last = changes[-1] if changes else before
    is_deletion = last is not None and last.text is None and last.key == key.text
    return last if is_deletion else None


def _complete(decoded: Decoded, previous: bytes | None, deleted: Change | None) -> bytes | None:
    """The row completed by the columns that the source left out; for a moved row they come from the
    row that was deleted before it."""
    if decoded.kind is RecordKind.MOVE and previous is None and deleted is not None:
        return complete(decoded, deleted.previous_text)
    return complete(decoded, previous)


def _is_same_row(row: bytes | None, previous: bytes | None) -> bool:
    """Whether two rows have the same columns with the same values, in any order."""
    if row is None or previous is None:
        return row is previous
    return row == previous or get_row(row) == get_row(previous)


def _group(changes: Sequence[Change], entries: Sequence[Entry], shift: int) -> list[Transaction]:
    """One transaction for the adjacent records of each source transaction.

    The operation number of a record follows from its offset, so that it does not change when
    compaction removes other records: clients would otherwise be ahead of shapes.
    """
    offsets: dict[int, ShapeOffset] = {}
    last: str | None = None
    first = 0
    ids = transaction_ids([entry[3] for entry in entries])
    for (at, _, _, _), id_ in zip(entries, ids, strict=True):
        if id_ is None or id_ != last:
            first = at
        offsets[at + shift] = ShapeOffset(first + shift, (at - first) * _OP_STRIDE)
        last = id_
    transactions: list[Transaction] = []
    for change in changes:
        moved = change._replace(offset=offsets[change.offset.tx])
        if transactions and transactions[-1].changes[-1].offset.tx == moved.offset.tx:
            transactions[-1].changes.append(moved)
        else:
            transactions.append(Transaction([moved]))
    return transactions
