"""The shapes of one topic and the feed that they live on: turns, and who joins when.

Invariant  what happens to one shape keeps nothing from the others of its topic. A shape joins at
           the place of a view: below stands in its snapshot, above comes to its log.
Crash      see `checkpoints`.
Threads    one thread runs turns, one checkpoints; any thread may add and remove shapes. `_lock`
           guards the distribution and what waits; it is held for a turn's appends, never while
           polling. Lock order: `running` of the checkpoints, `_lock`, then a shape's own.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Corrupt, Unavailable
from varve.shapes.checkpoints import Checkpoints, Settle
from varve.shapes.definition import Definition
from varve.shapes.distribution import Distribution, Outbox
from varve.shapes.feed.change import Transaction
from varve.shapes.feed.filling import FillProgress
from varve.shapes.feed.reset import Reset, ResetKind
from varve.shapes.feed.table import TableView
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.messages import FormKey, MessageForm
from varve.shapes.offset import Offset
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.waiting_shapes import WaitingShapes

logger = logging.getLogger(__name__)
_DROP_REASONS: Final = {
    ResetKind.SOURCE_LOST: DropReason.SOURCE_LOST,
    ResetKind.TRUNCATED: DropReason.TRUNCATED,
    ResetKind.SCHEMA_CHANGED: DropReason.SCHEMA_CHANGED,
}


class TopicShapes:
    """One topic in the engine."""

    def __init__(
        self,
        topic: str,
        make_feed: Callable[[str], TopicFeed],
        *,
        settings: EngineSettings,
        clock: Clock,
        drop: Callable[[Collection[Shape], DropReason], None],
        settle: Settle,
        notify: Callable[[Collection[str]], None],
        checkpoint_due: Callable[[], None],
    ) -> None:
        self.topic = topic
        self._make_feed = make_feed
        self._feed: TopicFeed | None = None
        self._settings = settings
        self._drop = drop
        self._settle = settle
        self._notify = notify
        self._lock = threading.RLock()
        self._distribution = Distribution()  # guarded by _lock
        self._forms = WeakValueDictionary[FormKey, MessageForm]()  # guarded by _lock
        self.waiting = WaitingShapes(self._lock, lambda: self.is_ready and not self.is_ended)
        self.checkpoints = Checkpoints(
            topic,
            self._lock,
            find_feed=self.find_feed,
            reopen=self.needs_opening,
            settings=settings,
            clock=clock,
            settle=settle,
            tell_due=checkpoint_due,
        )
        self.newest_tx_at_open = 0
        self.is_ready = False
        self.was_opened = False
        self.is_ended = False
        self.is_gone = False
        self.is_given_up = False
        self.unused_rounds = 0
        self.changes = 0
        self.entries = 0

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
        """Whether the table has all that clients may have been told before it was opened."""
        feed = self.find_feed()
        return feed is not None and feed.position.tx >= self.newest_tx_at_open

    def connect(self) -> None:
        """Makes the feed if there is none; raises NotFound without the topic, Unavailable."""
        if self._feed is None:
            self._feed = self._make_feed(self.topic)

    def form(self, definition: Definition) -> MessageForm:
        """How changes are told to a shape; shared by shapes alike."""
        columns = None if definition.columns is None else frozenset(definition.columns)
        key = FormKey(columns, definition.replica)
        with self._lock:
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = MessageForm(self.topic, key)
            return form

    def open(self) -> None:
        """Opens the feed, which fills its table first if that is new or lost."""
        self.connect()
        with self.checkpoints.running:
            self.is_ready = False
            reset = self.feed.open(self._check_filling)
            with self._lock:
                self.checkpoints.begin_anew()
                if reset is not None:
                    self._reset_locked(reset, None)
                    self._check_dropped_locked()
                    # The reason holds until a checkpoint, and would fell the shapes to come too.
                    self.feed.checkpoint(self.feed.mark())
                self.newest_tx_at_open = self.feed.newest_tx
                lost = [one for one in self._distribution.shapes() if self._is_lost(one)]
                self._drop(lost, DropReason.SOURCE_LOST)
                self.is_ready = self.was_opened = True

    def _check_dropped_locked(self) -> None:
        """Raises Unavailable unless the shapes of before are gone for good."""
        if not self._settle(self.topic, 0):
            raise Unavailable(
                f"topic {self.topic} starts anew and shapes of it are still being dropped: it is "
                "opened again"
            )

    def _check_filling(self, progress: FillProgress) -> None:
        """Stops a filling that nobody waits for any more."""
        if self.is_ended:
            raise Closed(
                f"the table of topic {self.topic} was not filled: the engine stopped after "
                f"{progress.done} records"
            )

    def needs_opening(self) -> None:
        """The feed failed for good: it must be opened again, and gives again what came since."""
        self.is_ready = False

    def check_opened(self, shape: Shape, latest: Offset) -> None:
        """Raises Corrupt if a shape from an earlier run holds more than the topic had then."""
        if self.is_ready and self._is_ahead(latest):
            raise Corrupt(
                f"shape {shape.handle} is at {latest}, and topic {self.topic} ended at "
                f"{self.newest_tx_at_open} when it was opened: the topic has lost records"
            )

    def _is_lost(self, shape: Shape) -> bool:
        return self._is_ahead(max(shape.start, shape.latest) if shape.is_open else shape.start)

    def _is_ahead(self, place: Offset) -> bool:
        return place.tx > self.newest_tx_at_open

    def resume(self, shapes: Iterable[Shape]) -> None:
        """Takes shapes that have their snapshots."""
        with self._lock:
            for shape in shapes:
                self._distribution.add(shape)

    def join(self, shapes: Iterable[Shape]) -> TableView:
        """Lets shapes join here and now; their snapshot is what the view shows. Close it."""
        with self._lock:
            view = self.feed.view()
            for shape in shapes:
                if not shape.is_dropped:
                    shape.start = view.position
                    self._distribution.add(shape)
            return view

    def remove(self, shape: Shape) -> None:
        with self._lock:
            self._distribution.remove(shape)
            self.checkpoints.forget(shape)
            self.waiting.discard(shape)

    @property
    def shape_count(self) -> int:
        with self._lock:
            return len(self._distribution) + len(self.waiting)

    @property
    def is_used(self) -> bool:
        """Whether a shape lives on the feed, or is about to join: then it is in no list."""
        with self._lock:
            return self.waiting.is_served or self.shape_count > 0

    def turn(self, *, wait_ms: int) -> int:
        """Takes what the topic has to say, up to a limit; gives the number of changes.

        Where `is_ready` is false after that, the topic cannot be read on, and must be opened.
        """
        if self.checkpoints.is_crowded:
            self.checkpoints.wait(wait_ms)
            return 0
        given = self._poll(wait_ms)
        count = sum([len(transaction.changes) for transaction in given])
        try:
            touched = self._distribute(given) if given else []
        except BaseException:
            # Some shapes were told and some were not: a feed opened anew gives it again, and shapes
            # leave out what they have.
            self.needs_opening()
            raise
        self.changes += count
        if self.feed.is_open:
            self.checkpoints.mark(is_forced=False)
        else:
            self.needs_opening()
        if touched:
            self._notify(touched)
        return count

    def _poll(self, wait_ms: int) -> list[Transaction]:
        try:
            return self.feed.poll(max_records=self._settings.turn_records, wait_ms=wait_ms)
        except BaseException:
            if not self.feed.is_open:
                self.needs_opening()
            raise

    def _distribute(self, given: Sequence[Transaction]) -> list[str]:
        """Appends to each shape once; gives the handles of those that have news.

        What happens to one shape keeps nothing from the others.
        """
        outbox: Outbox = defaultdict(list)
        failed: list[tuple[Shape, Exception]] = []
        with self._lock:
            reset = given[-1].reset
            if reset is not None:
                self._reset_locked(reset, self.feed.position if self.feed.is_open else None)
                return []
            self._distribution.tell(given, outbox)
            for shape, entries in outbox.items():
                self.entries += len(entries)
                self.checkpoints.touch(shape)
                try:
                    shape.append(entries)
                except Exception as error:
                    failed.append((shape, error))
            for shape, failure in failed:
                if shape.is_dropped:
                    raise failure
                shape.write_failed(failure)
        return [shape.handle for shape in outbox]

    def _reset_locked(self, reset: Reset, place: Offset | None) -> None:
        """All that shapes hold is void; those that only wait for their snapshots stay.

        So do those that began at the place of the reset or later: it is read again after a crash.
        """
        shapes = self._distribution.shapes()
        gone = [one for one in shapes if place is None or one.start < place]
        if gone:
            logger.warning(
                "shapes of a topic start anew",
                extra={"topic": self.topic, "reason": reset.text, "shapes": len(gone)},
            )
        for shape in gone:
            self._distribution.remove(shape)
        self._drop(gone, _DROP_REASONS[reset.kind])

    def end_turns(self) -> None:
        """Lets the thread that runs turns end with the one in hand."""
        self.is_ended = True

    def close(self) -> None:
        """Closes the feed; without a checkpoint before, as after a crash."""
        self.is_ended = True
        with self.checkpoints.running:
            self.is_ready = False
            feed, self._feed = self._feed, None
            if feed is not None:
                feed.close()
