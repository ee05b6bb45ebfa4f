"""The topics of an engine by name.

Threads    any; `_lock` guards the map and nothing is called under it.
"""

import threading
from collections.abc import Callable

from varve.foundation.errors import NotFound
from varve.shapes.topic_shapes import TopicShapes


class Topics:
    """All topics that have shapes, or had some lately."""

    def __init__(self, make: Callable[[str], TopicShapes]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_name: dict[str, TopicShapes] = {}  # guarded by _lock

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

    def get_or_add(self, name: str) -> TopicShapes:
        """The topic, taken as there without being asked for."""
        with self._lock:
            found = self._by_name.get(name)
            if found is None:
                found = self._by_name[name] = self._make(name)
            return found

    def connect(self, name: str) -> TopicShapes:
        """A topic that is new here; raises NotFound if it does not exist, Unavailable."""
        topic = self._make(name)
        topic.connect()
        with self._lock:
            self._by_name[name] = topic
        return topic

    def remove(self, topic: TopicShapes) -> None:
        with self._lock:
            if self._by_name.get(topic.topic) is topic:
                del self._by_name[topic.topic]
