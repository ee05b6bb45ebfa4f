"""Where a feed reads its topic: an open store, or a server.

Invariant  only committed records come, whole and in the order of their offsets; control records
           and those of aborted transactions are left out.
Threads    one thread reads; others may ask for bounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from varve.foundation.errors import Unavailable
from varve.records import RecordColumns

Wait = Callable[[float], object]
"""Lets so many seconds pass."""

_READ_BYTES: Final = 1 << 20
_LOOK_MS: Final = 500
_LOOKS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class SourceRead:
    """Records of one partition, where to go on, and where committed records end for now."""

    columns: Sequence[RecordColumns]
    next_offset: int
    end_offset: int


class TopicSource(Protocol):
    """One topic. A partition that is asked below its first offset raises OffsetOutOfRange."""

    topic: str

    @property
    def place(self) -> str:
        """What messages call it: a directory, or a server's address."""
        ...

    def topic_id(self) -> str:
        """Tells topics of one name apart; empty where nobody tells it.

        If it is the same as before a read, that was of the same topic.
        """
        ...

    def partition_count(self) -> int:
        """How many partitions there are now; raises NotFound without the topic."""
        ...

    def bounds(self, partition: int) -> tuple[int, int]:
        """First offset, and the one behind the last committed record."""
        ...

    def read(
        self, positions: Mapping[int, int], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, SourceRead]:
        """Records from an offset on of each partition given, about so many bytes of each.

        Where none has any it waits so long at most. A partition without news may be left out.
        """
        ...

    def tombstone_retention_ms(self) -> int | None:
        """How long the topic keeps deletions readable at least; None where it keeps all."""
        ...

    def close(self) -> None: ...


def read_range(
    source: TopicSource, partition: int, start: int, end: int, *, max_bytes: int = _READ_BYTES
) -> Iterator[RecordColumns]:
    """The committed records of a partition in [start, end); or Unavailable if they stay away."""
    offset, looks = start, 0
    while offset < end:
        found = source.read({partition: offset}, max_bytes=max_bytes, wait_ms=_LOOK_MS)
        read = found.get(partition)
        if read is None:
            looks += 1
            if looks >= _LOOKS_MAX:
                raise Unavailable(
                    f"{source.place}: {source.topic}-{partition} gives nothing at offset {offset}, "
                    f"and ended at {end} or behind: try again"
                )
            continue
        looks, offset = 0, read.next_offset
        for columns in read.columns:
            yield columns if offset <= end else _before(columns, end)


def _before(columns: RecordColumns, end: int) -> RecordColumns:
    return RecordColumns(columns.payload, columns.table[columns.offsets < end])
