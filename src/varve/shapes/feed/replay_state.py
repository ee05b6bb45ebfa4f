"""The state of a topic by reading it once, for one that has no index of its keys.

Invariant  the records below the ends noted at the beginning come, each partition in order.
"""

from collections.abc import Iterator, Mapping, Sequence

from varve.shapes.feed.decoder import Record
from varve.shapes.feed.partition_buffer import read_records
from varve.shapes.feed.resuming import find_offsets
from varve.topics import TopicReader


class ReplayState:
    """Reads a whole topic."""

    how = "reading the topic"
    taken_ms: int | None = None

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._bounds = find_offsets(reader)

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        return {number: end for number, (_, end) in self._bounds.items()}

    @property
    def record_count(self) -> int | None:
        return sum(end - start for start, end in self._bounds.values())

    def read(self) -> Iterator[Sequence[Record]]:
        for number, (start, end) in self._bounds.items():
            yield from read_records(self._reader, number, start, end)
