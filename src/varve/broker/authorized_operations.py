"""What the one who asks may do to a resource, as the set of bits that clients read."""

from typing import Final

from varve.broker.context import RequestContext
from varve.broker.security.rights import Authorizer, Operation, ResourceType

NOT_ASKED: Final = -(1 << 31)
"""Stands in answers to those who did not ask."""

_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_GROUP: Final = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OPERATIONS: Final = {
    ResourceType.TOPIC: _TOPIC,
    ResourceType.CLUSTER: _CLUSTER,
    ResourceType.GROUP: _GROUP,
}


def authorized_operations(
    authorizer: Authorizer, context: RequestContext, type: ResourceType, name: str
) -> int:
    """One bit per operation of those that Kafka knows for a topic, a group or the cluster."""
    found = 0
    for operation in _OPERATIONS[type]:
        if authorizer.is_allowed(context, operation, type, name):
            found |= 1 << operation
    return found
