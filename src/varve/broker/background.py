"""Timers, tasks that outlive their request, and blocking work off the loop.

Threads    the loop's; blocking work runs in a pool of threads.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from varve.wire.errors import KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POOL_THREADS: Final = 8


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Schedules calls in the loop's thread."""

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer: ...


def cancel_timer(timer: Timer | None) -> None:
    """Does nothing for a timer that was never set, or is cancelled or due already."""
    if timer is not None:
        timer.cancel()


class LoopTimers:
    """Timers of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer:
        return self._loop.call_later(max(0, delay_ms) / 1_000, call)


async def sleep_ms(timers: Timers, delay_ms: int) -> None:
    """Waits by the broker's timers."""
    # The timer cancels the future: that has no effect, and raises nothing, if it is over already.
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
        error = None if task.cancelled() else task.exception()
        # A KafkaError is a response to a client, which whoever awaits the task sends.
        if error is not None and not isinstance(error, KafkaError):
            logger.error("background task failed", exc_info=error)


class HasTasks(Protocol):
    """A coordinator with background tasks."""

    @property
    def tasks(self) -> BackgroundTasks: ...


C = TypeVar("C", bound=HasTasks)
P = ParamSpec("P")


def finished(
    request: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Runs a coordinator's method to its end, also where its client disconnects meanwhile."""

    @wraps(request)
    async def run(coordinator: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await coordinator.tasks.finish(request(coordinator, *args, **kwargs))

    return run


class _DaemonPool(Executor):
    """Like ThreadPoolExecutor, but its threads do not keep the process from exiting."""

    def __init__(self, thread_count: int, name: str) -> None:
        self._thread_count = thread_count
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []  # guarded by _lock, as all below
        self._idle_count = 0
        self._is_stopped = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future: Future[T] = Future()
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("the pool is stopped")
            self._queue.put((future, partial(fn, *args, **kwargs)))
            if self._idle_count > 0:
                self._idle_count -= 1
            elif len(self._threads) < self._thread_count:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work, item
            with self._lock:
                self._idle_count += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_stopped = True
            threads = list(self._threads)
        while cancel_futures and not self._queue.empty():
            item = self._queue.get()
            if item is not None:
                item[0].cancel()
        for _ in threads:
            self._queue.put(None)
        for thread in threads if wait else ():
            thread.join()


class BlockingPool:
    """Runs blocking work in a bounded number of threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        self._loop = loop
        self._executor = executor or _DaemonPool(_POOL_THREADS, "varve-broker")
        self._running: set[asyncio.Future[Any]] = set()

    def run(self, work: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        future = self._loop.run_in_executor(self._executor, work, *args)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def stop(self, *, timeout_seconds: float) -> None:
        """Waits for running work up to the timeout, then abandons what still runs.

        A read from a slow object store must keep neither the loop nor the process from ending.
        """
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout_seconds)
        self._executor.shutdown(wait=False, cancel_futures=True)
