"""The topics of an engine; a topic is read from its first shape until some time after its last.

Invariant  a topic has one feed at a time, and no shape outlives the feed that serves it. While a
           topic is being ended no shape of it is created until its feed has ended. A topic that had
           shapes and was deleted counts as missing for `MISSING_MS`, because it may be created
           again. It is then looked up at the broker once a second at most, however many clients
           request it.
Threads    any; `_lock` guards the maps and nothing is called under it. `changing` is held while a
           shape is created or a topic is started or ended, but not while a topic is looked up at
           the broker (`connecting`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import InvalidRequest, NotFound, StoreError, Unavailable
from varve.shapes.topic import ShapeTopic

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine

MISSING_MS: Final = 300_000
"""How long a topic that had shapes is expected to be created again."""
LOOKUP_INTERVAL_MS: Final = 1000
"""How often a missing topic is looked up."""
UNUSED_ROUNDS: Final = 2
"""Rounds of maintenance after which a topic without shapes is ended."""


@dataclass(slots=True)
class _MissingTopic:
    """A deleted topic: since when it is missing, and when it was last looked up."""

    since_ms: int
    looked_up_ms: int | None = None


class TopicMap:
    """All topics that have shapes, or had some recently."""

    def __init__(self, engine: "ShapeEngine") -> None:
        self._engine = engine
        self.changing = threading.Lock()
        self._is_ended = False  # guarded by changing
        self._lock = threading.Lock()
        self._by_name: dict[str, ShapeTopic] = {}  # guarded by _lock
        self._missing: dict[str, _MissingTopic] = {}  # guarded by _lock

    # Looking up

    def find(self, name: str) -> ShapeTopic | None:
        return self._by_name.get(name)

    def get(self, name: str) -> ShapeTopic:
        topic = self._by_name.get(name)
        if topic is None:
            raise NotFound(f"topic {name} has no shapes")
        return topic

    def all(self) -> list[ShapeTopic]:
        with self._lock:
            return list(self._by_name.values())

    def for_each(self, work: Callable[[ShapeTopic], object]) -> None:
        """Calls `work` for all topics, even if it fails for some; then raises the first error."""
        failures: list[Exception] = []
        for topic in self.all():
            try:
                work(topic)
            except (StoreError, OSError) as error:
                failures.append(error)
        if failures:
            raise failures[0]

    # Starting

    def get_or_add(self, name: str) -> ShapeTopic:
        """The topic, without asking the broker whether it exists."""
        with self._lock:
            topic = self._by_name.get(name)
            if topic is None:
                topic = self._by_name[name] = ShapeTopic(self._engine, name)
            return topic

    @contextmanager
    def connecting(self, name: str) -> Iterator[ShapeTopic | None]:
        """The topic, connected to its broker; None if it is read already.

        Raises NotFound if it does not exist, and Unavailable if the broker does not answer or the
        topic is missing. It is closed afterwards unless `get_or_start` started it.
        """
        if self._find_in_use(name) is not None:
            yield None
            return
        topic = self._connect(name)
        try:
            yield topic
        finally:
            if self.find(name) is not topic:
                topic.close()

    def get_or_start(self, name: str, connected: ShapeTopic | None) -> ShapeTopic:
        """The topic, read from now on; raises Unavailable while it is ending. Under `changing`."""
        topic = self._find_in_use(name)
        if topic is not None:
            return topic
        ended = self.find(name)
        if ended is not None:
            self._end(ended)
        # It was in use a moment ago if none was connected.
        topic = connected or self._connect(name)
        with self._lock:
            self._by_name[name] = topic
            self._missing.pop(name, None)
        self._engine.workers.start_topic(topic)
        return topic

    def _find_in_use(self, name: str) -> ShapeTopic | None:
        """The topic unless it is given up."""
        topic = self.find(name)
        return None if topic is None or topic.is_given_up else topic

    def _connect(self, name: str) -> ShapeTopic:
        missing = self._find_missing(name)
        if missing is not None:
            self._check_lookup(name, missing)
        topic = ShapeTopic(self._engine, name)
        try:
            topic.connect()
        except InvalidRequest as error:
            if missing is not None:
                raise _missing_error(name) from error
            raise NotFound(f"there is no topic {name!r:.260}") from error
        return topic

    # Missing topics

    def handle_deleted(self, topic: ShapeTopic) -> None:
        """Handles a deleted topic; called by the thread of its feed. Maintenance ends the topic."""
        topic.is_gone = topic.is_given_up = True
        topic.end_turns()
        topic.needs_opening()
        self._add_missing(topic)
        self._engine.removal.drop_topic(topic.topic)

    def _add_missing(self, topic: ShapeTopic) -> None:
        missing = _MissingTopic(self._engine.clock.now_ms())
        if not topic.was_opened:
            # It existed a moment ago and could not be opened: do not look it up again at once.
            missing.looked_up_ms = missing.since_ms
        with self._lock:
            self._missing[topic.topic] = missing

    def _find_missing(self, name: str) -> _MissingTopic | None:
        now_ms = self._engine.clock.now_ms()
        with self._lock:
            self._missing = {
                name: missing
                for name, missing in self._missing.items()
                if now_ms - missing.since_ms < MISSING_MS
            }
            return self._missing.get(name)

    def _check_lookup(self, name: str, missing: _MissingTopic) -> None:
        """Raises Unavailable if the topic was looked up a moment ago."""
        now_ms = self._engine.clock.now_ms()
        with self._lock:
            looked_up_ms = missing.looked_up_ms
            if looked_up_ms is not None and 0 <= now_ms - looked_up_ms < LOOKUP_INTERVAL_MS:
                raise _missing_error(name)
            missing.looked_up_ms = now_ms

    # Ending

    def end_unused(self) -> None:
        """Ends topics that were deleted or have no shapes; their tables stay for later."""
        with self.changing:
            if not self._is_ended:
                self.for_each(self._end_if_unused)

    def end(self) -> None:
        """Stops starting and ending topics; waits until shapes being created are finished."""
        with self.changing:
            self._is_ended = True

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def _end_if_unused(self, topic: ShapeTopic) -> None:
        topic.unused_rounds = 0 if topic.is_used else topic.unused_rounds + 1
        if topic.is_given_up or topic.unused_rounds >= UNUSED_ROUNDS:
            self._end(topic)

    def _end(self, topic: ShapeTopic) -> None:
        """Ends a topic; raises Unavailable while its feed is in a turn: try again later.

        A table that cannot be written stays as after a crash.
        """
        topic.is_given_up = True
        self._engine.workers.stop_topic(topic)
        with self._lock:
            if self._by_name.get(topic.topic) is topic:
                del self._by_name[topic.topic]
        try:
            if not topic.is_gone:
                topic.checkpoint.run_now()
        finally:
            topic.close()
            self._engine.removal.drop_topic(topic.topic)


def _missing_error(name: str) -> Unavailable:
    return Unavailable(
        f"topic {name} was deleted and had shapes until now: they are created again with the "
        "topic, so try again later"
    )
