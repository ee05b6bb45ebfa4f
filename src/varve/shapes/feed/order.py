"""One order over the records of all partitions, the same whenever they are read again.

One partition has an order already: a record's transaction is its offset + 1. Of several partitions
the ranges that are read go into a journal first, and what was in the journal is taken again in its
order. The same holds where source transactions are kept together, for the journal tells where they
were cut.

Invariant  transactions ascend, and a range that was given once is given again with the same ones.
Threads    one.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from varve.foundation.errors import StoreDenied, Unavailable
from varve.shapes.feed.decoder import Decoder
from varve.shapes.feed.journal import Journal, Range
from varve.shapes.feed.partition_buffer import Entry, PartitionBuffer, read_entries
from varve.topics import HistoryMark, TopicReader

_READ_BYTES: Final = 1 << 20
_REPLAY_OFFSETS: Final = 1 << 14
"""How many offsets a range covers that is noted for records which may have been given before."""
_HELD_WAIT_MS: Final = 20


class Taken(NamedTuple):
    """Entries with their range; the journal has it."""

    range: Range
    entries: list[Entry]


class Gate(Protocol):
    """Holds entries back whose source transaction is not complete."""

    @property
    def position(self) -> int:
        """Where to read on for the ends of transactions, of what was taken so far."""
        ...

    def open(self, position: int) -> None:
        """Begins there."""
        ...

    def look(self) -> None:
        """Learns of transactions that have ended."""
        ...

    def ready_count(self, buffer: PartitionBuffer, count: int) -> int:
        """How many entries of a buffer may be taken; at least so many, if they are ready."""
        ...

    def taken(self, buffer: PartitionBuffer, entries: Sequence[Entry]) -> None:
        """Is told of entries that were taken, from the buffer or again."""
        ...

    def close(self) -> None:
        """Lets go of connections, until it is opened again."""
        ...


class RecordOrder:
    """Takes records of a source in order. `open` comes first."""

    def __init__(
        self,
        reader: TopicReader,
        decoder: Decoder,
        journal: Journal,
        *,
        gate: Gate | None = None,
    ) -> None:
        self._reader = reader
        self._decoder = decoder
        self._journal = journal
        self._gate = gate
        self._buffers: dict[int, PartitionBuffer] = {}
        self._replay: deque[Range] = deque()
        self._uses_journal = False
        self._turn = 0
        self.marks: dict[int, HistoryMark] = {}
        """The last batch that was fetched, by partition."""
        self.next_tx = 1
        self.ends: dict[int, int] = {}
        """Where committed records of each partition end, as far as is known."""

    def open(
        self,
        positions: Mapping[int, int],
        next_tx: int,
        ends: Mapping[int, int],
        marks: Mapping[int, HistoryMark],
        *,
        was_single: bool,
    ) -> None:
        """Begins at positions, of which `next_tx` is the first transaction.

        `marks` are those of the table. `was_single` says that the topic had one partition when the
        positions were noted.
        """
        self.ends = dict(ends)
        self._journal.restart(next_tx, marks)
        self.marks = {**marks, **self._journal.marks}
        ranges = self._journal.ranges
        self._replay = deque(_from(one, next_tx) for one in ranges)
        self.next_tx = ranges[-1].next_tx if ranges else next_tx
        self._uses_journal = len(ends) > 1 or self._gate is not None or bool(ranges)
        starts = {number: positions[number] for number in ends}
        if ranges and ranges[0].first_tx > next_tx:
            # The topic had one partition, which needs no journal, until the journal began.
            hole = ranges[0].first_tx - next_tx
            self._replay.appendleft(Range(0, starts[0], starts[0] + hole, next_tx))
        elif not ranges and was_single and len(ends) > 1 and self._gate is None:
            self._note_given(starts[0], self.ends[0])
        for one in self._replay:
            starts[one.partition] = max(starts[one.partition], one.end)
        self._buffers = {
            number: PartitionBuffer(start, self._decoder) for number, start in starts.items()
        }

    def _note_given(self, start: int, end: int) -> None:
        """Notes the first partition's records up to its end.

        They may have been given while the topic had no other partition, and no journal.
        """
        ranges = []
        for at in range(start, end, _REPLAY_OFFSETS):
            ranges.append(Range(0, at, min(at + _REPLAY_OFFSETS, end), self.next_tx))
            self.next_tx = ranges[-1].next_tx
        if ranges:
            self._journal.append(ranges)
            self._replay.extend(ranges)

    @property
    def newest_tx(self) -> int:
        """The last transaction that any record has that was fetched."""
        if self._uses_journal:
            return self.next_tx - 1
        # Without a mark nobody knows how far the log was read.
        return self.marks[0].last_offset + 1 if 0 in self.marks else self.ends[0]

    @property
    def is_replaying(self) -> bool:
        return bool(self._replay)

    def add_partition(self, number: int, start: int) -> None:
        """Takes in a partition that the topic has got; the order goes on in the journal."""
        self._buffers[number] = PartitionBuffer(start, self._decoder)
        self.ends[number] = start
        self._uses_journal = True

    def take(self, max_records: int, wait_ms: int) -> list[Taken]:
        """The next records, about so many; none where none come within the time."""
        if self._replay:
            return self._take_again(max_records)
        self._read(wait_ms)
        return self._take_new(max_records)

    # What the journal has

    def _take_again(self, max_records: int) -> list[Taken]:
        taken: list[Taken] = []
        count = 0
        while self._replay and count < max_records:
            wanted = self._replay[0]
            try:
                entries = self._read_range(wanted)
            except (Unavailable, StoreDenied):
                if taken:
                    return taken
                raise
            self._replay.popleft()
            if self._gate is not None:
                self._gate.taken(self._buffers[wanted.partition], entries)
            taken.append(Taken(wanted, entries))
            count += len(entries)
        return taken

    def _read_range(self, wanted: Range) -> list[Entry]:
        parts = read_entries(
            self._reader, wanted.partition, wanted.start, wanted.end, self._decoder
        )
        return [entry for part in parts for entry in part]

    # What is new

    def _read(self, wait_ms: int) -> None:
        if self._gate is not None:
            self._gate.look()
        idle = [number for number, buffer in self._buffers.items() if not self._has_ready(buffer)]
        if not idle:
            return
        # A server gives a batch that is larger than asked for to the first partition alone.
        first = self._turn % len(idle)
        asked = {number: self._buffers[number].position for number in idle[first:] + idle[:first]}
        if len(asked) < len(self._buffers):
            wait_ms = 0
        elif any(not buffer.is_empty for buffer in self._buffers.values()):
            # An end comes by another topic, which the wait does not see.
            wait_ms = min(wait_ms, _HELD_WAIT_MS)
        found = self._reader.fetch(asked, max_bytes=_READ_BYTES, wait_ms=wait_ms)
        for number, position in asked.items():
            fetched = found.get(number)
            if fetched is None:
                self.ends[number] = position.offset
                continue
            self._buffers[number].add(fetched)
            self.ends[number] = max(fetched.end_offset, fetched.next_offset)
        self._note_marks(list(found))

    def _note_marks(self, numbers: Sequence[int]) -> None:
        """Notes what was fetched, before a shape sees any of it."""
        marks = {}
        for number in numbers:
            mark = self._buffers[number].position.mark
            if mark is not None:
                marks[number] = mark
        if marks:
            self._journal.note(marks)
            self.marks |= marks

    def _has_ready(self, buffer: PartitionBuffer) -> bool:
        if self._gate is None or buffer.is_empty:
            return not buffer.is_empty
        return self._gate.ready_count(buffer, 1) > 0

    def _take_new(self, max_records: int) -> list[Taken]:
        ready = [number for number, buffer in self._buffers.items() if buffer.has_news]
        if not ready:
            return []
        # Who comes first changes from turn to turn, for the count may be used up before the last.
        self._turn += 1
        first = self._turn % len(ready)
        share = max(1, max_records // len(ready))
        taken = []
        for number in ready[first:] + ready[:first]:
            one = self._take_from(number, share)
            if one is not None:
                taken.append(one)
        if self._uses_journal and taken:
            self._journal.append([one.range for one in taken])
        return taken

    def _take_from(self, number: int, count: int) -> Taken | None:
        buffer = self._buffers[number]
        if self._gate is not None:
            count = self._gate.ready_count(buffer, count)
        if count == 0 and not buffer.is_empty:
            return None
        start, end, entries = buffer.take(count)
        if self._gate is not None:
            self._gate.taken(buffer, entries)
        if start == end:
            return None
        first_tx = self.next_tx if self._uses_journal else start + 1
        made = Range(number, start, end, first_tx)
        self.next_tx = made.next_tx
        return Taken(made, entries)


def _from(one: Range, next_tx: int) -> Range:
    """The part of a range from a transaction on."""
    skipped = max(0, next_tx - one.first_tx)
    return Range(one.partition, one.start + skipped, one.end, one.first_tx + skipped)
