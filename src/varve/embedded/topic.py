"""A topic: append records to it, read them back.

Invariant  records of one partition are appended in the order they came; no batch of several
           records exceeds the topic's largest batch, whatever its bytes compress to.
Threads    every method may be called from any thread; records that one thread appends to one
           partition keep their order.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from varve.commit_log import AppendResult, Isolation, LogSettings, TopicPartition
from varve.commit_log.batch_validator import stored_codec
from varve.embedded.partition import Partition, PartitionOffsets
from varve.embedded.stored_record import (
    GivenHeaders,
    GivenRecord,
    RecordPosition,
    StoredRecord,
    Text,
    make_record,
    to_bytes,
    to_record,
)
from varve.embedded.topic_table import TopicEntry
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound
from varve.kernels.hashes import murmur2
from varve.records import (
    HEADER_BYTES,
    Batch,
    Buffer,
    Codec,
    Record,
    RecordColumns,
    build_batch,
)

if TYPE_CHECKING:
    from varve.embedded.store import Store

BATCH_BYTES: Final = 1 << 20

# The most that the numbers of a record, and those of a header, take besides their bytes.
_RECORD_OVERHEAD: Final = 40
_HEADER_OVERHEAD: Final = 10
# What bytes that do not compress may grow by: a share for block headers, and the frame's own.
_EXPANSION_SHARE: Final = 256
_EXPANSION_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class AppendSummary:
    """What `append_many` did; `end_offsets` gives, by partition, the offset after the last."""

    record_count: int
    batch_count: int
    end_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Packaging:
    """How batches are made: codec, level, and how many bytes of records go into one."""

    codec: Codec
    level: int | None
    payload_bytes: int


def packaging_for(settings: LogSettings, codec: str | Codec) -> Packaging:
    """The topic's own codec where it has one, else the asked one."""
    limit = min(settings.max_message_bytes, settings.segment_bytes, BATCH_BYTES)
    payload = limit - HEADER_BYTES - limit // _EXPANSION_SHARE - _EXPANSION_BYTES
    chosen, level = stored_codec(settings)
    return Packaging(parse_codec(codec) if chosen is None else chosen, level, max(payload, 1))


def parse_codec(asked: str | Codec) -> Codec:
    """A codec by its name, small or capital."""
    if isinstance(asked, Codec):
        return asked
    try:
        return Codec[asked.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidRequest(f"codec {asked!r} is unknown; use one of {names}") from None


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key by Kafka's default partitioner, so that other clients agree."""
    return (murmur2(np.frombuffer(key, np.uint8)) & 0x7FFFFFFF) % partition_count


class Topic:
    """A topic of an open store. Made by `Store.topic` and `Store.create_topic`.

    Offsets count within a partition, so whatever speaks of an offset names a partition too; where
    a topic has only one it may be left out.
    """

    def __init__(
        self,
        store: "Store",
        entry: TopicEntry,
        settings: LogSettings,
        *,
        clock: Clock,
        first_partition: int,
    ) -> None:
        self.name = entry.name
        self.id = entry.id
        self.partition_count = entry.partition_count
        self.settings = settings
        self._store = store
        self._clock = clock
        # Where keyless records begin to go round; next() on it is atomic.
        self._rotation = itertools.count(first_partition)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} with {self.partition_count} partitions>"

    def partition(self, number: int | None = None) -> Partition:
        """A partition by its number, which only a topic with one may leave out."""
        if number is None:
            if self.partition_count > 1:
                raise InvalidRequest(
                    f"topic {self.name} has {self.partition_count} partitions, each with its own "
                    f"offsets; name one from 0 to {self.partition_count - 1}"
                )
            number = 0
        if not 0 <= number < self.partition_count:
            raise NotFound(
                f"topic {self.name} has no partition {number}; it has 0 to "
                f"{self.partition_count - 1}"
            )
        return self._store._get_partition(self, number)

    @property
    def partitions(self) -> list[Partition]:
        return [self.partition(number) for number in range(self.partition_count)]

    def append(
        self,
        *,
        key: Text = None,
        value: Text = None,
        headers: GivenHeaders | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordPosition:
        """Appends one record and says where it stands.

        Text is stored as UTF-8. The timestamp is in milliseconds since 1970, by default the
        present. Without a partition a keyed record goes where Kafka's default partitioner puts its
        key, others go round. When this returns, the record survives the end of the process, and
        with `flush=ack` the loss of power.
        """
        record = make_record(key, value, headers, timestamp, self._clock.now_ms())
        if partition is None:
            partition = self._choose(record.key)
        result = self.partition(partition).append_batch(build_batch([record]))
        stamp = record.timestamp if result.timestamp < 0 else result.timestamp
        return RecordPosition(partition, result.base_offset, stamp)

    def append_many(
        self,
        records: Iterable[GivenRecord],
        *,
        partition: int | None = None,
        codec: str | Codec = "lz4",
    ) -> AppendSummary:
        """Appends a stream of records in big batches; much faster than one by one.

        A record is a `Record`, one read from a topic, or a tuple `(key, value)`,
        `(key, value, headers)` or `(key, value, headers, timestamp)`. A topic with a
        `compression.type` of its own keeps to it. When the stream or an append raises, batches
        that were full before are in the log, and what was collected since is not.
        """
        packer = _Packer(self, packaging_for(self.settings, codec))
        if partition is not None:
            self.partition(partition)
        resting = self._choose(None)
        for given in records:
            record = to_record(given, self._clock.now_ms())
            if partition is not None:
                packer.add(partition, record)
            elif record.key is not None:
                packer.add(self._choose(record.key), record)
            elif packer.add(resting, record):
                # As Kafka's producer does: stay until a batch is full, so that batches are big.
                resting = self._choose(None)
        return packer.finish()

    def _choose(self, key: bytes | None) -> int:
        if self.partition_count == 1:
            return 0
        if key is None:
            return next(self._rotation) % self.partition_count
        return partition_of(key, self.partition_count)

    def partition_for(self, key: bytes) -> int:
        """Where Kafka's default partitioner puts a key."""
        return self._choose(key)

    def append_batch(self, batch: Buffer, partition: int | None = None) -> AppendResult:
        """Appends a ready batch of message format 2; the log gives out its offsets."""
        return self.partition(partition).append_batch(batch)

    def read(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
        max_records: int | None = None,
    ) -> Iterator[StoredRecord]:
        """The records of one partition, or of all in turn, from `start` to before `end`.

        Without `start` from the first there is, without `end` to the last there is now. Checksums
        are checked on the way. `read_committed` leaves out what aborted transactions wrote and
        stops before the first that is still open.
        """
        chosen = self._chosen(partition, start, end)
        reads = [
            part.read(start, end, isolation=isolation, max_records=max_records) for part in chosen
        ]
        return itertools.islice(itertools.chain.from_iterable(reads), max_records)

    def read_batches(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Batch]:
        """Like `read`, as stored batches: whole, so the first may begin before `start`."""
        chosen = self._chosen(partition, start, end)
        return itertools.chain.from_iterable(
            [part.read_batches(start, end, isolation=isolation) for part in chosen]
        )

    def columns(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[RecordColumns]:
        """Like `read`, as numpy columns, a batch at a time: the fast way."""
        chosen = self._chosen(partition, start, end)
        return itertools.chain.from_iterable(
            [part.columns(start, end, isolation=isolation) for part in chosen]
        )

    def _chosen(self, partition: int | None, start: int | None, end: int | None) -> list[Partition]:
        if partition is None and start is None and end is None:
            return self.partitions
        return [self.partition(partition)]

    def get(self, key: bytes | str, partition: int | None = None) -> StoredRecord | None:
        """The latest committed record of a key; None when there is none.

        A value of None says that the key was deleted. Without a partition it is looked for where
        Kafka's default partitioner puts the key. Found through the key indexes, which are built
        where they are missing, so that the first look may take a while.
        """
        data = to_bytes(key, "key")
        if data is None:
            raise InvalidRequest(f"topic {self.name}: records without a key cannot be looked up")
        number = self.partition(self.partition_for(data) if partition is None else partition).number
        record = self._store._find_record(TopicPartition(self.name, number), data)
        if record is None:
            return None
        return StoredRecord(
            number, record.offset, record.timestamp, record.key, record.value, record.headers
        )

    def offset_for_time(self, timestamp: int, partition: int | None = None) -> int | None:
        """The offset of the first record not older than the timestamp; None without one."""
        return self.partition(partition).offset_for_time(timestamp)

    def offsets(self, partition: int | None = None) -> PartitionOffsets:
        """Where a partition's records begin and end."""
        return self.partition(partition).offsets()

    def delete_records(self, before: int, partition: int | None = None) -> int:
        """Drops a partition's records before an offset, -1 meaning all; gives the log start."""
        return self.partition(partition).delete_records(before)

    def flush(self) -> None:
        """Brings everything appended so far to the disk."""
        for partition in self.partitions:
            partition.flush()


@dataclass(slots=True)
class _PendingBatch:
    records: list[Record] = field(default_factory=list)
    size: int = 0


class _Packer:
    """Collects records and appends a batch whenever one is full."""

    def __init__(self, topic: Topic, packaging: Packaging) -> None:
        self._topic = topic
        self._packaging = packaging
        self._pending: dict[int, _PendingBatch] = {}
        self._end_offsets: dict[int, int] = {}
        self._record_count = 0
        self._batch_count = 0

    def add(self, number: int, record: Record) -> bool:
        """Takes a record; True when a batch of its partition was appended before it."""
        size = _size_bound(record)
        pending = self._pending.setdefault(number, _PendingBatch())
        was_full = bool(pending.records) and pending.size + size > self._packaging.payload_bytes
        if was_full:
            self._append(number, pending)
        pending.records.append(record)
        pending.size += size
        return was_full

    def finish(self) -> AppendSummary:
        """Appends what is left."""
        for number, pending in self._pending.items():
            if pending.records:
                self._append(number, pending)
        return AppendSummary(self._record_count, self._batch_count, dict(self._end_offsets))

    def _append(self, number: int, pending: _PendingBatch) -> None:
        records = pending.records
        pending.records, pending.size = [], 0
        batch = build_batch(records, codec=self._packaging.codec, level=self._packaging.level)
        result = self._topic.partition(number).append_batch(batch)
        self._end_offsets[number] = result.last_offset + 1
        self._record_count += len(records)
        self._batch_count += 1


def _size_bound(record: Record) -> int:
    """An upper bound of the record's bytes."""
    size = _RECORD_OVERHEAD
    if record.key is not None:
        size += len(record.key)
    if record.value is not None:
        size += len(record.value)
    for name, value in record.headers:
        size += 4 * len(name) + _HEADER_OVERHEAD + (0 if value is None else len(value))
    return size
