"""Checkpoints of one topic: makes its shapes durable, and then its table, up to a mark.

Invariant  everything that the feed returned up to a mark is durable in each shape that it concerns
           before the table is written up to that mark, or that shape is dropped; so the table on
           disk is never ahead of a shape on disk. A topic that is being opened, or whose table
           cannot be written, delays no other topic. The feed's own thread creates marks, when
           everything it polled was appended to the shapes.
Crash      the feed continues from the table's position; shapes skip what they have.
Threads    one creates marks, one runs checkpoints. The topic's lock guards the mark and the dirty
           shapes.
           `running` is held for a checkpoint, and while the feed is opened or closed; it is taken
           before the topic's lock.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from varve.foundation.errors import Closed, StoreError, Unavailable
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.metrics import CHECKPOINTS
from varve.shapes.offset import ShapeOffset
from varve.shapes.shape import Shape, flush_shapes

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine
    from varve.shapes.topic import ShapeTopic

_MANY_SHAPES: Final = 32
"""From this count on shapes are flushed in groups instead of in parallel."""
_FLUSHED_TOGETHER: Final = 1024
"""Shapes in a group; each has one or two files open meanwhile."""
_DROPS_WAIT_MS: Final = 1000
"""How long a checkpoint waits for shapes that are being dropped."""
_IDLE_MS: Final = 60_000
"""How often the table of an idle topic is written, which records that it is at the end."""
REOPEN_MS: Final = 30_000
"""A table that fails for this long is opened again: some failures last until then."""


class _CheckpointFailure(NamedTuple):
    """The time since which the table cannot be written, and the last error."""

    since_ms: int
    error: Exception


class _CheckpointMark(NamedTuple):
    """A mark of the feed; the table may be written up to it once `dirty` shapes are durable."""

    number: int
    dirty: set[Shape]


class TopicCheckpoint:
    """The checkpoint of one topic."""

    def __init__(self, engine: "ShapeEngine", topic: "ShapeTopic") -> None:
        self._engine = engine
        self._topic = topic
        self.running = threading.Lock()
        self._written = threading.Condition(topic.lock)
        self._dirty: set[Shape] = set()  # guarded by the topic's lock
        self._due: _CheckpointMark | None = None  # guarded by the topic's lock
        self._marked: ShapeOffset | None = None  # guarded by the topic's lock
        self._marked_ms = 0  # guarded by the topic's lock
        self._failing: _CheckpointFailure | None = None  # written under running, read without

    def restart(self) -> None:
        """Clears the mark: the feed was opened, and repeats changes after the last checkpoint."""
        with self._topic.lock:
            self._due, self._dirty, self._marked = None, set(), None
            self._failing = None

    def touch(self, shape: Shape) -> None:
        """Marks a shape as dirty after an append."""
        with self._topic.lock:
            self._dirty.add(shape)

    def forget(self, shape: Shape) -> None:
        with self._topic.lock:
            self._dirty.discard(shape)

    def mark(self, *, is_forced: bool) -> None:
        """Requests a checkpoint if one is due; only from the thread that polls."""
        feed = self._topic.find_feed()
        if feed is None:
            return
        with self._topic.lock:
            position, now_ms = feed.position, self._engine.clock.now_ms()
            passed_ms = now_ms - self._marked_ms
            is_idle = position == self._marked and 0 <= passed_ms < _IDLE_MS
            if self._due is not None or is_idle:
                return
            if not is_forced and 0 <= passed_ms < self._engine.settings.checkpoint_ms:
                return
            self._due = _CheckpointMark(feed.mark(), self._dirty)
            self._dirty = set()
            self._marked, self._marked_ms = position, now_ms
        self._engine.workers.wake_checkpoint()

    def run(self, *, waits: bool = False) -> bool:
        """Makes shapes durable and then the table, up to the mark; False if it was not written.

        While a drop is not durable the next checkpoint writes the table. With `waits` it waits for
        another checkpoint to end; without, it does not wait for a feed that is being opened, which
        may take hours.
        """
        if not self.running.acquire(blocking=waits):
            return False
        try:
            due, feed = self._due, self._topic.find_feed()
            is_written = due is not None and feed is not None and self._write(feed, due)
        finally:
            self.running.release()
        if is_written:
            self._engine.metrics.add(CHECKPOINTS, 1)
        return is_written

    def run_now(self) -> None:
        """Makes everything durable that was polled; only while no turns run."""
        self.run(waits=True)
        self.mark(is_forced=True)
        self.run(waits=True)

    def _write(self, feed: TopicFeed, due: _CheckpointMark) -> bool:
        self._flush(list(due.dirty))
        try:
            removal = self._engine.removal
            if not removal.wait_until_durable(self._topic.topic, _DROPS_WAIT_MS):
                return False
        except Unavailable as error:
            # Opening the feed again would not help.
            self._record_failure(error)
            raise
        try:
            feed.checkpoint(due.number)
        except Closed:
            # The feed was lost meanwhile; it is opened again and repeats changes not written yet.
            return False
        except Exception as error:
            if self._record_failure(error) >= REOPEN_MS:
                self._topic.needs_opening()
            raise
        self._failing = None
        with self._topic.lock:
            self._due = None
            self._written.notify_all()
        return True

    def _flush(self, shapes: Sequence[Shape]) -> None:
        """Flushes few shapes in parallel, many in groups with few syncs; drops those that fail."""
        if len(shapes) < _MANY_SHAPES:
            groups: list[Sequence[Shape]] = [[shape] for shape in shapes]
            results = list(self._engine.flush_pool.map(flush_shapes, groups))
        else:
            results = [
                flush_shapes(shapes[start : start + _FLUSHED_TOGETHER])
                for start in range(0, len(shapes), _FLUSHED_TOGETHER)
            ]
        failures: dict[Shape, StoreError] = {}
        for failed in results:
            failures.update(failed)
        self._engine.removal.drop_failed(failures)

    def _record_failure(self, error: Exception) -> int:
        """Returns for how many milliseconds checkpoints have been failing."""
        now_ms = self._engine.clock.now_ms()
        since_ms = now_ms if self._failing is None else self._failing.since_ms
        self._failing = _CheckpointFailure(since_ms, error)
        return now_ms - since_ms

    @property
    def is_behind(self) -> bool:
        """Whether reading pauses because too many rows or bytes wait for a checkpoint."""
        feed, settings = self._topic.find_feed(), self._engine.settings
        return feed is not None and (
            feed.unflushed_rows >= settings.unflushed_rows_max
            or feed.unflushed_bytes >= settings.unflushed_bytes_max
        )

    def wait(self, wait_ms: int) -> None:
        """Waits for a checkpoint of all that was polled; raises Unavailable if they fail."""
        self.mark(is_forced=True)
        with self._topic.lock:
            self._written.wait_for(lambda: self._due is None, wait_ms / 1000)
        failing = self._failing
        if failing is not None:
            raise Unavailable(
                f"topic {self._topic.topic} is not read further, its table cannot be written: "
                f"{failing.error}"
            ) from failing.error
