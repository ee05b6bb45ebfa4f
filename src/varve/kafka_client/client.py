"""A blocking client of the Kafka protocol: topics, offsets, raw batches.

Batches are returned as stored, with their producers and transactions, which librdkafka hides.

Invariant  a request is retried until `request.timeout.ms` is over. The leader or coordinator is
           looked up again after an error that says it moved. Only requests that may be repeated are
           sent.
Threads    any. A request has a connection to itself until its response has arrived, so that a
           long poll delays no other request. `_lock` guards the tables and is not held during
           network I/O.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from time import monotonic
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar
from uuid import UUID

from varve.foundation.errors import NotFound, Unavailable
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.connection import BrokerConnection, ConnectionPool
from varve.wire.errors import ErrorCode, RetriableError, raise_for_code
from varve.wire.messages import cluster, data, topics
from varve.wire.messages.data import AbortedTransaction
from varve.wire.schema import Message

M = TypeVar("M", bound=Message)
P = ParamSpec("P")
T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
EARLIEST_LOCAL: Final = -4
"""The first offset on the broker's own disk (KIP-405)."""
DEFAULT_COUNT: Final = -1
"""Leaves the number of partitions or replicas to the broker."""
GROUP: Final = 0
TRANSACTION: Final = 1
"""Types of coordinators."""

_EARLIEST_LOCAL_VERSION: Final = 8
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_SET: Final = 0
_PAUSE_MS_MIN: Final = 5
"""The end of a transaction delays the next one by some milliseconds."""
_PAUSE_MS_MAX: Final = 100
_CLIENTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as Metadata describes it; `leaders` are broker ids by partition."""

    name: str
    id: UUID
    cluster_id: str | None
    leaders: dict[int, int]


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Raw batches from an offset on, the last of which may be cut off."""

    data: memoryview
    aborted: tuple[AbortedTransaction, ...]
    high_watermark: int
    last_stable_offset: int


def get_only(entries: Sequence[T], where: str) -> T:
    """The single item of a response; raises RetriableError where it is missing.

    Kafka answers a client over its quota with an empty response.
    """
    if len(entries) != 1:
        raise RetriableError(f"{where}: the response has {len(entries)} entries instead of one")
    return entries[0]


class Retries(Protocol):
    """A client, or what sends requests by one."""

    def retry(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


C = TypeVar("C", bound=Retries)


def retried(request: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Repeats a method as `KafkaClient.retry` does."""

    @wraps(request)
    def run(client: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.retry(request, client, *args, **kwargs)

    return run


class KafkaClient:
    """A client of one cluster. Connections are opened when they are needed."""

    def __init__(
        self, address: ClusterAddress, wait: Callable[[float], object] | None = None
    ) -> None:
        """`wait` sleeps for a number of seconds; it may return early when the client is closed."""
        self.address = address
        self._wait = wait or threading.Event().wait
        self._lock = threading.Lock()
        self._pools: dict[tuple[str, int], ConnectionPool] = {}  # guarded by _lock
        self._brokers: dict[int, tuple[str, int]] = {}  # guarded by _lock
        self._topics: dict[str, TopicMetadata] = {}  # guarded by _lock
        self._coordinators: dict[tuple[int, str], tuple[str, int]] = {}  # guarded by _lock
        self._was_reached = False
        """Whether a broker has ever answered; only ever set."""

    def close(self) -> None:
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()

    # Topics and settings

    def topic(self, name: str) -> TopicMetadata:
        """Requests the metadata of a topic, past the cache; raises NotFound."""
        return self.retry(self._load_topic, name)

    def _load_topic(self, name: str) -> TopicMetadata:
        request = cluster.MetadataRequest([cluster.MetadataRequestTopic(name=name)], False)
        response = self.send_to_any(request, cluster.MetadataResponse)
        response_topic = get_only(response.topics, f"{self.address.name}: topic {name}")
        if response_topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NotFound(
                f"{self.address.name} has no topic {name!r:.260}; `varve topic list` lists its "
                "topics"
            )
        raise_for_code(response_topic.error_code, f"{self.address.name}: topic {name}")
        leaders = {part.partition_index: part.leader_id for part in response_topic.partitions}
        topic = TopicMetadata(name, response_topic.topic_id, response.cluster_id, leaders)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        with self._lock:
            self._brokers = brokers
            self._topics[name] = topic
        return topic

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = DEFAULT_COUNT,
        settings: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> TopicMetadata:
        """Creates a topic; with `exist_ok` an existing topic is returned unchanged."""
        if exist_ok:
            with suppress(NotFound):
                return self.topic(name)
        self._create_topic(name, partitions, settings or {}, exist_ok)
        return self._load_created_topic(name)

    @retried
    def _create_topic(
        self, name: str, partitions: int, settings: Mapping[str, str], exist_ok: bool
    ) -> None:
        configs = [topics.TopicConfig(setting, value) for setting, value in settings.items()]
        topic = topics.CreatableTopic(name, partitions, DEFAULT_COUNT, configs=configs)
        request = topics.CreateTopicsRequest([topic], timeout_ms=self.address.timeout_ms)
        where = f"{self.address.name}: topic {name}"
        created = get_only(
            self.send_to_controller(request, topics.CreateTopicsResponse).topics, where
        )
        if not (exist_ok and created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
            raise_for_code(created.error_code, where, created.error_message)

    @retried
    def _load_created_topic(self, name: str) -> TopicMetadata:
        """A broker may know a new topic a little later than its controller."""
        try:
            return self._load_topic(name)
        except NotFound as error:
            raise RetriableError(str(error)) from error

    @retried
    def alter_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """Changes settings of a topic; those not named stay."""
        configs = [
            topics.IncrementalAlterableConfig(key, _SET, value) for key, value in settings.items()
        ]
        resource = topics.IncrementalAlterConfigsResource(_TOPIC_RESOURCE, name, configs)
        request = topics.IncrementalAlterConfigsRequest([resource], False)
        response = self.send_to_controller(request, topics.IncrementalAlterConfigsResponse)
        where = f"{self.address.name}: settings of topic {name}"
        altered = get_only(response.responses, where)
        raise_for_code(altered.error_code, where, altered.error_message)

    @retried
    def topic_settings(self, topic: str) -> dict[str, str]:
        """All settings of a topic that have a value."""
        resource = topics.DescribeConfigsResource(_TOPIC_RESOURCE, topic, None)
        request = topics.DescribeConfigsRequest([resource])
        return self._read_configs(self.send_to_any(request, topics.DescribeConfigsResponse))

    @retried
    def broker_settings(self, *names: str) -> dict[str, str]:
        """The named settings of a broker, without unknown ones and those without a value."""
        response = self.send_to_any(cluster.MetadataRequest([], False), cluster.MetadataResponse)
        if not response.brokers:
            raise RetriableError(f"{self.address.name} names no broker")
        # A broker describes no settings but its own.
        broker = min(response.brokers, key=lambda response_broker: response_broker.node_id)
        resource = topics.DescribeConfigsResource(
            _BROKER_RESOURCE, str(broker.node_id), list(names)
        )
        request = topics.DescribeConfigsRequest([resource])
        return self._read_configs(
            self.send_to(broker.host, broker.port, request, topics.DescribeConfigsResponse)
        )

    def _read_configs(self, response: topics.DescribeConfigsResponse) -> dict[str, str]:
        result = get_only(response.results, f"{self.address.name}: settings")
        where = f"{self.address.name}: settings of {result.resource_name}"
        raise_for_code(result.error_code, where, result.error_message)
        return {config.name: config.value for config in result.configs if config.value}

    # Offsets and batches

    @retried
    def find_offset(
        self, topic: str, partition: int, timestamp: int, *, is_committed: bool
    ) -> int | None:
        """The first offset at or after a timestamp; special timestamps as in ListOffsets."""
        requested = data.ListOffsetsTopic(
            topic, [data.ListOffsetsPartition(partition, timestamp=timestamp)]
        )
        request = data.ListOffsetsRequest(
            -1, int(is_committed), [requested], timeout_ms=self.address.timeout_ms
        )
        response = self.send_to_leader(topic, partition, request, data.ListOffsetsResponse)
        where = f"{self.address.name}: {topic}-{partition}"
        partition_response = get_only(get_only(response.topics, where).partitions, where)
        raise_for_code(partition_response.error_code, where)
        return None if partition_response.offset < 0 else partition_response.offset

    def is_local(self, topic: str, partition: int, offset: int) -> bool:
        """Whether an offset, if it exists, is on the broker's own disk."""
        if not self._supports_local_offsets(topic, partition):
            return True
        first = self.find_offset(topic, partition, EARLIEST_LOCAL, is_committed=False)
        return first is None or offset >= first

    @retried
    def _supports_local_offsets(self, topic: str, partition: int) -> bool:
        with self._pool_of_leader(topic, partition).connection() as connection:
            version = connection.find_version(data.ListOffsetsRequest)
        return version is not None and version >= _EARLIEST_LOCAL_VERSION

    @retried
    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int,
        is_committed: bool,
    ) -> FetchedBatches:
        """At least one whole batch at an offset, or nothing within the time."""
        requested = data.FetchPartition(
            partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = data.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(is_committed),
            topics=[data.FetchTopic(topic, partitions=[requested])],
        )
        where = f"{self.address.name}: {topic}-{partition}"
        response = self.send_fetch(topic, partition, request)
        partition_data = get_only(
            [part for topic_response in response.responses for part in topic_response.partitions],
            where,
        )
        raise_for_code(partition_data.error_code, f"{where}, offset {offset}")
        return FetchedBatches(
            partition_data.records or memoryview(b""),
            tuple(partition_data.aborted_transactions or ()),
            partition_data.high_watermark,
            partition_data.last_stable_offset,
        )

    def send_fetch(
        self, topic: str, partition: int, request: data.FetchRequest
    ) -> data.FetchResponse:
        """Sends a Fetch to the leader of one of its partitions, which must lead the others too.

        Over a quota it waits for the throttle time and raises RetriableError. The caller checks the
        error codes of partitions.
        """
        response = self.send_to_leader(topic, partition, request, data.FetchResponse)
        raise_for_code(response.error_code, f"{self.address.name}: {topic}")
        parts = [
            part for topic_response in response.responses for part in topic_response.partitions
        ]
        is_empty = not any(part.records or part.error_code for part in parts)
        if response.throttle_time_ms and is_empty:
            # Over its quota a client gets no records, from Kafka not even the partitions.
            self._wait(response.throttle_time_ms / 1000)
            raise RetriableError(
                f"{self.address.name}: {topic}: over a quota for {response.throttle_time_ms} ms"
            )
        return response

    # Requests

    def send_to_leader(
        self, topic: str, partition: int, request: Message, response_type: type[M]
    ) -> M:
        return self.send_all_to_leader(topic, partition, [request], response_type)[0]

    def send_all_to_leader(
        self, topic: str, partition: int, requests: Sequence[Message], response_type: type[M]
    ) -> list[M]:
        """The responses to requests that are all sent before the first response is read."""
        return self._send(self._pool_of_leader(topic, partition), requests, response_type)

    def _pool_of_leader(self, topic: str, partition: int) -> ConnectionPool:
        with self._lock:
            metadata = self._topics.get(topic)
        if metadata is None:
            metadata = self._load_topic(topic)
        leader_id = metadata.leaders.get(partition)
        if leader_id is None:
            raise NotFound(f"{self.address.name}: topic {topic} has no partition {partition}")
        with self._lock:
            broker = self._brokers.get(leader_id)
        if broker is None:
            raise RetriableError(f"{topic}-{partition} has no leader now", refresh_metadata=True)
        return self._pool(broker)

    def send_to_coordinator(
        self, type: int, key: str, request: Message, response_type: type[M]
    ) -> M:
        """Sends to the coordinator of a group or a transactional id."""
        with self._lock:
            broker = self._coordinators.get((type, key))
        if broker is None:
            broker = self._find_coordinator(type, key)
            with self._lock:
                self._coordinators[type, key] = broker
        return self.send_to(*broker, request, response_type)

    def _find_coordinator(self, type: int, key: str) -> tuple[str, int]:
        request = cluster.FindCoordinatorRequest(key, type, [key])
        response = self.send_to_any(request, cluster.FindCoordinatorResponse)
        where = f"{self.address.name}: the coordinator of {key}"
        raise_for_code(response.error_code, where, response.error_message)
        if not response.coordinators and response.host:
            return response.host, response.port
        coordinator = get_only(response.coordinators, where)
        raise_for_code(coordinator.error_code, where, coordinator.error_message)
        return coordinator.host, coordinator.port

    def send_to_any(self, request: Message, response_type: type[M]) -> M:
        """Sends to the first broker of the address that answers."""
        *others, last = self.address.hosts
        for host in others:
            try:
                return self.send_to(*host, request, response_type)
            except Unavailable:
                continue
        return self.send_to(*last, request, response_type)

    def send_to_controller(self, request: Message, response_type: type[M]) -> M:
        """Sends to the broker that creates topics."""
        response = self.send_to_any(cluster.MetadataRequest([], False), cluster.MetadataResponse)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        if response.controller_id not in brokers:
            raise RetriableError(f"{self.address.name} has no controller now")
        return self.send_to(*brokers[response.controller_id], request, response_type)

    def send_to(self, host: str, port: int, request: Message, response_type: type[M]) -> M:
        return self._send(self._pool((host, port)), [request], response_type)[0]

    def _pool(self, broker: tuple[str, int]) -> ConnectionPool:
        with self._lock:
            pool = self._pools.get(broker)
            if pool is None:
                pool = self._pools[broker] = ConnectionPool(self.address, *broker)
            return pool

    def _send(
        self, pool: ConnectionPool, requests: Sequence[Message], response_type: type[M]
    ) -> list[M]:
        with pool.connection() as connection:
            return self._exchange(connection, requests, response_type)

    def _exchange(
        self, connection: BrokerConnection, requests: Sequence[Message], response_type: type[M]
    ) -> list[M]:
        responses = connection.send_all(requests, response_type)
        self._was_reached = True
        return responses

    def retry(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls until it raises no Unavailable, at most for the timeout of the address.

        A cluster that was never reached is not waited for: the address may be wrong.
        """
        deadline = monotonic() + self.address.timeout_ms / 1000
        pause_ms = _PAUSE_MS_MIN
        while True:
            try:
                return call(*args, **kwargs)
            except Unavailable as error:
                if not isinstance(error, RetriableError) or error.refresh_metadata:
                    # The next request looks up leaders and coordinators again.
                    with self._lock:
                        self._topics.clear()
                        self._coordinators.clear()
                if not self._was_reached or monotonic() >= deadline:
                    raise
            self._wait(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)


_clients_lock = threading.Lock()
_clients: dict[ClusterAddress, KafkaClient] = {}  # guarded by _clients_lock


def open_client(address: ClusterAddress) -> KafkaClient:
    """The client of an address that all tasks of a Spark worker process share.

    Beyond `_CLIENTS_MAX` the oldest client is closed; tasks that still use it reconnect.
    """
    with _clients_lock:
        client = _clients.get(address)
        if client is None:
            client = _clients[address] = KafkaClient(address)
        oldest = _clients.pop(next(iter(_clients))) if len(_clients) > _CLIENTS_MAX else None
    if oldest is not None:
        oldest.close()
    return client
