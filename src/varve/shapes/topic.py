"""One topic of an engine: its feed, and the shapes that the feed serves.

Invariant  a failure of one shape affects no other shape of the topic. A shape joins at the position
           of a view: its snapshot holds all up to there, its log all above it. One thread at a time
           writes snapshots of waiting shapes, from `begin_snapshots` to the `take_waiting` that
           returns none.
Crash      see `checkpoint`.
Threads    one thread runs turns, one checkpoints; any thread may add and remove shapes. `lock`
           guards the router and the waiting shapes; it is held for a turn's appends, never while
           polling, and no shape is dropped under it. Lock order: `running` of the checkpoint,
           `lock`, then a shape's own.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from varve.foundation.errors import Closed, Corrupt, StoreError, Unavailable
from varve.foundation.worker import Worker
from varve.shapes.checkpoint import TopicCheckpoint
from varve.shapes.definition import Definition
from varve.shapes.feed.changes import Transaction
from varve.shapes.feed.row import Row
from varve.shapes.feed.table import TableView
from varve.shapes.feed.table_store import Reset
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.filter.subset import Subset
from varve.shapes.messages import EncoderKey, MessageEncoder
from varve.shapes.metrics import CHANGES, ENTRIES, FeedCounters
from varve.shapes.offset import ShapeOffset
from varve.shapes.routing import ChangeRouter, EntriesByShape
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.shape_storage import ShapeStorage

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubsetResult:
    """The rows of a subset as encoded messages, and the position to continue from.

    `position` is an offset of the shape's log at or before the state of the rows, so a client that
    continues from there misses nothing; `tx` is the last transaction that the rows include.
    """

    rows: list[bytes]
    position: ShapeOffset
    tx: int
    mark: int


class ShapeTopic:
    """One topic in the engine."""

    def __init__(self, engine: "ShapeEngine", topic: str) -> None:
        self.topic = topic
        self._engine = engine
        self._feed: TopicFeed | None = None
        self.lock = threading.RLock()
        self._router = ChangeRouter()  # guarded by lock
        self._encoders = WeakValueDictionary[EncoderKey, MessageEncoder]()  # guarded by lock
        self._waiting: list[Shape] = []  # guarded by lock
        self._is_snapshotting = False  # guarded by lock
        self.checkpoint = TopicCheckpoint(engine, self)
        self._counters = FeedCounters(engine.metrics, topic)
        self.newest_tx_at_open = 0
        self._tx_at_open = 0
        """The transaction up to which table and shapes were durable when it was opened."""
        self.is_ready = False
        self.was_opened = False
        self.is_ended = False
        self.is_gone = False
        self.is_given_up = False
        self.unused_rounds = 0
        self.worker: Worker | None = None
        """Runs the feed, in an engine with workers."""

    # Opening and closing

    @property
    def feed(self) -> TopicFeed:
        assert self._feed is not None, f"topic {self.topic} is not connected"
        return self._feed

    def find_feed(self) -> TopicFeed | None:
        """The feed while it is open."""
        feed = self._feed
        return feed if self.is_ready and feed is not None and feed.is_open else None

    @property
    def is_read_again(self) -> bool:
        """Whether the table holds all that clients may have got before it was opened."""
        feed = self.find_feed()
        return feed is not None and feed.position.tx >= self.newest_tx_at_open

    def connect(self) -> None:
        """Creates the feed if there is none; raises NotFound without the topic, Unavailable."""
        if self._feed is None:
            self._feed = self._engine.open_feed(self.topic)

    def open(self) -> None:
        """Opens the feed, which first loads its table if that is new or lost."""
        self.connect()
        with self.checkpoint.running:
            self.is_ready = False
            reset = self.feed.open(self._check_not_ended)
            self.checkpoint.restart()
            if reset is not None:
                self._reset(reset, None)
                self._check_dropped()
                # The reset is reported until a checkpoint, and would drop later shapes too.
                self.feed.checkpoint(self.feed.mark())
            self.newest_tx_at_open = self.feed.newest_tx
            self._tx_at_open = self.feed.position.tx
            with self.lock:
                shapes = self._router.shapes()
                lost = [shape for shape in shapes if self._is_lost(shape)]
            self._engine.removal.drop(lost, DropReason.SOURCE_LOST)
            self._engine.removal.drop_failed(self._check_ends(shapes))
            with self.lock:
                self.is_ready = self.was_opened = True

    def _check_dropped(self) -> None:
        """Raises Unavailable unless the shapes of before the reset are dropped durably."""
        if not self._engine.removal.wait_until_durable(self.topic, 0):
            raise Unavailable(
                f"topic {self.topic} was reset and its shapes are still being dropped: it is "
                "opened again"
            )

    def _check_not_ended(self) -> None:
        """Stops loading the table when the topic ends."""
        if self.is_ended:
            raise Closed(f"the table of topic {self.topic} was not loaded: the engine stopped")

    def needs_opening(self) -> None:
        """Marks the feed as failed: opened again, it repeats the changes since the checkpoint."""
        self.is_ready = False

    def end_turns(self) -> None:
        """Ends the thread that runs turns after the current turn."""
        self.is_ended = True

    def close(self) -> None:
        """Closes the feed; without a checkpoint before, as after a crash."""
        self.is_ended = True
        with self.checkpoint.running:
            self.is_ready = False
            feed, self._feed = self._feed, None
            if feed is not None:
                feed.close()

    # Shapes that are opened again

    def check_opened(self, shape: Shape, storage: ShapeStorage) -> None:
        """Raises Corrupt if a shape from an earlier run holds more than the topic had then, or
        less than the table."""
        if not self.is_ready:
            return
        storage.check_end(self._tx_at_open)
        if self._is_ahead(storage.latest):
            raise Corrupt(
                f"shape {shape.handle} is at {storage.latest}, and topic {self.topic} ended at "
                f"{self.newest_tx_at_open} when it was opened: the topic has lost records"
            )

    def _check_ends(self, shapes: Iterable[Shape]) -> dict[Shape, Corrupt]:
        """The shapes that were opened before the topic, and have less than the table."""
        failures: dict[Shape, Corrupt] = {}
        for shape in shapes:
            storage = shape.find_storage()
            try:
                if storage is not None:
                    storage.check_end(self._tx_at_open)
            except Corrupt as error:
                failures[shape] = error
        return failures

    def _is_lost(self, shape: Shape) -> bool:
        return self._is_ahead(max(shape.start, shape.latest) if shape.is_open else shape.start)

    def _is_ahead(self, offset: ShapeOffset) -> bool:
        return offset.tx > self.newest_tx_at_open

    # The shapes

    def encoder(self, definition: Definition) -> MessageEncoder:
        """Encodes changes for a shape; shared by shapes with the same columns and replica."""
        columns = None if definition.columns is None else frozenset(definition.columns)
        key = EncoderKey(columns, definition.replica)
        with self.lock:
            encoder = self._encoders.get(key)
            if encoder is None:
                encoder = self._encoders[key] = MessageEncoder(self.topic, key)
            return encoder

    def resume(self, shapes: Iterable[Shape]) -> None:
        """Adds shapes that have their snapshots."""
        with self.lock:
            for shape in shapes:
                self._router.add(shape)

    def join(self, shapes: Iterable[Shape]) -> TableView:
        """Adds shapes at the current position; the view has the rows of their snapshots.

        The caller closes the view.
        """
        with self.lock:
            view = self.feed.view()
            for shape in shapes:
                if not shape.is_dropped:
                    shape.start = view.position
                    self._router.add(shape)
            return view

    def remove(self, shape: Shape) -> None:
        with self.lock:
            self._router.remove(shape)
            self.checkpoint.forget(shape)
            if shape in self._waiting:
                self._waiting.remove(shape)

    @property
    def shape_count(self) -> int:
        with self.lock:
            return len(self._router) + len(self._waiting)

    @property
    def is_used(self) -> bool:
        """Whether it has shapes, or writes snapshots of some, which are in no list meanwhile."""
        with self.lock:
            return self._is_snapshotting or self.shape_count > 0

    # Shapes that wait for their snapshots

    def add_waiting(self, shape: Shape) -> None:
        """Adds a new shape, which joins the topic with the next snapshot."""
        with self.lock:
            self._waiting.append(shape)

    def begin_snapshots(self) -> bool:
        """Whether the caller is to write the snapshots of waiting shapes."""
        with self.lock:
            if self._is_snapshotting or not self._waiting or not self._can_snapshot_locked():
                return False
            self._is_snapshotting = True
            return True

    def take_waiting(self, count_max: int) -> list[Shape]:
        """The next waiting shapes; an empty list ends what `begin_snapshots` began."""
        with self.lock:
            self._waiting = [shape for shape in self._waiting if not shape.is_dropped]
            selected = self._waiting[:count_max] if self._can_snapshot_locked() else []
            del self._waiting[: len(selected)]
            self._is_snapshotting = bool(selected)
            return selected

    def put_back_waiting(self, shapes: Collection[Shape]) -> None:
        """Returns shapes to the waiting list: they have not joined the topic."""
        with self.lock:
            self._waiting[:0] = shapes

    def end_snapshots(self) -> None:
        """The caller stops early; not needed after `take_waiting` returned none."""
        with self.lock:
            self._is_snapshotting = False

    def _can_snapshot_locked(self) -> bool:
        return self.is_ready and not self.is_ended

    # Turns

    def turn(self, *, wait_ms: int) -> int:
        """Polls the feed once, up to a limit, and appends to shapes; returns the changes.

        If `is_ready` is false afterwards, the topic must be opened before the next turn.
        """
        if self.checkpoint.is_behind:
            self.checkpoint.wait(wait_ms)
            return 0
        transactions = self._poll(wait_ms)
        count = sum([len(transaction.changes) for transaction in transactions])
        try:
            handles = self._distribute(transactions) if transactions else []
        except BaseException:
            # Only some shapes got the changes. The feed repeats them when it is opened again, and
            # shapes skip the entries that they have.
            self.needs_opening()
            raise
        if count:
            self._engine.metrics.add(CHANGES, count, self.topic)
        self._counters.add(self.feed.counts)
        if self.feed.is_open:
            self.checkpoint.mark(is_forced=False)
        else:
            self.needs_opening()
        self._engine.publish(handles)
        return count

    def _poll(self, wait_ms: int) -> list[Transaction]:
        try:
            return self.feed.poll(
                max_records=self._engine.settings.max_poll_records, wait_ms=wait_ms
            )
        except BaseException:
            if not self.feed.is_open:
                self.needs_opening()
            raise

    def _distribute(self, transactions: Sequence[Transaction]) -> list[str]:
        """Appends to each shape once; returns the handles of shapes with new entries.

        A shape that fails is dropped after the others got their changes.
        """
        reset = transactions[-1].reset
        if reset is not None:
            self._reset(reset, self.feed.position if self.feed.is_open else None)
            return []
        entries_by_shape: EntriesByShape = defaultdict(list)
        failures: dict[Shape, Exception] = {}
        with self.lock:
            self._router.route(transactions, entries_by_shape)
            for shape, entries in entries_by_shape.items():
                self.checkpoint.touch(shape)
                try:
                    shape.append(entries)
                except Exception as error:
                    failures[shape] = error
        count = sum([len(entries) for entries in entries_by_shape.values()])
        if count:
            self._engine.metrics.add(ENTRIES, count, self.topic)
        self._drop_failed(failures)
        return [shape.handle for shape in entries_by_shape]

    def _drop_failed(self, failures: dict[Shape, Exception]) -> None:
        """Drops shapes whose append failed; raises an unexpected error of a dropped shape."""
        for shape, error in failures.items():
            if shape.is_dropped and not isinstance(error, StoreError | OSError):
                raise error
        if failures:
            self._engine.removal.drop_failed(failures)

    def _reset(self, reset: Reset, position: ShapeOffset | None) -> None:
        """Drops the shapes of the topic, except those that only wait for their snapshots.

        Shapes that began at the position of the reset or later stay: after a crash the reset is
        read again.
        """
        with self.lock:
            shapes = self._router.shapes()
            dropped = [shape for shape in shapes if position is None or shape.start < position]
            for shape in dropped:
                self._router.remove(shape)
        if dropped:
            logger.warning(
                "shapes of a topic are dropped for a reset",
                extra={"topic": self.topic, "reason": reset.text, "shapes": len(dropped)},
            )
            self._engine.removal.drop(dropped, DropReason(reset.kind))

    # Subsets

    def read_subset(
        self, shape: Shape, subset: Subset, *, mark: int, is_cancelled: Callable[[], bool]
    ) -> SubsetResult:
        """Some of a shape's rows as they are now, read from the table.

        Raises Unavailable while the topic is not open or behind what clients may have got before a
        restart, InvalidRequest if there are more rows or bytes than the settings allow.
        `is_cancelled` is called for every row; once it returns true, Unavailable is raised.
        """
        feed = self.find_feed()
        if feed is None:
            raise Unavailable(f"topic {self.topic} is not open yet: try again")
        if not self.is_read_again:
            raise Unavailable(f"topic {self.topic} is being read again after a stop: try again")
        position = shape.latest
        settings = self._engine.settings
        try:
            with feed.view() as view:
                rows = subset.run(
                    _matching_rows(view, shape, is_cancelled),
                    partial(shape.encoder.subset_row, mark=mark),
                    rows_max=settings.subset_rows_max,
                    bytes_max=settings.subset_bytes_max,
                )
                tx = max(view.position.tx, 0)
        except Closed as error:
            raise Unavailable(f"topic {self.topic} is being opened again: {error}") from error
        return SubsetResult(rows, position, tx, mark)


def _matching_rows(
    view: TableView, shape: Shape, is_cancelled: Callable[[], bool]
) -> Iterator[tuple[str, Row]]:
    where = shape.definition.where
    for key, row in view.rows():
        if is_cancelled():
            raise Unavailable("the client that asked for the subset has disconnected")
        if where is None or where.matches(row):
            yield key, row
