"""ShapeEngine: finds and creates shapes, feeds them, makes them durable and drops them.

Layout     registry.sqlite, .lock, tables/<topic>, <h1h2>/<h3h4>/<handle>/, .tmp, .trash in the data
           directory. docs/how-to/serve-shapes.md
Invariant  a definition has one shape, and a shape has one handle, which is never reused. A topic
           has one feed at a time, and no shape outlives the feed that serves it. After `close`
           nothing is written: the directory may belong to another process.
Crash      shapes with complete snapshots continue where their feeds continue; others are dropped.
Threads    any. Workers run turns, checkpoints, snapshots and maintenance; in an engine without
           them one thread may call the same methods.
"""

import itertools
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, Self

from varve.disk import FileSystem, make_durable_directory
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.foundation.errors import Closed, InvalidRequest
from varve.shapes import metrics
from varve.shapes.compaction.compactor import CompactionReport
from varve.shapes.compaction.scheduler import CompactionScheduler
from varve.shapes.definition import Definition
from varve.shapes.eviction import ShapeEviction
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.filter.subset import Subset
from varve.shapes.metrics import EngineMetrics, TopicHealth
from varve.shapes.registry import ShapeRegistry
from varve.shapes.removal import ShapeRemoval
from varve.shapes.settings import CompactionSettings, EngineSettings, StorageSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.snapshotting import Snapshotter
from varve.shapes.storage.layout import trash_directory
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.topic import ShapeTopic, SubsetResult
from varve.shapes.topics import TopicMap
from varve.shapes.workers import EngineWorkers

LOCK_FILE: Final = ".lock"

OpenFeed = Callable[[str], TopicFeed]
"""Returns the feed of a topic; raises NotFound if there is no such topic."""
Listener = Callable[[Collection[str]], None]
"""Called with the handles of shapes that have new entries or another state, or were dropped; by any
thread, without a lock. It returns quickly and does its work elsewhere."""


class ShapeEngine(Closing):
    """All shapes of one data directory, from `open` to `close`; its parts refer to each other
    through it."""

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
        """Locks the data directory, and opens its registry; `open` comes next."""
        self.root = root
        self.open_feed = open_feed
        self.fs = fs
        self.clock = clock
        self.settings = settings or EngineSettings()
        make_durable_directory(fs, root)
        self._directory_lock = fs.lock(f"{root}/{LOCK_FILE}")
        try:
            # Created now, because shapes must be moved into it even on a full disk.
            fs.make_directory(trash_directory(root))
            self.registry = ShapeRegistry.open(root, clock)
        except BaseException:
            self._directory_lock.release()
            raise
        self.metrics = EngineMetrics(self)
        self.read_numbers = itertools.count(1)
        """Numbers the reads of all shapes, so that the least recently read one is known."""
        self.flush_pool = ThreadPoolExecutor(
            self.settings.flush_threads, thread_name_prefix="shapes-flush"
        )
        self.removal = ShapeRemoval(self)
        self.eviction = ShapeEviction(self)
        self.topics = TopicMap(self)
        self.snapshotter = Snapshotter(self)
        self.compaction = CompactionScheduler(
            self.registry,
            self.removal,
            settings=compaction or CompactionSettings(),
            random=random,
            metrics=self.metrics,
        )
        self.workers = EngineWorkers(self)
        self._storage_settings = StorageSettings(chunk_bytes=self.settings.chunk_bytes)
        # Clients distinguish subsets by their marks, including those from before a restart.
        self._marks = itertools.count(clock.now_ms())
        self._is_opened = False
        self._lock = threading.Lock()
        self._maintenance_lock = threading.Lock()  # one round at a time; taken before all others
        self._listeners: tuple[Listener, ...] = ()  # replaced under _lock, read without

    # Opening and closing

    def open(self, *, maintain: bool = True) -> Self:
        """Loads the shapes; with `maintain` threads keep them up to date. An engine opens once."""
        self._check_open()
        if self._is_opened:
            raise InvalidRequest(f"the engine of shapes in {self.root} is open already")
        self._is_opened = True
        try:
            self.removal.discard_incomplete(self.registry.remove_incomplete())
            self._load()
            if maintain:
                self.workers.start()
        except BaseException:
            self.abandon()
            raise
        return self

    def _load(self) -> None:
        by_topic: dict[ShapeTopic, list[Shape]] = {}
        for row, definition in self.registry.load():
            topic = self.topics.get_or_add(definition.topic)
            shape = Shape(
                self, topic, row.handle, definition, created_ms=row.created_ms, start=row.start
            )
            self.registry.add(shape)
            by_topic.setdefault(topic, []).append(shape)
        for topic, shapes in by_topic.items():
            topic.resume(shapes)

    def close(self) -> None:
        """Stops the workers, makes everything durable and closes; closing twice is harmless."""
        if self.topics.is_ended:
            return
        self._stop()
        try:
            self.checkpoint_now()
            for shape in self.registry.shapes():
                shape.close()
        finally:
            self._release()

    def abandon(self) -> None:
        """Closes as a crash would: nothing more is made durable."""
        if not self.topics.is_ended:
            self._stop()
            self._release()

    def _stop(self) -> None:
        # Waits until a shape that is being created is finished.
        self.topics.end()
        self.removal.end_cleanup()
        self.compaction.compactor.end()
        self.workers.stop()
        self.compaction.compactor.join()

    def _release(self) -> None:
        self.flush_pool.shutdown(wait=True)
        self.removal.end()
        for topic in self.topics.all():
            topic.close()
        for shape in self.registry.shapes():
            shape.abandon()
        self.registry.close()
        self._directory_lock.release()

    def _check_open(self) -> None:
        if self.topics.is_ended:
            raise Closed(f"the engine of shapes in {self.root} is closed: open the directory again")

    # Finding and creating

    def find(self, handle: str) -> Shape | None:
        """The shape of a handle; None if it is unknown or was dropped. Opens no file."""
        return self.registry.find(handle)

    def find_by_definition(self, definition: Definition) -> Shape | None:
        return self.registry.find_by_definition(definition)

    def find_or_create(self, definition: Definition) -> Shape:
        """The shape of a definition; another thread writes the snapshot of a new one.

        Raises NotFound if the topic does not exist. Raises Unavailable if the broker cannot be
        reached, if the topic had shapes a moment ago and was deleted, or if too many shapes are in
        use.
        """
        shape = self.find_by_definition(definition)
        if shape is not None and not shape.is_dropped:
            return shape
        self._check_open()
        topics = self.topics
        with topics.connecting(definition.topic) as connected, topics.changing:
            self._check_open()
            shape = self.find_by_definition(definition)
            if shape is not None:
                if not shape.is_dropped:
                    return shape
                # Another thread is about to remove it.
                self.registry.hide([shape])
            shape = self._create(definition, connected)
        self.metrics.add(metrics.CREATED, 1)
        return shape

    def _create(self, definition: Definition, connected: ShapeTopic | None) -> Shape:
        topic = self.topics.get_or_start(definition.topic, connected)
        self.eviction.make_room()
        handle, now_ms = self.registry.new_handle(definition), self.clock.now_ms()
        shape = Shape(self, topic, handle, definition, created_ms=now_ms, start=None)
        self.registry.add(shape)
        topic.add_waiting(shape)
        self.workers.wake_snapshots(topic)
        return shape

    def create_storage(self, handle: str) -> ShapeStorage:
        """The storage of a new shape; raises StoreError and OSError."""
        return ShapeStorage.create(self.fs, self.root, handle, self._storage_settings, self.clock)

    def open_storage(self, handle: str) -> ShapeStorage:
        """The storage of a shape with a snapshot; raises NotFound, and Corrupt if it is damaged."""
        return ShapeStorage.open(self.fs, self.root, handle, self._storage_settings, self.clock)

    def shapes(self) -> list[Shape]:
        """All shapes, the oldest first."""
        return self.registry.shapes()

    # State

    def subset(
        self, shape: Shape, subset: Subset, is_cancelled: Callable[[], bool] = lambda: False
    ) -> SubsetResult:
        """Some of a shape's rows as they are now; Unavailable once `is_cancelled` returns true."""
        topic = self.topics.get(shape.definition.topic)
        return topic.read_subset(shape, subset, mark=next(self._marks), is_cancelled=is_cancelled)

    def _find_feed(self, topic: str) -> TopicFeed | None:
        shape_topic = self.topics.find(topic)
        return None if shape_topic is None else shape_topic.find_feed()

    def newest_tx(self, topic: str) -> int:
        """The newest transaction of a topic that its shapes have; 0 before the first."""
        feed = self._find_feed(topic)
        return 0 if feed is None else max(feed.position.tx, 0)

    def is_caught_up(self, topic: str) -> bool:
        """Whether shapes have all records that the topic had a moment ago."""
        feed = self._find_feed(topic)
        return feed is not None and feed.is_caught_up

    def is_read_again(self, topic: str) -> bool:
        """Whether a topic's rows include all that clients got before a restart."""
        shape_topic = self.topics.find(topic)
        return shape_topic is not None and shape_topic.is_read_again

    def health(self) -> str:
        """`active`, else `waiting` if a topic fails, else `starting` while one is being opened."""
        topics = [self._health_of(topic) for topic in self.topics.all()]
        if any(topic.error for topic in topics):
            return "waiting"
        return "active" if all(topic.is_ready for topic in topics) else "starting"

    def topic_health(self, topic: str) -> TopicHealth | None:
        """The state of one topic; None for one without shapes."""
        shape_topic = self.topics.find(topic)
        return None if shape_topic is None else self._health_of(shape_topic)

    def _health_of(self, topic: ShapeTopic) -> TopicHealth:
        worker = topic.worker
        health = None if worker is None else worker.health()
        error = health.last_error if health is not None and health.failures else None
        is_ready = topic.find_feed() is not None
        return TopicHealth(topic.topic, is_ready, "" if error is None else str(error))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Notifies a listener from now on; call the result to unsubscribe."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return unsubscribe

    def publish(self, handles: Collection[str]) -> None:
        """Notifies all listeners of shapes with new entries or another state."""
        if handles:
            for listener in self._listeners:
                listener(handles)

    # Work of the workers, callable without them

    def run_turn(self, topic: str, *, wait_ms: int = 0) -> int:
        """One turn of a topic's feed, and the snapshots that wait; returns the changes."""
        shape_topic = self.topics.get(topic)
        if not shape_topic.is_ready:
            shape_topic.open()
        self.snapshotter.run(shape_topic)
        return shape_topic.turn(wait_ms=wait_ms)

    def checkpoint(self) -> None:
        """Runs the checkpoints that are due."""
        self.topics.for_each(lambda topic: topic.checkpoint.run())

    def checkpoint_now(self) -> None:
        """Makes everything durable; for an engine without workers."""
        self.topics.for_each(lambda topic: topic.checkpoint.run_now())

    def run_maintenance(self) -> None:
        """Evicts shapes that take too much disk, ends unused topics, and deletes files that belong
        to no shape."""
        with self._maintenance_lock:
            try:
                self.eviction.enforce()
                self.topics.end_unused()
            finally:
                self.removal.clean_up()

    def compact(self, shape: Shape) -> CompactionReport:
        """Compacts a shape's log now; raises NotFound if it was dropped, Unavailable while another
        compaction of it runs, and Closed if the engine is closed."""
        return self.compaction.compact(shape, self.clock.now_ms())

    def run_compaction(self, now_ms: int) -> None:
        """Compacts the logs that are due."""
        self.compaction.run_once(now_ms)

    def end_compactions(self) -> None:
        """Ends running compactions early and starts no more; before the engine is closed."""
        self.compaction.compactor.end()

    def drop(self, shape: Shape, reason: DropReason) -> None:
        """Drops a shape for good; harmless if it was dropped. Raises Closed after the end."""
        self.removal.drop([shape], reason)
