"""Topics of a store in this process or of a Kafka cluster, behind one interface to read and write.

Two implementations, `StoreCluster` and `KafkaCluster`; `tests/contract/topics` tests both.

A log may lose its end, by a power loss, an unclean leader election or a restore, and grow again
with other records at the same offsets. The position of a reader therefore names the batch before
it with a `HistoryMark`.

Layout     of marks: dedup-progress.md, snapshot.md and table.md in docs/reference/formats
Invariant  a reader returns records of one topic only: after it has read the topic id, a recreated
           topic of the same name is NotFound. A range below a known end is read completely, or
           the read raises. A batch that compaction or erasure rewrote still matches its mark: a
           rewrite keeps offsets and leader epoch, and leaves fewer records or a delete horizon.
           Only offsets and leader epoch of such a batch are compared.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Protocol, Self
from uuid import UUID

from varve.commit_log import Isolation, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.foundation.errors import Closed, OffsetOutOfRange, StoreError, Unavailable
from varve.foundation.settings import LONG_MAX
from varve.records import (
    BatchHeader,
    CommittedBatches,
    Producer,
    Record,
    stamp_producer_all,
)
from varve.topics.outputs import DerivedOutput

# Positions

_CRC_MAX: Final = (1 << 32) - 1
_EPOCH_MAX: Final = (1 << 31) - 1


class LogTruncated(OffsetOutOfRange):
    """The partition lost records that were read before: data derived from them is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMark:
    """The header fields that identify a batch; `crc` is the stored checksum."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int

    @classmethod
    def of(cls, header: BatchHeader) -> Self:
        return cls(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.partition_leader_epoch,
            crc=header.crc,
        )

    def is_in_front_of(self, offset: int) -> bool:
        """Whether the batch holds the offset before this one."""
        return self.base_offset < offset <= self.last_offset + 1

    def find_break(self, header: BatchHeader) -> str | None:
        """How the batch now at these offsets differs from this one; None if it does not."""
        current = HistoryMark.of(header)
        span = header.last_offset - header.base_offset + 1
        is_rewritten = header.has_delete_horizon or header.records_count < span
        if current == self or (is_rewritten and current._identity == self._identity):
            return None
        return f"the batch was {self}, and is {current} now"

    @property
    def _identity(self) -> tuple[int, int, int]:
        return self.base_offset, self.last_offset, self.leader_epoch

    def __str__(self) -> str:
        return (
            f"{self.base_offset} to {self.last_offset} of epoch {self.leader_epoch} with checksum "
            f"{self.crc:08x}"
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError or TypeError for anything else."""
        base_offset = _get_int(entry, "base_offset", 0, LONG_MAX)
        return cls(
            base_offset=base_offset,
            last_offset=_get_int(entry, "last_offset", base_offset, LONG_MAX),
            leader_epoch=_get_int(entry, "leader_epoch", -1, _EPOCH_MAX),
            crc=_get_int(entry, "crc", 0, _CRC_MAX),
        )


class Position(NamedTuple):
    """The next offset to read; without a mark only the bounds of the log can be checked."""

    offset: int
    mark: HistoryMark | None = None

    @classmethod
    def after(cls, fetched: CommittedBatches) -> Self:
        """The position after all fetched batches."""
        header = fetched.last_header
        return cls(fetched.next_offset, None if header is None else HistoryMark.of(header))

    @property
    def leader_epoch(self) -> int:
        """The epoch of the batch before the offset, -1 if it is unknown."""
        mark = self.mark
        return mark.leader_epoch if mark and mark.is_in_front_of(self.offset) else -1


def _get_int(entry: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = entry[name]
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} of a mark is {value!r:.80}, not a number from {low} to {high}")
    return value


# Clusters


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

    def register_output(self, output: DerivedOutput) -> None:
        """Registers what a process derives from a topic, so that an erasure finds it.

        Call it before the first record is copied. `place` is a path of this machine, or `HERE`.
        Durable on return. A broker whose topics cannot be erased gets no registration.
        """

    def new_session(self) -> "Cluster":
        """The same cluster for another thread, whose requests do not wait for those of this one."""

    def close(self) -> None:
        """Closes connections; closing twice is harmless."""


# Writing


class TransactionalWriter(ABC):
    """One writer of an id; `init_transactions` comes first. Used by one thread.

    The first append after it, after a commit or after an abort begins a transaction.
    """

    def __init__(self) -> None:
        self.next_sequences: dict[TopicPartition, int] = {}
        """By partition, the sequence of the producer's next record."""
        self._producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            raise Closed("the writer has no producer: call init_transactions first")
        return self._producer

    @abstractmethod
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
        when a later writer of the id exists. An error ends the transaction, and the writer needs
        `init_transactions` again.
        """
        producer = self.producer
        nonempty = {
            partition: partition_batches
            for partition, partition_batches in batches.items()
            if partition_batches
        }
        ends: dict[TopicPartition, int] = {}
        try:
            self._add_partitions(nonempty.keys())
            for partition, partition_batches in nonempty.items():
                stamped, next_sequence = stamp_producer_all(
                    partition_batches,
                    producer,
                    self.next_sequences.get(partition, 0),
                    default_timestamp=default_timestamp,
                )
                ends[partition] = self._write(partition, stamped)
                self.next_sequences[partition] = next_sequence
        except StoreError:
            self._end_after_error()
            raise
        return ends

    @abstractmethod
    def commit(self) -> None:
        """Raises Fenced when a later writer of the id, or a timeout, ended the transaction."""

    @abstractmethod
    def abort(self) -> None:
        """Ends the open transaction, if any; the writer remains usable."""

    @abstractmethod
    def _add_partitions(self, partitions: Set[TopicPartition]) -> None:
        """Makes these partitions part of the transaction, where that comes before their batches."""

    @abstractmethod
    def _write(self, partition: TopicPartition, batches: Sequence[bytearray]) -> int:
        """Appends stamped batches; returns the end offset, -1 if it is unknown."""

    @abstractmethod
    def _end_after_error(self) -> None:
        """Ends the transaction, as readers wait for it; the writer has no producer any more."""


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
