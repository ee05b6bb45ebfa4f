"""Topics of a broker in the public API: `varve.connect`, the counterpart of `varve.open`.

Invariant  an append returns when the broker has acknowledged its records; a read ends at the end
           offsets of its beginning. `tests/contract/api` runs one suite for stores and brokers.
Threads    any; `_lock` guards the producers and whether the cluster is closed.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from varve.brokers import topics
from varve.brokers.client import BrokerClient, admin_api, canonical_settings
from varve.brokers.consuming import ConsumeRequest, read_in_turn
from varve.brokers.producing import Deliveries, Delivery, enqueue
from varve.brokers.record import TopicRecord
from varve.foundation.errors import Closed, InvalidRequest, NotFound, TopicExists
from varve.foundation.position import BEGINNING, END, PositionKind, ReadPosition
from varve.foundation.settings import GivenValue, format_value
from varve.foundation.topic_records import (
    NO_TIMESTAMP,
    AppendResult,
    BulkAppendResult,
    GivenBytes,
    GivenHeaders,
    GivenRecord,
    StoredRecord,
    check_isolation,
    check_limit,
    check_partition,
    split_record,
    to_bytes,
    to_headers,
    to_timestamp,
)

if TYPE_CHECKING:
    from confluent_kafka import Producer

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_WAIT_SECONDS: Final = 0.01


def connect(bootstrap: str, **client_settings: object) -> "Cluster":
    """Connects to a Kafka cluster, such as `varve serve`, by the address `host:port` of a broker.

    `client_settings` are librdkafka's with `_` for `.`: `security_protocol="SASL_SSL"`. Raises
    Unavailable within seconds if no broker responds, StoreError if it refuses the connection.
    """
    if not isinstance(bootstrap, str) or not bootstrap:
        raise InvalidRequest(f"bootstrap {bootstrap!r:.80} is not an address: use host:port")
    dotted = {name.replace("_", "."): str(value) for name, value in client_settings.items()}
    settings = {"client.id": "varve", **canonical_settings(dotted)}
    client = BrokerClient(bootstrap, settings)
    client.admin()
    return Cluster(client)


class Cluster:
    """A connection to a cluster, returned by `connect`; use it as a context manager, or close it.

    It has the methods of a `Store` that Kafka's protocol offers.
    """

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._producers: dict[str, Producer] = {}  # guarded by _lock
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Cluster {self._client.address}{' (closed)' if self._is_closed else ''}>"

    def topic(self, name: str) -> "ClusterTopic":
        """A topic by its name; raises NotFound."""
        described = topics.find_topic(self._get_client(), name)
        return ClusterTopic(self, name, len(described.partitions))

    def topics(self) -> "list[ClusterTopic]":
        """All topics by name, without the broker's internal ones."""
        return [
            ClusterTopic(self, summary.name, summary.partition_count)
            for summary in topics.list_topics(self._get_client())
        ]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        settings: Mapping[str, GivenValue] | None = None,
        exist_ok: bool = False,
    ) -> "ClusterTopic":
        """Creates a topic, by default with the broker's default of partitions.

        `settings` has Kafka's names. Raises TopicExists when the topic exists; with `exist_ok` only
        if its partitions or settings differ.
        """
        client = self._get_client()
        if partitions is not None and partitions < 1:
            raise InvalidRequest(f"topic {name} with {partitions} partitions; it needs at least 1")
        texts = {key: format_value(value) for key, value in (settings or {}).items()}
        try:
            topics.create_topic(client, name, partitions=partitions, settings=texts)
        except TopicExists:
            if not exist_ok:
                raise
            self._check_same(name, partitions, None if settings is None else texts)
        return self.topic(name)

    def _check_same(
        self, name: str, partitions: int | None, settings: Mapping[str, str] | None
    ) -> None:
        described = topics.describe_topic(self._get_client(), name)
        if partitions not in (None, len(described.partitions)):
            raise TopicExists(
                f"topic {name} has {len(described.partitions)} partitions, not {partitions}"
            )
        own = {
            key: setting.value
            for key, setting in described.settings.items()
            if setting.source == "topic"
        }
        if settings is not None and own != dict(settings):
            raise TopicExists(
                f"topic {name} has settings {own}, not {dict(settings)}; alter_topic changes them"
            )

    def alter_topic(self, name: str, settings: Mapping[str, GivenValue | None]) -> "ClusterTopic":
        """Alters settings of a topic with immediate effect; None resets one to the default.

        Other settings stay. Raises InvalidSetting, and then nothing has changed.
        """
        topic = self.topic(name)
        texts = {
            key: None if value is None else format_value(value) for key, value in settings.items()
        }
        topics.alter_topic(self._get_client(), name, texts)
        return topic

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its records; raises NotFound."""
        topics.delete_topic(self._get_client(), name)

    def close(self) -> None:
        """Closes the connections; closing twice is harmless. Appends have been acknowledged."""
        with self._lock:
            self._is_closed = True
            self._producers.clear()

    def _get_client(self) -> BrokerClient:
        if self._is_closed:
            raise Closed(
                f"the connection to {self._client.address} was closed; call varve.connect again"
            )
        return self._client

    def _get_producer(self, codec: str) -> "Producer":
        """A kept producer: its connections and its producer id serve all later appends."""
        client = self._get_client()
        with self._lock:
            if codec not in self._producers:
                settings = Delivery(codec=codec).settings()
                self._producers[codec] = client.producer(**settings)
            return self._producers[codec]

    def _drop_producer(self, codec: str) -> None:
        """After a fatal error a producer sends nothing more."""
        with self._lock:
            self._producers.pop(codec, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ClusterOffsets(NamedTuple):
    """The offsets of a partition as a broker shows them: `log_start` inclusive, others exclusive.

    Clients see no record past the high watermark, so `end` is the same.
    """

    log_start: int
    last_stable: int
    high_watermark: int
    end: int


class ClusterTopic:
    """A topic of a cluster, returned by `Cluster.topic` and `Cluster.create_topic`."""

    def __init__(self, cluster: Cluster, name: str, partition_count: int) -> None:
        self.name = name
        self.partition_count = partition_count
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<ClusterTopic {self.name!r} with {self.partition_count} partitions>"

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
        current time. Without a partition, Kafka's default partitioner chooses one by the key. A
        value of None is a tombstone; `delete_key` writes one. When this returns, the broker has
        acknowledged the record.
        """
        deliveries = self._send([(key, value, headers, timestamp_ms)], partition, "lz4")
        assert deliveries.last is not None, "a delivered record has an offset"
        return deliveries.last

    def delete_key(
        self, key: bytes | str, *, headers: GivenHeaders | None = None, partition: int | None = None
    ) -> AppendResult:
        """Appends a tombstone: compaction removes the older records of the key, then it too."""
        return self.append(None, key=key, headers=headers, partition=partition)

    def append_many(
        self,
        records: Iterable[GivenRecord],
        *,
        partition: int | None = None,
        codec: str = "lz4",
    ) -> BulkAppendResult:
        """Appends a stream of records in big batches; much faster than one by one.

        A record is a `NewRecord`, one read from a topic, or a tuple `(key, value)`,
        `(key, value, headers)` or `(key, value, headers, timestamp)`. When the stream or a delivery
        raises, records before it may be in the log.
        """
        name = str(codec).lower()
        if name not in _CODECS:
            raise InvalidRequest(f"codec {codec!r} is unknown; use one of {', '.join(_CODECS)}")
        deliveries = self._send(records, partition, name)
        return BulkAppendResult(deliveries.delivered_count, deliveries.end_offsets)

    def _send(
        self, records: Iterable[GivenRecord], partition: int | None, codec: str
    ) -> Deliveries:
        number = -1 if partition is None else self._check_partition(partition)
        client, producer = self._cluster._get_client(), self._cluster._get_producer(codec)
        deliveries = Deliveries(client, self.name)
        try:
            try:
                for record in records:
                    enqueue(producer, self._to_record(record, number), deliveries)
            finally:
                deliveries.wait(producer, _WAIT_SECONDS)
            deliveries.check()
        finally:
            if deliveries.is_fatal:
                self._cluster._drop_producer(codec)
        return deliveries

    def _to_record(self, record: GivenRecord, partition: int) -> TopicRecord:
        key, value, headers, timestamp_ms = split_record(record)
        return TopicRecord(
            self.name,
            partition,
            timestamp=to_timestamp(timestamp_ms, NO_TIMESTAMP),
            key=to_bytes(key, "key"),
            value=to_bytes(value, "value"),
            headers=list(to_headers(headers)) if headers else (),
        )

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

        `start` defaults to the log start offset, `end` to the end of the visible records. Records
        that arrive later are not read. `read_committed` skips records of aborted transactions and
        ends at the last stable offset.
        """
        check_limit(limit)
        check_isolation(isolation)
        if partition is not None or start is not None or end is not None:
            partition = self._check_partition(partition)
        request = ConsumeRequest(
            self.name,
            partition,
            start=BEGINNING if start is None else ReadPosition(PositionKind.OFFSET, start),
            end=END if end is None else ReadPosition(PositionKind.OFFSET, end),
            limit=limit,
            is_committed=isolation == "read_committed",
        )
        return map(_to_stored, read_in_turn(self._cluster._get_client(), request))

    def offset_for_time(self, timestamp_ms: int, *, partition: int | None = None) -> int | None:
        """The offset of the first record not older than the timestamp; None without one."""
        spec = admin_api().OffsetSpec.for_timestamp(max(0, timestamp_ms))
        offset = self._read_offset(self._check_partition(partition), spec)
        return None if offset < 0 else offset

    def offsets(self, partition: int | None = None) -> ClusterOffsets:
        """Where a partition's records begin and end."""
        from confluent_kafka import IsolationLevel

        number, specs = self._check_partition(partition), admin_api().OffsetSpec
        high_watermark = self._read_offset(number, specs.latest())
        return ClusterOffsets(
            log_start=self._read_offset(number, specs.earliest()),
            last_stable=self._read_offset(
                number, specs.latest(), isolation_level=IsolationLevel.READ_COMMITTED
            ),
            high_watermark=high_watermark,
            end=high_watermark,
        )

    def delete_records(self, before: int, *, partition: int | None = None) -> int:
        """Deletes a partition's records before an offset, -1 for all; returns the log start."""
        number = self._check_partition(partition)
        client = self._cluster._get_client()
        return topics.delete_records(client, self.name, partition=number, before=before)

    def _read_offset(self, partition: int, spec: object, **options: object) -> int:
        place = (self.name, partition)
        return topics.read_offsets(self._cluster._get_client(), [place], spec, **options)[place]

    def _check_partition(self, number: int | None) -> int:
        """Checks the number; partitions may have been added since the topic was described."""
        client = self._cluster._get_client()
        try:
            return check_partition(self.name, number, self.partition_count)
        except NotFound:
            self.partition_count = len(topics.find_topic(client, self.name).partitions)
            return check_partition(self.name, number, self.partition_count)


def _to_stored(record: TopicRecord) -> StoredRecord:
    return StoredRecord(
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple((name, value) for name, value in record.headers),
    )
