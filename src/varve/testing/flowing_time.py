"""Time for a server with real clients: it flows as usual, and jumps on request.

Clients wait in real time, so it cannot stand still for the server they wait for.

Invariant  time never goes back. A timer is called once the time it was set for has come, by flowing
           or by a jump, and the earlier ones are called first.
Threads    the clock is read anywhere; timers belong to their loop's thread.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

from varve.foundation.clock import ManualClock


class FlowingClock(ManualClock):
    """Begins at a moment, flows from there, and is moved ahead by `advance`."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._began = time.monotonic()

    def now_ms(self) -> int:
        return super().now_ms() + int((time.monotonic() - self._began) * 1000)


class _Timer:
    __slots__ = ("call", "is_cancelled")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FlowingTimers:
    """Timers by a flowing clock; `run_due` is for after a jump."""

    def __init__(self, clock: FlowingClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._heap: list[tuple[int, int, _Timer]] = []
        self._numbers = itertools.count()
        self._next: asyncio.TimerHandle | None = None

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> _Timer:
        timer = _Timer(call)
        due_ms = self._clock.now_ms() + max(0, delay_ms)
        heapq.heappush(self._heap, (due_ms, next(self._numbers), timer))
        self._arm()
        return timer

    def run_due(self) -> None:
        while self._heap and self._heap[0][0] <= self._clock.now_ms():
            timer = heapq.heappop(self._heap)[2]
            if not timer.is_cancelled:
                timer.call()
        self._arm()

    def _arm(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._heap:
            delay_ms = max(0, self._heap[0][0] - self._clock.now_ms()) + 1
            self._next = self._loop.call_later(delay_ms / 1000, self.run_due)
