"""The engine of shapes: finds and makes them, feeds them, keeps them durable, drops them.

Layout     registry.sqlite, .lock, tables/<topic>, <h1h2>/<h3h4>/<handle>/, .tmp, .trash in the data
           directory. docs/shapes.md
Invariant  one shape for each definition and one handle for each shape, never given again. A handle
           that was dropped is found no more. A topic has one feed at a time, and no shape outlives
           the feed that it lives on. Behind the end nothing is written, whoever reads on: the
           directory may be another process's.
Crash      shapes with complete snapshots go on where their feeds go on; others are dropped.
Threads    any. `_creation` is held while a shape is made or a topic is let go, not while a broker
           is asked for a topic. Workers run turns, checkpoints, snapshots and upkeep; in an engine
           without them one thread may call the same methods.
"""

import itertools
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import TracebackType
from typing import Final, Self

from varve.disk import FileSystem, Lock, make_durable_directory
from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Unavailable
from varve.shapes import metrics
from varve.shapes.catalog import Catalog
from varve.shapes.compacting import Compacting
from varve.shapes.compaction.report import CompactionReport
from varve.shapes.compaction.settings import CompactionSettings
from varve.shapes.definition import Definition
from varve.shapes.dropping import Dropping
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.health import EngineHealth, TopicHealth, engine_health, topic_health
from varve.shapes.leftovers import Leftovers
from varve.shapes.listeners import Listener, Listeners
from varve.shapes.loading import load_shapes
from varve.shapes.metrics import EngineMetrics
from varve.shapes.offset import Offset
from varve.shapes.query.subset import Subset
from varve.shapes.registry import Registry
from varve.shapes.running import Running
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.snapshotting import Snapshotter
from varve.shapes.storage.settings import StorageSettings
from varve.shapes.storage.trash import trash_directory
from varve.shapes.storages import Storages
from varve.shapes.subset_reading import SubsetResult, read_subset
from varve.shapes.topic_lives import TopicLives
from varve.shapes.topic_shapes import TopicShapes
from varve.shapes.topics import Topics

LOCK_FILE: Final = ".lock"
EVICTED_TOGETHER: Final = 100
"""Shapes that one new shape makes go at most."""


class Engine:
    """All shapes of one data directory. Use it as a context manager, or close it."""

    def __init__(
        self,
        root: str,
        make_feed: Callable[[str], TopicFeed],
        *,
        fs: FileSystem,
        clock: Clock,
        random: Random,
        settings: EngineSettings | None = None,
        compaction: CompactionSettings | None = None,
    ) -> None:
        """`make_feed` gives the feed of a topic; it raises NotFound if there is no such topic."""
        self.root = root
        self.settings = settings or EngineSettings()
        self._make_feed = make_feed
        self._fs = fs
        self._clock = clock
        self._catalog = Catalog()
        self._creation = threading.Lock()
        self._topics = Topics(self._make_topic, clock)
        self._listeners = Listeners()
        self.metrics = EngineMetrics(self._topics.all)
        self._reads = itertools.count(1)
        # Clients tell subsets apart by their marks, those from before a restart too.
        self._marks = itertools.count(clock.now_ms())
        self._leftovers = Leftovers(fs, root, self._catalog)
        self._storages = Storages(
            fs,
            root,
            self._topics,
            settings=StorageSettings(chunk_bytes=self.settings.chunk_bytes),
            clock=clock,
        )
        self._dropping = Dropping(
            self._catalog,
            self._topics,
            unregister=self._unregister,
            leftovers=self._leftovers,
            listeners=self._listeners,
            metrics=self.metrics.table,
        )
        self._compacting = Compacting(
            self._catalog,
            settings=compaction or CompactionSettings(),
            random=random,
            metrics=self.metrics.table,
            drop=self.drop,
        )
        self._is_open = False
        self._running: Running | None = None
        self._directory_lock: Lock | None = None

    def open(self, *, maintain: bool = True) -> Self:
        """Loads the shapes there are; with `maintain` threads keep them going."""
        make_durable_directory(self._fs, self.root)
        self._directory_lock = self._fs.lock(f"{self.root}/{LOCK_FILE}")
        try:
            # Now: a full disk has no room for it when shapes have to go.
            self._fs.make_directory(trash_directory(self.root))
            self._registry = Registry.open(self.root, self._clock)
        except BaseException:
            self._directory_lock.release()
            raise
        self._pool = ThreadPoolExecutor(
            self.settings.flush_threads, thread_name_prefix="shapes-flush"
        )
        self._snapshotter = Snapshotter(
            self._registry,
            create_storage=self._storages.create,
            drop=self._dropping.drop,
            notify=self._listeners.tell,
            pool=self._pool,
            metrics=self.metrics.table,
        )
        self._is_open = True
        try:
            self._leftovers.begin(self._registry.remove_incomplete())
            self._load()
            self._running = self._make_running() if maintain else None
            self._lives = TopicLives(
                self._topics, self._dropping, running=self._running, pool=self._pool
            )
            if self._running is not None:
                self._running.start(self._topics.all())
        except BaseException:
            self.abandon()
            raise
        return self

    def _load(self) -> None:
        by_topic = load_shapes(
            self._registry,
            self._catalog,
            lambda row, definition: self._make_shape(
                row.handle, definition, row.created_ms, row.start
            ),
        )
        for topic, shapes in by_topic.items():
            self._topics.get(topic).resume(shapes)

    def _make_running(self) -> Running:
        return Running(
            self._snapshotter,
            settings=self.settings,
            clock=self._clock,
            checkpoint=self.checkpoint,
            upkeep=self.run_upkeep,
            compact=self.run_compaction if self.settings.compacts else None,
            topic_gone=self._dropping.topic_gone,
        )

    # Finding and making

    def find(self, handle: str) -> Shape | None:
        """The shape of a handle; None for one that is unknown or was dropped. Needs no file."""
        return self._catalog.find(handle)

    def find_by_definition(self, definition: Definition) -> Shape | None:
        return self._catalog.find_by_definition(definition)

    def find_or_create(self, definition: Definition) -> Shape:
        """The shape of a definition; a new one gets its snapshot from another thread.

        Raises NotFound without the topic, Unavailable when it cannot be reached, or had shapes a
        moment ago and is gone, or when there are too many shapes in use.
        """
        found = self._catalog.find_by_definition(definition)
        if found is not None and not found.is_dropped:
            return found
        self._check_open()
        with self._lives.connecting(definition.topic) as connected, self._creation:
            self._check_open()
            found = self._catalog.find_by_definition(definition)
            if found is not None:
                if not found.is_dropped:
                    return found
                # Somebody is about to take it out.
                self._catalog.remove([found])
            topic = self._lives.get_or_start(definition.topic, connected)
            self._make_room()
            shape = self._make_shape(
                self._registry.add(definition), definition, self._clock.now_ms(), None
            )
            self._catalog.add(shape)
            topic.waiting.add(shape)
            if self._running is not None:
                self._running.wake_snapshots(topic)
        self.metrics.table.add(metrics.CREATED, 1)
        return shape

    def _make_room(self) -> None:
        excess = len(self._catalog) + 1 - self.settings.shapes_max
        if excess <= 0:
            return
        # More than one where the limit was another one in an earlier run.
        count = min(excess, EVICTED_TOGETHER)
        oldest = self._catalog.least_recently_read(self._clock.now_ms(), count)
        if not oldest:
            raise Unavailable(
                f"there are {len(self._catalog)} shapes and all of them are followed or were just "
                f"made; the limit is {self.settings.shapes_max} (shapes.max): try again"
            )
        self._dropping.drop(oldest, DropReason.EVICTED)

    def _make_shape(
        self, handle: str, definition: Definition, created_ms: int, start: Offset | None
    ) -> Shape:
        return Shape(
            handle,
            definition,
            self._topics.get_or_add(definition.topic).form(definition),
            created_ms=created_ms,
            start=start,
            reads=self._reads,
            clock=self._clock,
            open_storage=self._storages.open,
            storage_failed=self._dropping.storage_failed,
        )

    def _make_topic(self, name: str) -> TopicShapes:
        return TopicShapes(
            name,
            self._make_feed,
            settings=self.settings,
            clock=self._clock,
            drop=self._dropping.drop,
            settle=self._dropping.settle,
            notify=self._listeners.tell,
            checkpoint_due=self._checkpoint_due,
        )

    def shapes(self) -> list[Shape]:
        """All shapes, the oldest first."""
        return self._catalog.shapes()

    # Asking

    def subset(
        self, shape: Shape, subset: Subset, is_left: Callable[[], bool] = lambda: False
    ) -> SubsetResult:
        """Some of a shape's rows as they are now; ends with Unavailable once `is_left` says so."""
        return read_subset(
            self._topics.get(shape.definition.topic),
            shape,
            subset,
            mark=next(self._marks),
            settings=self.settings,
            is_left=is_left,
        )

    def newest_tx(self, topic: str) -> int:
        """The newest transaction of a topic that its shapes were told of; 0 before the first."""
        found = self._topics.find(topic)
        feed = None if found is None else found.find_feed()
        return 0 if feed is None else max(feed.position.tx, 0)

    def is_caught_up(self, topic: str) -> bool:
        """Whether shapes have all that the topic had a moment ago."""
        found = self._topics.find(topic)
        feed = None if found is None else found.find_feed()
        return feed is not None and feed.is_caught_up

    def is_read_again(self, topic: str) -> bool:
        """Whether a topic's rows are not behind what clients were told before a restart."""
        found = self._topics.find(topic)
        return found is not None and found.is_read_again

    def health(self) -> EngineHealth:
        return engine_health([self._look_at(one) for one in self._topics.all()])

    def topic_health(self, topic: str) -> TopicHealth | None:
        """How one topic fares, however many there are; None for one without shapes."""
        found = self._topics.find(topic)
        return None if found is None else self._look_at(found)

    def _look_at(self, topic: TopicShapes) -> TopicHealth:
        running = self._running
        return topic_health(topic, None if running is None else running.health(topic.topic))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tells a listener of news, from any thread and quickly; gives what ends that."""
        return self._listeners.add(listener)

    # Work that the workers do

    def run_turn(self, topic: str, *, wait_ms: int = 0) -> int:
        """One turn of a topic's feed, and the snapshots that wait; for an engine without workers.

        Gives the number of changes.
        """
        found = self._topics.get(topic)
        if not found.is_ready:
            found.open()
        self._snapshotter.run(found)
        return found.turn(wait_ms=wait_ms)

    def checkpoint(self) -> None:
        """Makes durable what is due."""

        def run(topic: TopicShapes) -> None:
            if topic.checkpoints.run(self._pool):
                self.metrics.table.add(metrics.CHECKPOINTS, 1)

        self._topics.for_each(run)

    def checkpoint_now(self) -> None:
        """Makes everything durable; for an engine without workers."""
        self._topics.for_each(lambda topic: topic.checkpoints.run_now(self._pool))

    def run_upkeep(self, now_ms: int) -> None:
        """Removes what was dropped, directories that no shape owns, and feeds that nobody needs."""
        try:
            with self._creation:
                if self._is_open:
                    self._lives.end_unused()
        finally:
            self._leftovers.run_once()

    def compact(self, shape: Shape) -> CompactionReport:
        """Compacts a shape's log now; raises NotFound if it was dropped, Unavailable if at it, and
        Closed if the engine ends."""
        return self._compacting.compact(shape, self._clock.now_ms())

    def run_compaction(self, now_ms: int) -> None:
        """Compacts the logs whose time has come."""
        self._compacting.run_once(now_ms)

    def end_compactions(self) -> None:
        """Lets those under way end soon, and none begin: the engine is to be closed."""
        self._compacting.end()

    def _checkpoint_due(self) -> None:
        if self._running is not None:
            self._running.wake_checkpoint()

    # Dropping

    def drop(self, shape: Shape, reason: DropReason) -> None:
        """Ends a shape for good; one that was dropped before stays so. Closed behind the end."""
        self._dropping.drop([shape], reason)

    def _unregister(self, handles: Collection[str]) -> None:
        self._registry.remove(handles)

    # The end

    def close(self) -> None:
        """Stops the workers, makes everything durable and lets go; closing twice is harmless."""
        if not self._is_open:
            return
        self._stop()
        try:
            self.checkpoint_now()
            for shape in self.shapes():
                shape.close()
        finally:
            self._let_go()

    def abandon(self) -> None:
        """Lets go as a crash would: nothing more is made durable."""
        if self._is_open:
            self._stop()
            self._let_go()

    def _stop(self) -> None:
        # Who is making a shape has the engine open until it is made.
        with self._creation:
            self._is_open = False
        self._leftovers.end()
        self._compacting.end()
        if self._running is not None:
            self._running.stop()
            self._running = None
        self._compacting.join()

    def _let_go(self) -> None:
        self._pool.shutdown(wait=True)
        self._dropping.end()
        for topic in self._topics.all():
            topic.close()
        for shape in self.shapes():
            shape.abandon()
        self._registry.close()
        assert self._directory_lock is not None
        self._directory_lock.release()

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(f"the engine of shapes in {self.root} is closed: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
