"""The state of a topic by reading it once, for one that has no index of its keys.

Invariant  the records below the ends noted at the beginning come, each partition in order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from varve.shapes.feed.decoder import Record
from varve.shapes.feed.partition_buffer import split_records
from varve.shapes.feed.resuming import look_at_bounds
from varve.shapes.feed.source import TopicSource, read_range

_READ_BYTES: Final = 4 << 20


class ReplayState:
    """Reads a whole topic."""

    how = "reading the topic"
    taken_ms: int | None = None

    def __init__(self, source: TopicSource) -> None:
        self._source = source
        self._bounds = look_at_bounds(source)

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        return {number: end for number, (_, end) in self._bounds.items()}

    @property
    def record_count(self) -> int | None:
        return sum(end - start for start, end in self._bounds.values())

    def read(self) -> Iterator[Sequence[Record]]:
        for number, (start, end) in self._bounds.items():
            for columns in read_range(self._source, number, start, end, max_bytes=_READ_BYTES):
                yield split_records(columns)[2]
