"""The state of a topic by reading it once, for one that has no index of its keys.

Invariant  the records below the ends noted at the beginning come, each partition in order.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from varve.foundation.errors import Unavailable
from varve.records import RecordColumns
from varve.shapes.feed.partition_buffer import split_records
from varve.shapes.feed.resuming import look_at_bounds
from varve.shapes.feed.source import TopicSource
from varve.shapes.feed.state import StateRecord

_READ_BYTES: Final = 4 << 20
_WAIT_MS: Final = 500
_LOOKS_MAX: Final = 60


class ReplayState:
    """Reads a whole topic."""

    how = "reading the topic"

    def __init__(self, source: TopicSource) -> None:
        self._source = source
        self._bounds = look_at_bounds(source)

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        return {number: end for number, (_, end) in self._bounds.items()}

    @property
    def record_count(self) -> int | None:
        return sum(end - start for start, end in self._bounds.values())

    def read(self) -> Iterator[Sequence[StateRecord]]:
        for number, (start, end) in self._bounds.items():
            yield from read_range(self._source, number, start, end)


def read_range(
    source: TopicSource, partition: int, start: int, end: int
) -> Iterator[Sequence[StateRecord]]:
    """The committed records of a partition in [start, end); or Unavailable if they stay away."""
    offset, looks = start, 0
    while offset < end:
        found = source.read({partition: offset}, max_bytes=_READ_BYTES, wait_ms=_WAIT_MS)
        read = found.get(partition)
        if read is None:
            looks += 1
            if looks >= _LOOKS_MAX:
                raise Unavailable(
                    f"{source.place}: {source.topic}-{partition} gives nothing at offset {offset}, "
                    f"and ends at {end}: try again"
                )
            continue
        looks, offset = 0, read.next_offset
        for columns in read.columns:
            yield state_records(columns, end)


def state_records(columns: RecordColumns, end: int) -> list[StateRecord]:
    """The records before an offset."""
    offsets, _, records = split_records(columns)
    return records[: bisect_left(offsets, end)]
