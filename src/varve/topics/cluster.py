"""Topics of a store in this process or of a Kafka cluster, behind one interface to read and write.

Two implementations, `StoreCluster` and `KafkaCluster`; `tests/contract/topics` tests both.

Invariant  a reader returns records of one topic only: after it has read the topic id, a recreated
           topic of the same name is NotFound. A range below a known end is read completely, or
           the read raises.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from varve.commit_log import Isolation, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.foundation.errors import Unavailable
from varve.records import BatchHeader, CommittedBatches, Producer, Record
from varve.topics.position import Position


class TopicInfo(NamedTuple):
    """A topic as it is now; `id` is None where the cluster has no topic ids."""

    name: str
    id: UUID | None
    partition_count: int

    @property
    def id_text(self) -> str:
        """The id as Kafka's tools print it; empty without one."""
        return "" if self.id is None else encode_topic_id(self.id)


class OffsetRange(NamedTuple):
    """Readable offsets: from the log start offset to the end offset of the isolation level."""

    start: int
    end: int


class TopicReader(Protocol):
    """Reads one topic. One thread calls `fetch`; any thread may call the other methods."""

    @property
    def topic(self) -> str: ...

    @property
    def cluster_name(self) -> str:
        """The cluster in messages: a directory, or the bootstrap servers."""

    def info(self) -> TopicInfo:
        """Raises NotFound when the topic was deleted, even if it was recreated."""

    def settings(self) -> Mapping[str, str]:
        """The topic's effective settings by Kafka's names; raises NotFound."""

    def offsets(self, partition: int) -> OffsetRange: ...

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        """Batches from the positions on, for the partitions that have any.

        About `max_bytes` for each partition, at least one batch; waits up to `wait_ms` if there is
        none. Raises OffsetOutOfRange for a position outside the log, LogTruncated when the log
        lost records before a position.
        """

    def find_batch_before(self, partition: int, offset: int) -> BatchHeader | None:
        """The batch that holds `offset - 1`, committed or not.

        None if it is not in the log: deleted, compacted away, or not written yet.
        """

    def close(self) -> None:
        """Closes connections. A later call reads the topic that has the name by then."""


class Cluster(Protocol):
    """Topics that can be described, created, read and written."""

    @property
    def name(self) -> str:
        """The cluster in messages: a directory, or the bootstrap servers."""

    def describe(self, topic: str) -> TopicInfo:
        """Raises NotFound."""

    def settings(self, topic: str) -> Mapping[str, str]:
        """The effective settings by Kafka's names; raises NotFound."""

    def find_or_create(
        self, topic: str, *, partitions: int | None = None, settings: Mapping[str, str]
    ) -> TopicInfo:
        """The existing topic, or a new one; `partitions=None` uses the cluster's default."""

    def alter(self, topic: str, settings: Mapping[str, str]) -> None:
        """Changes settings; those not named stay."""

    def reader(
        self, topic: str, *, isolation: Isolation = Isolation.READ_COMMITTED
    ) -> TopicReader: ...

    def new_session(self) -> "Cluster":
        """The same cluster for another thread, whose requests do not wait for those of this one."""

    def close(self) -> None:
        """Closes connections; closing twice is harmless."""


# Writing


class TransactionalWriter(Protocol):
    """One writer of an id; `init_transactions` comes first. Used by one thread.

    The first append after it, after a commit or after an abort begins a transaction.
    """

    @property
    def producer(self) -> Producer: ...

    def init_transactions(self) -> None:
        """Fences earlier writers of the same id and aborts their open transactions."""

    def append(
        self,
        batches: Mapping[TopicPartition, Sequence[bytes | bytearray]],
        *,
        default_timestamp: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        """Appends batches in this order; the end offsets of the partitions, -1 if unknown.

        Batches get the producer and its sequences; a bytearray is changed in place. Raises Fenced
        when a later writer of the id exists. After an error, call `init_transactions` again.
        """

    def commit(self) -> None:
        """Raises Fenced when a later writer of the id, or a timeout, ended the transaction."""

    def abort(self) -> None: ...


# Reading

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
