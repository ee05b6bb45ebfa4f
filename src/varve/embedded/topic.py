"""A topic: append records to it, read them back.

Threads    every method may be called from any thread; records that one thread appends to one
           partition keep their order.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from varve.commit_log import AppendResult, Isolation, LogSettings
from varve.embedded.packing import AppendSummary, Packer, packaging_for
from varve.embedded.partition import Partition, PartitionOffsets
from varve.embedded.partitioner import partition_of
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
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound
from varve.records import Batch, Buffer, Codec, Record, RecordColumns, build_batch


class Topic:
    """A topic of an open store. Made by `Store.topic` and `Store.create_topic`.

    Offsets count within a partition, so whatever speaks of an offset names a partition too; where
    a topic has only one it may be left out.
    """

    def __init__(
        self,
        name: str,
        *,
        id: UUID | None,
        partition_count: int,
        settings: LogSettings,
        clock: Clock,
        make_partition: Callable[[int], Partition],
        find_record: Callable[[int, bytes], Record | None],
        first_partition: int,
    ) -> None:
        self.name = name
        self.id = id
        self.partition_count = partition_count
        self.settings = settings
        self._clock = clock
        self._make_partition = make_partition
        self._find_record = find_record
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
        return self._make_partition(number)

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
        packer = Packer(self.partition, packaging_for(self.settings, codec))
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
            one.read(start, end, isolation=isolation, max_records=max_records) for one in chosen
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
        """The batches behind `read`, as stored: whole, so the first may begin before `start`."""
        chosen = self._chosen(partition, start, end)
        return itertools.chain.from_iterable(
            [one.read_batches(start, end, isolation=isolation) for one in chosen]
        )

    def columns(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[RecordColumns]:
        """The records behind `read` as numpy columns, a batch at a time: the fast way."""
        chosen = self._chosen(partition, start, end)
        return itertools.chain.from_iterable(
            [one.columns(start, end, isolation=isolation) for one in chosen]
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
        record = self._find_record(number, data)
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
