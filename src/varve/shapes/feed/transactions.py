"""Keeps the records of a source transaction together until all of them are there.

Debezium writes the end of each transaction to a topic of its own, with the number of records by
collection. A partition's records of one transaction stand together, so a record of another one ends
it too. The tombstone behind a delete is in the delete's transaction, and is not counted by its end;
nor is what a connector tells again after a crash of its own. The end may come before the records.

Invariant  the records of one transaction that a partition holds are taken at once, unless they are
           more than a limit, or their end does not come within a time: both are counted.
Crash      ends are read again from the first one that is still needed.
Threads    one.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from varve.foundation.clock import Clock
from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.shapes.feed.counts import FeedCounts
from varve.shapes.feed.debezium_decoder import find_transaction_begin, find_transaction_end
from varve.shapes.feed.decoder import transaction_ids
from varve.shapes.feed.partition_buffer import Entry, PartitionBuffer, split_records
from varve.shapes.feed.source import TopicSource

logger = logging.getLogger(__name__)

RECORDS_MAX: Final = 100_000
PATIENCE_MS: Final = 5_000
BEGUN_PATIENCE_MS: Final = 300_000
"""For the end of a transaction that is known to have begun: its connector is on its way back."""
_ENDS_MAX: Final = 100_000
_READ_BYTES: Final = 1 << 20
_MISSING_LOOK_MS: Final = 1_000
_UNUSED_MS: Final = 60_000
"""An end that nobody has waited for so long belongs to records that were given before it came."""
_NO_TOPIC_CHARACTER: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(slots=True)
class _End:
    """The end of a transaction: where it stands, and how many records are still to come.

    While it is only known to have begun, where that stands, and None."""

    offset: int
    missing: int | None
    noted_ms: int


class _Group(NamedTuple):
    """A run of entries of one transaction; its end counts `events` of them."""

    id: str | None
    size: int
    events: int
    is_followed: bool


class SourceTransactions:
    """The gate of a topic that Debezium writes; `source` reads its transaction topic."""

    def __init__(
        self,
        source: TopicSource,
        topic: str,
        counts: FeedCounts,
        clock: Clock,
        *,
        records_max: int = RECORDS_MAX,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """`topic` is that of the records: its name ends with the collection's."""
        self._source = source
        self._topic = topic
        self._counts = counts
        self._clock = clock
        self._records_max = records_max
        self._patience_ms = patience_ms
        self._next_offset = 0
        self._missing_ms: int | None = None
        self._ends: dict[str, _End] = {}
        self._held_since: dict[str, int] = {}
        self._held: dict[PartitionBuffer, tuple[str, int]] = {}

    @property
    def position(self) -> int:
        """The first end that is still needed, or where to read on."""
        return min((one.offset for one in self._ends.values()), default=self._next_offset)

    def open(self, position: int) -> None:
        self._ends.clear()
        self._held_since.clear()
        self._held.clear()
        self._next_offset, self._missing_ms = position, None
        self._find_place()

    def close(self) -> None:
        self._source.close()

    def look(self) -> None:
        """Reads the ends that have come."""
        now_ms = self._clock.now_ms()
        if self._missing_ms is not None:
            if now_ms - self._missing_ms < _MISSING_LOOK_MS:
                return
            self._find_place()
            if self._missing_ms is not None:
                return
        self._forget_unused(now_ms)
        try:
            found = self._source.read({0: self._next_offset}, max_bytes=_READ_BYTES, wait_ms=0)
        except (NotFound, OffsetOutOfRange):
            # It was made anew, or cut: what it said of records that wait is not known any more.
            self._find_place()
            return
        read = found.get(0)
        if read is None:
            return
        for columns in read.columns:
            offsets, _, records = split_records(columns)
            for offset, (_, value) in zip(offsets, records, strict=True):
                self._note(offset, value, now_ms)
        self._next_offset = read.next_offset

    def _find_place(self) -> None:
        """Where to read on; Debezium makes the topic with the first transaction it tells of."""
        try:
            start, end = self._source.bounds(0)
        except NotFound:
            if self._missing_ms is None:
                logger.warning(
                    "topic of transactions is not there yet",
                    extra={"topic": self._topic, "transactions": self._source.topic},
                )
            self._missing_ms = self._clock.now_ms()
            return
        self._missing_ms = None
        self._next_offset = min(max(start, end - _ENDS_MAX, self._next_offset), end)

    def _note(self, offset: int, value: bytes | None, now_ms: int) -> None:
        end = find_transaction_end(value)
        if end is None:
            begun = find_transaction_begin(value)
            if begun is not None:
                self._ends[begun] = _End(offset, None, now_ms)
            return
        count = sum(count for name, count in end.counts.items() if self._is_ours(name))
        self._ends.pop(end.id, None)
        # Its last records may still be on their way.
        self._held_since.pop(end.id, None)
        if count:
            self._ends[end.id] = _End(offset, count, now_ms)
        while len(self._ends) > _ENDS_MAX:
            self._ends.pop(next(iter(self._ends)))

    def _is_ours(self, collection: str) -> bool:
        """Whether the records of a collection are in the topic, by its name."""
        name = _NO_TOPIC_CHARACTER.sub("_", collection)
        return self._topic == name or self._topic.endswith(f".{name}")

    def _forget_unused(self, now_ms: int) -> None:
        unused = []
        for id, end in self._ends.items():
            if now_ms - end.noted_ms < _UNUSED_MS:
                break
            if id not in self._held_since:
                unused.append(id)
        for id in unused:
            del self._ends[id]

    def ready_count(self, buffer: PartitionBuffer, count: int) -> int:
        """How many entries may be taken: whole transactions, at least so many if they are there."""
        ready = 0
        for one in _groups(buffer.look()):
            if ready >= count:
                break
            if one.id is not None and not one.is_followed and not self._may_go(one, buffer):
                break
            ready += one.size
        return ready

    def taken(self, entries: Sequence[Entry]) -> None:
        """Notes what was taken, so that ends which are used up go."""
        for id, _, events, _ in _groups(entries):
            if id is None:
                continue
            self._held_since.pop(id, None)
            self._held = {buffer: one for buffer, one in self._held.items() if one[0] != id}
            end = self._ends.get(id)
            if end is not None and end.missing is not None:
                end.missing -= events
                if end.missing <= 0:
                    del self._ends[id]

    def _may_go(self, group: _Group, buffer: PartitionBuffer) -> bool:
        """Whether the last transaction that a partition has is complete, or is not waited for."""
        id = group.id
        assert id is not None
        self._held[buffer] = (id, group.events)
        end = self._ends.get(id)
        is_begun = end is not None and end.missing is None
        if end is not None and end.missing is not None and self._held_count(id) >= end.missing:
            return True
        now_ms = self._clock.now_ms()
        waited_ms = now_ms - self._held_since.setdefault(id, now_ms)
        patience_ms = BEGUN_PATIENCE_MS if is_begun else self._patience_ms
        is_over = group.size >= self._records_max or waited_ms >= patience_ms
        self._counts.unfinished += is_over
        return is_over

    def _held_count(self, id: str) -> int:
        return sum(events for held, events in self._held.values() if held == id)


def _groups(entries: Sequence[Entry]) -> Iterator[_Group]:
    """Runs of one transaction, in order."""
    taken = 0
    ids = transaction_ids([one[3] for one in entries])
    for id, pairs in groupby(zip(ids, entries, strict=True), key=lambda pair: pair[0]):
        run = [entry[3].transaction for _, entry in pairs]
        taken += len(run)
        events = len({one.collection_order for one in run if one is not None})
        yield _Group(id, len(run), events, taken < len(entries))
