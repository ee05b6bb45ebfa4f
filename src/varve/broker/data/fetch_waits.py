"""Fetches that wait for more to read: one object with one timer each, linked from its partitions.

Invariant  a fetch that is done is linked from nowhere. An append wakes only those that have enough
           by then.
Threads    the loop's alone.
"""

import asyncio
import itertools
from collections.abc import Collection, Iterable
from typing import Final, Protocol, TypeVar

from varve.broker.context import ConnectionContext
from varve.broker.data.slow_reads import ReadKey
from varve.broker.timers import Timer, Timers
from varve.commit_log import FetchResult, TopicPartition
from varve.wire.messages.data import FetchResponse

K = TypeVar("K")

_NOBODY: Final[frozenset["WaitingFetch"]] = frozenset()


class Waiting(Protocol):
    """What is asked of a fetch while it waits."""

    def is_enough(self, partition: TopicPartition) -> bool:
        """Whether an append to the partition was the one to wait for."""
        ...

    def is_read(self, key: ReadKey, outcome: FetchResult | Exception) -> bool:
        """Whether the outcome of a slow read was the one to wait for."""
        ...

    def answer(self, *, is_timeout: bool) -> FetchResponse:
        """Tells whatever is there; it has not changed where only the time is over."""
        ...


class WaitingFetch:
    """One that waits; its future is the way to the client."""

    __slots__ = ("connection", "fetch", "future", "partitions", "timer")

    def __init__(
        self,
        fetch: Waiting,
        connection: ConnectionContext,
        partitions: Collection[TopicPartition],
        future: "asyncio.Future[FetchResponse]",
    ) -> None:
        self.fetch = fetch
        self.connection = connection
        self.partitions = partitions
        self.future = future
        self.timer: Timer | None = None


class FetchWaits:
    """All fetches that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        self._loop = loop
        self._timers = timers
        self._by_partition: dict[TopicPartition, set[WaitingFetch]] = {}
        self._by_connection: dict[int, set[WaitingFetch]] = {}
        self._turns = itertools.count()

    def next_turn(self) -> int:
        """Another number for each fetch, by which partitions take turns in being first."""
        return next(self._turns)

    @property
    def count(self) -> int:
        return sum(len(waiting) for waiting in self._by_connection.values())

    @property
    def partition_count(self) -> int:
        """Partitions that somebody waits for."""
        return len(self._by_partition)

    def park(
        self,
        fetch: Waiting,
        *,
        connection: ConnectionContext,
        partitions: Collection[TopicPartition],
        delay_ms: int,
    ) -> "asyncio.Future[FetchResponse]":
        """Keeps a fetch until it has enough, it is woken, or the time is over."""
        waiting = WaitingFetch(fetch, connection, partitions, self._loop.create_future())
        for partition in partitions:
            self._by_partition.setdefault(partition, set()).add(waiting)
        self._by_connection.setdefault(connection.id, set()).add(waiting)
        waiting.timer = self._timers.call_later(
            delay_ms, lambda: self._finish(waiting, is_timeout=True)
        )
        return waiting.future

    def on_appended(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            for waiting in tuple(self._by_partition.get(partition, ())):
                if waiting.fetch.is_enough(partition):
                    self._finish(waiting)

    def on_read(self, key: ReadKey, outcome: FetchResult | Exception) -> None:
        """A slow read that was begun for some fetch has come to its end."""
        for waiting in tuple(self._by_partition.get(key.log.topic_partition, ())):
            if waiting.fetch.is_read(key, outcome):
                self._finish(waiting)

    def wake(self, partition: TopicPartition) -> None:
        """Ends all waiting for a partition: its records or the partition itself were deleted."""
        for waiting in tuple(self._by_partition.get(partition, ())):
            self._finish(waiting)

    def on_disconnected(self, connection: ConnectionContext) -> None:
        for waiting in self._by_connection.get(connection.id, _NOBODY).copy():
            self._unlink(waiting)
            waiting.future.cancel()

    def _finish(self, waiting: WaitingFetch, *, is_timeout: bool = False) -> None:
        self._unlink(waiting)
        if waiting.future.done():
            return
        try:
            waiting.future.set_result(waiting.fetch.answer(is_timeout=is_timeout))
        except Exception as error:
            # The server tells the client and logs it, as for any other handler.
            waiting.future.set_exception(error)

    def _unlink(self, waiting: WaitingFetch) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        for partition in waiting.partitions:
            _discard(self._by_partition, partition, waiting)
        _discard(self._by_connection, waiting.connection.id, waiting)


def _discard(table: dict[K, set[WaitingFetch]], key: K, waiting: WaitingFetch) -> None:
    links = table.get(key)
    if links is None:
        return
    links.discard(waiting)
    if not links:
        del table[key]
