"""The budget of background work: a rate of bytes read and written, shared by its threads.

Threads    any; one lock, not held while a thread waits.
"""

import threading
from collections.abc import Callable
from typing import Final

from varve.foundation.clock import Clock

_WINDOW_MS: Final = 300
"""The burst that `spend` allows without a wait, and the unused rate that carries over."""


class WorkBudget:
    """Counts the bytes that work reads and writes; this base class sets no limit.

    A subclass may wait to keep to a rate, report progress, or raise to stop the work.
    """

    def spend(self, size: int) -> None:
        """Accounts for bytes that are about to be, or were just, read or written."""


UNLIMITED: Final = WorkBudget()


class Throttle(WorkBudget):
    """Limits the rate: `spend` returns once the bytes are within it.

    `wait` sleeps for a number of milliseconds and may end early, as a stop does.
    """

    def __init__(
        self, bytes_per_second: float, clock: Clock, wait: Callable[[float], object]
    ) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._last_ms = clock.now_ms()  # guarded by _lock
        self._paid_until_ms = float(self._last_ms)  # guarded by _lock

    def spend(self, size: int) -> None:
        with self._lock:
            now_ms = self._clock.now_ms()
            # A clock that is set back must not make threads wait until it has caught up.
            self._paid_until_ms -= max(self._last_ms - now_ms, 0)
            self._last_ms = now_ms
            begin = max(self._paid_until_ms, now_ms - _WINDOW_MS)
            self._paid_until_ms = begin + size / self._bytes_per_ms
            wait_ms = self._paid_until_ms - now_ms
        if wait_ms > _WINDOW_MS:
            self._wait(wait_ms)
