"""What the topics of a store and of a cluster have in common: the calls, and their checks.

Invariant  arguments are checked here, so that both kinds of topic refuse the same with the same
           error; a refused call appends and reads nothing. `tests/contract/api` runs one suite.
Threads    any.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import InvalidRecord, InvalidRequest, TopicExists
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
    check_int,
    check_isolation,
    check_limit,
    check_partition,
    to_bytes,
)

if TYPE_CHECKING:
    from varve.records import Batch, Codec, RecordColumns

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class TopicHandle(ABC):
    """A topic of a `Store` or of a `Cluster`: append records to it, read them back.

    Offsets count within a partition, so methods that take an offset take a partition too, which
    may be left out when the topic has only one. Every method raises Closed once the store or the
    cluster is closed, and NotFound for a partition that the topic does not have.
    """

    name: str
    partition_count: int

    # Appending

    def append(
        self,
        value: GivenBytes,
        *,
        key: GivenBytes = None,
        headers: GivenHeaders | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> AppendResult:
        """Appends a record and returns its partition, offset and timestamp.

        Text is stored as UTF-8. The timestamp counts milliseconds since 1970, by default it is the
        current time. Without a partition, Kafka's default partitioner chooses one by the key, and
        records without a key are spread. A value of None is a tombstone; `delete_key` writes one.
        When this returns, the record survives a crash of the process that holds the log, and with
        the topic setting `flush=ack` a power loss.

        Raises InvalidRecord for a part that cannot be stored, RecordTooLarge for a record over the
        topic's `max.message.bytes`.
        """
        return self._append((key, value, headers, timestamp_ms), self._check_given(partition))

    def delete_key(
        self, key: bytes | str, *, headers: GivenHeaders | None = None, partition: int | None = None
    ) -> AppendResult:
        """Appends a tombstone: compaction removes the older records of the key, then it too.

        Raises InvalidRecord without a key.
        """
        self._check_key(key)
        return self._append((key, None, headers, None), self._check_given(partition))

    def append_many(
        self,
        records: Iterable[GivenRecord],
        *,
        partition: int | None = None,
        codec: "str | Codec" = "lz4",
    ) -> BulkAppendResult:
        """Appends a stream of records in big batches; much faster than one by one.

        A record is a `NewRecord`, one read from a topic, or a tuple `(key, value)`,
        `(key, value, headers)` or `(key, value, headers, timestamp)`. `codec` is none, gzip,
        snappy, lz4 or zstd, unless the topic's `compression.type` names one. When the stream or an
        append raises, records before it may be in the log.

        Raises InvalidRecord for what is no record, InvalidRequest for an unknown codec.
        """
        chosen = parse_codec_name(codec)
        if not isinstance(records, Iterable) or isinstance(records, str | bytes):
            raise InvalidRecord(
                f"records of type {type(records).__name__}; give an iterable of records"
            )
        return self._append_many(records, self._check_given(partition), chosen)

    def append_batch(self, batch: GivenBatch, partition: int | None = None) -> AppendResult:
        """Appends a ready batch of message format 2; the result has its first record's offset.

        A batch that carries a producer id, epoch and sequence is appended once, however often it is
        repeated. The partition may be left out where the topic has one. Raises Corrupt for a
        damaged batch, InvalidRecord for one that producers may not write, InvalidRequest on a
        cluster.
        """
        raise self._refuse("append_batch", "append its records with append_many")

    def partition_for(self, key: bytes | str) -> int:
        """The partition that Kafka's default partitioner chooses for a key."""
        return self._partition_for(self._check_key(key))

    # Reading

    def read(
        self,
        *,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        isolation: str = "read_uncommitted",
        limit: int | None = None,
    ) -> Iterator[StoredRecord]:
        """The records of one partition, or of all in turn, from `start` to before `end`.

        `start` defaults to the log start offset, `end` to the end of the visible records; records
        that arrive later are not read. `limit` is the largest number of records, None for all.
        `read_committed` skips records of aborted transactions and ends at the last stable offset.

        Raises OffsetOutOfRange for a start outside the log, InvalidRequest for a start or end
        without a partition where the topic has several, Corrupt for a batch with a wrong CRC.
        """
        limit = check_limit(limit)
        check_isolation(isolation)
        numbers = self._select(partition, start, end)
        return itertools.islice(self._read(numbers, start, end, isolation, limit), limit)

    def batches(
        self,
        *,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> "Iterator[Batch]":
        """Like `read`, as stored batches: whole, so the first may begin before `start`."""
        check_isolation(isolation)
        numbers = self._select(partition, start, end)
        ranges = [self._batches(number, start, end, isolation) for number in numbers]
        return itertools.chain.from_iterable(ranges)

    def columns(
        self,
        *,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> "Iterator[RecordColumns]":
        """Like `read`, as numpy columns, a batch at a time: the fast way."""
        check_isolation(isolation)
        numbers = self._select(partition, start, end)
        ranges = [self._columns(number, start, end, isolation) for number in numbers]
        return itertools.chain.from_iterable(ranges)

    def get(self, key: bytes | str, *, partition: int | None = None) -> StoredRecord | None:
        """The latest committed record of a key; None when there is none.

        A value of None means that the key was deleted. `partition` defaults to the one that
        Kafka's default partitioner chooses. The look-up uses key indexes and builds missing ones,
        so the first one may take a while. Raises InvalidRecord without a key, and InvalidRequest
        on a cluster.
        """
        raise self._refuse(
            "get",
            "read the key's partition (topic.read(partition=topic.partition_for(key))) and keep "
            "its latest record",
        )

    # Offsets

    def offsets(self, partition: int | None = None) -> PartitionOffsets:
        """Where a partition's records begin and end.

        Raises InvalidRequest without a partition where the topic has several.
        """
        return self._offsets(self._check_partition(partition))

    def offset_for_time(self, timestamp_ms: int, *, partition: int | None = None) -> int | None:
        """The offset of the first record not older than the timestamp; None without one.

        Raises InvalidRequest without a partition where the topic has several.
        """
        timestamp_ms = check_int(timestamp_ms, "timestamp_ms")
        return self._offset_for_time(self._check_partition(partition), timestamp_ms)

    def delete_records(self, before: int, *, partition: int | None = None) -> int:
        """Deletes a partition's records before an offset, -1 for all; returns the log start.

        Raises OffsetOutOfRange for an offset past the end, InvalidRequest without a partition
        where the topic has several.
        """
        before = check_int(before, "before")
        return self._delete_records(self._check_partition(partition), before)

    # Checks

    def _check_partition(self, number: int | None) -> int:
        return check_partition(self.name, number, self.partition_count)

    def _check_given(self, partition: int | None) -> int | None:
        """Like `_check_partition`; None leaves the choice to the partitioner."""
        return None if partition is None else self._check_partition(partition)

    def _check_key(self, key: GivenBytes) -> bytes:
        data = to_bytes(key, "key")
        if data is None:
            raise InvalidRecord(
                f"topic {self.name}: records without a key cannot be looked up or deleted: give "
                "bytes or text"
            )
        return data

    def _select(self, partition: int | None, start: int | None, end: int | None) -> list[int]:
        """The partitions to read: all, unless a partition or an offset is given."""
        for name, offset in (("start", start), ("end", end)):
            if offset is not None:
                check_int(offset, name)
        if partition is None and start is None and end is None:
            return list(range(self.partition_count))
        return [self._check_partition(partition)]

    def _refuse(self, call: str, remedy: str) -> InvalidRequest:
        return InvalidRequest(
            f"topic {self.name}: {call} works on the files of a log in this process, not through a "
            f"broker: {remedy}, or use a topic of varve.open"
        )

    # What each kind of topic does

    @abstractmethod
    def _partition_for(self, key: bytes) -> int: ...

    @abstractmethod
    def _append(self, record: GivenTuple, partition: int | None) -> AppendResult: ...

    @abstractmethod
    def _append_many(
        self, records: Iterable[GivenRecord], partition: int | None, codec: str
    ) -> BulkAppendResult: ...

    @abstractmethod
    def _read(
        self,
        partitions: list[int],
        start: int | None,
        end: int | None,
        isolation: str,
        limit: int | None,
    ) -> Iterator[StoredRecord]: ...

    @abstractmethod
    def _batches(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> "Iterator[Batch]": ...

    @abstractmethod
    def _columns(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> "Iterator[RecordColumns]": ...

    @abstractmethod
    def _offsets(self, partition: int) -> PartitionOffsets: ...

    @abstractmethod
    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int | None: ...

    @abstractmethod
    def _delete_records(self, partition: int, before: int) -> int: ...


def check_same_topic(
    name: str,
    existing: tuple[int, Mapping[str, str]],
    wanted: tuple[int | None, Mapping[str, str] | None],
) -> None:
    """Raises TopicExists if partition count or settings differ; None matches anything."""
    (partition_count, settings), (wanted_count, wanted_settings) = existing, wanted
    if wanted_count not in (None, partition_count):
        raise TopicExists(f"topic {name} has {partition_count} partitions, not {wanted_count}")
    if wanted_settings is not None and dict(wanted_settings) != dict(settings):
        raise TopicExists(
            f"topic {name} has settings {dict(settings)}, not {dict(wanted_settings)}; alter_topic "
            "changes them"
        )


def parse_codec_name(codec: object) -> str:
    """The name of a codec, given as text in any case or as a `Codec`; raises InvalidRequest."""
    name = str(getattr(codec, "name", codec)).lower()
    if name not in CODEC_NAMES:
        raise InvalidRequest(f"codec {codec!r:.80} is unknown; use one of {', '.join(CODEC_NAMES)}")
    return name
