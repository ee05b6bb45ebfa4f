"""Work that several threads want at the same time is done by the first; the others wait.

Invariant  at most one load of a key runs at a time. No value is kept: that is a cache's work.
Threads    any; one lock, not held during a load.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from varve.foundation.errors import StoreError, Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Flight(Generic[V]):
    """One load: its result once it ended, and whether the key was invalidated meanwhile."""

    def __init__(self) -> None:
        self.is_stale = False
        self._ended = threading.Event()
        self._values: list[V] = []
        self._error: BaseException | None = None

    def finish(self, value: V) -> None:
        self._values.append(value)
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    def wait(self) -> V:
        """The value of the load; raises its error."""
        self._ended.wait()
        if isinstance(self._error, StoreError):
            raise self._error.again()
        if isinstance(self._error, Exception):
            raise self._error
        if self._error is not None:
            raise Unavailable("the load of this value was interrupted: try again")
        return self._values[0]


class SingleFlight(Generic[K, V]):
    """The loads in flight, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[K, Flight[V]] = {}  # guarded by _lock

    def load(self, key: K, load: Callable[[Flight[V]], V]) -> V:
        """The value that `load` returns, called by the first of the threads that ask for a key.

        `load` may look at `Flight.is_stale` before it keeps the value anywhere.
        """
        with self._lock:
            flight = self._flights.get(key)
            is_first = flight is None
            if flight is None:
                flight = self._flights[key] = Flight()
        if not is_first:
            return flight.wait()
        try:
            value = load(flight)
        except BaseException as error:
            self._remove(key, flight)
            flight.fail(error)
            raise
        self._remove(key, flight)
        flight.finish(value)
        return value

    def invalidate(self, key: K) -> None:
        """Marks a load in flight as stale; who asks for the key from now on starts a new one."""
        with self._lock:
            flight = self._flights.pop(key, None)
            if flight is not None:
                flight.is_stale = True

    def is_loading(self, key: K) -> bool:
        with self._lock:
            return key in self._flights

    def _remove(self, key: K, flight: Flight[V]) -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]
