"""The shared context of one open engine: its parts and their dependencies.

Invariant  a context belongs to one opening of the engine: opening it again builds another one, with
           parts that are open again. Fields do not change once it is built.
Threads    any.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.metrics import MetricTable
from varve.shapes.compaction.scheduler import CompactionScheduler
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.registry import ShapeRegistry
from varve.shapes.removal import ShapeRemoval, Trash
from varve.shapes.settings import CompactionSettings, EngineSettings, StorageSettings
from varve.shapes.snapshotting import Snapshotter
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.topics import TopicMap
from varve.shapes.workers import EngineWorkers

OpenFeed = Callable[[str], TopicFeed]
"""Returns the feed of a topic; raises NotFound if there is no such topic."""
Listener = Callable[[Collection[str]], None]
"""Called with the handles of shapes that have new entries or another state."""


class ShapeEvents:
    """Notifies listeners of shapes with new entries, with snapshot progress, or dropped.

    Any thread publishes, without a lock. Listeners return quickly and do their work elsewhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()  # replaced under _lock, read without

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Notifies a listener from now on; call the result to unsubscribe."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return unsubscribe

    def publish(self, handles: Collection[str]) -> None:
        if handles:
            for listener in self._listeners:
                listener(handles)


class EngineContext:
    """The parts of one engine and their shared dependencies."""

    def __init__(
        self,
        root: str,
        open_feed: OpenFeed,
        *,
        fs: FileSystem,
        clock: Clock,
        random: Random,
        settings: EngineSettings,
        compaction: CompactionSettings,
        metrics: MetricTable,
        events: ShapeEvents,
        registry: ShapeRegistry,
    ) -> None:
        self.root = root
        self.open_feed = open_feed
        self.fs = fs
        self.clock = clock
        self.settings = settings
        self.metrics = metrics
        self.events = events
        self.registry = registry
        self.read_numbers: Iterator[int] = itertools.count(1)
        """Numbers the reads of all shapes, so that the least recently read one is known."""
        self.flush_pool = ThreadPoolExecutor(
            settings.flush_threads, thread_name_prefix="shapes-flush"
        )
        self.trash = Trash(fs, root, registry)
        self.removal = ShapeRemoval(registry, self.trash, events, metrics)
        self.topics = TopicMap(self)
        self.snapshotter = Snapshotter(self)
        self.compaction = CompactionScheduler(
            registry, self.removal, settings=compaction, random=random, metrics=metrics
        )
        self.workers = EngineWorkers(self)
        self._storage_settings = StorageSettings(chunk_bytes=settings.chunk_bytes)

    def create_storage(self, handle: str) -> ShapeStorage:
        """The storage of a new shape; raises StoreError and OSError."""
        return ShapeStorage.create(self.fs, self.root, handle, self._storage_settings, self.clock)

    def open_storage(self, handle: str) -> ShapeStorage:
        """The storage of a shape with a snapshot; raises NotFound, and Corrupt if it is damaged."""
        return ShapeStorage.open(self.fs, self.root, handle, self._storage_settings, self.clock)

    def run_maintenance(self) -> None:
        """Ends unused topics, and deletes files that belong to no shape."""
        try:
            self.topics.end_unused()
        finally:
            self.trash.run_once()
