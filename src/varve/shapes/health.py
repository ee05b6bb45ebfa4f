"""How an engine of shapes fares, as plain values.

Threads    any; asking waits for no turn of a feed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from varve.foundation.worker import WorkerHealth
from varve.shapes.topic_shapes import TopicShapes


@dataclass(frozen=True, slots=True)
class TopicHealth:
    """How a topic's feed fares; `error` is empty unless its last try failed."""

    topic: str
    is_ready: bool
    error: str


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`status` is active, starting (a topic is still being opened) or waiting (one fails)."""

    status: str
    topics: list[TopicHealth]


def topic_health(topic: TopicShapes, worker: WorkerHealth | None) -> TopicHealth:
    """What is known of one topic; `worker` is that of its feed, where there is one."""
    error = worker.last_error if worker is not None and worker.failures else None
    is_ready = topic.find_feed() is not None
    return TopicHealth(topic.topic, is_ready, "" if error is None else str(error))


def engine_health(topics: Sequence[TopicHealth]) -> EngineHealth:
    """What is known of all topics together: one that fails weighs more than one being opened."""
    status = "active"
    if any(topic.error for topic in topics):
        status = "waiting"
    elif not all(topic.is_ready for topic in topics):
        status = "starting"
    return EngineHealth(status, list(topics))
