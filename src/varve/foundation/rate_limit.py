"""A limit on bytes per second that several threads share.

Threads    any; one lock, not held while a thread waits.
"""

import threading
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.stop_signal import StopSignal

_WINDOW_MS: Final = 300
"""A thread sleeps only when it is this far ahead of the rate; unused rate is kept for as long."""


class RateLimit:
    """`spend(size)` returns when that many bytes more are within the rate, or at the stop."""

    def __init__(self, bytes_per_second: float, clock: Clock, stop: StopSignal) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._clock = clock
        self._stop = stop
        self._lock = threading.Lock()
        self._last_ms = clock.now_ms()  # guarded by _lock
        self._paid_until_ms = float(self._last_ms)  # guarded by _lock

    def spend(self, size: int) -> None:
        with self._lock:
            now_ms = self._clock.now_ms()
            # A clock that is set back must not make everybody wait until it is there again.
            self._paid_until_ms -= max(self._last_ms - now_ms, 0)
            self._last_ms = now_ms
            start_ms = max(self._paid_until_ms, now_ms - _WINDOW_MS)
            self._paid_until_ms = start_ms + size / self._bytes_per_ms
            ahead_ms = self._paid_until_ms - now_ms
        if ahead_ms > _WINDOW_MS:
            self._stop.wait_ms(ahead_ms)
