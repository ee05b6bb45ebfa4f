"""Fetches that wait for records, and reads of older segments in the background.

A background read continues when the fetch that started it no longer waits, and its result is kept
for the next fetch from the same offset: however slow the store is, a client makes progress.

Fetches that are complete at the same time are answered in turns of the loop: what one turn reads
counts as response memory before the next, and when that is used up a fetch is answered without
records, which its client asks for again.

Invariant  a fetch that is done is no longer parked. An append completes only fetches that have
           enough bytes by then. Background reads, counted by the most they may return, and their
           kept results stay below one limit together.
Threads    the loop's; the reading itself is done in the blocking pool.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from varve.broker.background import BlockingPool, Timers
from varve.broker.request import ConnectionContext
from varve.commit_log import FetchResult, Isolation, Log, TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import without_frames

if TYPE_CHECKING:
    from varve.broker.data.fetch import Fetch

K = TypeVar("K")

_KEPT_MS: Final = 60_000
_TURN_BYTES: Final = 8 << 20
"""Records that are read for parked fetches in one turn of the loop."""


class ResponseMemory(Protocol):
    """What all responses that clients have not read may hold."""

    @property
    def is_exceeded(self) -> bool: ...


class ParkedFetches:
    """All fetches that wait, by partition and by connection."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._by_partition: dict[TopicPartition, set[Fetch]] = {}
        self._by_connection: dict[int, set[Fetch]] = {}
        self._rotations = itertools.count()
        self._ready: deque[tuple[Fetch, bool]] = deque()
        """Those that are complete, and whether by their timeout; they wait for a turn."""
        self._turn_bytes = 0
        self.response_memory: ResponseMemory | None = None
        """That of the server, which sets it."""

    def next_rotation(self) -> int:
        """Another number for each fetch, by which its partitions take turns in being first."""
        return next(self._rotations)

    def __len__(self) -> int:
        return sum(len(fetches) for fetches in self._by_connection.values())

    @property
    def partition_count(self) -> int:
        """Partitions that a fetch waits for."""
        return len(self._by_partition)

    def park(self, fetch: "Fetch", *, delay_ms: int) -> None:
        """Keeps a fetch until it has enough bytes, is woken, or the delay is over."""
        for partition in fetch.partitions:
            self._by_partition.setdefault(partition, set()).add(fetch)
        self._by_connection.setdefault(fetch.connection.id, set()).add(fetch)
        fetch.timer = self._timers.call_later(
            delay_ms, lambda: self._complete(fetch, is_timeout=True)
        )

    def partitions_appended(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            for fetch in tuple(self._by_partition.get(partition, ())):
                if fetch.has_enough_after_append(partition):
                    self._complete(fetch)

    def read_finished(self, key: "ReadKey", outcome: FetchResult | Exception) -> None:
        """A background read that was started for some fetch has a result."""
        for fetch in tuple(self._by_partition.get(key.log.topic_partition, ())):
            if fetch.has_enough_after_read(key, outcome):
                self._complete(fetch)

    def wake(self, partition: TopicPartition) -> None:
        """Completes all fetches of a partition that was altered, or whose records were deleted."""
        for fetch in tuple(self._by_partition.get(partition, ())):
            self._complete(fetch)

    def connection_closed(self, connection: ConnectionContext) -> None:
        for fetch in tuple(self._by_connection.get(connection.id, ())):
            self._remove(fetch)
            fetch.future.cancel()

    def _complete(self, fetch: "Fetch", *, is_timeout: bool = False) -> None:
        self._remove(fetch)
        self._ready.append((fetch, is_timeout))
        self._answer_ready()

    def _answer_ready(self) -> None:
        while self._ready and self._turn_bytes <= _TURN_BYTES:
            fetch, is_timeout = self._ready.popleft()
            if not fetch.future.done():
                self._answer(fetch, is_timeout=is_timeout)

    def _answer(self, fetch: "Fetch", *, is_timeout: bool) -> None:
        memory = self.response_memory
        has_memory = memory is None or not memory.is_exceeded
        is_new_turn = not self._turn_bytes
        try:
            response = fetch.complete(is_timeout=is_timeout, has_memory=has_memory)
            self._turn_bytes += fetch.read_bytes
            fetch.future.set_result(response)
        except Exception as error:
            # The server answers and logs it, as for any other handler.
            fetch.future.set_exception(error)
        if is_new_turn and self._turn_bytes:
            fetch.future.get_loop().call_soon(self._start_turn)

    def _start_turn(self) -> None:
        self._turn_bytes = 0
        self._answer_ready()

    def _remove(self, fetch: "Fetch") -> None:
        if fetch.timer is not None:
            fetch.timer.cancel()
        for partition in fetch.partitions:
            _discard(self._by_partition, partition, fetch)
        _discard(self._by_connection, fetch.connection.id, fetch)


def _discard(table: "dict[K, set[Fetch]]", key: K, fetch: "Fetch") -> None:
    fetches = table.get(key)
    if fetches is None:
        return
    fetches.discard(fetch)
    if not fetches:
        del table[key]


class ReadKey(NamedTuple):
    """What is read, and from which offset."""

    log: Log
    offset: int
    isolation: Isolation


class _BackgroundRead:
    __slots__ = ("outcome", "size", "started_ms")

    def __init__(self, size: int, started_ms: int) -> None:
        self.size = size
        self.started_ms = started_ms
        self.outcome: FetchResult | Exception | None = None


class BackgroundReads:
    """Reads that are running, and results that no fetch has taken yet."""

    def __init__(
        self, fetches: ParkedFetches, blocking: BlockingPool, clock: Clock, *, bytes_max: int
    ) -> None:
        self._fetches = fetches
        self._blocking = blocking
        self._clock = clock
        self._bytes_max = bytes_max
        self._reads: dict[ReadKey, _BackgroundRead] = {}  # the oldest first
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What is counted against the limit."""
        return self._bytes

    def find(self, key: ReadKey) -> FetchResult | Exception | None:
        """The result of a finished read; it is kept until it is dropped."""
        read = self._reads.get(key)
        return None if read is None else read.outcome

    def drop(self, key: ReadKey) -> None:
        """Forgets a result."""
        read = self._reads.pop(key, None)
        if read is not None:
            self._bytes -= read.size

    def start(self, key: ReadKey, *, max_bytes: int) -> bool:
        """Starts a read unless it is running; False while the limit does not allow it."""
        if key in self._reads:
            return True
        now_ms = self._clock.now_ms()
        if not self._make_space(max_bytes, now_ms):
            return False
        self._reads[key] = _BackgroundRead(max_bytes, now_ms)
        self._bytes += max_bytes
        read = partial(
            key.log.read,
            start_offset=key.offset,
            max_bytes=max_bytes,
            isolation=key.isolation,
            min_one=True,
        )
        self._blocking.run(read).add_done_callback(lambda future: self._finished(key, future))
        return True

    def _make_space(self, size: int, now_ms: int) -> bool:
        """Drops results that no fetch came for: the old ones, and the oldest where space lacks."""
        for key, read in list(self._reads.items()):
            is_old = now_ms - read.started_ms > _KEPT_MS
            is_full = self._bytes + size > self._bytes_max
            if not (is_old or is_full):
                break
            if read.outcome is not None:
                self.drop(key)
        # A single read may be as large as it needs to be.
        return not self._reads or self._bytes + size <= self._bytes_max

    def _finished(self, key: ReadKey, future: "asyncio.Future[FetchResult]") -> None:
        read = self._reads.get(key)
        if read is None or future.cancelled():
            self.drop(key)
            return
        error = future.exception()
        outcome = without_frames(error) if isinstance(error, Exception) else future.result()
        self._bytes -= read.size
        read.size = len(outcome.data) if isinstance(outcome, FetchResult) else 0
        self._bytes += read.size
        read.outcome = outcome
        self._fetches.read_finished(key, outcome)
