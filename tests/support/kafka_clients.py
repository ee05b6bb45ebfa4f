"""What every client of Kafka can be told, in the same few words; an adapter per client follows.

A behaviour that a client does not have is skipped by its adapter, with the reason.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self

Headers = tuple[tuple[str, bytes | None], ...]
Partition = tuple[str, int]
Reset = Literal["earliest", "latest", "none"]
Isolation = Literal["read_uncommitted", "read_committed"]
GroupProtocol = Literal["classic", "consumer"]
Place = int | Literal["beginning", "end"]

WAIT_SECONDS: Final = 20.0
"""How long anything may take before it counts as hung."""
RETRY_MS: Final = 20
RECONNECT_MAX_MS: Final = 100
FETCH_WAIT_MS: Final = 100


class Fenced(Exception):
    """A newer producer has the transactional id."""


class OutOfRange(Exception):
    """There is nothing at the offset, and no policy says where to go on."""


class Failed(Exception):
    """The transaction cannot be committed but may be aborted."""


class Broken(Exception):
    """The producer is of no more use: another one is to be made."""


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a client gives it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


def received_of(record: Any) -> Received:
    """Of a record of kafka-python or aiokafka, which have the same names."""
    return Received(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
    )


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is told of a group."""

    state: str
    member_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer is made."""

    acks: Literal["0", "1", "all"] = "all"
    codec: str = "none"
    is_idempotent: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 30_000
    request_timeout_ms: int = 10_000
    request_bytes_max: int = 1 << 20
    linger_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer is made."""

    group: str | None = None
    instance: str | None = None
    reset: Reset = "earliest"
    isolation: Isolation = "read_uncommitted"
    protocol: GroupProtocol = "classic"
    session_timeout_ms: int = 6_000
    """Of classic groups; in others the server decides."""


class ProducerClient(Protocol):
    """With a transactional id it is ready to begin, and has fenced those before it."""

    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> "Future[int]":
        """The record's offset, once it is acknowledged; -1 where nobody acknowledges it."""

    def flush(self) -> None: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

    def send_offsets(
        self, offsets: Mapping[Partition, int], consumer: "ConsumerClient", group: str
    ) -> None: ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class ConsumerClient(Protocol):
    """A consumer of single partitions, or a member of a group."""

    def assign(self, places: Mapping[Partition, Place]) -> None: ...
    def subscribe(self, topic: str) -> None: ...
    def assignment(self) -> set[Partition]: ...
    def poll(self, seconds: float) -> list[Received]: ...
    def commit(self, offsets: Mapping[Partition, int]) -> None: ...
    def committed(self, partition: Partition) -> int | None: ...
    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class AdminClient(Protocol):
    """Administers topics and groups."""

    def create(
        self, topic: str, partition_count: int = 1, configs: Mapping[str, str] | None = None
    ) -> None: ...

    def topics(self) -> set[str]: ...
    def topic_id(self, topic: str) -> str: ...
    def partition_count(self, topic: str) -> int: ...
    def add_partitions(self, topic: str, count: int) -> None: ...
    def configs(self, topic: str) -> dict[str, str]: ...
    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None: ...
    def delete_records(self, partition: Partition, before: int) -> int: ...
    def delete(self, topic: str) -> None: ...
    def earliest(self, partition: Partition) -> int: ...
    def latest(self, partition: Partition, isolation: Isolation = "read_uncommitted") -> int: ...
    def groups(self) -> set[str]: ...
    def group(self, group: str) -> GroupFacts: ...
    def group_offsets(self, group: str) -> dict[Partition, int]: ...
    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...
    def delete_groups(self, groups: Iterable[str]) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class KafkaClient(Protocol):
    """One of the clients."""

    def producer(self, bootstrap: str, options: ProducerOptions) -> ProducerClient: ...
    def consumer(self, bootstrap: str, options: ConsumerOptions) -> ConsumerClient: ...
    def admin(self, bootstrap: str) -> AdminClient: ...
    def close(self) -> None: ...
