"""Who is told when shapes have news: entries, a snapshot begun, done or failed, an end.

Threads    any thread tells, without a lock; listeners are quick and hop to threads of their own.
"""

import threading
from collections.abc import Callable, Collection

Listener = Callable[[Collection[str]], None]
"""Told the handles of shapes with news."""


class Listeners:
    """All who listen to one engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()  # replaced under _lock, read without

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tells a listener from now on; gives what ends that."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return end

    def tell(self, handles: Collection[str]) -> None:
        if handles:
            for listener in self._listeners:
                listener(handles)
