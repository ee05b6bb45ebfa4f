"""How an engine of shapes fares, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

from varve.foundation.worker import WorkerHealth
from varve.shapes.topic_shapes import TopicShapes


@dataclass(frozen=True, slots=True)
class TopicHealth:
    """How a topic's feed fares; `lag` counts records of the topic that are not taken yet."""

    topic: str
    shapes: int
    is_ready: bool
    is_caught_up: bool
    lag: int
    newest_tx: int
    error: str


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`status` is active, starting (a topic is still being opened) or waiting (one fails)."""

    status: str
    shapes: int
    topics: list[TopicHealth]


def topic_health(topic: TopicShapes, worker: WorkerHealth | None) -> TopicHealth:
    """What is known of one topic; `worker` is that of its feed, where there is one."""
    error = worker.last_error if worker is not None and worker.failures else None
    feed = topic.find_feed()
    return TopicHealth(
        topic=topic.topic,
        shapes=topic.shape_count,
        is_ready=feed is not None,
        is_caught_up=feed is not None and feed.is_caught_up,
        lag=0 if feed is None else feed.lag,
        newest_tx=0 if feed is None else max(feed.position.tx, 0),
        error="" if error is None else str(error),
    )


def engine_health(topics: Sequence[TopicHealth], shape_count: int) -> EngineHealth:
    """What is known of all topics together: one that fails weighs more than one being opened."""
    status = "active"
    if any(topic.error for topic in topics):
        status = "waiting"
    elif not all(topic.is_ready for topic in topics):
        status = "starting"
    return EngineHealth(status, shape_count, list(topics))
