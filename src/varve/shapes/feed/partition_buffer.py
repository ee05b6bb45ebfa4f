"""Records of one partition that were read and are not given yet.

Records are decoded some hundreds at a time, just before they are taken: so their bytes are still
near the processor, and few objects wait.

Invariant  entries are in the order of their offsets, from `start` on; what lies between entries, or
           between the last one and `position`, holds no committed record.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from varve.kernels.batch_layout import RecordColumn
from varve.records import CommittedBatches, RecordColumns
from varve.shapes.feed.decoder import Decoded, Decoder, Record
from varve.topics import Position, TopicReader, read_range

Entry = tuple[int, int, int, Decoded]
"""A record: offset, timestamp, bytes of key and value, what it says. A tuple, for many are made."""

_DECODED_MAX: Final = 512
_FIELD_COUNT: Final = int(RecordColumn.VALUE_SIZE) + 1


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
    for one in columns:
        payload = one.payload.tobytes()
        for start in range(0, len(one), _DECODED_MAX):
            offsets, timestamps, records = split_records(
                one, start=start, end=start + _DECODED_MAX, payload=payload
            )
            sizes = [len(key or b"") + len(value or b"") for key, value in records]
            decoded = decoder.decode_many(records)
            yield list(zip(offsets, timestamps, sizes, decoded, strict=True))


def read_entries(
    reader: TopicReader, partition: int, start: int, end: int, decoder: Decoder
) -> Iterator[list[Entry]]:
    """The committed records in [start, end), decoded, some hundreds at a time."""
    for fetched in read_range(reader, partition, start=start, end=end):
        yield from decode_entries([fetched.columns(end=end)], decoder)


def read_records(
    reader: TopicReader, partition: int, start: int, end: int
) -> Iterator[list[Record]]:
    """Keys and values of the committed records in [start, end), some thousands at a time."""
    for fetched in read_range(reader, partition, start=start, end=end):
        yield split_records(fetched.columns(end=end))[2]


class PartitionBuffer:
    """What was read ahead of one partition."""

    __slots__ = ("_decoded", "_decoder", "_entries", "position", "start")

    def __init__(self, start: int, decoder: Decoder) -> None:
        self.start = start
        self.position = Position(start)
        """Where to fetch next."""
        self._decoder = decoder
        self._entries: list[Entry] = []
        self._decoded: deque[Iterator[list[Entry]]] = deque()

    @property
    def has_news(self) -> bool:
        """Whether a take would move on, if only over offsets without records."""
        return self.position.offset > self.start

    @property
    def is_empty(self) -> bool:
        return not self.look(1)

    def add(self, fetched: CommittedBatches) -> None:
        self._decoded.append(decode_entries([fetched.columns()], self._decoder))
        self.position = Position.after(fetched)

    def look(self, count: int | None = None) -> Sequence[Entry]:
        """What is not taken yet: at least so many entries, or all there are."""
        while self._decoded and (count is None or len(self._entries) < count):
            part = next(self._decoded[0], None)
            if part is None:
                self._decoded.popleft()
            else:
                self._entries += part
        return self._entries

    def take(self, count: int) -> tuple[int, int, list[Entry]]:
        """At most so many entries, and the offsets [start, end) that this covers."""
        # One more is looked at: what lies before it holds nothing else.
        self.look(count + 1)
        entries, self._entries = self._entries[:count], self._entries[count:]
        start = self.start
        self.start = self._entries[0][0] if self._entries else self.position.offset
        return start, self.start, entries
