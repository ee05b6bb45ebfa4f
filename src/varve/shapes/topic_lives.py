"""From when to when a topic is read: from the first shape asked for to a while after the last.

Invariant  a topic has one feed at a time, and no shape outlives the feed that it lives on. Nobody
           gets a shape of a topic that is given up before its feed has ended.
Threads    one at a time: the engine's lock of creation is held.
"""

from concurrent.futures import Executor
from typing import Final

from varve.shapes.dropping import Dropping
from varve.shapes.running import Running
from varve.shapes.topic_shapes import TopicShapes
from varve.shapes.topics import Topics

UNUSED_ROUNDS: Final = 2
"""Rounds of upkeep after which a topic without shapes is read no more."""


class TopicLives:
    """Begins and ends the topics of an open engine; without workers nobody runs them."""

    def __init__(
        self, topics: Topics, dropping: Dropping, *, running: Running | None, pool: Executor
    ) -> None:
        self._topics = topics
        self._dropping = dropping
        self._running = running
        self._pool = pool

    def get_or_start(self, name: str) -> TopicShapes:
        """The topic, in the engine from now on if it exists; raises NotFound, Unavailable."""
        found = self._topics.find(name)
        if found is not None:
            if not found.is_given_up:
                return found
            self._end(found)
        topic = self._topics.connect(name)
        if self._running is not None:
            self._running.start_topic(topic)
        return topic

    def end_unused(self) -> None:
        """Ends topics that are gone, or had no shapes lately; their tables stay, for later."""
        self._topics.for_each(self._end_if_unused)

    def _end_if_unused(self, topic: TopicShapes) -> None:
        topic.unused_rounds = 0 if topic.is_used else topic.unused_rounds + 1
        if topic.is_given_up or topic.unused_rounds >= UNUSED_ROUNDS:
            self._end(topic)

    def _end(self, topic: TopicShapes) -> None:
        """Lets go of a topic; raises Unavailable while its feed is at work: then it is for later.

        A table that cannot be written is left as after a crash.
        """
        topic.is_given_up = True
        if self._running is not None:
            self._running.stop_topic(topic)
        self._topics.remove(topic)
        try:
            if not topic.is_gone:
                topic.checkpoints.run_now(self._pool)
        finally:
            topic.close()
            self._dropping.drop_all(topic)
