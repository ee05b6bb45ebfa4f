"""Timers of a broker by a clock that a test moves."""

import heapq
import itertools
from collections.abc import Callable

from varve.broker.background import Timer
from varve.foundation.clock import ManualClock


class _ManualTimer:
    __slots__ = ("call", "is_cancelled")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """By a clock that a test moves; `run_due` makes the calls that are due."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, _ManualTimer]] = []
        self._numbers = itertools.count()

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer:
        timer = _ManualTimer(call)
        due_ms = self._clock.now_ms() + max(0, delay_ms)
        heapq.heappush(self._heap, (due_ms, next(self._numbers), timer))
        return timer

    def run_due(self) -> None:
        while self._heap and self._heap[0][0] <= self._clock.now_ms():
            timer = heapq.heappop(self._heap)[2]
            if not timer.is_cancelled:
                timer.call()
