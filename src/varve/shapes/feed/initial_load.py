"""The first load of a table: the latest record of each key of its topic.

The key indexes of an open store show which records of closed segments are the latest of their keys;
only batches with such a record are read. The active segment, segments without an index and remote
segments are read completely.

Invariant  the last record of a key wins; a record that says nothing about a row changes nothing. A
           deleted row does not stay because the log removed the tombstone while the table was
           loaded: see `TableLoad.remove_deleted`. No source transaction lies across the end of a
           `TransactionAlignedScan`, unless it has more records than are kept together. Records of a
           partition come in the order of their offsets; for each record that is left out, a later
           one of the same key comes.
Threads    one; the cleaner may replace segments meanwhile, which are then read completely.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.key_plan import KeyPlan, plan_keys
from varve.cleaning.key_index.key_index import NO_TOPIC_ID, SegmentKeys, Table
from varve.cleaning.key_index.segment_indexes import SegmentKeyIndexes
from varve.commit_log import Log
from varve.commit_log.names import LOG
from varve.commit_log.segment import Segment
from varve.embedded import Store
from varve.foundation.errors import Corrupt
from varve.records import Batch, RecordColumns
from varve.shapes.feed.changes import FeedCounts
from varve.shapes.feed.decoders import Decoded, Decoder, Record, RecordKind, complete
from varve.shapes.feed.order import Entry, find_offsets, read_entries, read_records, split_records
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
        return self._store.remove_missing(self._parts(rows, check))

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
                    self._remember_deletion(key, rows)
                rows[key] = self._complete(decoded, key, rows)
            elif kind is RecordKind.TRUNCATE:
                rows = {}
                yield {}
            elif kind is RecordKind.SKIPPED:
                self._counts.skipped += 1
        if rows:
            yield rows

    def _remember_deletion(self, key: str, rows: dict[str, bytes | None]) -> None:
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


class _LastTransaction(NamedTuple):
    """The transaction of the last record, if it has one, and where that begins."""

    transaction: str | None
    start: int
    is_behind_another: bool


def _find_last(entries: Iterable[Entry], *, is_whole: bool) -> _LastTransaction | None:
    """The last transaction of entries. Unless they are `is_whole`, others precede them."""
    last: _LastTransaction | None = None
    for offset, _, _, decoded in entries:
        if decoded.is_tombstone and (last is not None or not is_whole):
            continue  # of the delete before it, which may not be among these
        name = None if decoded.transaction is None else decoded.transaction.id
        if last is None or name is None or name != last.transaction:
            last = _LastTransaction(name, offset, last is not None)
    return last


_BUFFER_BYTES: Final = 32 << 20
_GAP_BYTES: Final = 256 << 10
"""Two batches with fewer bytes between them are read at once."""
_RUN_BYTES: Final = 4 << 20

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _LogPart:
    """A part of a log; `keep` flags the records of an indexed segment, None reads all."""

    start: int
    end: int
    segment: Segment | None = None
    batches: Table | None = None
    keep: Flags | None = None


class KeyIndexScan(FullScan):
    """Reads the latest records of a topic whose store is open."""

    how = "key indexes"

    def __init__(self, store: Store, reader: TopicReader) -> None:
        super().__init__(reader)
        self._store = store
        self._parts = {
            number: self._plan(number, *bounds) for number, bounds in self._bounds.items()
        }

    def read(self) -> Iterator[Sequence[Record]]:
        for number, parts in self._parts.items():
            for part in parts:
                yield from self._read_part(number, part)

    # Planning

    def _plan(self, number: int, start: int, end: int) -> list[_LogPart]:
        topic = self._store.topic(self._reader.topic)
        log = topic.partition(number).log
        topic_id = NO_TOPIC_ID if topic.id is None else topic.id.bytes
        indexes = SegmentKeyIndexes(
            self._store.fs, log, topic_id=topic_id, buffer_bytes=_BUFFER_BYTES
        )
        parts: list[_LogPart] = []
        with suppress(FileNotFoundError):  # segments were replaced meanwhile: all are read
            indexed = _find_indexed(log, indexes, end)
            plan = plan_keys([keys for _, _, keys in indexed], buffer_bytes=_BUFFER_BYTES)
            parts = [_indexed_part(*entry, plan, number) for number, entry in enumerate(indexed)]
        return _fill_gaps(parts, start, end)

    # Reading

    def _read_part(self, number: int, part: _LogPart) -> Iterator[Sequence[Record]]:
        if part.segment is None:
            yield from self._read_whole(number, part)
            return
        try:
            yield from _KeptReader(part, log_start=self._bounds[number][0]).read()
        except (FileNotFoundError, _Replaced):
            # Once more and completely: records that came before come again, in order.
            yield from self._read_whole(number, part)

    def _read_whole(self, number: int, part: _LogPart) -> Iterator[Sequence[Record]]:
        yield from read_records(self._reader, number, part.start, part.end)


class _Replaced(Exception):
    """The data file is not the one that was planned for."""


class _KeptReader:
    """Reads the kept records of one indexed segment."""

    def __init__(self, part: _LogPart, *, log_start: int) -> None:
        assert part.segment is not None
        assert part.batches is not None
        assert part.keep is not None
        self._segment = part.segment
        self._keep = part.keep
        self._log_start = log_start
        self._where = part.segment.path(LOG)
        counts = part.batches["count"].astype(np.int64)
        firsts = np.concatenate(([0], np.cumsum(counts)))
        sums = np.concatenate(([0], np.cumsum(part.keep)))
        has_kept_record = sums[firsts[1:]] > sums[firsts[:-1]]
        self._batches = part.batches[has_kept_record]
        self._firsts = firsts[:-1][has_kept_record]

    def read(self) -> Iterator[list[Record]]:
        file = self._segment.file()
        for start, end in self._runs():
            first, last = self._batches[start], self._batches[end - 1]
            position = int(first["position"])
            data = file.read_at(position, int(last["position"]) + int(last["size"]) - position)
            for number in range(start, end):
                yield self._records(data, position, number)

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Runs of kept batches [start, end) that are close enough to be read at once."""
        starts = self._batches["position"].astype(np.int64)
        ends = starts + self._batches["size"]
        begin = 0
        for number in range(1, len(starts) + 1):
            is_last = number == len(starts)
            if is_last or (
                starts[number] - ends[number - 1] > _GAP_BYTES
                or ends[number] - starts[begin] > _RUN_BYTES
            ):
                yield begin, number
                begin = number

    def _records(self, data: bytes, position: int, number: int) -> list[Record]:
        entry = self._batches[number]
        try:
            batch = Batch(data, self._where, position=int(entry["position"]) - position)
            is_same = batch.is_valid_crc()
        except Corrupt as error:
            raise _Replaced(str(error)) from error
        header = batch.header
        base = self._segment.base_offset + int(entry["base"])
        if not is_same or (header.base_offset, header.records_count) != (base, entry["count"]):
            raise _Replaced(self._where)
        first = int(self._firsts[number])
        flags = self._keep[first : first + header.records_count]
        columns = batch.columns()
        chosen = flags & (columns.offsets >= self._log_start)
        return split_records(RecordColumns(columns.payload, columns.table[chosen]))[2]


def _find_indexed(
    log: Log, indexes: SegmentKeyIndexes, end: int
) -> list[tuple[Segment, int, SegmentKeys]]:
    """Closed segments that end at or before an offset and have an index, with their ends."""
    view = log.view
    bases = [*(segment.base_offset for segment in view.closed), view.active.base_offset]
    indexed = []
    for segment, segment_end in zip(view.closed, bases[1:], strict=True):
        keys = indexes.find(segment, segment_end) if segment_end <= end else None
        if keys is not None:
            indexed.append((segment, segment_end, keys))
    return indexed


def _indexed_part(
    segment: Segment, end: int, keys: SegmentKeys, plan: KeyPlan, number: int
) -> _LogPart:
    flags = np.unpackbits(plan.bits_of(number, plan.keep), bitorder="little") != 0
    with keys.open() as index:
        batches = index.batches()
    return _LogPart(segment.base_offset, end, segment, batches, flags[: keys.record_count])


def _fill_gaps(parts: Sequence[_LogPart], start: int, end: int) -> list[_LogPart]:
    """The parts, and between them the offsets that no index covers."""
    filled: list[_LogPart] = []
    at = start
    for part in parts:
        if part.end <= at:
            continue
        if part.start > at:
            filled.append(_LogPart(at, part.start))
        filled.append(part)
        at = part.end
    if at < end:
        filled.append(_LogPart(at, end))
    return filled
