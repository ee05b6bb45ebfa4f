"""A topic as a stream of changes: read in one order, and compared with its table.

Invariant  the table on disk is never ahead of any shape on disk: a checkpoint is written once all
           that was given before its mark is durable in the shapes.
Crash      the feed reads on from the table's positions and gives what came after them again, with
           the same offsets. A table that cannot go on is made anew, and says so until a checkpoint:
           the shapes of before must go.
Threads    `open`, `poll`, `mark` and `close` are for one thread, `checkpoint` for one at a time,
           all else for any.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

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
from varve.shapes.feed.absence import Absence
from varve.shapes.feed.change import Transaction
from varve.shapes.feed.change_maker import ChangeMaker
from varve.shapes.feed.counts import FeedCounts
from varve.shapes.feed.decoder import Decoder
from varve.shapes.feed.doubts import Doubts
from varve.shapes.feed.filling import Filling, FillProgress, Progress
from varve.shapes.feed.gaps import Gaps
from varve.shapes.feed.journal import Journal, Range
from varve.shapes.feed.order import Gate, RecordOrder, Taken
from varve.shapes.feed.reset import Reset, ResetKind
from varve.shapes.feed.resuming import (
    Offsets,
    find_break,
    find_marks,
    find_offsets,
    find_other_topic,
    open_store,
)
from varve.shapes.feed.row_key import row_key_prefix
from varve.shapes.feed.state import StateReader
from varve.shapes.feed.table import TableView, TopicTable
from varve.shapes.feed.table_store import TableState, TableStore, remove_table
from varve.shapes.offset import Offset
from varve.topics import LogTruncated, TopicReader

logger = logging.getLogger(__name__)

OpenState = Callable[[], StateReader]
"""Finds the latest state of the topic, for a table that is made anew."""

_PARTITIONS_LOOK_MS: Final = 30_000
_DELETE_RETENTION: Final = "delete.retention.ms"
_DELETE_RETENTION_MS: Final = 24 * 3_600_000
_CLEANUP_POLICY: Final = "cleanup.policy"


class _Running(NamedTuple):
    """What an open feed works with."""

    table: TopicTable
    order: RecordOrder
    maker: ChangeMaker
    doubts: Doubts
    absence: Absence
    gaps: Gaps


class TopicFeed:
    """The feed of one topic. `open` comes first."""

    def __init__(
        self,
        reader: TopicReader,
        decoder: Decoder,
        open_state: OpenState,
        *,
        directory: str,
        fs: FileSystem,
        clock: Clock,
        signature: str,
        gate: Gate | None = None,
        counts: FeedCounts | None = None,
    ) -> None:
        """`directory` holds the tables of all topics. `signature` tells how rows are made: a table
        of another one is not gone on with. With a `gate` source transactions stay together."""
        self.topic = reader.topic
        self.counts = counts or FeedCounts()
        self._reader = reader
        self._decoder = decoder
        self._open_state = open_state
        self._path = f"{directory}/{reader.topic}/rows"
        self._journal = Journal(fs, f"{directory}/{reader.topic}/journal")
        self._clock = clock
        self._signature = signature
        self._gate = gate
        self._prefix = row_key_prefix(reader.topic)
        self._running: _Running | None = None
        self._waiting: deque[Taken] = deque()
        self._positions: dict[int, int] = {}
        self._next_tx = 1
        self._looked_ms = 0
        self._marked_tx: dict[int, int] = {}
        self._written_tx = 0
        self._lost: str | None = None
        self._is_broken = False
        self._topic_id = ""

    # Opening and closing

    def open(self, progress: Progress | None = None) -> Reset | None:
        """Goes on from the table on disk, or makes it anew, which takes its time.

        Gives the reset for which the topic's shapes of before must go, None where they may stay.
        It stands until a checkpoint of a mark made from now on.
        """
        if self._running is not None and self._running.table.damage is not None:
            self._lost = f"the table of topic {self.topic} is damaged: {self._running.table.damage}"
        self.close()
        with access_may_return():
            return self._open(progress)

    def _open(self, progress: Progress | None) -> Reset | None:
        self._journal.open()
        bounds = find_offsets(self._reader)
        store, state, lost = open_store(self._path)
        try:
            if state is not None:
                lost = self._lost or find_break(
                    state, self._reader, bounds, self._journal, signature=self._signature
                )
            if state is None or lost is not None:
                store.close()
                remove_table(self._path)
                store = TableStore(self._path)
                state = self._fill(
                    store, lost or f"the table of topic {self.topic} is new", progress
                )
                bounds, horizons = find_offsets(self._reader), {}
            else:
                horizons = {number: end for number, (_, end) in bounds.items()}
            self._start(store, state, bounds, horizons)
        except BaseException:
            store.close()
            raise
        self._lost = None
        return state.reset

    def _fill(self, store: TableStore, lost: str, progress: Progress | None) -> TableState:
        topic_id = self._reader.info().id_text
        reader = self._open_state()
        logger.info(
            "table is filled", extra={"topic": self.topic, "how": reader.how, "reason": lost}
        )
        self._journal.clear()
        positions = dict(reader.resume_offsets)
        now_ms = self._clock.now_ms()
        state = TableState(
            positions=positions,
            next_tx=1 + sum(positions.values()),
            signature=self._signature,
            topic_id=topic_id,
            caught_up_ms=now_ms if reader.taken_ms is None else min(now_ms, reader.taken_ms),
            reset=Reset(ResetKind.SOURCE_LOST, lost),
            # Before the rows are read: a log that loses its end meanwhile lost some of them.
            marks=find_marks(self._reader, positions),
        )
        away = Absence(self._clock, state.caught_up_ms)

        def look(how_far: FillProgress) -> None:
            away.look()
            if progress is not None:
                progress(how_far)

        filling = Filling(store, self._decoder, self.counts, prefix=self._prefix)
        filling.run(reader, look)
        away.look()
        kept_ms = None if reader.taken_ms is not None else find_tombstone_retention(self._reader)
        if kept_ms is not None and away.is_longer_than(kept_ms):
            state = replace(state, caught_up_ms=self._clock.now_ms())
            self._check_filling(store, kept_ms, look)
        store.finish(state)
        return state

    def _check_filling(self, store: TableStore, kept_ms: int, progress: Progress) -> None:
        """Removes the rows whose deletions the log may have let go of while they were read."""
        logger.warning(
            "topic is read again: its table took longer to fill than deletions are kept",
            extra={"topic": self.topic, "delete_retention_ms": kept_ms},
        )
        # What is counted was counted before.
        filling = Filling(store, self._decoder, FeedCounts(), prefix=self._prefix)
        removed = filling.check(self._open_state(), progress)
        logger.info("table was checked", extra={"topic": self.topic, "removed": removed})

    def _start(
        self, store: TableStore, state: TableState, bounds: Offsets, horizons: Mapping[int, int]
    ) -> None:
        positions = {number: state.positions.get(number, bounds[number][0]) for number in bounds}
        ends = {number: max(end, positions[number]) for number, (_, end) in bounds.items()}
        table = TopicTable(store)
        table.move_to(Offset(state.next_tx - 1, 0))
        order = RecordOrder(self._reader, self._decoder, self._journal, gate=self._gate)
        if self._gate is not None:
            self._gate.open(state.ends_position)
        was_single = len(state.positions) == 1
        order.open(positions, state.next_tx, ends, state.marks, was_single=was_single)
        doubts = Doubts(
            horizons,
            state.doubts,
            positions,
            find_end=lambda number: self._reader.offsets(number).end,
        )
        maker = ChangeMaker(
            table, self.counts, doubts, prefix=self._prefix, is_grouped=self._gate is not None
        )
        self._positions, self._next_tx = positions, state.next_tx
        self._topic_id = state.topic_id or self._reader.info().id_text
        self._looked_ms = self._clock.now_ms()
        absence = Absence(self._clock, state.caught_up_ms)
        gaps = Gaps(absence, lambda: find_tombstone_retention(self._reader), self._clock)
        self._running = _Running(table, order, maker, doubts, absence, gaps)

    def close(self) -> None:
        """Lets go of the table, and ends its views; what no checkpoint wrote is read again."""
        running, self._running = self._running, None
        self._is_broken = False
        self._waiting.clear()
        self._marked_tx.clear()
        self._written_tx = 0
        self._reader.close()
        if self._gate is not None:
            self._gate.close()
        if running is not None:
            running.table.close()

    @property
    def is_open(self) -> bool:
        return self._running is not None and self._lost is None and not self._is_broken

    # Reading

    def poll(self, *, max_records: int, wait_ms: int) -> list[Transaction]:
        """The next transactions, of about so many records; none where none come within the time.

        One with a reset is the last of its list: the topic's shapes start anew. Where `is_open` is
        false after that, or after an error, the feed must be opened again. After an error that is
        not retriable it must be, too.
        """
        running = self._get()
        try:
            with access_may_return():
                return self._poll(running, max_records, wait_ms)
        except NotFound:
            reason = self._find_other_topic()
            if reason is None:
                raise
            return [self._lose(reason)]
        except StoreError:
            raise
        except BaseException:
            # What was taken and not given is known to nobody: it is to be read again.
            self._is_broken = True
            raise

    def _poll(self, running: _Running, max_records: int, wait_ms: int) -> list[Transaction]:
        running.absence.look()
        written_tx, self._written_tx = self._written_tx, 0
        if written_tx:
            self._journal.cut(written_tx)
        self._look_for_partitions(running)
        try:
            if not self._waiting:
                self._waiting.extend(running.order.take(max_records, wait_ms))
        except LogTruncated as error:
            return [self._lose(f"it lost records that were read: {error}")]
        except OffsetOutOfRange as error:
            return [self._lose(f"records were removed before they were read: {error}")]
        except OSError as error:
            raise self._break(error) from error
        given = self._give(running)
        if not given and running.table.damage is not None:
            return [self._lose(f"its table is damaged: {running.table.damage}")]
        if self._is_caught_up(running):
            running.absence.end()
        return given

    def _give(self, running: _Running) -> list[Transaction]:
        given: list[Transaction] = []
        while self._waiting:
            taken = self._waiting[0]
            try:
                has_gap = len(taken.entries) < taken.range.end - taken.range.start
                if has_gap and running.gaps.may_hide_deletions():
                    return given or [self._lose(_deletions_text(running.gaps, taken.range))]
                made = running.maker.make(taken)
            except StoreError:
                # The table has what was made before: it is given, and the rest tried again.
                if not given and running.table.damage is None:
                    raise
                return given
            self._waiting.popleft()
            self._positions[made.done.partition] = made.done.end
            self._next_tx = made.done.next_tx
            given += made.transactions
            if made.transactions and made.transactions[-1].reset is not None:
                self._put_back(taken, made.done)
                break
        return given

    def _put_back(self, taken: Taken, done: Range) -> None:
        """What lies behind a reset is given by the next poll."""
        if done.end < taken.range.end:
            rest = taken.range._replace(start=done.end, first_tx=done.next_tx)
            entries = [one for one in taken.entries if one[0] >= done.end]
            self._waiting.appendleft(Taken(rest, entries))

    def _lose(self, reason: str) -> Transaction:
        self._lost = f"topic {self.topic}: {reason}"
        self.counts.resets += 1
        logger.warning("topic cannot be read on", extra={"topic": self.topic, "reason": reason})
        return Transaction([], Reset(ResetKind.SOURCE_LOST, self._lost))

    def _find_other_topic(self) -> str | None:
        """Why a topic that was not found is another one now; raises NotFound if there is none."""
        self._reader.close()
        with access_may_return():
            return find_other_topic(self._topic_id, self._reader.info())

    def _look_for_partitions(self, running: _Running) -> None:
        now_ms = self._clock.now_ms()
        is_early = 0 <= now_ms - self._looked_ms < _PARTITIONS_LOOK_MS
        # What waits was perhaps taken without a journal, which begins with another partition.
        if is_early or self._waiting or running.order.is_replaying:
            return
        self._looked_ms = now_ms
        info = self._reader.info()
        self._topic_id = self._topic_id or info.id_text
        for number in range(len(self._positions), info.partition_count):
            start = self._reader.offsets(number).start
            self._positions[number] = start
            running.order.add_partition(number, start)

    # Checkpoints

    def mark(self) -> int:
        """Closes what was given so far, for a checkpoint. Called when the shapes have taken it in,
        durably or not."""
        running = self._get()
        state = TableState(
            positions=dict(self._positions),
            next_tx=self._next_tx,
            signature=self._signature,
            topic_id=self._topic_id,
            caught_up_ms=running.absence.caught_up_ms,
            ends_position=0 if self._gate is None else self._gate.position,
            doubts=running.doubts.ends,
            marks=dict(running.order.marks),
        )
        self._sync_journal()
        mark = running.table.mark(state)
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
        """Writes the table up to a mark: all that was given before is durable in the shapes.

        One that failed can be tried again, but most fail until the feed is opened again.
        """
        self._get().table.checkpoint(mark)
        for one in [one for one in list(self._marked_tx) if one <= mark]:
            self._written_tx = self._marked_tx.pop(one)

    # Looking

    def view(self) -> TableView:
        """All rows at the present position; to be closed."""
        return self._get().table.view()

    @property
    def position(self) -> Offset:
        """Everything at or before it was given."""
        return self._get().table.position

    @property
    def newest_tx(self) -> int:
        """No shape of the topic can rightly be beyond it when the feed was just opened."""
        return self._get().order.newest_tx

    @property
    def lag(self) -> int:
        """Offsets that are known to be committed and are not given yet."""
        ends = self._get().order.ends
        return sum(max(0, end - self._positions[number]) for number, end in list(ends.items()))

    @property
    def is_caught_up(self) -> bool:
        return self._is_caught_up(self._get())

    @property
    def overlay_count(self) -> int:
        """Changed rows that wait for a checkpoint."""
        return self._get().table.overlay_count

    @property
    def overlay_bytes(self) -> int:
        return self._get().table.overlay_bytes

    def _is_caught_up(self, running: _Running) -> bool:
        return not (self._waiting or running.order.is_replaying) and self.lag == 0

    def _get(self) -> _Running:
        if self._running is None or not self.is_open:
            why = f": {self._lost}" if self._lost is not None else ""
            raise Closed(f"the feed of topic {self.topic} is not open{why}: open it")
        return self._running


@contextmanager
def access_may_return() -> Iterator[None]:
    """Turns a denial into Unavailable: rights that were withdrawn may be granted again."""
    try:
        yield
    except StoreDenied as error:
        raise Unavailable(str(error)) from error


def find_tombstone_retention(reader: TopicReader) -> int | None:
    """How long the topic keeps tombstones at least, in ms; None where it is not compacted."""
    settings = reader.settings()
    if "compact" not in settings.get(_CLEANUP_POLICY, ""):
        return None
    return int(settings.get(_DELETE_RETENTION, _DELETE_RETENTION_MS))


def _deletions_text(gaps: Gaps, range: Range) -> str:
    return (
        f"offsets of partition {range.partition} from {range.start} on are missing, and the topic "
        f"was last read to its end longer than delete.retention.ms={gaps.retention_ms} ago, or "
        "nobody knows when: deletions may be gone"
    )
