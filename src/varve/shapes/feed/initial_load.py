"""The first load of a table: the latest record of each key of its topic.

Invariant  the last record of a key wins; a record that says nothing about a row changes nothing. A
           deleted row does not stay because the log removed the tombstone while the table was
           loaded: see `TableLoad.remove_deleted`. No source transaction lies across the end of a
           `TransactionAlignedScan`, unless it has more records than are kept together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, Protocol

from varve.shapes.feed.changes import FeedCounts
from varve.shapes.feed.decoders import Decoded, Decoder, Record, RecordKind, complete
from varve.shapes.feed.order import Entry, find_offsets, read_entries, read_records
from varve.shapes.feed.row import RowKeys
from varve.shapes.feed.source_transactions import RECORDS_MAX
from varve.shapes.feed.table_store import TableStore
from varve.topics import OffsetRange, TopicReader

_TAIL_OFFSETS: Final = 1_000
_TAIL_GROWTH: Final = 10


class InitialRows(Protocol):
    """The latest record of each key, which can be read once.

    Once all records were read, in their order, each key has the row that the records below
    `resume_offsets` give it; a later record of a key comes after an earlier one.
    """

    @property
    def how(self) -> str:
        """Where the records come from, for messages."""
        ...

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        """The offsets to continue at, by partition; known before the first record."""
        ...

    @property
    def taken_ms(self) -> int | None:
        """When the records were read, if that was earlier; None for those of the log itself."""
        ...

    def read(self) -> Iterator[Sequence[Record]]:
        """The records, some thousands at a time; a null value deletes the key."""
        ...


OpenRows = Callable[[TopicReader], InitialRows]
"""Finds the latest records of a topic, for a new table: a class such as `FullScan`."""


class TableLoad:
    """Loads an empty table once."""

    def __init__(
        self, store: TableStore, decoder: Decoder, counts: FeedCounts, *, prefix: str
    ) -> None:
        self._store = store
        self._decoder = decoder
        self._counts = counts
        self._keys = RowKeys(prefix)
        self._deleted_key: str | None = None
        self._deleted: bytes | None = None

    def run(self, rows: InitialRows, check: Callable[[], None]) -> None:
        """Writes the rows to the table; `check` is called now and then, and may raise to stop."""
        self._store.fill(self._parts(rows, check))

    def remove_deleted(self, rows: InitialRows, check: Callable[[], None]) -> int:
        """Reads the rows again later, and removes those that are missing now; returns how many.

        A log removes a row before it removes the tombstone. So if a row is still there, its
        tombstone, if any, was there during the whole load, and was read. A row that is missing was
        deleted, or written again after the end, where the feed continues.
        """
        return self._store.keep(self._parts(rows, check))

    def _parts(
        self, rows: InitialRows, check: Callable[[], None]
    ) -> Iterator[dict[str, bytes | None]]:
        for records in rows.read():
            yield from self._rows_of(records)
            check()

    def _rows_of(self, records: Sequence[Record]) -> Iterator[dict[str, bytes | None]]:
        """The rows by key; an empty part where a truncation removes all before it."""
        rows: dict[str, bytes | None] = {}
        all_decoded = self._decoder.decode_many(records)
        for number, decoded in enumerate(all_decoded):
            kind = decoded.kind
            if kind <= RecordKind.DELETE:
                key = self._keys.get(decoded.key).text
                if kind is RecordKind.DELETE and _may_move(all_decoded, number):
                    self._note_deletion(key, rows)
                rows[key] = self._complete(decoded, key, rows)
            elif kind is RecordKind.TRUNCATE:
                rows = {}
                yield {}
            elif kind is RecordKind.SKIPPED:
                self._counts.skipped += 1
        if rows:
            yield rows

    def _note_deletion(self, key: str, rows: dict[str, bytes | None]) -> None:
        """Keeps a row that is about to be deleted; a tombstone follows the delete of its key."""
        if key != self._deleted_key:
            self._deleted_key, self._deleted = key, self._find(key, rows)

    def _complete(self, decoded: Decoded, key: str, rows: dict[str, bytes | None]) -> bytes | None:
        if decoded.kind is RecordKind.DELETE:
            return None
        deleted, self._deleted_key, self._deleted = self._deleted, None, None
        if not decoded.unavailable:
            return decoded.text
        previous = self._find(key, rows)
        if previous is None and decoded.kind is RecordKind.MOVE:
            previous = deleted
        return complete(decoded, previous)

    def _find(self, key: str, rows: dict[str, bytes | None]) -> bytes | None:
        return rows[key] if key in rows else self._store.get_rows([key])[0]


def _may_move(records: Sequence[Decoded], number: int) -> bool:
    """Whether the row of a delete, or of its tombstone, may follow under another key."""
    following = records[number + 1 : number + 3]
    return len(following) < 2 or any(record.kind is RecordKind.MOVE for record in following)


class FullScan:
    """Reads a whole topic, up to where it ends now."""

    how = "reading the topic"
    taken_ms: int | None = None

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._bounds = find_offsets(reader)

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        return {number: end for number, (_, end) in self._bounds.items()}

    def read(self) -> Iterator[Sequence[Record]]:
        for number, (start, end) in self._bounds.items():
            yield from read_records(self._reader, number, start, end)


class TransactionAlignedScan(FullScan):
    """Reads a topic up to where the source transaction of its last record begins.

    That transaction may still be written; its records come through the feed, which keeps them
    together.
    """

    def __init__(self, reader: TopicReader, decoder: Decoder) -> None:
        super().__init__(reader)
        self._bounds = {
            number: OffsetRange(start, find_boundary(reader, decoder, number, start, end))
            for number, (start, end) in self._bounds.items()
        }


def find_boundary(
    reader: TopicReader, decoder: Decoder, partition: int, start: int, end: int
) -> int:
    """Where the transaction of the last record in [start, end) begins; `end` without one."""
    tail = _TAIL_OFFSETS
    while True:
        begin = max(start, end - tail)
        entries = read_entries(reader, partition, begin, end, decoder)
        last = _find_last(chain.from_iterable(entries), is_whole=begin == start)
        if last is not None and last.transaction is None:
            return end
        if last is not None and (last.is_behind_another or begin == start):
            return last.start
        if begin == start or tail >= RECORDS_MAX:
            return end
        tail *= _TAIL_GROWTH


class _Last(NamedTuple):
    """The transaction of the last record, if it has one, and where that begins."""

    transaction: str | None
    start: int
    is_behind_another: bool


def _find_last(entries: Iterable[Entry], *, is_whole: bool) -> _Last | None:
    """The last transaction of entries. Unless they are `is_whole`, others precede them."""
    last: _Last | None = None
    for offset, _, _, decoded in entries:
        if decoded.is_tombstone and (last is not None or not is_whole):
            continue  # of the delete before it, which may not be among these
        name = None if decoded.transaction is None else decoded.transaction.id
        if last is None or name is None or name != last.transaction:
            last = _Last(name, offset, last is not None)
    return last
