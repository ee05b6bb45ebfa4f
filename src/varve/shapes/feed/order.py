"""Puts the records of all partitions into one order, the same whenever they are read again.

With a single partition the transaction of a record is its offset + 1. With several partitions the
spans of offsets that are read are written to a journal first, and after a restart they are read
again in the order of the journal. The same holds for a topic with source transactions, because the
journal records where they were cut.

Records are decoded some hundreds at a time, just before they are taken: their bytes are still in
the processor's cache, and few objects wait.

Invariant  transactions ascend, and a span that is taken again has the same transactions.
Threads    one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from varve.foundation.errors import StoreDenied, Unavailable
from varve.kernels.batch_layout import RecordColumn
from varve.records import CommittedBatches, RecordColumns
from varve.shapes.feed.decoders import Decoded, Decoder, Record
from varve.shapes.feed.journal import Journal, OffsetSpan
from varve.topics import HistoryMark, OffsetRange, Position, TopicReader, read_range

if TYPE_CHECKING:
    from varve.shapes.feed.source_transactions import SourceTransactions

Entry = tuple[int, int, int, Decoded]
"""A record: offset, timestamp, bytes of key and value, decoded. A tuple, because millions are
created."""
_DECODED_MAX: Final = 512
"""Records per call of a decoder: enough to amortize the call, few enough for the cache."""
_FIELD_COUNT: Final = int(RecordColumn.VALUE_SIZE) + 1
_READ_BYTES: Final = 1 << 20
_REPLAY_OFFSETS: Final = 1 << 14
"""Offsets per span, for records of a single partition that may have been taken before."""
_REPLAY_BYTES: Final = 16 << 20
"""Bytes of records that are read again together, and about as many more."""
_HELD_WAIT_MS: Final = 20
"""Wait of a fetch while buffered records wait for the end of their source transaction."""


def find_offsets(reader: TopicReader) -> dict[int, OffsetRange]:
    """The committed records that can be read, by partition."""
    return {number: reader.offsets(number) for number in range(reader.info().partition_count)}


def split_records(
    columns: RecordColumns, *, start: int = 0, end: int | None = None, payload: bytes | None = None
) -> tuple[list[int], list[int], list[Record]]:
    """Offsets, timestamps, and keys with values, of the rows [start, end)."""
    payload = columns.payload.tobytes() if payload is None else payload
    fields = columns.table[start:end, :_FIELD_COUNT].T.tolist()
    offsets, timestamps, key_starts, key_sizes, value_starts, value_sizes = fields
    records: list[Record] = [
        (
            payload[key : key + key_size] if key_size >= 0 else None,
            payload[value : value + value_size] if value_size >= 0 else None,
        )
        for key, key_size, value, value_size in zip(
            key_starts, key_sizes, value_starts, value_sizes, strict=True
        )
    ]
    return offsets, timestamps, records


def decode_entries(columns: Iterable[RecordColumns], decoder: Decoder) -> Iterator[list[Entry]]:
    """The records, decoded, some hundreds at a time."""
    for table in columns:
        payload = table.payload.tobytes()
        for start in range(0, len(table), _DECODED_MAX):
            offsets, timestamps, records = split_records(
                table, start=start, end=start + _DECODED_MAX, payload=payload
            )
            sizes = [len(key or b"") + len(value or b"") for key, value in records]
            decoded = decoder.decode_many(records)
            yield list(zip(offsets, timestamps, sizes, decoded, strict=True))


def read_entries(
    reader: TopicReader, partition: int, start: int, end: int, decoder: Decoder
) -> Iterator[list[Entry]]:
    """The committed records in [start, end), decoded, some hundreds at a time."""
    for fetched in read_range(reader, partition, start=start, end=end):
        yield from decode_entries(fetched.columns(end=end), decoder)


def read_records(
    reader: TopicReader, partition: int, start: int, end: int
) -> Iterator[list[Record]]:
    """Keys and values of the committed records in [start, end), some thousands at a time."""
    for fetched in read_range(reader, partition, start=start, end=end):
        for columns in fetched.columns(end=end):
            yield split_records(columns)[2]


class PartitionBuffer:
    """The fetched records of one partition that are not taken yet.

    Invariant  entries are in the order of their offsets, from `start` on; offsets between entries,
               or between the last one and `position`, hold no committed record.
    """

    __slots__ = ("_decoded", "_decoder", "_entries", "position", "start")

    def __init__(self, start: int, decoder: Decoder) -> None:
        self.start = start
        self.position = Position(start)
        """Where to fetch next."""
        self._decoder = decoder
        self._entries: list[Entry] = []
        self._decoded: deque[Iterator[list[Entry]]] = deque()

    @property
    def has_progress(self) -> bool:
        """Whether a take would advance, if only over offsets without records."""
        return self.position.offset > self.start

    @property
    def is_empty(self) -> bool:
        return not self.peek(1)

    def add(self, fetched: CommittedBatches) -> None:
        """Adds the first part of the batches; those after it are to be fetched again."""
        part = fetched.first_part()
        self._decoded.append(decode_entries([part.columns], self._decoder))
        self.position = Position.after(part.batches)

    def peek(self, count: int | None = None) -> Sequence[Entry]:
        """Entries that are not taken yet: at least `count` of them, or all."""
        while self._decoded and (count is None or len(self._entries) < count):
            part = next(self._decoded[0], None)
            if part is None:
                self._decoded.popleft()
            else:
                self._entries += part
        return self._entries

    def take(self, count: int) -> tuple[int, int, list[Entry]]:
        """At most `count` entries, and the offsets [start, end) that they cover."""
        # One more is decoded: the offsets before it belong to this span.
        self.peek(count + 1)
        entries, self._entries = self._entries[:count], self._entries[count:]
        start = self.start
        self.start = self._entries[0][0] if self._entries else self.position.offset
        return start, self.start, entries


class SequencedRecords(NamedTuple):
    """Entries with their span of offsets, which the journal has."""

    span: OffsetSpan
    entries: list[Entry]


class RecordSequencer:
    """Takes the records of a topic in order. `open` comes first."""

    def __init__(
        self,
        reader: TopicReader,
        decoder: Decoder,
        journal: Journal,
        *,
        grouping: "SourceTransactions | None" = None,
    ) -> None:
        self._reader = reader
        self._decoder = decoder
        self._journal = journal
        self._grouping = grouping
        self._buffers: dict[int, PartitionBuffer] = {}
        self._replay: deque[OffsetSpan] = deque()
        self._uses_journal = False
        self._rotation = 0
        self.marks: dict[int, HistoryMark] = {}
        """The last batch that was fetched, by partition."""
        self.next_tx = 1
        self.ends: dict[int, int] = {}
        """The known end of the committed records of each partition."""

    def open(
        self,
        positions: Mapping[int, int],
        next_tx: int,
        ends: Mapping[int, int],
        marks: Mapping[int, HistoryMark],
        *,
        was_single: bool,
    ) -> None:
        """Starts at positions, of which `next_tx` is the first transaction.

        `marks` are those of the table. `was_single` says that the topic had one partition when the
        table was written.
        """
        self.ends = dict(ends)
        self._journal.restart(next_tx, marks)
        self.marks = {**marks, **self._journal.marks}
        spans = self._journal.spans
        self._replay = deque(_start_at(span, next_tx) for span in spans)
        self.next_tx = spans[-1].next_tx if spans else next_tx
        self._uses_journal = len(ends) > 1 or self._grouping is not None or bool(spans)
        starts = {number: positions[number] for number in ends}
        if spans and spans[0].first_tx > next_tx:
            # The journal begins with a second partition; before it, one partition needed none.
            gap = spans[0].first_tx - next_tx
            self._replay.appendleft(OffsetSpan(0, starts[0], starts[0] + gap, next_tx))
        elif not spans and was_single and len(ends) > 1 and self._grouping is None:
            self._journal_first_partition(starts[0], self.ends[0])
        for span in self._replay:
            starts[span.partition] = max(starts[span.partition], span.end)
        self._buffers = {
            number: PartitionBuffer(start, self._decoder) for number, start in starts.items()
        }

    def _journal_first_partition(self, start: int, end: int) -> None:
        """Writes spans of the first partition up to its end.

        They may have been taken while the topic had no other partition, and no journal.
        """
        spans = []
        for at in range(start, end, _REPLAY_OFFSETS):
            spans.append(OffsetSpan(0, at, min(at + _REPLAY_OFFSETS, end), self.next_tx))
            self.next_tx = spans[-1].next_tx
        if spans:
            self._journal.append(spans)
            self._replay.extend(spans)

    @property
    def newest_tx(self) -> int:
        """The last transaction of all fetched records."""
        if self._uses_journal:
            return self.next_tx - 1
        # Without a mark it is unknown how far the log was read.
        return self.marks[0].last_offset + 1 if 0 in self.marks else self.ends[0]

    @property
    def is_replaying(self) -> bool:
        return bool(self._replay)

    def add_partition(self, number: int, start: int) -> None:
        """Adds a new partition of the topic; from now on the journal has the order."""
        self._buffers[number] = PartitionBuffer(start, self._decoder)
        self.ends[number] = start
        self._uses_journal = True

    def take(self, max_records: int, wait_ms: int) -> list[SequencedRecords]:
        """The next records, about `max_records`; empty if none come within `wait_ms`."""
        if self._replay:
            return self._take_replayed(max_records)
        self._read(wait_ms)
        return self._take_new(max_records)

    # Records that the journal has

    def _take_replayed(self, max_records: int) -> list[SequencedRecords]:
        sequenced: list[SequencedRecords] = []
        count = size = 0
        while self._replay and count < max_records and size < _REPLAY_BYTES:
            span = self._replay[0]
            try:
                span, entries = self._read_span(span)
            except (Unavailable, StoreDenied):
                if sequenced:
                    return sequenced
                raise
            self._replay[0] = _start_at(self._replay[0], span.next_tx)
            if self._replay[0].start == self._replay[0].end:
                self._replay.popleft()
            if self._grouping is not None:
                self._grouping.remove(self._buffers[span.partition], entries)
            sequenced.append(SequencedRecords(span, entries))
            count += len(entries)
            size += _count_bytes(entries)
        return sequenced

    def _read_span(self, span: OffsetSpan) -> tuple[OffsetSpan, list[Entry]]:
        """The records of a span; of a large one without source transactions a first part."""
        entries: list[Entry] = []
        size = 0
        for part in read_entries(self._reader, span.partition, span.start, span.end, self._decoder):
            if size >= _REPLAY_BYTES and self._grouping is None:
                return span._replace(end=part[0][0]), entries
            entries += part
            size += _count_bytes(part)
        return span, entries

    # New records

    def _read(self, wait_ms: int) -> None:
        if self._grouping is not None:
            self._grouping.poll()
        idle = [number for number, buffer in self._buffers.items() if not self._has_ready(buffer)]
        if not idle:
            return
        # A broker returns a batch above the limit for the first partition of a request only.
        first = self._rotation % len(idle)
        positions = {
            number: self._buffers[number].position for number in idle[first:] + idle[:first]
        }
        if len(positions) < len(self._buffers):
            wait_ms = 0
        elif any(not buffer.is_empty for buffer in self._buffers.values()):
            # Ends of transactions are in another topic, which this fetch does not wait for.
            wait_ms = min(wait_ms, _HELD_WAIT_MS)
        fetches = self._reader.fetch(positions, max_bytes=_READ_BYTES, wait_ms=wait_ms)
        for number, position in positions.items():
            fetched = fetches.get(number)
            if fetched is None:
                self.ends[number] = position.offset
                continue
            self._buffers[number].add(fetched)
            self.ends[number] = max(fetched.end_offset, fetched.next_offset)
        self._record_marks(list(fetches))

    def _record_marks(self, numbers: Sequence[int]) -> None:
        """Records the last fetched batches, before a shape sees any of them."""
        marks = {}
        for number in numbers:
            mark = self._buffers[number].position.mark
            if mark is not None:
                marks[number] = mark
        if marks:
            self._journal.write_marks(marks)
            self.marks |= marks

    def _has_ready(self, buffer: PartitionBuffer) -> bool:
        if self._grouping is None or buffer.is_empty:
            return not buffer.is_empty
        return self._grouping.ready_count(buffer, 1) > 0

    def _take_new(self, max_records: int) -> list[SequencedRecords]:
        ready = [number for number, buffer in self._buffers.items() if buffer.has_progress]
        if not ready:
            return []
        # The first partition rotates, because `max_records` may be used up before the last one.
        self._rotation += 1
        first = self._rotation % len(ready)
        share = max(1, max_records // len(ready))
        sequenced = []
        for number in ready[first:] + ready[:first]:
            records = self._take_from(number, share)
            if records is not None:
                sequenced.append(records)
        if self._uses_journal and sequenced:
            self._journal.append([records.span for records in sequenced])
        return sequenced

    def _take_from(self, number: int, count: int) -> SequencedRecords | None:
        buffer = self._buffers[number]
        if self._grouping is not None:
            count = self._grouping.ready_count(buffer, count)
        if count == 0 and not buffer.is_empty:
            return None
        start, end, entries = buffer.take(count)
        if self._grouping is not None:
            self._grouping.remove(buffer, entries)
        if start == end:
            return None
        first_tx = self.next_tx if self._uses_journal else start + 1
        span = OffsetSpan(number, start, end, first_tx)
        self.next_tx = span.next_tx
        return SequencedRecords(span, entries)


def _count_bytes(entries: Sequence[Entry]) -> int:
    return sum([size for _, _, size, _ in entries])


def _start_at(span: OffsetSpan, next_tx: int) -> OffsetSpan:
    """The part of a span from a transaction on."""
    skipped = max(0, next_tx - span.first_tx)
    return OffsetSpan(span.partition, span.start + skipped, span.end, span.first_tx + skipped)
