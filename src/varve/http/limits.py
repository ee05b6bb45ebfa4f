"""Bounds on work: how many requests are in progress, and how many threads and calls block.

Invariant  a worker pool is the only way from the event loop to blocking code. A call that is
           cancelled before it has a thread is not made.
Threads    the event loop only; functions run in the threads of a pool.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from varve.foundation.errors import Closed, Unavailable
from varve.http.exchange import unavailable
from varve.http.settings import HttpSettings


class RequestLimiter:
    """Counts requests in progress: those that may create a shape, and the others."""

    def __init__(self, settings: HttpSettings) -> None:
        self._limits = {
            "initial": settings.initial_requests_max,
            "existing": settings.existing_requests_max,
        }
        self.counts = {"initial": 0, "existing": 0}
        self.refused = {"initial": 0, "existing": 0}

    def admit(self, *, is_initial: bool) -> "Admission":
        """Admits a request; raises 503 at the limit."""
        kind = "initial" if is_initial else "existing"
        if self.counts[kind] >= self._limits[kind]:
            self.refused[kind] += 1
            raise unavailable(
                f"{self.counts[kind]} {kind} requests are in progress, the limit: try again later",
                code="concurrent_request_limit_exceeded",
                retry_s=5 + self.refused[kind] % 6,
            )
        self.counts[kind] += 1
        return Admission(self.counts, kind)


class Admission:
    """That of one request, until it ends."""

    __slots__ = ("_counts", "_kind")

    def __init__(self, counts: dict[str, int], kind: str) -> None:
        self._counts = counts
        self._kind = kind

    def mark_existing(self) -> None:
        """The shape exists: sending remains, and new shapes do not wait for slow clients."""
        self.leave()
        self._kind = "existing"
        self._counts[self._kind] += 1

    def leave(self) -> None:
        self._counts[self._kind] -= 1


P = ParamSpec("P")
T = TypeVar("T")

_QUEUED_PER_THREAD: Final = 2500


class WorkerPool:
    """Runs blocking functions; raises Unavailable when too many wait."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._limit = threads * _QUEUED_PER_THREAD
        self._pending = 0
        self._is_closed = False

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The function's result; raises Unavailable when the queue is full, Closed at the end."""
        if self._is_closed:
            raise Closed("the server stops: try again later")
        if self._pending >= self._limit:
            raise Unavailable(
                f"{self._pending} {self._name} calls wait for threads, the limit: try again later"
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
