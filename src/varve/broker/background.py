"""Timers, tasks that outlive their request, and blocking work off the loop.

Threads    the loop's; blocking work runs in a pool of threads.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from varve.foundation.clock import ManualClock

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POOL_THREADS: Final = 8


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Schedules calls in the loop's thread."""

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer: ...


class LoopTimers:
    """By the clock of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer:
        return self._loop.call_later(max(0, delay_ms) / 1_000, call)


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


async def sleep_ms(timers: Timers, delay_ms: int) -> None:
    """Waits by the broker's timers."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = timers.call_later(delay_ms, over.cancel)
    try:
        await asyncio.wait([over])
    finally:
        timer.cancel()


async def wait_with_timeout(timers: Timers, work: "asyncio.Future[T]", timeout_ms: int) -> T:
    """The result of the work; raises TimeoutError, and the work continues without its caller."""
    over: asyncio.Future[T] = work.get_loop().create_future()
    timer = timers.call_later(timeout_ms, over.cancel)
    try:
        await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        over.cancel()
    if not work.done():
        work.add_done_callback(_ignore_failure)
        raise TimeoutError
    return work.result()


def _ignore_failure(work: "asyncio.Future[Any]") -> None:
    """Marks the exception of a future as seen."""
    if not work.cancelled():
        work.exception()


class BackgroundTasks:
    """Tasks of a coordinator: they continue when the client that caused them disconnects."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work to its end, also where the caller is cancelled."""
        return await asyncio.shield(self.start(work))

    async def stop(self, *, cancels: bool) -> None:
        """Returns when all tasks have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            if cancels:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("background task failed", exc_info=task.exception())


class BlockingPool:
    """Runs blocking work in a bounded number of threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        self._loop = loop
        self._executor = executor or ThreadPoolExecutor(_POOL_THREADS, "varve-broker")

    def run(self, work: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        return self._loop.run_in_executor(self._executor, work, *args)

    def stop(self) -> None:
        """Cancels work that has not started; does not wait for work that runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)
