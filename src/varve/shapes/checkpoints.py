"""The checkpoints of one topic: its shapes become durable, and then its table, up to a mark.

Invariant  everything that the feed gave up to a mark is durable in each shape that it concerns
           before the table is written up to that mark, or is dropped for good; so the table on
           disk is never ahead of a shape on disk. A topic that is being opened, or whose table
           cannot be written, keeps no other from its checkpoints. Marks are taken by the feed's own
           thread, when nothing it polled is still on its way to a shape.
Crash      the feed reads again from the table's place; shapes drop what they have.
Threads    one marks, one runs checkpoints. The lock of the topic's shapes guards what is due and
           what is dirty. `running` is held for a checkpoint, and by who opens or closes the feed;
           it is taken before the lock of the shapes.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Unavailable
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import Offset
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import Shape, flush_shapes

_MANY_SHAPES: Final = 32
_FLUSHED_TOGETHER: Final = 1024
"""Each has a file or two open meanwhile."""
_DROPS_WAIT_MS: Final = 1000
"""How long a checkpoint waits for shapes that are being dropped."""
_IDLE_MS: Final = 60_000
"""So often a table without changes notes that it is at the end of its topic."""
REOPEN_MS: Final = 30_000
"""After failing for so long a table is opened again: not all that fails heals by itself."""

Settle = Callable[[str, int], bool]
"""Waits so many milliseconds until no shape of the topic that was dropped before can come back, and
tells whether that is so."""


class _Failing(NamedTuple):
    """Since when the table cannot be written, and why."""

    since_ms: int
    error: Exception


class _Due(NamedTuple):
    """A place up to which the table may be written once these shapes are durable."""

    mark: int
    dirty: set[Shape]


class Checkpoints:
    """What one topic has to make durable."""

    def __init__(
        self,
        topic: str,
        lock: threading.RLock,
        *,
        find_feed: Callable[[], TopicFeed | None],
        reopen: Callable[[], None],
        settings: EngineSettings,
        clock: Clock,
        settle: Settle,
        tell_due: Callable[[], None],
    ) -> None:
        """`find_feed` gives the feed while it is open; `reopen` has it opened again."""
        self._topic = topic
        self._lock = lock
        self._find_feed = find_feed
        self._reopen = reopen
        self._settings = settings
        self._clock = clock
        self._settle = settle
        self._tell_due = tell_due
        self.running = threading.Lock()
        self._written = threading.Condition(lock)
        self._dirty: set[Shape] = set()  # guarded by _lock
        self._due: _Due | None = None  # guarded by _lock
        self._marked: Offset | None = None  # guarded by _lock
        self._marked_ms = 0  # guarded by _lock
        self._failing: _Failing | None = None  # guarded by running

    def begin_anew(self) -> None:
        """Forgets what was due: the feed was opened, and gives again what no checkpoint wrote."""
        with self._lock:
            self._due, self._dirty, self._marked = None, set(), None
            self._failing = None

    def touch(self, shape: Shape) -> None:
        """Notes that a shape was told something."""
        with self._lock:
            self._dirty.add(shape)

    def forget(self, shape: Shape) -> None:
        with self._lock:
            self._dirty.discard(shape)

    def mark(self, *, is_forced: bool) -> None:
        """Asks for a checkpoint if one is due; only from the thread that polls."""
        feed = self._find_feed()
        if feed is None:
            return
        with self._lock:
            position, now_ms = feed.position, self._clock.now_ms()
            passed_ms = now_ms - self._marked_ms
            is_idle = position == self._marked and 0 <= passed_ms < _IDLE_MS
            if self._due is not None or is_idle:
                return
            if not is_forced and 0 <= passed_ms < self._settings.checkpoint_ms:
                return
            self._due = _Due(feed.mark(), self._dirty)
            self._dirty = set()
            self._marked, self._marked_ms = position, now_ms
        self._tell_due()

    def run(self, pool: Executor, *, is_patient: bool = False) -> bool:
        """Makes shapes durable and then the table, up to the mark; False if none is set.

        Also where a shape is not dropped for good yet: the next one makes up for it. One that is
        patient waits for another one to end, but nobody is to wait for a feed to be opened, which
        may take hours.
        """
        if not self.running.acquire(blocking=is_patient):
            return False
        try:
            due, feed = self._due, self._find_feed()
            return due is not None and feed is not None and self._run(feed, due, pool)
        finally:
            self.running.release()

    def run_now(self, pool: Executor) -> None:
        """A checkpoint of everything that was taken; only while nobody runs turns."""
        self.run(pool, is_patient=True)
        self.mark(is_forced=True)
        self.run(pool, is_patient=True)

    def _run(self, feed: TopicFeed, due: _Due, pool: Executor) -> bool:
        # A shape that cannot be flushed is dropped by that, and holds nobody up.
        _flush_all(list(due.dirty), pool)
        try:
            if not self._settle(self._topic, _DROPS_WAIT_MS):
                return False
        except Unavailable as error:
            # It does not heal by opening the feed again.
            self._note_failure(error)
            raise
        try:
            feed.checkpoint(due.mark)
        except Closed:
            # It was lost meanwhile: it is opened again, and gives again what is not written.
            return False
        except Exception as error:
            if self._note_failure(error) >= REOPEN_MS:
                self._reopen()
            raise
        self._failing = None
        with self._lock:
            self._due = None
            self._written.notify_all()
        return True

    def _note_failure(self, error: Exception) -> int:
        """Gives for how many milliseconds it has been failing."""
        now_ms = self._clock.now_ms()
        since_ms = now_ms if self._failing is None else self._failing.since_ms
        self._failing = _Failing(since_ms, error)
        return now_ms - since_ms

    @property
    def is_crowded(self) -> bool:
        """Whether so much waits for a checkpoint that the topic is to be read no further."""
        feed, settings = self._find_feed(), self._settings
        return feed is not None and (
            feed.overlay_count >= settings.pending_rows_max
            or feed.overlay_bytes >= settings.pending_bytes_max
        )

    def wait(self, wait_ms: int) -> None:
        """Waits for a checkpoint of all that was taken; raises Unavailable where they fail."""
        self.mark(is_forced=True)
        with self._lock:
            self._written.wait_for(lambda: self._due is None, wait_ms / 1000)
        failing = self._failing
        if failing is not None:
            raise Unavailable(
                f"topic {self._topic} is read no further, its table cannot be written: "
                f"{failing.error}"
            ) from failing.error


def _flush_all(shapes: Sequence[Shape], pool: Executor) -> None:
    """Flushes few shapes side by side, many one part after the other with few syncs."""
    if len(shapes) < _MANY_SHAPES:
        list(pool.map(flush_shapes, [[shape] for shape in shapes]))
        return
    for start in range(0, len(shapes), _FLUSHED_TOGETHER):
        flush_shapes(shapes[start : start + _FLUSHED_TOGETHER])
