"""A topic: append records to it, read them back.

Invariant  records of one partition are appended in the order of the calls; no batch of several
           records exceeds the topic's largest batch, even if its records do not compress.
Threads    every method may be called from any thread; records that one thread appends to one
           partition keep their order.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from varve.commit_log import LogSettings, TopicPartition
from varve.commit_log.batch_validator import stored_codec
from varve.embedded.partition import Partition
from varve.embedded.topic_table import TopicEntry
from varve.foundation.clock import Clock
from varve.foundation.topic_handle import TopicHandle, parse_codec_name
from varve.foundation.topic_records import (
    AppendResult,
    BulkAppendResult,
    GivenBatch,
    GivenBytes,
    GivenHeaders,
    GivenRecord,
    GivenTuple,
    PartitionOffsets,
    StoredRecord,
    check_partition,
    split_record,
    to_bytes,
    to_headers,
    to_timestamp,
)
from varve.kernels.hashes import murmur2
from varve.records import (
    HEADER_BYTES,
    Batch,
    Codec,
    Record,
    RecordColumns,
    build_batch,
)

if TYPE_CHECKING:
    from varve.embedded.store import Store

BATCH_BYTES: Final = 1 << 20
"""Largest batch that `append_many` builds; Kafka's default max.message.bytes is 12 bytes more."""

# Upper bounds of the varints of a record and of a header, besides key, value and header bytes.
_RECORD_OVERHEAD_BYTES: Final = 40
_HEADER_OVERHEAD_BYTES: Final = 10
# A codec grows incompressible data by at most 1/256 for block headers, and 128 bytes for its frame.
_EXPANSION_SHARE: Final = 256
_EXPANSION_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Packaging:
    """How `append_many` builds batches: codec, compression level, record bytes per batch."""

    codec: Codec
    level: int | None
    payload_bytes: int


def packaging_for(settings: LogSettings, codec: str | Codec) -> Packaging:
    """The packaging for a topic: its `compression.type` if it sets a codec, else `codec`."""
    limit = min(settings.max_message_bytes, settings.segment_bytes, BATCH_BYTES)
    payload = limit - HEADER_BYTES - limit // _EXPANSION_SHARE - _EXPANSION_BYTES
    chosen, level = stored_codec(settings)
    return Packaging(parse_codec(codec) if chosen is None else chosen, level, max(payload, 1))


def parse_codec(codec: str | Codec) -> Codec:
    """A codec by its name, in upper or lower case; raises InvalidRequest."""
    return Codec[parse_codec_name(codec).upper()]


def _make_record(
    key: GivenBytes,
    value: GivenBytes,
    headers: GivenHeaders | None,
    timestamp_ms: int | None,
    *,
    now_ms: int,
) -> Record:
    return Record(
        key=to_bytes(key, "key"),
        value=to_bytes(value, "value"),
        headers=to_headers(headers) if headers else (),
        timestamp=to_timestamp(timestamp_ms, now_ms),
    )


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key by Kafka's default partitioner, so that other clients agree."""
    return (murmur2(np.frombuffer(key, np.uint8)) & 0x7FFFFFFF) % partition_count


class Topic(TopicHandle):
    """A topic of an open store, returned by `Store.topic` and `Store.create_topic`."""

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
        # Round robin of records without a key; next() on it is atomic.
        self._rotation = itertools.count(first_partition)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} with {self.partition_count} partitions>"

    def partition(self, number: int | None = None) -> Partition:
        """A partition by its number; None is the only partition of a topic that has one.

        Raises NotFound for a number that the topic does not have.
        """
        number = check_partition(self.name, number, self.partition_count)
        return self._store._get_partition(self, number)

    @property
    def partitions(self) -> list[Partition]:
        """All partitions, by number."""
        return [self.partition(number) for number in range(self.partition_count)]

    # Appending

    def _append(self, record: GivenTuple, partition: int | None) -> AppendResult:
        made = _make_record(*record, now_ms=self._clock.now_ms())
        number = self._choose_partition(made.key) if partition is None else partition
        result = self.partition(number).append_batch(build_batch([made]))
        stamp = made.timestamp if result.timestamp < 0 else result.timestamp
        return AppendResult(number, result.base_offset, stamp)

    def _append_many(
        self, records: Iterable[GivenRecord], partition: int | None, codec: str
    ) -> BulkAppendResult:
        packer = _Packer(self, packaging_for(self.settings, codec))
        if partition is not None:
            self.partition(partition)
        sticky_partition = self._choose_partition(None)
        for item in records:
            record = _make_record(*split_record(item), now_ms=self._clock.now_ms())
            if partition is not None:
                packer.add(partition, record)
            elif record.key is not None:
                packer.add(self._choose_partition(record.key), record)
            elif packer.add(sticky_partition, record):
                # Like Kafka's sticky partitioner (KIP-480): stay until a batch is full.
                sticky_partition = self._choose_partition(None)
        return packer.finish()

    def append_batch(self, batch: GivenBatch, partition: int | None = None) -> AppendResult:
        target = self.partition(partition)
        result = target.append_batch(batch)
        return AppendResult(target.number, result.base_offset, result.timestamp)

    def _choose_partition(self, key: bytes | None) -> int:
        if self.partition_count == 1:
            return 0
        if key is None:
            return next(self._rotation) % self.partition_count
        return partition_of(key, self.partition_count)

    def _partition_for(self, key: bytes) -> int:
        return self._choose_partition(key)

    def flush(self) -> None:
        """Syncs everything appended so far to disk; raises Unavailable when the disk fails."""
        for partition in self.partitions:
            partition.flush()

    # Reading

    def _read(
        self,
        partitions: list[int],
        start: int | None,
        end: int | None,
        isolation: str,
        limit: int | None,
    ) -> Iterator[StoredRecord]:
        reads = [
            self.partition(number).read(start=start, end=end, isolation=isolation, limit=limit)
            for number in partitions
        ]
        return itertools.chain.from_iterable(reads)

    def _batches(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> Iterator[Batch]:
        return self.partition(partition).batches(start=start, end=end, isolation=isolation)

    def _columns(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> Iterator[RecordColumns]:
        return self.partition(partition).columns(start=start, end=end, isolation=isolation)

    def get(self, key: bytes | str, *, partition: int | None = None) -> StoredRecord | None:
        data = self._check_key(key)
        number = self.partition(self._choose_partition(data) if partition is None else partition)
        record = self._store._find_record(TopicPartition(self.name, number.number), data)
        if record is None:
            return None
        return StoredRecord(
            number.number, record.offset, record.timestamp, record.key, record.value, record.headers
        )

    def _offsets(self, partition: int) -> PartitionOffsets:
        return self.partition(partition).offsets()

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        return self.partition(partition).offset_for_time(timestamp_ms)

    def _delete_records(self, partition: int, before: int) -> int:
        return self.partition(partition).delete_records(before)


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

    def add(self, number: int, record: Record) -> bool:
        """Adds a record; returns True when a full batch of its partition was appended first."""
        size = _size_bound(record)
        pending = self._pending.setdefault(number, _PendingBatch())
        was_full = bool(pending.records) and pending.size + size > self._packaging.payload_bytes
        if was_full:
            self._append(number, pending)
        pending.records.append(record)
        pending.size += size
        return was_full

    def finish(self) -> BulkAppendResult:
        """Appends the remaining records."""
        for number, pending in self._pending.items():
            if pending.records:
                self._append(number, pending)
        return BulkAppendResult(self._record_count, dict(self._end_offsets))

    def _append(self, number: int, pending: _PendingBatch) -> None:
        records = pending.records
        pending.records, pending.size = [], 0
        batch = build_batch(records, codec=self._packaging.codec, level=self._packaging.level)
        result = self._topic.partition(number).append_batch(batch)
        self._end_offsets[number] = result.last_offset + 1
        self._record_count += len(records)


def _size_bound(record: Record) -> int:
    """An upper bound of the record's bytes."""
    size = _RECORD_OVERHEAD_BYTES
    if record.key is not None:
        size += len(record.key)
    if record.value is not None:
        size += len(record.value)
    for name, value in record.headers:
        size += 4 * len(name) + _HEADER_OVERHEAD_BYTES + (0 if value is None else len(value))
    return size
