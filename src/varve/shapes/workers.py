"""The threads of an engine: a feed for each topic, checkpoints, snapshots, maintenance, compaction.

Invariant  a failing feed is retried with backoff and affects no other; it counts as failing until
           the first turn that succeeds. The shapes of a deleted topic are dropped only after it was
           missing for `DELETED_MS`, because a broker that has just started, or lags, does not know
           all topics.
Threads    any; `start` and `stop` once. Before `start` every other method does nothing.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import NotFound, StoreError, Unavailable
from varve.foundation.worker import Worker
from varve.shapes.topic import ShapeTopic

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine

logger = logging.getLogger(__name__)

FEED_RETRY_MS: Final = 5000
"""The longest time between two attempts of a failing feed."""
DELETED_MS: Final = 10_000
"""How long a topic must be missing before its shapes are dropped."""
DELETED_LOOKUPS: Final = 3
"""How often it must be looked up in that time."""
STOP_TOPIC_MS: Final = 1000
"""How much longer than a poll a feed may take to stop. No shape is created meanwhile."""
COMPACTION_INTERVAL_MS: Final = 5000
"""How often the scheduler checks which logs are due."""


class EngineWorkers:
    """The workers of one engine, from `start` to `stop`."""

    def __init__(self, engine: "ShapeEngine") -> None:
        settings, clock = engine.settings, engine.clock
        self._engine = engine
        self._is_started = False
        self._is_stopping = threading.Event()
        self._snapshots = ThreadPoolExecutor(
            settings.snapshot_threads, thread_name_prefix="shapes-snapshot"
        )
        # Times of failed lookups of each topic since it last existed; used by the feed's thread.
        self._lookups_ms: dict[str, list[int]] = {}
        self._checkpoints = Worker(
            "shapes-checkpoint", lambda now_ms: engine.checkpoint(), settings.checkpoint_ms, clock
        )
        self._others = [
            Worker(
                "shapes-maintenance",
                lambda now_ms: engine.run_maintenance(),
                settings.maintenance_interval_ms,
                clock,
            )
        ]
        if settings.compacts:
            self._others.append(
                Worker("shapes-compaction", engine.run_compaction, COMPACTION_INTERVAL_MS, clock)
            )

    def start(self) -> None:
        """Starts all workers, and the feeds of all topics."""
        self._is_started = True
        self._checkpoints.start()
        for worker in self._others:
            worker.start().wake()
        for topic in self._engine.topics.all():
            self.start_topic(topic)

    def start_topic(self, topic: ShapeTopic) -> None:
        """Runs the feed of a topic from now on."""
        if not self._is_started:
            return
        worker = Worker(
            f"shapes-feed-{topic.topic}",
            lambda now_ms: self._run_feed(topic, worker),
            FEED_RETRY_MS,
            self._engine.clock,
        )
        self._lookups_ms.pop(topic.topic, None)
        topic.worker = worker
        worker.start().wake()

    def stop_topic(self, topic: ShapeTopic) -> None:
        """Ends the feed of a topic after its turn; not from that feed's own thread.

        Raises Unavailable if that takes long: then it ends by itself, and is to be stopped again.
        """
        topic.end_turns()
        worker = topic.worker
        if worker is not None:
            worker.stop(self._engine.settings.fetch_wait_ms + STOP_TOPIC_MS)
            topic.worker = None

    def wake_checkpoint(self) -> None:
        self._checkpoints.wake()

    def wake_snapshots(self, topic: ShapeTopic) -> None:
        """Starts writing the snapshots of a topic's waiting shapes."""
        if self._is_started and not self._is_stopping.is_set():
            self._snapshots.submit(self._run_snapshots, topic)

    def stop(self) -> None:
        """Ends all threads, each after its current run; raises Unavailable if one does not end."""
        self._is_stopping.set()
        topics = self._engine.topics.all()
        for topic in topics:
            topic.end_turns()
        feeds = [topic.worker for topic in topics if topic.worker is not None]
        self._snapshots.shutdown(wait=True, cancel_futures=True)
        failures: list[Unavailable] = []
        for worker in (*feeds, self._checkpoints, *self._others):
            try:
                worker.stop()
            except Unavailable as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _run_snapshots(self, topic: ShapeTopic) -> None:
        try:
            self._engine.snapshotter.run(topic)
        except Exception:
            logger.exception("snapshots of a topic failed", extra={"topic": topic.topic})

    def _run_feed(self, topic: ShapeTopic, worker: Worker) -> None:
        """Runs turns until the engine stops; the worker tries again after an error.

        Returns after the first turn that succeeds after a failure, and is called again at once.
        """
        try:
            while not self._is_stopping.is_set() and not topic.is_ended:
                if not topic.is_ready:
                    topic.open()
                    # Shapes that were created meanwhile wait for their snapshots.
                    self.wake_snapshots(topic)
                topic.turn(wait_ms=self._engine.settings.fetch_wait_ms)
                self._lookups_ms.pop(topic.topic, None)
                if worker.failures:
                    worker.wake()
                    return
        except NotFound as error:
            if not topic.is_ended:
                self._handle_missing(topic, error)
        except StoreError as error:
            if topic.is_ended:
                return
            self._lookups_ms.pop(topic.topic, None)
            if not error.retriable:
                topic.needs_opening()
            raise

    def _handle_missing(self, topic: ShapeTopic, error: NotFound) -> None:
        """Drops the shapes of a deleted topic; raises Unavailable while it may still exist."""
        now_ms = self._engine.clock.now_ms()
        lookups_ms = self._lookups_ms.setdefault(topic.topic, [])
        lookups_ms.append(now_ms)
        if len(lookups_ms) < DELETED_LOOKUPS or now_ms - lookups_ms[0] < DELETED_MS:
            topic.needs_opening()
            raise Unavailable(f"{error}; its shapes are dropped if that persists") from error
        del self._lookups_ms[topic.topic]
        logger.warning("topic of shapes is gone", exc_info=error, extra={"topic": topic.topic})
        self._engine.topics.handle_deleted(topic)
