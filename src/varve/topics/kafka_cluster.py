"""Topics behind the Kafka protocol: a varve server, Apache Kafka, or another broker.

Invariant  one fetch request covers all partitions that a broker leads, so it waits for any of
           them. The history before a position is checked by the leader epoch in every fetch,
           and by the batch itself on the first fetch and after every failed request: a broker
           that starts no new leader epoch may lose the end of its log in a restart.
           Batches of a partition carry ascending sequences from 0 on, as each `init_transactions`
           brings a new producer epoch. A failed transaction is aborted before the error is raised.
Crash      the coordinator ends an open transaction: it commits once the commit is recorded, and
           otherwise aborts at the next `init_transactions` or after the timeout.
Threads    any thread may describe topics and read offsets; one thread calls a reader's `fetch`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

from varve.commit_log import Isolation, TopicPartition
from varve.commit_log.settings import LAST_ERASURE
from varve.embedded import Store
from varve.foundation.errors import (
    NotFound,
    OffsetOutOfRange,
    StoreDenied,
    StoreError,
    Unavailable,
)
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import (
    DEFAULT_COUNT,
    EARLIEST,
    LATEST,
    KafkaClient,
    TopicMetadata,
    get_only,
)
from varve.kafka_client.transaction import ALL_REPLICAS, CommittedOffset, TransactionalProducer
from varve.records import (
    BatchHeader,
    CommittedBatches,
    Producer,
    decode_header,
    find_header,
)
from varve.topics.cluster import (
    LogTruncated,
    OffsetRange,
    Position,
    TopicInfo,
    TransactionalWriter,
    find_break,
)
from varve.topics.outputs import (
    OUTPUTS_TOPIC,
    OUTPUTS_TOPIC_SETTINGS,
    DerivedOutput,
    encode_registration,
    on_this_machine,
)
from varve.topics.store_cluster import StoreCluster
from varve.wire.errors import ErrorCode, RetriableError, raise_for_code
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from varve.wire.schema import NO_ID

Wait = Callable[[float], object]
"""Waits for a number of seconds."""

_RESPONSE_BYTES_MAX: Final = 16 << 20
"""Bounds a response for many partitions; a larger limit for one partition raises it."""
_REMOTE_READ_WAIT_MS: Final = 5_000
"""How long a broker may take to read a batch from its remote tier."""
_READ_COMMITTED: Final = 1
"""The isolation level in a fetch request."""
_TOPIC_ID_ERRORS: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


class KafkaCluster:
    """A cluster by its address. Connections are opened when they are needed."""

    def __init__(self, address: ClusterAddress, *, wait: Wait | None = None) -> None:
        self.address = address
        self._wait = wait or threading.Event().wait
        self.client = KafkaClient(address, self._wait)

    @property
    def name(self) -> str:
        return self.address.name

    def describe(self, topic: str) -> TopicInfo:
        return _describe(self.client.topic(topic))

    def settings(self, topic: str) -> Mapping[str, str]:
        return self.client.topic_settings(topic)

    def find_or_create(
        self, topic: str, *, partitions: int | None = None, settings: Mapping[str, str]
    ) -> TopicInfo:
        count = DEFAULT_COUNT if partitions is None else partitions
        return _describe(
            self.client.create_topic(topic, partitions=count, settings=settings, exist_ok=True)
        )

    def alter(self, topic: str, settings: Mapping[str, str]) -> None:
        self.client.alter_topic(topic, settings)

    def reader(
        self, topic: str, *, isolation: Isolation = Isolation.READ_COMMITTED
    ) -> "KafkaReader":
        return KafkaReader(self.client, topic, isolation=isolation)

    def register_output(self, output: DerivedOutput) -> None:
        if LAST_ERASURE not in self.settings(output.topic):
            return
        where = f"topic {OUTPUTS_TOPIC} lists what is derived from {output.topic} for erasures"
        place = on_this_machine(output.place) if output.place else output.place
        try:
            self.find_or_create(OUTPUTS_TOPIC, partitions=1, settings=OUTPUTS_TOPIC_SETTINGS)
            self.client.retry(
                self._append_output, encode_registration(replace(output, place=place))
            )
        except StoreDenied as error:
            raise StoreDenied(
                f"{error}: {where}; allow CREATE of it once, and WRITE to it"
            ) from error

    def _append_output(self, batch: bytes) -> None:
        data = [PartitionProduceData(0, memoryview(batch))]
        request = ProduceRequest(
            None,
            ALL_REPLICAS,
            self.address.timeout_ms,
            [TopicProduceData(OUTPUTS_TOPIC, partition_data=data)],
        )
        response = self.client.send_to_leader(OUTPUTS_TOPIC, 0, request, ProduceResponse)
        where = f"{self.name}: {OUTPUTS_TOPIC}-0"
        result = get_only(get_only(response.responses, where).partition_responses, where)
        raise_for_code(result.error_code, where, result.error_message)

    def writer(
        self, transactional_id: str, *, timeout_ms: int | None = None
    ) -> "KafkaTransactionalWriter":
        """Writes exactly once, by the transaction coordinator of the cluster."""
        return KafkaTransactionalWriter(
            self.client, transactional_id, timeout_ms=timeout_ms or self.address.timeout_ms
        )

    def new_session(self) -> "KafkaCluster":
        return KafkaCluster(self.address, wait=self._wait)

    def close(self) -> None:
        self.client.close()


class KafkaReader:
    """Reads a topic through the Kafka protocol."""

    def __init__(self, client: KafkaClient, topic: str, *, isolation: Isolation) -> None:
        self.topic = topic
        self.cluster_name = client.address.name
        self._client = client
        self._isolation = isolation
        self._topic_id: UUID | None = None
        self._leaders: Mapping[int, int] = {}
        self._checked_partitions: set[int] = set()

    @property
    def _is_committed(self) -> bool:
        return self._isolation is Isolation.READ_COMMITTED

    def info(self) -> TopicInfo:
        return _describe(self._load_topic())

    def settings(self) -> Mapping[str, str]:
        return self._client.topic_settings(self.topic)

    def offsets(self, partition: int) -> OffsetRange:
        start = self._find_offset(partition, EARLIEST, is_committed=False)
        end = self._find_offset(partition, LATEST, is_committed=self._is_committed)
        return OffsetRange(start, max(start, end))

    def _find_offset(self, partition: int, timestamp: int, *, is_committed: bool) -> int:
        offset = self._client.find_offset(
            self.topic, partition, timestamp, is_committed=is_committed
        )
        if offset is None:
            raise Unavailable(
                f"{self.cluster_name} does not report the offsets of {self.topic}-{partition}: "
                "try again"
            )
        return offset

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        return self._client.retry(self._try_fetch, positions, max_bytes, wait_ms)

    def find_batch_before(self, partition: int, offset: int) -> BatchHeader | None:
        previous_offset = offset - 1
        if previous_offset < 0:
            return None
        try:
            data = self._fetch_batch(partition, previous_offset)
        except OffsetOutOfRange:
            return None
        return find_header(data, previous_offset)

    def close(self) -> None:
        self._client.close()
        self._topic_id = None
        self._forget_leaders()

    def _fetch_batch(self, partition: int, offset: int) -> memoryview:
        """The batch at an offset; empty if the log ends before it."""
        for wait_ms in (0, _REMOTE_READ_WAIT_MS):
            fetched = self._client.fetch(
                self.topic,
                partition,
                offset,
                max_bytes=1,
                max_wait_ms=wait_ms,
                is_committed=False,
            )
            # A broker may need time to read an offset that is in its remote tier.
            if len(fetched.data) or fetched.high_watermark <= offset:
                break
        return fetched.data

    # Fetching

    def _try_fetch(
        self, positions: Mapping[int, Position], max_bytes: int, wait_ms: int
    ) -> dict[int, CommittedBatches]:
        try:
            self._check_history(positions)
            return self._fetch(positions, max_bytes, wait_ms)
        except Unavailable:
            self._forget_leaders()
            raise

    def _forget_leaders(self) -> None:
        self._leaders = {}
        self._checked_partitions.clear()

    def _check_history(self, positions: Mapping[int, Position]) -> None:
        for partition in positions.keys() - self._checked_partitions:
            reason = find_break(self, partition, positions[partition])
            if reason is not None:
                raise LogTruncated(f"{self.cluster_name}: {self.topic}-{partition}: {reason}")
            self._checked_partitions.add(partition)

    def _fetch(
        self, positions: Mapping[int, Position], max_bytes: int, wait_ms: int
    ) -> dict[int, CommittedBatches]:
        groups = self._group_by_leader(positions)
        fetched: dict[int, CommittedBatches] = {}
        if len(groups) > 1:
            for group in groups:
                fetched |= self._fetch_from_leader(group, max_bytes, 0)
        if fetched:
            return fetched
        for group in groups:
            # Requests go to one broker after the other, so the brokers share the wait.
            fetched |= self._fetch_from_leader(group, max_bytes, wait_ms // len(groups))
        return fetched

    def _group_by_leader(self, positions: Mapping[int, Position]) -> list[dict[int, Position]]:
        if not self._leaders.keys() >= positions.keys():
            self._leaders = self._load_topic().leaders
        groups: dict[int, dict[int, Position]] = {}
        for partition, position in positions.items():
            leader = self._leaders.get(partition, -1)
            groups.setdefault(leader, {})[partition] = position
        return list(groups.values())

    def _fetch_from_leader(
        self, positions: Mapping[int, Position], max_bytes: int, wait_ms: int
    ) -> dict[int, CommittedBatches]:
        request = self._build_fetch_request(positions, max_bytes, wait_ms)
        response = self._client.send_fetch(self.topic, next(iter(positions)), request)
        partitions = [partition for topic in response.responses for partition in topic.partitions]
        if any(partition.error_code in _TOPIC_ID_ERRORS for partition in partitions):
            # Recreated, or not known to this broker yet: the topic id decides.
            self._load_topic()
            raise RetriableError(
                f"{self.cluster_name} does not know topic {self.topic}", refresh_metadata=True
            )
        by_partition = {}
        for partition in partitions:
            position = positions[partition.partition_index]
            fetched = self._decode_partition(partition, position)
            if fetched.next_offset > position.offset:
                by_partition[partition.partition_index] = fetched
        return by_partition

    def _build_fetch_request(
        self, positions: Mapping[int, Position], max_bytes: int, wait_ms: int
    ) -> FetchRequest:
        partitions = [
            FetchPartition(
                partition,
                fetch_offset=position.offset,
                last_fetched_epoch=position.leader_epoch,
                partition_max_bytes=max_bytes,
            )
            for partition, position in positions.items()
        ]
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max(max_bytes, _RESPONSE_BYTES_MAX),
            isolation_level=_READ_COMMITTED if self._is_committed else 0,
            topics=[FetchTopic(self.topic, self._topic_id or NO_ID, partitions=partitions)],
        )

    def _decode_partition(self, partition: PartitionData, position: Position) -> CommittedBatches:
        where = f"{self.cluster_name}: {self.topic}-{partition.partition_index}"
        raise_for_code(partition.error_code, f"{where}, offset {position.offset}")
        diverging = partition.diverging_epoch
        if diverging.end_offset >= 0:
            raise LogTruncated(
                f"{where} was read up to offset {position.offset} in leader epoch "
                f"{position.leader_epoch}, but epoch {diverging.epoch} ends at "
                f"{diverging.end_offset}"
            )
        aborted: Sequence[tuple[int, int]] = [
            (transaction.producer_id, transaction.first_offset)
            for transaction in partition.aborted_transactions or ()
        ]
        end = partition.last_stable_offset if self._is_committed else partition.high_watermark
        return CommittedBatches(
            partition.records or memoryview(b""),
            aborted,
            start_offset=position.offset,
            end_offset=end,
            where=where,
        )

    def _load_topic(self) -> TopicMetadata:
        topic = self._client.topic(self.topic)
        if self._topic_id is None or self._topic_id == NO_ID:
            self._topic_id = topic.id
        elif topic.id not in (NO_ID, self._topic_id):
            raise NotFound(
                f"{self.cluster_name}: topic {self.topic} was deleted and created again since it "
                "was read"
            )
        return topic


def _describe(topic: TopicMetadata) -> TopicInfo:
    return TopicInfo(topic.name, None if topic.id == NO_ID else topic.id, len(topic.leaders))


# Writing


class KafkaTransactionalWriter(TransactionalWriter):
    """A transactional writer through the Kafka protocol."""

    def __init__(self, client: KafkaClient, transactional_id: str, *, timeout_ms: int) -> None:
        super().__init__()
        self._requests = TransactionalProducer(client, transactional_id, timeout_ms=timeout_ms)
        self._added_partitions: set[TopicPartition] = set()

    def init_transactions(self) -> None:
        self._requests.begin()
        self.next_sequences.clear()
        self._added_partitions.clear()
        self._producer = Producer(self._requests.producer_id, self._requests.producer_epoch)

    def commit_offset(self, group: str, offset: CommittedOffset) -> None:
        """Makes a committed offset of a consumer group part of the transaction."""
        _ = self.producer
        try:
            self._requests.commit_offset(group, offset)
        except StoreError:
            self._end_after_error()
            raise

    def commit(self) -> None:
        self._end(is_committed=True)

    def abort(self) -> None:
        self._end(is_committed=False)

    def _end(self, *, is_committed: bool) -> None:
        producer, self._producer = self.producer, None
        self._requests.end(is_committed=is_committed)
        self._producer = producer
        self._added_partitions.clear()

    def _add_partitions(self, partitions: Set[TopicPartition]) -> None:
        added = partitions - self._added_partitions
        if not added:
            return
        numbers: dict[str, list[int]] = {}
        for partition in sorted(added):
            numbers.setdefault(partition.topic, []).append(partition.partition)
        self._requests.add_topics(numbers)
        self._added_partitions |= added

    def _write(self, partition: TopicPartition, batches: Sequence[bytearray]) -> int:
        offset = self._requests.append_all(partition.topic, partition.partition, batches)
        return -1 if offset < 0 else offset + decode_header(batches[-1]).last_offset_delta + 1

    def _end_after_error(self) -> None:
        with suppress(StoreError):  # the next writer or the timeout aborts it then
            self._requests.end(is_committed=False)
        self._producer = None


def open_cluster(
    source: Store | ClusterAddress, *, wait: Wait | None = None
) -> StoreCluster | KafkaCluster:
    """The caller closes it; a store stays open. `wait` pauses between requests to brokers."""
    if isinstance(source, Store):
        return StoreCluster(source)
    return KafkaCluster(source, wait=wait)
