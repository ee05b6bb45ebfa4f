"""TopicFeed reads a topic as a stream of changes: in one order, and compared with its table.

Invariant  the table on disk is never ahead of any shape on disk: a checkpoint is written once
           everything that `poll` returned before its mark is durable in the shapes.
Crash      the feed resumes at the table's positions and returns the following changes again, with
           the same offsets. A table that cannot be resumed is loaded again, and reports a reset
           until the next checkpoint: the shapes that existed before must be dropped.
Threads    `open`, `poll`, `mark` and `close` are for one thread, `checkpoint` for one at a time,
           everything else for any.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from varve.commit_log.settings import NO_ERASURE
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    Closed,
    NotFound,
    OffsetOutOfRange,
    StoreDenied,
    StoreError,
    Unavailable,
)
from varve.rocks.database import MemoryBudget
from varve.shapes.feed.changes import ChangeMaker, FeedCounts, Transaction, UncertainRows
from varve.shapes.feed.decoders import Decoder
from varve.shapes.feed.initial_load import OpenRows, TableLoad
from varve.shapes.feed.journal import Journal, OffsetSpan
from varve.shapes.feed.order import RecordSequencer, SequencedRecords, find_offsets
from varve.shapes.feed.resuming import (
    TombstoneHorizon,
    find_break,
    find_erasure,
    find_marks,
    find_other_topic,
    open_store,
    read_last_erasure,
)
from varve.shapes.feed.row import row_key_prefix
from varve.shapes.feed.source_transactions import SourceTransactions
from varve.shapes.feed.table import TableView, TopicTable
from varve.shapes.feed.table_store import Reset, ResetKind, TableState, TableStore, remove_table
from varve.shapes.offset import ShapeOffset
from varve.topics import LogTruncated, OffsetRange, TopicReader

logger = logging.getLogger(__name__)

_PARTITIONS_REFRESH_MS: Final = 30_000
_ERASURE_CHECK_MS: Final = 30_000
"""How long rows that were erased from the topic are served at most, once its server is back."""


class _OpenParts(NamedTuple):
    """The parts of an open feed."""

    table: TopicTable
    order: RecordSequencer
    maker: ChangeMaker
    uncertain: UncertainRows
    horizon: TombstoneHorizon


class TopicFeed:
    """The feed of one topic. `open` comes first."""

    def __init__(
        self,
        reader: TopicReader,
        decoder: Decoder,
        open_rows: OpenRows,
        *,
        directory: str,
        fs: FileSystem,
        clock: Clock,
        signature: str,
        grouping: SourceTransactions | None = None,
        counts: FeedCounts | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`open_rows` finds the initial rows of a new table. `directory` holds the tables of all
        topics. `signature` identifies how records become rows: a table with another one is loaded
        again. With a `grouping` source transactions stay together. `budget` is the memory shared by
        the databases of all feeds; by default the feed has its own."""
        self.topic = reader.topic
        self.counts = counts or FeedCounts()
        self._reader = reader
        self._decoder = decoder
        self._open_rows = open_rows
        self._path = f"{directory}/{reader.topic}/rows"
        self._journal = Journal(fs, f"{directory}/{reader.topic}/journal")
        self._clock = clock
        self._signature = signature
        self._grouping = grouping
        self._budget = budget
        self._prefix = row_key_prefix(reader.topic)
        self._running: _OpenParts | None = None
        self._waiting: deque[SequencedRecords] = deque()
        self._positions: dict[int, int] = {}
        self._next_tx = 1
        self._refreshed_ms = 0
        self._erasure_checked_ms: int | None = None
        self._marked_tx: dict[int, int] = {}
        self._written_tx = 0
        self._lost: str | None = None
        self._is_broken = False
        self._topic_id = ""
        self._erasure = NO_ERASURE

    # Opening and closing

    def open(self, check: Callable[[], None] | None = None) -> Reset | None:
        """Resumes from the table on disk, or loads a new one, which can take long.

        `check` is called during the load, and may raise to stop it.

        Returns the reset for which the existing shapes of the topic must be dropped, None if they
        may stay. `open` returns the same reset until a checkpoint of a later mark.
        """
        if self._running is not None and self._running.table.damage is not None:
            self._lost = f"the table of topic {self.topic} is damaged: {self._running.table.damage}"
        self.close()
        with access_may_return():
            return self._open(check)

    def _open(self, check: Callable[[], None] | None) -> Reset | None:
        self._journal.open()
        bounds = find_offsets(self._reader)
        store, state, lost = open_store(self._path, self._budget)
        try:
            if state is not None:
                lost = self._lost or find_break(
                    state, self._reader, bounds, self._journal, signature=self._signature
                )
            if state is None or lost is not None:
                store.close()
                remove_table(self._path)
                store = TableStore(self._path, self._budget)
                reason = lost or f"the table of topic {self.topic} is new"
                state = self._load(store, reason, check)
                self._start(store, state, find_offsets(self._reader), is_resumed=False)
            else:
                self._start(store, state, bounds, is_resumed=True)
        except BaseException:
            store.close()
            raise
        self._lost = None
        return state.reset

    def _load(self, store: TableStore, reason: str, check: Callable[[], None] | None) -> TableState:
        topic_id = self._reader.info().id_text
        erasure = read_last_erasure(self._reader)
        rows = self._open_rows(self._reader)
        logger.info(
            "table is loaded", extra={"topic": self.topic, "how": rows.how, "reason": reason}
        )
        self._journal.clear()
        positions = dict(rows.resume_offsets)
        now_ms = self._clock.now_ms()
        state = TableState(
            positions=positions,
            next_tx=1 + sum(positions.values()),
            signature=self._signature,
            topic_id=topic_id,
            caught_up_ms=now_ms if rows.taken_ms is None else min(now_ms, rows.taken_ms),
            reset=Reset(ResetKind.SOURCE_LOST, reason),
            # Before the rows are read: if the log loses its end meanwhile, some of them are lost.
            marks=find_marks(self._reader, positions),
            erasure=erasure,
        )
        horizon = TombstoneHorizon(self._reader, self._clock, state.caught_up_ms)

        def advance() -> None:
            horizon.advance()
            if check is not None:
                check()

        TableLoad(store, self._decoder, self.counts, prefix=self._prefix).run(rows, advance)
        horizon.advance()
        if rows.taken_ms is None and horizon.may_have_passed():
            state = replace(state, caught_up_ms=self._clock.now_ms())
            self._remove_deleted(store, horizon, advance)
        store.finish(state)
        return state

    def _remove_deleted(
        self, store: TableStore, horizon: TombstoneHorizon, check: Callable[[], None]
    ) -> None:
        """Removes the rows whose tombstones may have left the log while they were read."""
        logger.warning(
            "topic is read again: its table took longer to load than tombstones are kept",
            extra={"topic": self.topic, "delete_retention_ms": horizon.retention_ms},
        )
        # These records were counted before.
        load = TableLoad(store, self._decoder, FeedCounts(), prefix=self._prefix)
        removed = load.remove_deleted(self._open_rows(self._reader), check)
        logger.info("table was checked", extra={"topic": self.topic, "removed": removed})

    def _start(
        self,
        store: TableStore,
        state: TableState,
        bounds: Mapping[int, OffsetRange],
        *,
        is_resumed: bool,
    ) -> None:
        positions = {number: state.positions.get(number, bounds[number][0]) for number in bounds}
        ends = {number: max(end, positions[number]) for number, (_, end) in bounds.items()}
        table = TopicTable(store)
        table.move_to(ShapeOffset(state.next_tx - 1, 0))
        order = RecordSequencer(self._reader, self._decoder, self._journal, grouping=self._grouping)
        if self._grouping is not None:
            self._grouping.open(state.ends_position)
        was_single = len(state.positions) == 1
        order.open(positions, state.next_tx, ends, state.marks, was_single=was_single)
        horizons = {number: end for number, (_, end) in bounds.items()} if is_resumed else {}
        uncertain = UncertainRows(self._reader, horizons, state.uncertain_before, positions)
        maker = ChangeMaker(
            table,
            self.counts,
            uncertain,
            prefix=self._prefix,
            is_grouped=self._grouping is not None,
        )
        self._positions, self._next_tx = positions, state.next_tx
        self._topic_id = state.topic_id or self._reader.info().id_text
        self._erasure = state.erasure
        self._refreshed_ms = self._erasure_checked_ms = self._clock.now_ms()
        horizon = TombstoneHorizon(self._reader, self._clock, state.caught_up_ms)
        horizon.refresh()
        self._running = _OpenParts(table, order, maker, uncertain, horizon)

    def close(self) -> None:
        """Closes the table and its views; changes after the last checkpoint are read again."""
        running, self._running = self._running, None
        self._is_broken = False
        self._waiting.clear()
        self._marked_tx.clear()
        self._written_tx = 0
        self._reader.close()
        if self._grouping is not None:
            self._grouping.close()
        if running is not None:
            running.table.close()

    @property
    def is_open(self) -> bool:
        return self._running is not None and self._lost is None and not self._is_broken

    # Reading

    def poll(self, *, max_records: int, wait_ms: int) -> list[Transaction]:
        """The next transactions, of about `max_records`; empty if none come within `wait_ms`.

        A transaction with a reset is the last of its list: the shapes of the topic must be dropped.
        Where `is_open` is false afterwards, or after an error that is not retriable, the feed must
        be opened again.
        """
        running = self._get_open()
        try:
            with access_may_return():
                return self._poll(running, max_records, wait_ms)
        except NotFound:
            reason = self._find_other_topic()
            if reason is None:
                raise
            return [self._lose(reason)]
        except StoreError:
            # The server may have been stopped for an erasure: the next poll looks.
            self._erasure_checked_ms = None
            raise
        except BaseException:
            # Records that were read but not returned must be read again.
            self._is_broken = True
            raise

    def _poll(self, running: _OpenParts, max_records: int, wait_ms: int) -> list[Transaction]:
        running.horizon.advance()
        written_tx, self._written_tx = self._written_tx, 0
        if written_tx:
            self._journal.cut(written_tx)
        reason = self._find_erasure()
        if reason is not None:
            return [self._lose(reason)]
        self._find_new_partitions(running)
        try:
            if not self._waiting:
                self._waiting.extend(running.order.take(max_records, wait_ms))
        except LogTruncated as error:
            return [self._lose(f"it lost records that were read: {error}")]
        except OffsetOutOfRange as error:
            return [self._lose(f"records were removed before they were read: {error}")]
        except OSError as error:
            raise self._break(error) from error
        transactions = self._make_changes(running)
        if not transactions and running.table.damage is not None:
            return [self._lose(f"its table is damaged: {running.table.damage}")]
        if self._is_caught_up(running):
            running.horizon.caught_up()
        return transactions

    def _make_changes(self, running: _OpenParts) -> list[Transaction]:
        transactions: list[Transaction] = []
        while self._waiting:
            records = self._waiting[0]
            try:
                has_gap = len(records.entries) < records.span.end - records.span.start
                if has_gap and running.horizon.may_have_passed():
                    reason = _tombstones_text(running.horizon, records.span)
                    return transactions or [self._lose(reason)]
                changed = running.maker.make(records)
            except StoreError:
                # The table has the changes made so far: return them, and retry the others.
                if not transactions and running.table.damage is None:
                    raise
                return transactions
            self._waiting.popleft()
            self._positions[changed.done.partition] = changed.done.end
            self._next_tx = changed.done.next_tx
            transactions += changed.transactions
            if changed.transactions and changed.transactions[-1].reset is not None:
                self._put_back(records, changed.done)
                break
        return transactions

    def _put_back(self, records: SequencedRecords, done: OffsetSpan) -> None:
        """Keeps the records after a reset for the next poll."""
        if done.end < records.span.end:
            remaining = records.span._replace(start=done.end, first_tx=done.next_tx)
            entries = [entry for entry in records.entries if entry[0] >= done.end]
            self._waiting.appendleft(SequencedRecords(remaining, entries))

    def _lose(self, reason: str) -> Transaction:
        self._lost = f"topic {self.topic}: {reason}"
        self.counts.resets += 1
        logger.warning("topic cannot be resumed", extra={"topic": self.topic, "reason": reason})
        return Transaction([], Reset(ResetKind.SOURCE_LOST, self._lost))

    def _find_other_topic(self) -> str | None:
        """The reason if the topic was created again; raises NotFound if it does not exist."""
        self._reader.close()
        with access_may_return():
            return find_other_topic(self._topic_id, self._reader.info())

    def _find_erasure(self) -> str | None:
        now_ms, checked_ms = self._clock.now_ms(), self._erasure_checked_ms
        if checked_ms is not None and 0 <= now_ms - checked_ms < _ERASURE_CHECK_MS:
            return None
        reason = find_erasure(self._erasure, self._reader)
        self._erasure_checked_ms = now_ms
        return reason

    def _find_new_partitions(self, running: _OpenParts) -> None:
        now_ms = self._clock.now_ms()
        is_early = 0 <= now_ms - self._refreshed_ms < _PARTITIONS_REFRESH_MS
        # Waiting records may have been taken without a journal, which a second partition starts.
        if is_early or self._waiting or running.order.is_replaying:
            return
        self._refreshed_ms = now_ms
        info = self._reader.info()
        self._topic_id = self._topic_id or info.id_text
        for number in range(len(self._positions), info.partition_count):
            start = self._reader.offsets(number).start
            self._positions[number] = start
            running.order.add_partition(number, start)

    # Checkpoints

    def mark(self) -> int:
        """Marks everything returned so far for a checkpoint; call it when all shapes have it."""
        running = self._get_open()
        state = TableState(
            positions=dict(self._positions),
            next_tx=self._next_tx,
            signature=self._signature,
            topic_id=self._topic_id,
            caught_up_ms=running.horizon.caught_up_ms,
            ends_position=0 if self._grouping is None else self._grouping.position,
            uncertain_before=running.uncertain.ends,
            marks=dict(running.order.marks),
            erasure=self._erasure,
        )
        self._sync_journal()
        mark = running.table.seal(state)
        self._marked_tx[mark] = state.next_tx
        return mark

    def _sync_journal(self) -> None:
        try:
            self._journal.sync()
        except OSError as error:
            raise self._break(error) from error

    def _break(self, error: OSError) -> Unavailable:
        self._is_broken = True
        return Unavailable(f"journal of topic {self.topic}: {error}; open it again")

    def checkpoint(self, mark: int) -> None:
        """Writes the table up to a mark, once everything before it is durable in the shapes.

        A failed checkpoint can be repeated, but most fail until the feed is opened again.
        """
        self._get_open().table.checkpoint(mark)
        for written in [number for number in list(self._marked_tx) if number <= mark]:
            self._written_tx = self._marked_tx.pop(written)

    # Properties of an open feed

    def view(self) -> TableView:
        """All rows at the current position; the caller closes it."""
        return self._get_open().table.view()

    @property
    def position(self) -> ShapeOffset:
        """The last change that was returned."""
        return self._get_open().table.position

    @property
    def newest_tx(self) -> int:
        """The newest transaction of the topic; a shape beyond it holds records that are lost."""
        return self._get_open().order.newest_tx

    @property
    def lag(self) -> int:
        """Offsets that are known to be committed and were not returned yet."""
        ends = self._get_open().order.ends
        return sum(max(0, end - self._positions[number]) for number, end in list(ends.items()))

    @property
    def is_caught_up(self) -> bool:
        return self._is_caught_up(self._get_open())

    @property
    def unflushed_rows(self) -> int:
        """Changed rows that no checkpoint has written."""
        return self._get_open().table.unflushed_rows

    @property
    def unflushed_bytes(self) -> int:
        return self._get_open().table.unflushed_bytes

    def _is_caught_up(self, running: _OpenParts) -> bool:
        return not (self._waiting or running.order.is_replaying) and self.lag == 0

    def _get_open(self) -> _OpenParts:
        if self._running is None or not self.is_open:
            why = f": {self._lost}" if self._lost is not None else ""
            raise Closed(f"the feed of topic {self.topic} is not open{why}: open it")
        return self._running


@contextmanager
def access_may_return() -> Iterator[None]:
    """Raises a denial as Unavailable, because access may be granted again."""
    try:
        yield
    except StoreDenied as error:
        raise Unavailable(str(error)) from error


def _tombstones_text(horizon: TombstoneHorizon, span: OffsetSpan) -> str:
    return (
        f"offsets of partition {span.partition} from {span.start} on are missing, and the topic "
        f"was last read to its end longer than delete.retention.ms={horizon.retention_ms} ago, or "
        "at an unknown time: tombstones may have left the log"
    )
