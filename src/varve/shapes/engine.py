"""ShapeEngine: finds and creates shapes, feeds them, makes them durable and drops them.

Layout     registry.sqlite, .lock, tables/<topic>, <h1h2>/<h3h4>/<handle>/, .tmp, .trash in the data
           directory. docs/shapes.md
Invariant  a definition has one shape, and a shape has one handle, which is never reused. A topic
           has one feed at a time, and no shape outlives the feed that serves it. After `close`
           nothing is written: the directory may belong to another process.
Crash      shapes with complete snapshots continue where their feeds continue; others are dropped.
Threads    any. Workers run turns, checkpoints, snapshots and maintenance; in an engine without
           them one thread may call the same methods.
"""

import itertools
from collections.abc import Callable
from random import Random
from typing import Final, Self

from varve.disk import FileSystem, Lock, make_durable_directory
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.foundation.errors import Closed, Unavailable
from varve.shapes import metrics
from varve.shapes.compaction.report import CompactionReport
from varve.shapes.context import EngineContext, Listener, OpenFeed, ShapeEvents
from varve.shapes.definition import Definition
from varve.shapes.filter.subset import Subset
from varve.shapes.metrics import EngineHealth, EngineMetrics, TopicHealth, engine_health
from varve.shapes.registry import ShapeRegistry
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.layout import trash_directory
from varve.shapes.topic import ShapeTopic, SubsetResult

LOCK_FILE: Final = ".lock"
EVICTED_TOGETHER: Final = 100
"""The most shapes that are evicted for one new shape."""


class ShapeEngine(Closing):
    """All shapes of one data directory. Use it as a context manager, or close it."""

    def __init__(
        self,
        root: str,
        open_feed: OpenFeed,
        *,
        fs: FileSystem,
        clock: Clock,
        random: Random,
        settings: EngineSettings | None = None,
        compaction: CompactionSettings | None = None,
    ) -> None:
        """`open_feed` returns the feed of a topic; it raises NotFound without that topic."""
        self.root = root
        self.settings = settings or EngineSettings()
        self._compaction_settings = compaction or CompactionSettings()
        self._open_feed = open_feed
        self._fs = fs
        self._clock = clock
        self._random = random
        self._events = ShapeEvents()
        self.metrics = EngineMetrics()
        # Clients distinguish subsets by their marks, including those from before a restart.
        self._marks = itertools.count(clock.now_ms())
        self._context: EngineContext | None = None
        self._directory_lock: Lock | None = None

    @property
    def context(self) -> EngineContext:
        """The parts of the engine since it was last opened; raises Closed before that."""
        if self._context is None:
            raise Closed(f"the engine of shapes in {self.root} is not open: open it")
        return self._context

    # Opening and closing

    def open(self, *, maintain: bool = True) -> Self:
        """Loads the shapes; with `maintain` threads keep them up to date.

        An engine that was closed may be opened again.
        """
        make_durable_directory(self._fs, self.root)
        self._directory_lock = self._fs.lock(f"{self.root}/{LOCK_FILE}")
        try:
            # Created now, because shapes must be moved into it even on a full disk.
            self._fs.make_directory(trash_directory(self.root))
            registry = ShapeRegistry.open(self.root, self._clock)
        except BaseException:
            self._directory_lock.release()
            raise
        context = self._context = self._make_context(registry)
        self.metrics.topics = context.topics
        try:
            context.trash.discard_incomplete(registry.remove_incomplete())
            self._load(context)
            if maintain:
                context.workers.start(context.topics.all())
        except BaseException:
            self.abandon()
            raise
        return self

    def _make_context(self, registry: ShapeRegistry) -> EngineContext:
        return EngineContext(
            self.root,
            self._open_feed,
            fs=self._fs,
            clock=self._clock,
            random=self._random,
            settings=self.settings,
            compaction=self._compaction_settings,
            metrics=self.metrics.table,
            events=self._events,
            registry=registry,
        )

    def _load(self, context: EngineContext) -> None:
        by_topic: dict[ShapeTopic, list[Shape]] = {}
        for row, definition in context.registry.load():
            topic = context.topics.get_or_add(definition.topic)
            shape = Shape(
                context,
                topic,
                row.handle,
                definition,
                created_ms=row.created_ms,
                start=row.start,
            )
            context.registry.add(shape)
            by_topic.setdefault(topic, []).append(shape)
        for topic, shapes in by_topic.items():
            topic.resume(shapes)

    def close(self) -> None:
        """Stops the workers, makes everything durable and closes; closing twice is harmless."""
        if not self._is_open:
            return
        context = self._stop()
        try:
            self.checkpoint_now()
            for shape in context.registry.shapes():
                shape.close()
        finally:
            self._release(context)

    def abandon(self) -> None:
        """Closes as a crash would: nothing more is made durable."""
        if self._is_open:
            self._release(self._stop())

    @property
    def _is_open(self) -> bool:
        return self._context is not None and not self._context.topics.is_ended

    def _stop(self) -> EngineContext:
        context = self.context
        # Waits until a shape that is being created is finished.
        context.topics.end()
        context.trash.end()
        context.compaction.compactor.end()
        context.workers.stop()
        context.compaction.compactor.join()
        return context

    def _release(self, context: EngineContext) -> None:
        context.flush_pool.shutdown(wait=True)
        context.removal.end()
        for topic in context.topics.all():
            topic.close()
        for shape in context.registry.shapes():
            shape.abandon()
        context.registry.close()
        assert self._directory_lock is not None
        self._directory_lock.release()

    def _check_open(self) -> EngineContext:
        if not self._is_open:
            raise Closed(f"the engine of shapes in {self.root} is closed: open it again")
        return self.context

    # Finding and creating

    def find(self, handle: str) -> Shape | None:
        """The shape of a handle; None if it is unknown or was dropped. Opens no file."""
        context = self._context
        return None if context is None else context.registry.find(handle)

    def find_by_definition(self, definition: Definition) -> Shape | None:
        context = self._context
        return None if context is None else context.registry.find_by_definition(definition)

    def find_or_create(self, definition: Definition) -> Shape:
        """The shape of a definition; another thread writes the snapshot of a new one.

        Raises NotFound if the topic does not exist. Raises Unavailable if the broker cannot be
        reached, if the topic had shapes a moment ago and was deleted, or if too many shapes are in
        use.
        """
        shape = self.find_by_definition(definition)
        if shape is not None and not shape.is_dropped:
            return shape
        topics = self._check_open().topics
        with topics.connecting(definition.topic) as connected, topics.changing:
            context = self._check_open()
            shape = context.registry.find_by_definition(definition)
            if shape is not None:
                if not shape.is_dropped:
                    return shape
                # Another thread is about to remove it.
                context.registry.hide([shape])
            shape = self._create(context, definition, connected)
        self.metrics.table.add(metrics.CREATED, 1)
        return shape

    def _create(
        self, context: EngineContext, definition: Definition, connected: ShapeTopic | None
    ) -> Shape:
        topic = context.topics.get_or_start(definition.topic, connected)
        self._evict_if_full(context)
        shape = Shape(
            context,
            topic,
            context.registry.new_handle(definition),
            definition,
            created_ms=self._clock.now_ms(),
            start=None,
        )
        context.registry.add(shape)
        topic.add_waiting(shape)
        context.workers.wake_snapshots(topic)
        return shape

    def _evict_if_full(self, context: EngineContext) -> None:
        registry = context.registry
        excess = len(registry) + 1 - self.settings.shapes_max
        if excess <= 0:
            return
        # More than one if the limit was higher in an earlier run.
        count = min(excess, EVICTED_TOGETHER)
        evicted = registry.least_recently_read(self._clock.now_ms(), count)
        if not evicted:
            raise Unavailable(
                f"there are {len(registry)} shapes and all of them are in use or were just "
                f"created; the limit is {self.settings.shapes_max} (shapes.max): try again"
            )
        context.removal.drop(evicted, DropReason.EVICTED)

    def shapes(self) -> list[Shape]:
        """All shapes, the oldest first."""
        context = self._context
        return [] if context is None else context.registry.shapes()

    # State

    def subset(
        self, shape: Shape, subset: Subset, is_cancelled: Callable[[], bool] = lambda: False
    ) -> SubsetResult:
        """Some of a shape's rows as they are now; Unavailable once `is_cancelled` returns true."""
        topic = self.context.topics.get(shape.definition.topic)
        return topic.read_subset(shape, subset, mark=next(self._marks), is_cancelled=is_cancelled)

    def _find_topic(self, topic: str) -> ShapeTopic | None:
        context = self._context
        return None if context is None else context.topics.find(topic)

    def newest_tx(self, topic: str) -> int:
        """The newest transaction of a topic that its shapes have; 0 before the first."""
        shape_topic = self._find_topic(topic)
        feed = None if shape_topic is None else shape_topic.find_feed()
        return 0 if feed is None else max(feed.position.tx, 0)

    def is_caught_up(self, topic: str) -> bool:
        """Whether shapes have all records that the topic had a moment ago."""
        shape_topic = self._find_topic(topic)
        feed = None if shape_topic is None else shape_topic.find_feed()
        return feed is not None and feed.is_caught_up

    def is_read_again(self, topic: str) -> bool:
        """Whether a topic's rows include all that clients got before a restart."""
        shape_topic = self._find_topic(topic)
        return shape_topic is not None and shape_topic.is_read_again

    def health(self) -> EngineHealth:
        return engine_health([self._health_of(topic) for topic in self.context.topics.all()])

    def topic_health(self, topic: str) -> TopicHealth | None:
        """The state of one topic; None for one without shapes."""
        shape_topic = self._find_topic(topic)
        return None if shape_topic is None else self._health_of(shape_topic)

    def _health_of(self, topic: ShapeTopic) -> TopicHealth:
        worker = self.context.workers.health(topic.topic)
        error = worker.last_error if worker is not None and worker.failures else None
        is_ready = topic.find_feed() is not None
        return TopicHealth(topic.topic, is_ready, "" if error is None else str(error))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Notifies a listener of new entries, from any thread; call the result to unsubscribe.

        A subscription outlasts closing and opening the engine.
        """
        return self._events.subscribe(listener)

    # Work of the workers, callable without them

    def run_turn(self, topic: str, *, wait_ms: int = 0) -> int:
        """One turn of a topic's feed, and the snapshots that wait; returns the changes."""
        context = self.context
        shape_topic = context.topics.get(topic)
        if not shape_topic.is_ready:
            shape_topic.open()
        context.snapshotter.run(shape_topic)
        return shape_topic.turn(wait_ms=wait_ms)

    def checkpoint(self) -> None:
        """Runs the checkpoints that are due."""
        self.context.topics.for_each(lambda topic: topic.checkpoint.run())

    def checkpoint_now(self) -> None:
        """Makes everything durable; for an engine without workers."""
        self.context.topics.for_each(lambda topic: topic.checkpoint.run_now())

    def run_maintenance(self) -> None:
        """Deletes the files of dropped shapes, and ends unused topics."""
        self.context.run_maintenance()

    def compact(self, shape: Shape) -> CompactionReport:
        """Compacts a shape's log now; raises NotFound if it was dropped, Unavailable while another
        compaction of it runs, and Closed if the engine is closed."""
        return self.context.compaction.compact(shape, self._clock.now_ms())

    def run_compaction(self, now_ms: int) -> None:
        """Compacts the logs that are due."""
        self.context.compaction.run_once(now_ms)

    def end_compactions(self) -> None:
        """Ends running compactions early and starts no more; before the engine is closed."""
        self.context.compaction.compactor.end()

    def drop(self, shape: Shape, reason: DropReason) -> None:
        """Drops a shape for good; harmless if it was dropped. Raises Closed after the end."""
        self.context.removal.drop([shape], reason)
