"""Reads a known range of a partition, and checks that a reader can resume at a position.

Invariant  a range below a known end is read completely, or the read raises.
"""

from collections.abc import Iterator
from typing import Final

from varve.foundation.errors import Unavailable
from varve.records import CommittedBatches, Record
from varve.topics.cluster import TopicReader
from varve.topics.position import Position

READ_BYTES: Final = 4 << 20
_FETCH_WAIT_MS: Final = 500
_EMPTY_FETCHES_MAX: Final = 60
"""With the wait, half a minute without data below the end of the log."""
_TAIL_OFFSETS: Final = 16
"""`read_last` starts with so few offsets: the record is usually among the last ones."""
_TAIL_GROWTH: Final = 16


def read_range(
    reader: TopicReader, partition: int, *, start: int, end: int, max_bytes: int = READ_BYTES
) -> Iterator[CommittedBatches]:
    """Everything in [start, end), fetch by fetch; the last one may reach beyond the end.

    Raises Unavailable when the cluster returns nothing for half a minute before the end.
    """
    position = Position(start)
    while position.offset < end:
        fetched = fetch_next(reader, partition, position, end=end, max_bytes=max_bytes)
        yield fetched
        position = Position.after(fetched)


def fetch_next(
    reader: TopicReader, partition: int, position: Position, *, end: int, max_bytes: int
) -> CommittedBatches:
    """The batches at a position below a known end; raises Unavailable if they do not come."""
    for _ in range(_EMPTY_FETCHES_MAX):
        fetched = reader.fetch({partition: position}, max_bytes=max_bytes, wait_ms=_FETCH_WAIT_MS)
        if partition in fetched:
            return fetched[partition]
    raise Unavailable(
        f"{reader.cluster_name}: {reader.topic}-{partition} returns nothing at offset "
        f"{position.offset}, but ends at {end}: try again"
    )


def read_last(reader: TopicReader, partition: int, *, key: bytes) -> Record | None:
    """The last committed record of a key, searched from the end of the log."""
    start, end = reader.offsets(partition)
    high, distance = end, _TAIL_OFFSETS
    while high > start:
        low = max(start, end - distance)
        last_record: Record | None = None
        for fetched in read_range(reader, partition, start=low, end=high):
            for batch in fetched:
                for record in batch.records():
                    if record.key == key and low <= record.offset < high:
                        last_record = record
        if last_record is not None:
            return last_record
        high, distance = low, distance * _TAIL_GROWTH
    return None


def find_break(reader: TopicReader, partition: int, position: Position) -> str | None:
    """Why the log is not the one that was read up to the position; None if it may be.

    Nothing can be compared without a mark, or after its batch has left the log.
    """
    end = reader.offsets(partition).end
    if end < position.offset:
        return f"the log ends at offset {end}, and was read up to {position.offset} before"
    if position.mark is None:
        return None
    header = reader.find_batch_before(partition, position.offset)
    difference = None if header is None else position.mark.find_break(header)
    return None if difference is None else f"in front of offset {position.offset} {difference}"
