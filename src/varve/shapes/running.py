"""The threads of an engine: a feed for each topic, one that checkpoints, snapshots, upkeep.

Invariant  a failing feed is tried again, later and later; it stops nobody else's. Its trouble is
           over with the first turn that goes well. A topic that is gone takes its shapes with it,
           once it was not there for a while: a broker that has just begun, or lags behind, does not
           know all topics that are there.
Threads    `start_topic` and `wake_snapshots` from any thread; `stop` once.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import NotFound, StoreError, Unavailable
from varve.foundation.worker import Worker, WorkerHealth
from varve.shapes.settings import EngineSettings
from varve.shapes.snapshotting import Snapshotter
from varve.shapes.topic_shapes import TopicShapes

logger = logging.getLogger(__name__)

FEED_RETRY_MS: Final = 5000
"""The longest time after which a feed that failed is tried again."""
GONE_MS: Final = 10_000
"""How long a topic is looked for before its shapes go."""
GONE_LOOKS: Final = 3
"""How often at least."""
STOP_TOPIC_MS: Final = 1000
"""How much longer than a feed waits for records it may take until it has stopped. Nobody else gets
a new shape meanwhile."""
COMPACTION_LOOK_MS: Final = 5000
"""How often the schedule is asked which logs are due."""


class Running:
    """The workers of one engine, from `start` to `stop`."""

    def __init__(
        self,
        snapshotter: Snapshotter,
        *,
        settings: EngineSettings,
        clock: Clock,
        checkpoint: Callable[[], None],
        upkeep: Callable[[int], None],
        compact: Callable[[int], None] | None,
        topic_gone: Callable[[TopicShapes], None],
    ) -> None:
        self._snapshotter = snapshotter
        self._settings = settings
        self._clock = clock
        self._topic_gone = topic_gone
        self._is_stopping = threading.Event()
        self._snapshots = ThreadPoolExecutor(
            settings.snapshot_threads, thread_name_prefix="shapes-snapshot"
        )
        self._lock = threading.Lock()
        self._feeds: dict[str, Worker] = {}  # guarded by _lock
        self._topics: dict[str, TopicShapes] = {}  # guarded by _lock
        # When topics were looked for in vain since they were there; each feed's own.
        self._missed: dict[str, list[int]] = {}
        self._flusher = Worker(
            "shapes-checkpoint", lambda now_ms: checkpoint(), settings.checkpoint_ms, clock
        )
        self._others = [Worker("shapes-upkeep", upkeep, settings.upkeep_ms, clock)]
        if compact is not None:
            self._others.append(Worker("shapes-compaction", compact, COMPACTION_LOOK_MS, clock))

    def start(self, topics: Iterable[TopicShapes]) -> None:
        """Starts the workers of all, and the feeds of these topics."""
        self._flusher.start()
        for worker in self._others:
            worker.start().wake()
        for topic in topics:
            self.start_topic(topic)

    def start_topic(self, topic: TopicShapes) -> None:
        """Runs the feed of a topic from now on."""
        worker = Worker(
            f"shapes-feed-{topic.topic}",
            lambda now_ms: self._run_feed(topic, worker),
            FEED_RETRY_MS,
            self._clock,
        )
        self._missed.pop(topic.topic, None)
        with self._lock:
            self._feeds[topic.topic] = worker
            self._topics[topic.topic] = topic
        worker.start().wake()

    def stop_topic(self, topic: TopicShapes) -> None:
        """Ends the feed of a topic after its turn; not from that feed's own thread.

        Raises Unavailable if that takes long: then it ends by itself, and is to be stopped again.
        """
        topic.end_turns()
        with self._lock:
            worker = self._feeds.get(topic.topic)
        if worker is not None:
            worker.stop(self._settings.wait_ms + STOP_TOPIC_MS)
        with self._lock:
            self._feeds.pop(topic.topic, None)
            self._topics.pop(topic.topic, None)

    def wake_checkpoint(self) -> None:
        self._flusher.wake()

    def wake_snapshots(self, topic: TopicShapes) -> None:
        """Has waiting shapes of a topic served."""
        if not self._is_stopping.is_set():
            self._snapshots.submit(self._run_snapshots, topic)

    def health(self, topic: str) -> WorkerHealth | None:
        with self._lock:
            worker = self._feeds.get(topic)
        return None if worker is None else worker.health()

    def stop(self) -> None:
        """Ends all threads, each after what it has in hand; raises Unavailable if one does not."""
        self._is_stopping.set()
        with self._lock:
            topics, workers = list(self._topics.values()), list(self._feeds.values())
        for topic in topics:
            topic.end_turns()
        self._snapshots.shutdown(wait=True, cancel_futures=True)
        failures: list[Unavailable] = []
        for worker in (*workers, self._flusher, *self._others):
            try:
                worker.stop()
            except Unavailable as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _run_snapshots(self, topic: TopicShapes) -> None:
        try:
            self._snapshotter.run(topic)
        except Exception:
            logger.exception("snapshots of a topic failed", extra={"topic": topic.topic})

    def _run_feed(self, topic: TopicShapes, worker: Worker) -> None:
        """Turns until the engine stops; what it raises is tried again by the worker.

        Returns after the first turn that went well behind a failure, and is called again at once.
        """
        try:
            while not self._is_stopping.is_set() and not topic.is_ended:
                if not topic.is_ready:
                    topic.open()
                    # Who asked meanwhile was not served.
                    self.wake_snapshots(topic)
                topic.turn(wait_ms=self._settings.wait_ms)
                self._missed.pop(topic.topic, None)
                if worker.failures:
                    worker.wake()
                    return
        except NotFound as error:
            if not topic.is_ended:
                self._miss(topic, error)
        except StoreError as error:
            if topic.is_ended:
                return
            self._missed.pop(topic.topic, None)
            if not error.retriable:
                topic.needs_opening()
            raise

    def _miss(self, topic: TopicShapes, error: NotFound) -> None:
        """Lets go of a topic that is gone; raises Unavailable while it may be there."""
        now_ms = self._clock.now_ms()
        looks = self._missed.setdefault(topic.topic, [])
        looks.append(now_ms)
        if len(looks) < GONE_LOOKS or now_ms - looks[0] < GONE_MS:
            topic.needs_opening()
            raise Unavailable(f"{error}; its shapes go if that stays so") from error
        del self._missed[topic.topic]
        logger.warning("topic of shapes is gone", exc_info=error, extra={"topic": topic.topic})
        self._topic_gone(topic)
