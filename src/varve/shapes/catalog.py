"""The shapes in use: by handle, by definition, by when they were read.

Invariant  what is in the one map is in the other.
Threads    any; `_lock` guards both maps and is held for look-ups only.
"""

import heapq
import threading
from collections.abc import Iterable

from varve.shapes.definition import Definition
from varve.shapes.shape import Shape


class Catalog:
    """All shapes that can be found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_handle: dict[str, Shape] = {}  # guarded by _lock
        self._by_definition: dict[str, Shape] = {}  # guarded by _lock

    def __len__(self) -> int:
        return len(self._by_handle)

    def find(self, handle: str) -> Shape | None:
        return self._by_handle.get(handle)

    def find_by_definition(self, definition: Definition) -> Shape | None:
        return self._by_definition.get(definition.comparable)

    def add(self, shape: Shape) -> None:
        with self._lock:
            assert shape.definition.comparable not in self._by_definition, shape
            self._by_handle[shape.handle] = shape
            self._by_definition[shape.definition.comparable] = shape

    def remove(self, shapes: Iterable[Shape]) -> None:
        with self._lock:
            for shape in shapes:
                if self._by_handle.pop(shape.handle, None) is not None:
                    del self._by_definition[shape.definition.comparable]

    def shapes(self) -> list[Shape]:
        """All of them, the oldest first."""
        with self._lock:
            return list(self._by_handle.values())

    def least_recently_read(self, now_ms: int, count_max: int) -> list[Shape]:
        """Those to give up first; none where somebody wants each of them."""
        unwanted = (shape for shape in self.shapes() if not shape.is_wanted(now_ms))
        return heapq.nsmallest(count_max, unwanted, key=lambda shape: shape.last_read)
