"""A cache bounded in bytes, whose least recently used values are evicted first.

Invariant  the sizes of the held values never exceed `max_bytes`.
Threads    any; one lock, held for dictionary operations only.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Values with the number of bytes that each keeps in memory."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()  # guarded by _lock, oldest first
        self._held_bytes = 0  # guarded by _lock
        self._hits = self._misses = self._evictions = 0  # guarded by _lock

    def get(self, key: K) -> V | None:
        with self._lock:
            entry = self._held.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._held.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Holds the value instead of the key's former one; not at all if it exceeds the limit."""
        with self._lock:
            self._remove_locked(key)
            if size > self.max_bytes:
                return
            self._held[key] = (value, size)
            self._held_bytes += size
            while self._held_bytes > self.max_bytes:
                self._remove_locked(next(iter(self._held)))
                self._evictions += 1

    def remove(self, key: K) -> None:
        with self._lock:
            self._remove_locked(key)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def hits(self) -> int:
        return self._hits

    @property
    def misses(self) -> int:
        return self._misses

    @property
    def evictions(self) -> int:
        return self._evictions

    def _remove_locked(self, key: K) -> None:
        entry = self._held.pop(key, None)
        if entry is not None:
            self._held_bytes -= entry[1]
