"""Calls that are due later, by the loop's clock or by one that a test moves.

Threads    the loop's alone.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

from varve.foundation.clock import ManualClock


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Makes calls later, in the thread of the loop."""

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> Timer: ...


class LoopTimers:
    """By the clock of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0, delay_ms) / 1_000, call)


class _ManualTimer:
    __slots__ = ("call", "is_cancelled")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """By a clock that stands still; `run_due` makes the calls whose time has come."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, _ManualTimer]] = []
        self._numbers = itertools.count()

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        timer = _ManualTimer(call)
        due_ms = self._clock.now_ms() + max(0, delay_ms)
        heapq.heappush(self._heap, (due_ms, next(self._numbers), timer))
        return timer

    def run_due(self) -> None:
        while self._heap and self._heap[0][0] <= self._clock.now_ms():
            timer = heapq.heappop(self._heap)[2]
            if not timer.is_cancelled:
                timer.call()
