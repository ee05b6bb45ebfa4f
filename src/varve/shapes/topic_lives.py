"""From when to when a topic is read: from the first shape asked for to a while after the last.

Invariant  a topic has one feed at a time, and no shape outlives the feed that it lives on. Nobody
           gets a shape of a topic that is given up before its feed has ended.
Threads    one at a time: the engine's lock of creation is held, but by who asks a broker for a
           topic (`connecting`), which nobody else is to wait for.
"""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
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

    @contextmanager
    def connecting(self, name: str) -> Iterator[TopicShapes | None]:
        """The topic as its broker has it, None where it is read already; raises NotFound,
        Unavailable. It is closed after that unless it was started."""
        if self._find(name) is not None:
            yield None
            return
        topic = self._topics.connect(name)
        try:
            yield topic
        finally:
            if self._topics.find(name) is not topic:
                topic.close()

    def get_or_start(self, name: str, connected: TopicShapes | None) -> TopicShapes:
        """The topic, read from now on; raises Unavailable while it is being given up."""
        found = self._find(name)
        if found is not None:
            return found
        given_up = self._topics.find(name)
        if given_up is not None:
            self._end(given_up)
        # There was one a moment ago where none was connected.
        topic = connected or self._topics.connect(name)
        self._topics.add(topic)
        if self._running is not None:
            self._running.start_topic(topic)
        return topic

    def _find(self, name: str) -> TopicShapes | None:
        """The topic unless it is given up."""
        found = self._topics.find(name)
        return None if found is None or found.is_given_up else found

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
