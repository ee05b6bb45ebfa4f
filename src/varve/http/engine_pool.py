"""The one crossing from the loop to the engine: a bounded number of threads, a bounded queue.

Invariant  what is quick, what may take long, what reads a whole table, and what waits for a
           snapshot still being written have threads of their own, so that none holds up another.
           A call that is cancelled before it has a thread is not made.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from varve.foundation.errors import Closed, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

_QUEUED_PER_THREAD: Final = 2500


class EnginePool:
    """Runs what blocks; refuses when too much waits."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"shape-{name}")
        self._limit = threads * _QUEUED_PER_THREAD
        self._pending = 0
        self._is_closed = False

    async def run_in_engine(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """The function's result; raises Unavailable when the queue is full, Closed at the end."""
        if self._is_closed:
            raise Closed("the server stops: come again later")
        if self._pending >= self._limit:
            raise Unavailable(
                f"{self._pending} {self._name} calls wait for threads, the limit: ask again later"
            )
        self._pending += 1
        try:
            future = self._executor.submit(function, *arguments, **named)
            return await asyncio.wrap_future(future)
        finally:
            self._pending -= 1

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
