"""Topics of a broker in the public API: `varve.connect`, the counterpart of `varve.open`.

Invariant  an append returns when the broker has acknowledged its records; a read ends at the end
           offsets of its beginning. `tests/contract/api` runs one suite for stores and brokers.
Threads    any; `_lock` guards the producers and whether the cluster is closed.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from varve.brokers import topics
from varve.brokers.client import BrokerClient, admin_api, canonical_settings
from varve.brokers.consuming import ConsumeRequest, read_in_turn
from varve.brokers.producer import Deliveries, Delivery, Producer
from varve.foundation.closing import Closing
from varve.foundation.errors import Closed, InvalidRequest, NotFound, TopicExists
from varve.foundation.position import BEGINNING, END, PositionKind, ReadPosition
from varve.foundation.settings import GivenValue, check_mapping, format_settings
from varve.foundation.topic_handle import CODEC_NAMES, TopicHandle, check_same_topic
from varve.foundation.topic_records import (
    AppendResult,
    BulkAppendResult,
    GivenRecord,
    GivenTuple,
    PartitionOffsets,
    StoredRecord,
    check_int,
    check_text,
)

if TYPE_CHECKING:
    from confluent_kafka import Producer as LibraryProducer

    from varve.brokers.fetched_range import FetchedRange
    from varve.kafka_client.client import KafkaClient
    from varve.records import Batch, RecordColumns


def connect(bootstrap: str, **client_settings: object) -> "Cluster":
    """Connects to a Kafka cluster, such as `varve serve`, by the address `host:port` of a broker.

    `client_settings` are librdkafka's with `_` for `.`: `security_protocol="SASL_SSL"`.

    Raises Unavailable within seconds if no broker responds, StoreError if one refuses the
    connection, InvalidSetting for a setting that is unknown or wrong.
    """
    check_text(bootstrap, "bootstrap")
    dotted = {name.replace("_", "."): str(value) for name, value in client_settings.items()}
    for name, value in dotted.items():
        if value:
            check_text(value, name)
    settings = {"client.id": "varve", **canonical_settings(dotted)}
    client = BrokerClient(bootstrap, settings)
    client.admin()
    return Cluster(client)


class Cluster(Closing):
    """A connection to a cluster, returned by `connect`; use it as a context manager, or close it.

    It has the methods of a `Store` that Kafka's protocol offers.
    """

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._producers: dict[str, LibraryProducer] = {}  # guarded by _lock
        self._fetch_client: KafkaClient | None = None  # guarded by _lock
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Cluster {self._client.address}{' (closed)' if self._is_closed else ''}>"

    def topic(self, name: str) -> "ClusterTopic":
        """A topic by its name; raises NotFound."""
        described = topics.find_topic(self._get_client(), check_text(name, "topic"))
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
        check_text(name, "topic")
        if partitions is not None and check_int(partitions, "partitions") < 1:
            raise InvalidRequest(f"topic {name} with {partitions} partitions; it needs at least 1")
        texts = format_settings(settings or {}, f"topic {name}")
        try:
            topics.create_topic(client, name, partitions=partitions, settings=texts)
        except TopicExists:
            if not exist_ok:
                raise
            described = topics.describe_topic(client, name)
            check_same_topic(
                name,
                (len(described.partitions), _own_settings(described)),
                (partitions, None if settings is None else texts),
            )
        return self.topic(name)

    def alter_topic(self, name: str, settings: Mapping[str, GivenValue | None]) -> "ClusterTopic":
        """Alters settings of a topic with immediate effect; None resets one to the default.

        Other settings stay. Raises InvalidSetting, and then nothing has changed.
        """
        topic = self.topic(name)
        check_mapping(settings, "settings")
        given = {key: value for key, value in settings.items() if value is not None}
        changes: dict[str, str | None] = dict.fromkeys(settings)
        changes.update(format_settings(given, f"topic {name}"))
        topics.alter_topic(self._get_client(), name, changes)
        return topic

    def add_partitions(self, name: str, count: int) -> "ClusterTopic":
        """Adds empty partitions up to `count`.

        Existing records stay in their partitions; new records of a key may go to another partition
        than before. Raises InvalidRequest unless `count` exceeds the current number.
        """
        count = check_int(count, "count")
        current_count = self.topic(name).partition_count
        if count <= current_count:
            raise InvalidRequest(
                f"topic {name} has {current_count} partitions and cannot have {count}: partitions "
                f"are only added; give a whole number from {current_count + 1} on"
            )
        topics.add_partitions(self._get_client(), name, total=count)
        return self.topic(name)

    def given_settings(self, name: str) -> Mapping[str, str]:
        """The settings of the topic itself, without defaults, by Kafka's names; raises NotFound."""
        check_text(name, "topic")
        return _own_settings(topics.describe_topic(self._get_client(), name))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its records; raises NotFound."""
        topics.find_topic(self._get_client(), check_text(name, "topic"))
        topics.delete_topic(self._get_client(), name)

    def producer(self, transactional_id: str) -> Producer:
        """A producer that appends to any topics in transactions.

        It fences earlier producers of the id, whose open transaction is aborted. Raises
        InvalidRequest without an id, Unavailable if the cluster does not answer.
        """
        return Producer(self._get_client(), transactional_id)

    def close(self) -> None:
        """Closes the connections; closing twice is harmless. Appends have been acknowledged."""
        with self._lock:
            self._is_closed = True
            self._producers.clear()
            fetch_client, self._fetch_client = self._fetch_client, None
        if fetch_client is not None:
            fetch_client.close()

    def _get_client(self) -> BrokerClient:
        if self._is_closed:
            raise Closed(
                f"the connection to {self._client.address} was closed; call varve.connect again"
            )
        return self._client

    def _get_producer(self, codec: str) -> "LibraryProducer":
        """A kept producer: its connections and its producer id serve all later appends."""
        client = self._get_client()
        with self._lock:
            if codec not in self._producers:
                self._producers[codec] = Delivery(codec=codec).open(client)
            return self._producers[codec]

    def _get_fetch_client(self) -> "KafkaClient":
        """A client that returns batches as they are stored, which librdkafka hides."""
        from varve.kafka_client.client import KafkaClient

        client = self._get_client()
        with self._lock:
            if self._fetch_client is None:
                self._fetch_client = KafkaClient(client.cluster_address())
            return self._fetch_client

    def _drop_producer(self, codec: str) -> None:
        """The next append with this codec makes a new one."""
        with self._lock:
            self._producers.pop(codec, None)


class ClusterTopic(TopicHandle):
    """A topic of a cluster, returned by `Cluster.topic` and `Cluster.create_topic`.

    It has the calls of a store's topic. `get` and `append_batch` need the log's files, and raise
    InvalidRequest.
    """

    def __init__(self, cluster: Cluster, name: str, partition_count: int) -> None:
        self.name = name
        self.partition_count = partition_count
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<ClusterTopic {self.name!r} with {self.partition_count} partitions>"

    # Appending

    def _append(self, record: GivenTuple, partition: int | None) -> AppendResult:
        deliveries = self._send([record], partition, "lz4")
        assert deliveries.last is not None, "a delivered record has an offset"
        return deliveries.last

    def _append_many(
        self, records: Iterable[GivenRecord], partition: int | None, codec: str
    ) -> BulkAppendResult:
        deliveries = self._send(records, partition, codec)
        return BulkAppendResult(deliveries.delivered_count, deliveries.end_offsets)

    def _send(
        self, records: Iterable[GivenRecord], partition: int | None, codec: str
    ) -> Deliveries:
        client, producer = self._cluster._get_client(), self._cluster._get_producer(codec)
        deliveries = Deliveries(client, producer, self.name)
        try:
            try:
                deliveries.send_all(records, partition)
            finally:
                deliveries.wait()
            deliveries.check()
        finally:
            if deliveries.is_fatal:  # it sends nothing more
                self._cluster._drop_producer(codec)
        return deliveries

    def _partition_for(self, key: bytes) -> int:
        from varve.embedded.topic import partition_of

        return partition_of(key, self.partition_count)

    # Reading

    def _read(
        self,
        partitions: list[int],
        start: int | None,
        end: int | None,
        isolation: str,
        limit: int | None,
    ) -> Iterator[StoredRecord]:
        request = ConsumeRequest(
            self.name,
            partitions[0] if len(partitions) == 1 else None,
            start=BEGINNING if start is None else ReadPosition(PositionKind.OFFSET, start),
            end=END if end is None else ReadPosition(PositionKind.OFFSET, end),
            limit=limit,
            is_committed=isolation == "read_committed",
        )
        return read_in_turn(self._cluster._get_client(), request)

    def _batches(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> "Iterator[Batch]":
        return self._open_range(partition, start, end, isolation).batches()

    def _columns(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> "Iterator[RecordColumns]":
        return self._open_range(partition, start, end, isolation).columns()

    def _open_range(
        self, partition: int, start: int | None, end: int | None, isolation: str
    ) -> "FetchedRange":
        from varve.brokers.fetched_range import FetchedRange

        client = self._cluster._get_fetch_client()
        return FetchedRange(
            client,
            self.name,
            partition,
            start=start,
            end=end,
            is_committed=isolation == "read_committed",
        )

    # Offsets

    def _offsets(self, partition: int) -> PartitionOffsets:
        from confluent_kafka import IsolationLevel

        specs = admin_api().OffsetSpec
        log_start = self._read_offset(partition, specs.earliest())
        high_watermark = self._read_offset(partition, specs.latest())
        return PartitionOffsets(
            log_start=log_start,
            local_start=log_start,
            last_stable=self._read_offset(
                partition, specs.latest(), isolation_level=IsolationLevel.READ_COMMITTED
            ),
            high_watermark=high_watermark,
            end=high_watermark,
        )

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        spec = admin_api().OffsetSpec.for_timestamp(max(0, timestamp_ms))
        offset = self._read_offset(partition, spec)
        return None if offset < 0 else offset

    def _delete_records(self, partition: int, before: int) -> int:
        client = self._cluster._get_client()
        return topics.delete_records(client, self.name, partition=partition, before=before)

    def _read_offset(self, partition: int, spec: object, **options: object) -> int:
        place = (self.name, partition)
        return topics.read_offsets(self._cluster._get_client(), [place], spec, **options)[place]

    def _check_partition(self, number: int | None) -> int:
        """Checks the number; partitions may have been added since the topic was described."""
        client = self._cluster._get_client()
        try:
            return super()._check_partition(number)
        except NotFound:
            self.partition_count = len(topics.find_topic(client, self.name).partitions)
            checked = super()._check_partition(number)
            # A producer learns of added partitions only after minutes.
            for codec in CODEC_NAMES:
                self._cluster._drop_producer(codec)
            return checked


def _own_settings(described: topics.DescribedTopic) -> dict[str, str]:
    """The settings that were given to the topic itself; raises Denied if they are not shown."""
    if described.refusal is not None:
        raise described.refusal
    return {
        key: setting.value or ""
        for key, setting in described.settings.items()
        if setting.source == "topic"
    }
