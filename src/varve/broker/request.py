"""One request as handlers see it: its client, what the client may do, the topics it names.

Invariant  a topic that the sender may not use is reported as unauthorized whether it exists or not;
           by id, only an existing topic can be unauthorized.
           Regular expressions of clients are RE2, as in Kafka: matching takes linear time, where
           Python's own engine may take exponential time.
Threads    the loop's; long lists of names are matched off the loop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final, Protocol
from uuid import UUID

from varve.broker.topics import ServedTopic, Topics
from varve.wire import ApiKey, ErrorCode
from varve.wire.errors import KafkaError

CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of the type CLUSTER."""

NO_OPERATIONS: Final = -(1 << 31)
"""The authorized operations in a response to a client that did not request them."""


class CloseConnection(Exception):
    """Raised by a handler whose response has no error field: the server closes the connection."""

    reason: ClassVar = "failed"
    """Labels the closed connection in metrics."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user; all unauthenticated clients are the same one."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


@dataclass(slots=True)
class ConnectionContext:
    """A client's connection; `id` is unique in the process."""

    id: int
    listener: str
    client_host: str
    principal: Principal = ANONYMOUS
    is_closed: bool = False


class Operation(IntEnum):
    """By Kafka's numbers."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """By Kafka's numbers."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


_DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_REPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
}
"""The operations that Kafka reports for a resource."""


class Authorizer(Protocol):
    """Decides whether a client may do something."""

    def is_allowed(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType, name: str
    ) -> bool: ...

    def is_allowed_somewhere(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType
    ) -> bool:
        """On at least one resource of the type."""
        ...


class AllowAllAuthorizer:
    """Allows everything, for a broker without ACLs."""

    def is_allowed(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        return True

    def is_allowed_somewhere(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType
    ) -> bool:
        return True


@dataclass(slots=True)
class RequestContext:
    """One request on a connection, with what its handler may do for it."""

    api_key: ApiKey
    version: int
    client_id: str
    connection: ConnectionContext
    authorizer: Authorizer
    topics: Topics

    @property
    def principal(self) -> Principal:
        return self.connection.principal

    def is_authorized(
        self, operation: Operation, type: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        return self.authorizer.is_allowed(self.connection, operation, type, name)

    def authorize(self, operation: Operation, type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raises KafkaError with the authorization error of the resource type."""
        if not self.is_authorized(operation, type, name):
            raise KafkaError(
                _DENIED[type],
                f"{self.principal} is not authorized to {_in_words(operation)} "
                f"{_in_words(type)} {name:.260}",
            )

    def authorized_operations(self, type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """One bit for each operation that Kafka reports for the resource type."""
        bits = 0
        for operation in _REPORTED_OPERATIONS[type]:
            if self.is_authorized(operation, type, name):
                bits |= 1 << operation
        return bits

    def get_topic(
        self, operation: Operation, *, name: str | None = None, id: UUID | None = None
    ) -> ServedTopic:
        """The topic with a name, or where that is None with an id.

        Raises KafkaError where the operation is not authorized or there is no such topic.
        """
        if name is None:
            topic = self.topics.get(id=id)
            self.authorize(operation, ResourceType.TOPIC, topic.name)
            return topic
        self.authorize(operation, ResourceType.TOPIC, name)
        return self.topics.get(name=name)


def _in_words(value: Operation | ResourceType) -> str:
    return value.name.lower().replace("_", " ")


PATTERN_LENGTH_MAX: Final = 4_096


def find_matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the pattern matches as a whole; raises KafkaError for an invalid one."""
    # A C++ library that few brokers need: only clients that subscribe by pattern load it.
    import re2

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(pattern, f"it has more than {PATTERN_LENGTH_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        raise _invalid(pattern, _reason(error)) from error
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)


def _reason(error: Exception) -> str:
    """RE2 gives its messages as bytes."""
    (reason,) = error.args or ("",)
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _invalid(pattern: str, reason: str) -> KafkaError:
    shown = pattern if len(pattern) <= 100 else f"{pattern[:100]}..."
    message = f"the regular expression {shown!r} is not valid: {reason:.200}"
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
