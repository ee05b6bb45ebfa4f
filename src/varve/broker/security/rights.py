"""What may be done to what, and whom a handler asks about it."""

from enum import IntEnum
from typing import Final, Protocol

from varve.broker.context import RequestContext

CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of the type CLUSTER."""


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


class Authorizer(Protocol):
    """Says whether the one who asks may do it."""

    def is_allowed(
        self, context: RequestContext, operation: Operation, type: ResourceType, name: str
    ) -> bool: ...

    def is_allowed_somewhere(
        self, context: RequestContext, operation: Operation, type: ResourceType
    ) -> bool:
        """On one resource of the type at least."""
        ...


class EverybodyMay:
    """Where no rights are kept."""

    def is_allowed(
        self, context: RequestContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        return True

    def is_allowed_somewhere(
        self, context: RequestContext, operation: Operation, type: ResourceType
    ) -> bool:
        return True
