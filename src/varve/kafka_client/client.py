"""A client of Kafka's protocol that waits for its answers: topics, offsets, and raw batches.

Made for reads by tasks: batches come as the log has them, with all that they tell of producers and
transactions.

Invariant  who leads a partition is asked again when a broker says that it does not, or is gone; a
           request is tried again until the time of the address is over, and what is asked twice
           does no harm.
Threads    any; `_lock` guards the connections, and who asks has them alone until the answer.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeVar
from uuid import UUID

from varve.foundation.errors import NotFound, Unavailable
from varve.kafka_client.address import ServerAddress
from varve.kafka_client.answers import Refused, check, only
from varve.kafka_client.connection import Connection, open_connection
from varve.wire.errors import ErrorCode
from varve.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from varve.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from varve.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from varve.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from varve.wire.schema import Message

R = TypeVar("R", bound=Message)
T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
EARLIEST_LOCAL: Final = -4
"""The first offset that is on the broker's own disk (KIP-405)."""

_EARLIEST_LOCAL_VERSION: Final = 8
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_PAUSE_MS_MIN: Final = 5
"""A transaction that has ended holds the next one up for some milliseconds."""
_PAUSE_MS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic as a server tells of it."""

    name: str
    id: UUID
    cluster_id: str | None
    leaders: dict[int, int]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Batches from an offset on, the last of which may be cut, and what is known of the log."""

    data: memoryview
    aborted: tuple[AbortedTransaction, ...]
    high_watermark: int
    last_stable_offset: int


class ServerClient:
    """One cluster, with a connection to each broker that was asked."""

    def __init__(self, address: ServerAddress, wait: Callable[[float], object]) -> None:
        self.address = address
        self._wait = wait
        self._lock = threading.RLock()
        self._connections: dict[tuple[str, int], Connection] = {}  # guarded by _lock
        self._brokers: dict[int, tuple[str, int]] = {}  # guarded by _lock
        self._topics: dict[str, ServedTopic] = {}  # guarded by _lock
        self._is_known = False  # guarded by _lock

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    # What there is

    def topic(self, name: str) -> ServedTopic:
        """A topic as it is now; raises NotFound."""
        return self.patiently(lambda: self._load_topic(name))

    def _load_topic(self, name: str) -> ServedTopic:
        request = MetadataRequest([MetadataRequestTopic(name=name)], False)
        answer = self.ask_any(request, MetadataResponse)
        self._brokers = {one.node_id: (one.host, one.port) for one in answer.brokers}
        found = only(answer.topics, f"{self.address.name}: topic {name}")
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NotFound(f"{self.address.name} has no topic {name!r:.260}")
        check(found.error_code, f"{self.address.name}: topic {name}")
        leaders = {one.partition_index: one.leader_id for one in found.partitions}
        made = ServedTopic(name, found.topic_id, answer.cluster_id, leaders)
        self._topics[name] = made
        return made

    def broker_settings(self, *names: str) -> dict[str, str]:
        """Those of a broker's settings that it knows, and that have a value."""

        def ask() -> dict[str, str]:
            answer = self.ask_any(MetadataRequest([], False), MetadataResponse)
            # A broker tells its own settings alone.
            if not answer.brokers:
                raise Refused(f"{self.address.name} tells of no broker")
            broker = min(answer.brokers, key=lambda one: one.node_id)
            resource = DescribeConfigsResource(_BROKER_RESOURCE, str(broker.node_id), list(names))
            request = DescribeConfigsRequest([resource])
            told = self.ask_at(broker.host, broker.port, request, DescribeConfigsResponse)
            return self._settings_of(told)

        return self.patiently(ask)

    def topic_settings(self, topic: str) -> dict[str, str]:
        request = DescribeConfigsRequest([DescribeConfigsResource(_TOPIC_RESOURCE, topic, None)])
        return self.patiently(
            lambda: self._settings_of(self.ask_any(request, DescribeConfigsResponse))
        )

    def _settings_of(self, answer: DescribeConfigsResponse) -> dict[str, str]:
        found = only(answer.results, f"{self.address.name}: settings")
        where = f"{self.address.name}: settings of {found.resource_name}"
        check(found.error_code, where, found.error_message)
        return {one.name: one.value for one in found.configs if one.value}

    # Offsets and batches

    def find_offset(
        self, topic: str, partition: int, timestamp: int, *, is_committed: bool
    ) -> int | None:
        """The first offset of a record of this time or later, or what a special time means."""
        asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, timestamp=timestamp)])
        request = ListOffsetsRequest(
            -1, int(is_committed), [asked], timeout_ms=self.address.timeout_ms
        )

        def ask() -> int | None:
            answer = self.ask_leader(topic, partition, request, ListOffsetsResponse)
            where = f"{self.address.name}: {topic}-{partition}"
            found = only(only(answer.topics, where).partitions, where)
            check(found.error_code, where)
            return None if found.offset < 0 else found.offset

        return self.patiently(ask)

    def is_local(self, topic: str, partition: int, offset: int) -> bool:
        """Whether an offset, if it is there, lies on the broker's own disk."""

        def knows_tiers() -> bool:
            version = self._leader(topic, partition).find_version(ListOffsetsRequest)
            return version is not None and version >= _EARLIEST_LOCAL_VERSION

        if not self.patiently(knows_tiers):
            return True
        first = self.find_offset(topic, partition, EARLIEST_LOCAL, is_committed=False)
        return first is None or offset >= first

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int,
        is_committed: bool,
    ) -> Fetched:
        """What lies at an offset: at least one whole batch, or nothing within the time."""
        wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(is_committed),
            topics=[FetchTopic(topic, partitions=[wanted])],
        )

        def ask() -> Fetched:
            answer = self.ask_leader(topic, partition, request, FetchResponse)
            where = f"{self.address.name}: {topic}-{partition}"
            check(answer.error_code, where)
            parts = [one for some in answer.responses for one in some.partitions]
            if answer.throttle_time_ms and not any(one.records or one.error_code for one in parts):
                # Over its quota a client gets no records, from Kafka not even the partition.
                self._wait(answer.throttle_time_ms / 1000)
                raise Refused(f"{where}: over a quota for {answer.throttle_time_ms} ms")
            found = only(parts, where)
            check(found.error_code, f"{where}, offset {offset}")
            return Fetched(
                found.records or memoryview(b""),
                tuple(found.aborted_transactions or ()),
                found.high_watermark,
                found.last_stable_offset,
            )

        return self.patiently(ask)

    # Asking

    def ask_leader(self, topic: str, partition: int, request: Message, kind: type[R]) -> R:
        with self._lock:
            return self._ask(self._leader(topic, partition), [request], kind)[0]

    def ask_leader_all(
        self, topic: str, partition: int, requests: Sequence[Message], kind: type[R]
    ) -> list[R]:
        """The answers to requests that are all sent before the first is answered."""
        with self._lock:
            return self._ask(self._leader(topic, partition), requests, kind)

    def _leader(self, topic: str, partition: int) -> Connection:
        with self._lock:
            known = self._topics.get(topic) or self._load_topic(topic)
            node_id = known.leaders.get(partition)
            if node_id is None:
                raise NotFound(f"{self.address.name}: topic {topic} has no partition {partition}")
            if node_id not in self._brokers:
                raise Refused(f"{topic}-{partition} has no leader now", is_moved=True)
            return self.connect(*self._brokers[node_id])

    def ask_any(self, request: Message, kind: type[R]) -> R:
        """Asks the first broker of the address that answers."""
        with self._lock:
            for number, host in enumerate(self.address.hosts, 1):
                try:
                    return self._ask(self.connect(*host), [request], kind)[0]
                except Unavailable:
                    if number == len(self.address.hosts):
                        raise
            raise AssertionError("an address has hosts")

    def ask_controller(self, request: Message, kind: type[R]) -> R:
        """Asks the broker that makes topics."""
        with self._lock:
            answer = self.ask_any(MetadataRequest([], False), MetadataResponse)
            places = {one.node_id: (one.host, one.port) for one in answer.brokers}
            if answer.controller_id not in places:
                raise Refused(f"{self.address.name} has no controller now")
            return self.ask_at(*places[answer.controller_id], request, kind)

    def ask_at(self, host: str, port: int, request: Message, kind: type[R]) -> R:
        with self._lock:
            return self._ask(self.connect(host, port), [request], kind)[0]

    def connect(self, host: str, port: int) -> Connection:
        with self._lock:
            found = self._connections.get((host, port))
            if found is None:
                found = open_connection(self.address, host, port)
                self._connections[host, port] = found
            return found

    def _ask(self, connection: Connection, requests: Sequence[Message], kind: type[R]) -> list[R]:
        try:
            answers = connection.ask_all(requests, kind)
            self._is_known = True
            return answers
        except Unavailable:
            self._connections = {
                key: one for key, one in self._connections.items() if one is not connection
            }
            raise

    def patiently(self, ask: Callable[[], T]) -> T:
        """Tries again what cannot be done now, until the time of the address is over.

        A cluster that was never reached is not waited for: the address may be wrong.
        """
        deadline = monotonic() + self.address.timeout_ms / 1000
        pause_ms = _PAUSE_MS_MIN
        while True:
            try:
                return ask()
            except Unavailable as error:
                if not isinstance(error, Refused) or error.is_moved:
                    with self._lock:
                        self._topics.clear()
                if not self._is_known or monotonic() >= deadline:
                    raise
            self._wait(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)


_kept_lock = threading.Lock()
_kept: dict[ServerAddress, ServerClient] = {}  # guarded by _kept_lock; a process asks few clusters


def open_client(address: ServerAddress) -> ServerClient:
    """The client of an address; the same one for every call in a process."""
    with _kept_lock:
        if address not in _kept:
            _kept[address] = ServerClient(address, threading.Event().wait)
        return _kept[address]
