"""Requests in progress: `Waiters` wakes those that wait for changes of a shape.

`RequestLimiter` bounds how many there are.

Invariant  a request that starts waiting before it checks misses nothing: a wake between the two is
           kept.
Threads    the event loop only, except `wake_later`, which any thread may call; it wakes the loop
           once for all changed shapes until the loop handles them.
"""

import asyncio
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from varve.http.exchange import unavailable
from varve.http.settings import HttpSettings


class Waiter:
    """One request that waits for a shape."""

    __slots__ = ("_future", "_is_woken", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False

    def wake(self) -> None:
        self._is_woken = True
        self._end_wait()

    async def wait(self, until: float) -> bool:
        """Whether it was woken before this time of the loop."""
        if not self._is_woken:
            self._future = self._loop.create_future()
            timer = self._loop.call_at(until, self._end_wait)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        was_woken, self._is_woken = self._is_woken, False
        return was_woken

    def _end_wait(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Waiters:
    """All waiting requests by the handle of their shape."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_handle: dict[str, set[Waiter]] = {}
        self._lock = threading.Lock()
        self._changed: set[str] = set()  # guarded by _lock
        self.is_stopping = False
        self.count = 0

    @contextmanager
    def waiting(self, handle: str) -> Iterator[Waiter]:
        """The waiter of a request while it waits."""
        waiter = Waiter(self._loop)
        self._by_handle.setdefault(handle, set()).add(waiter)
        self.count += 1
        try:
            yield waiter
        finally:
            self.count -= 1
            self._by_handle[handle].discard(waiter)
            if not self._by_handle[handle]:
                del self._by_handle[handle]

    def wake_later(self, handles: Collection[str]) -> None:
        """Wakes the requests that wait for these shapes; called by the engine."""
        with self._lock:
            is_first = not self._changed
            self._changed.update(handles)
        if is_first and handles and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_changed)

    def _wake_changed(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        if len(changed) > len(self._by_handle):
            changed = changed.intersection(self._by_handle)
        for handle in changed:
            for waiter in self._by_handle.get(handle, ()):
                waiter.wake()

    def stop(self) -> None:
        """Wakes every waiting request, which then responds as if its time were over."""
        self.is_stopping = True
        for waiting in self._by_handle.values():
            for waiter in waiting:
                waiter.wake()


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
                # 5 to 10 seconds in turn: spreads the retries.
                retry_s=5 + self.refused[kind] % 6,
            )
        self.counts[kind] += 1
        return Admission(self.counts, kind)


class Admission:
    """The admission of one request, until it ends."""

    __slots__ = ("_counts", "_kind")

    def __init__(self, counts: dict[str, int], kind: str) -> None:
        self._counts = counts
        self._kind = kind

    def mark_existing(self) -> None:
        """Counts the request as existing while its response is sent.

        Clients that read slowly then do not block new shapes.
        """
        self.leave()
        self._kind = "existing"
        self._counts[self._kind] += 1

    def leave(self) -> None:
        self._counts[self._kind] -= 1
