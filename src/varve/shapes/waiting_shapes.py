"""The shapes of one topic that wait for their snapshots, and whether somebody serves them.

Invariant  one serves at a time, from `begin` to the `take` that gives none; who comes meanwhile is
           served by the same. Nobody serves while the topic is not open, nor once it ends: when it
           is open again the serving is begun anew.
Threads    any; the lock is that of the topic's shapes, under which the topic becomes open.
"""

import threading
from collections.abc import Callable, Collection

from varve.shapes.shape import Shape


class WaitingShapes:
    """A queue in the order of asking."""

    def __init__(self, lock: threading.RLock, is_open: Callable[[], bool]) -> None:
        self._lock = lock
        self._is_open = is_open
        self._shapes: list[Shape] = []  # guarded by _lock
        self.is_served = False  # guarded by _lock

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, shape: Shape) -> None:
        """Takes a new shape, which joins the topic with the next snapshot."""
        with self._lock:
            self._shapes.append(shape)

    def discard(self, shape: Shape) -> None:
        with self._lock:
            if shape in self._shapes:
                self._shapes.remove(shape)

    def begin(self) -> bool:
        """Whether the caller is to serve those who wait."""
        with self._lock:
            if self.is_served or not self._shapes or not self._is_open():
                return False
            self.is_served = True
            return True

    def take(self, count_max: int) -> list[Shape]:
        """Some of the shapes; with none the serving has ended."""
        with self._lock:
            self._shapes = [shape for shape in self._shapes if not shape.is_dropped]
            taken = self._shapes[:count_max] if self._is_open() else []
            del self._shapes[: len(taken)]
            self.is_served = bool(taken)
            return taken

    def put_back(self, shapes: Collection[Shape]) -> None:
        """Shapes that were taken wait on: they have not joined the topic."""
        with self._lock:
            self._shapes[:0] = shapes

    def end(self) -> None:
        """The caller serves nobody any more; only where `take` has not said so."""
        with self._lock:
            self.is_served = False
