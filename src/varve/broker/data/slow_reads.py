"""Reads that are not the loop's business: closed segments and the cold tier, off the loop.

A read goes on when the fetch that began it does not wait any longer, and its outcome is kept for
the fetch that asks for the same offset next: however slow the store, a client gets on.

Invariant  what is running, by the most it may bring, and what is kept stay below a bound together.
Threads    the loop's alone; the reading itself is done elsewhere.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from varve.commit_log import FetchResult, Isolation, Log
from varve.foundation.clock import Clock

_KEPT_MS: Final = 60_000

Offload = Callable[..., "asyncio.Future[Any]"]


class ReadKey(NamedTuple):
    """What is read, and from where on."""

    log: Log
    offset: int
    isolation: Isolation


class _Read:
    __slots__ = ("bytes", "outcome", "since_ms")

    def __init__(self, bytes: int, since_ms: int) -> None:
        self.bytes = bytes
        self.since_ms = since_ms
        self.outcome: FetchResult | Exception | None = None


class SlowReads:
    """The reads that are running or waiting to be used."""

    def __init__(self, offload: Offload, clock: Clock, *, bytes_max: int) -> None:
        self._offload = offload
        self._clock = clock
        self._bytes_max = bytes_max
        self._reads: dict[ReadKey, _Read] = {}
        self._bytes = 0
        self.on_read: list[Callable[[ReadKey, FetchResult | Exception], None]] = []
        """Called with the outcome of a read."""

    @property
    def bytes(self) -> int:
        return self._bytes

    def find(self, key: ReadKey) -> FetchResult | Exception | None:
        """The outcome of a read that has ended; it stays until it is dropped."""
        read = self._reads.get(key)
        return None if read is None else read.outcome

    def drop(self, key: ReadKey) -> None:
        """Forgets an outcome, once it is used."""
        self._remove(key)

    def begin(self, key: ReadKey, *, max_bytes: int) -> bool:
        """Begins a read unless it is running; False while there is no room for it."""
        if key in self._reads:
            return True
        now_ms = self._clock.now_ms()
        if not self._make_room(max_bytes, now_ms):
            return False
        self._reads[key] = _Read(max_bytes, now_ms)
        self._bytes += max_bytes
        read = partial(
            key.log.read,
            start_offset=key.offset,
            max_bytes=max_bytes,
            isolation=key.isolation,
            min_one=True,
        )
        self._offload(read).add_done_callback(lambda future: self._on_done(key, future))
        return True

    def _make_room(self, wanted: int, now_ms: int) -> bool:
        """Drops what nobody came for: the old, and the oldest for want of room."""
        for key, read in list(self._reads.items()):
            is_old = now_ms - read.since_ms > _KEPT_MS
            is_full = self._bytes + wanted > self._bytes_max
            if read.outcome is not None and (is_old or is_full):
                self._remove(key)
        # One alone may be as large as it wants.
        return not self._reads or self._bytes + wanted <= self._bytes_max

    def _on_done(self, key: ReadKey, future: "asyncio.Future[Any]") -> None:
        read = self._reads.get(key)
        if read is None or future.cancelled():
            self._remove(key)
            return
        error = future.exception()
        if isinstance(error, Exception):
            outcome: FetchResult | Exception = error
        else:
            outcome = future.result()
        self._bytes -= read.bytes
        read.bytes = len(outcome.data) if isinstance(outcome, FetchResult) else 0
        self._bytes += read.bytes
        read.outcome = outcome
        for call in self.on_read:
            call(key, outcome)

    def _remove(self, key: ReadKey) -> None:
        read = self._reads.pop(key, None)
        if read is not None:
            self._bytes -= read.bytes
