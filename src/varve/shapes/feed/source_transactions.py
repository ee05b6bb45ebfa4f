"""Keeps the records of a source transaction together until all of them have arrived.

Debezium writes the end of each transaction to a separate topic, with the number of records by
collection. In a partition the records of one transaction are adjacent, so a record of another
transaction ends it too. The tombstone after a delete belongs to the delete's transaction; the
number of records does not include it, nor records that a connector repeats after a crash. The end
may arrive before the records.

Invariant  the records that a partition has of one transaction are taken at once, unless they are
           more than a limit, all partitions together hold too many bytes, or the end does not
           arrive in time; each such case is counted.
Crash      ends are read again from the first one that is still needed.
Threads    one.
"""

import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.shapes.feed.changes import FeedCounts
from varve.shapes.feed.decoders import find_transaction_begin, find_transaction_end
from varve.shapes.feed.order import Entry, PartitionBuffer, split_records
from varve.topics import Position, TopicReader

logger = logging.getLogger(__name__)

RECORDS_MAX: Final = 100_000
BYTES_MAX: Final = 64 << 20
END_WAIT_MS: Final = 5_000
"""Wait for the end of a transaction whose begin was not read."""
BEGUN_WAIT_MS: Final = 300_000
"""Wait for the end of a transaction whose begin was read: its connector may be restarting."""
_ENDS_MAX: Final = 100_000
_READ_BYTES: Final = 1 << 20
_MISSING_RETRY_MS: Final = 1_000
_UNUSED_MS: Final = 60_000
"""An end that was not used for this long belongs to records that were taken before it arrived."""
_NO_TOPIC_CHARACTER: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(slots=True)
class _AwaitedEnd:
    """A transaction's end: its offset, and how many records were not taken yet.

    Until the end arrives, the offset of the begin, and None."""

    offset: int
    missing: int | None
    recorded_ms: int


@dataclass(slots=True)
class _TransactionRun:
    """Adjacent entries of one transaction, or of none."""

    transaction: str | None
    size: int = 0
    byte_count: int = 0
    orders: set[int] = field(default_factory=set)
    """Distinct positions in the transaction: a repeated record counts once, as in its end."""
    held_since_ms: int | None = None
    is_unfinished: bool = False


class _TransactionRuns:
    """The entries of one partition that were not taken yet, by transaction."""

    def __init__(self) -> None:
        self.size = 0
        self._runs: deque[_TransactionRun] = deque()

    @property
    def last(self) -> _TransactionRun | None:
        return self._runs[-1] if self._runs else None

    def __iter__(self) -> Iterator[_TransactionRun]:
        return iter(self._runs)

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries that follow the others."""
        for _, _, byte_count, decoded in entries:
            run, transaction = self.last, decoded.transaction
            name = None if transaction is None else transaction.id
            # A tombstone belongs to the delete before it.
            if run is None or (run.transaction != name and not decoded.is_tombstone):
                run = _TransactionRun(name)
                self._runs.append(run)
            run.size += 1
            run.byte_count += byte_count
            if transaction is not None:
                run.orders.add(transaction.collection_order)
        self.size += len(entries)

    def take(self, count: int) -> list[_TransactionRun]:
        """Removes the runs of this many entries."""
        taken = []
        self.size -= count
        while count > 0:
            taken.append(self._runs.popleft())
            count -= taken[-1].size
        assert count == 0  # runs are taken whole
        return taken


class SourceTransactions:
    """Groups the records of a topic that Debezium writes; `reader` reads its transaction topic."""

    def __init__(
        self,
        reader: TopicReader,
        topic: str,
        counts: FeedCounts,
        clock: Clock,
        *,
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
        end_wait_ms: int = END_WAIT_MS,
    ) -> None:
        """`topic` has the records: its name ends with the name of the collection."""
        self._reader = reader
        self._topic = topic
        self._counts = counts
        self._clock = clock
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._end_wait_ms = end_wait_ms
        self._next = Position(0)
        self._missing_ms: int | None = None
        self._ends: dict[str, _AwaitedEnd] = {}
        self._runs: defaultdict[PartitionBuffer, _TransactionRuns] = defaultdict(_TransactionRuns)

    @property
    def position(self) -> int:
        """The offset of the first end that is still needed, or the next one to read."""
        return min((end.offset for end in self._ends.values()), default=self._next.offset)

    def open(self, position: int) -> None:
        self._ends.clear()
        self._runs.clear()
        self._next, self._missing_ms = Position(position), None
        self._find_position()

    def close(self) -> None:
        self._reader.close()

    def poll(self) -> None:
        """Reads the ends that have been written."""
        now_ms = self._clock.now_ms()
        if self._missing_ms is not None:
            if now_ms - self._missing_ms < _MISSING_RETRY_MS:
                return
            self._find_position()
            if self._missing_ms is not None:
                return
        self._forget_unused(now_ms)
        try:
            fetches = self._reader.fetch({0: self._next}, max_bytes=_READ_BYTES, wait_ms=0)
        except (NotFound, OffsetOutOfRange):
            # It was recreated or truncated: the ends of waiting records are unknown now.
            self._reader.close()
            self._find_position()
            return
        fetched = fetches.get(0)
        if fetched is None:
            return
        part = fetched.first_part()
        offsets, _, records = split_records(part.columns)
        for offset, (_, value) in zip(offsets, records, strict=True):
            self._record_event(offset, value, now_ms)
        self._next = Position.after(part.batches)

    def _find_position(self) -> None:
        """Finds the offset to resume at; Debezium creates the topic with its first transaction."""
        try:
            start, end = self._reader.offsets(0)
        except NotFound:
            if self._missing_ms is None:
                logger.warning(
                    "transaction topic does not exist yet",
                    extra={"topic": self._topic, "transactions": self._reader.topic},
                )
            self._missing_ms = self._clock.now_ms()
            return
        self._missing_ms = None
        self._next = Position(min(max(start, end - _ENDS_MAX, self._next.offset), end))

    def _record_event(self, offset: int, value: bytes | None, now_ms: int) -> None:
        end = find_transaction_end(value)
        if end is None:
            begun_id = find_transaction_begin(value)
            if begun_id is not None:
                self._ends[begun_id] = _AwaitedEnd(offset, None, now_ms)
            return
        count = sum(count for name, count in end.counts.items() if self._is_ours(name))
        self._ends.pop(end.id, None)
        for run in self._waiting_runs(end.id):
            # Its last records may not have arrived yet.
            run.held_since_ms = None
        if count:
            self._ends[end.id] = _AwaitedEnd(offset, count, now_ms)
        while len(self._ends) > _ENDS_MAX:
            self._ends.pop(next(iter(self._ends)))

    def _is_ours(self, collection: str) -> bool:
        """Whether the records of a collection are in the topic, by its name."""
        name = _NO_TOPIC_CHARACTER.sub("_", collection)
        return self._topic == name or self._topic.endswith(f".{name}")

    def _forget_unused(self, now_ms: int) -> None:
        unused = []
        for name, end in self._ends.items():
            if now_ms - end.recorded_ms < _UNUSED_MS:
                break
            if not self._waiting_runs(name):
                unused.append(name)
        for name in unused:
            del self._ends[name]

    def ready_count(self, buffer: PartitionBuffer, count: int) -> int:
        """How many entries may be taken: whole transactions, at least `count` if complete."""
        runs = self._runs[buffer]
        runs.add(buffer.peek()[runs.size :])
        ready = 0
        for run in runs:
            if ready >= count:
                break
            if run is runs.last and run.transaction is not None and not self._is_ready(run):
                break
            ready += run.size
        return ready

    def remove(self, buffer: PartitionBuffer, entries: Sequence[Entry]) -> None:
        """Forgets ends once all their records were taken."""
        runs = self._runs[buffer]
        # Entries that are read again after a restart were never in the buffer.
        runs.add(entries[runs.size :])
        for run in runs.take(len(entries)):
            self._counts.unfinished += run.is_unfinished
            if run.transaction is not None:
                self._count_taken(run.transaction, len(run.orders))

    def _count_taken(self, transaction: str, events: int) -> None:
        end = self._ends.get(transaction)
        if end is not None and end.missing is not None:
            end.missing -= events
            if end.missing <= 0:
                del self._ends[transaction]

    def _is_ready(self, run: _TransactionRun) -> bool:
        """Whether the last transaction of a partition is complete, or has waited long enough."""
        assert run.transaction is not None
        end = self._ends.get(run.transaction)
        is_begun = end is not None and end.missing is None
        if end is not None and end.missing is not None:
            waiting = sum(len(other.orders) for other in self._waiting_runs(run.transaction))
            if waiting >= end.missing:
                run.is_unfinished = False
                return True
        now_ms = self._clock.now_ms()
        if run.held_since_ms is None:
            run.held_since_ms = now_ms
        end_wait_ms = BEGUN_WAIT_MS if is_begun else self._end_wait_ms
        run.is_unfinished = (
            run.size >= self._records_max
            or self._is_too_large(run)
            or now_ms - run.held_since_ms >= end_wait_ms
        )
        return run.is_unfinished

    def _is_too_large(self, run: _TransactionRun) -> bool:
        """Whether the partitions hold too many bytes, and this run has the most."""
        waiting = [other.byte_count for other in self._last_runs()]
        return sum(waiting) >= self._bytes_max and run.byte_count == max(waiting)

    def _waiting_runs(self, transaction: str) -> list[_TransactionRun]:
        """The last run of each partition, if it is of this transaction."""
        return [run for run in self._last_runs() if run.transaction == transaction]

    def _last_runs(self) -> list[_TransactionRun]:
        return [runs.last for runs in self._runs.values() if runs.last is not None]
