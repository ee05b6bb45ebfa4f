"""The topics of an engine by name, and those that it lost a moment ago.

Invariant  a topic that had shapes and is gone counts as missing for a while: it may be made again,
           and until then it is asked for once a second, however many clients do.
Threads    any; `_lock` guards the maps and nothing is called under it.
"""

import threading
from collections.abc import Callable
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound, StoreError, Unavailable
from varve.shapes.topic_shapes import TopicShapes

MISSED_MS: Final = 300_000
"""How long a topic that had shapes is expected to be made again."""
LOOK_MS: Final = 1000
"""How often it is looked for meanwhile."""


class _Missing:
    """A topic that is gone: since when, and when it was looked for."""

    __slots__ = ("looked_ms", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.looked_ms: int | None = None


class Topics:
    """All topics that have shapes, or had some lately."""

    def __init__(self, make: Callable[[str], TopicShapes], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._by_name: dict[str, TopicShapes] = {}  # guarded by _lock
        self._missing: dict[str, _Missing] = {}  # guarded by _lock

    def find(self, name: str) -> TopicShapes | None:
        return self._by_name.get(name)

    def get(self, name: str) -> TopicShapes:
        found = self._by_name.get(name)
        if found is None:
            raise NotFound(f"topic {name} has no shapes")
        return found

    def all(self) -> list[TopicShapes]:
        with self._lock:
            return list(self._by_name.values())

    def for_each(self, work: Callable[[TopicShapes], None]) -> None:
        """Does it for all, though it fails for some; then raises the first failure."""
        failures: list[Exception] = []
        for topic in self.all():
            try:
                work(topic)
            except (StoreError, OSError) as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def get_or_add(self, name: str) -> TopicShapes:
        """The topic, taken as there without being asked for."""
        with self._lock:
            found = self._by_name.get(name)
            if found is None:
                found = self._by_name[name] = self._make(name)
            return found

    def connect(self, name: str) -> TopicShapes:
        """A topic that is new here, to be added or closed. Asking for it may take its time.

        Raises NotFound if it does not exist, and Unavailable if it cannot be asked for, or is
        missing.
        """
        missing = self._find_missing(name)
        if missing is not None:
            self._check_look(name, missing)
        topic = self._make(name)
        try:
            topic.connect()
        except InvalidRequest as error:
            if missing is not None:
                raise _missing_error(name) from error
            raise NotFound(f"there is no topic {name!r:.260}") from error
        return topic

    def add(self, topic: TopicShapes) -> None:
        """Takes in a topic that is connected."""
        with self._lock:
            self._by_name[topic.topic] = topic
            self._missing.pop(topic.topic, None)

    def miss(self, topic: TopicShapes) -> None:
        """Notes that a topic with shapes is gone.

        One that was found and could not be opened for that is not looked for at once.
        """
        missing = _Missing(self._clock.now_ms())
        if not topic.was_opened:
            missing.looked_ms = missing.since_ms
        with self._lock:
            self._missing[topic.topic] = missing

    def _find_missing(self, name: str) -> _Missing | None:
        now_ms = self._clock.now_ms()
        with self._lock:
            old = [one for one, it in self._missing.items() if now_ms - it.since_ms >= MISSED_MS]
            for one in old:
                del self._missing[one]
            return self._missing.get(name)

    def _check_look(self, name: str, missing: _Missing) -> None:
        """Raises Unavailable if the topic was looked for a moment ago."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if missing.looked_ms is not None and 0 <= now_ms - missing.looked_ms < LOOK_MS:
                raise _missing_error(name)
            missing.looked_ms = now_ms

    def remove(self, topic: TopicShapes) -> None:
        with self._lock:
            if self._by_name.get(topic.topic) is topic:
                del self._by_name[topic.topic]


def _missing_error(name: str) -> Unavailable:
    return Unavailable(
        f"topic {name} is gone, and had shapes until now: if it is made again they start anew, so "
        "come again"
    )
