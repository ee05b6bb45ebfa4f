"""Who may see and alter the settings of what."""

from typing import Final

from varve.broker.admin.config_entry import ResourceKind
from varve.broker.admin.refusal import Refusal
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.wire import ErrorCode

_GUARDED: Final = {
    ResourceKind.TOPIC: (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ResourceKind.GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}


def check_config_right(
    broker: Broker, context: RequestContext, operation: Operation, kind: int, name: str
) -> None:
    """Raises Refusal; what is neither a topic nor a group belongs to the cluster."""
    type, code = ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    guarded = CLUSTER_NAME
    if kind in _GUARDED:
        (type, code), guarded = _GUARDED[ResourceKind(kind)], name
    if not broker.authorizer.is_allowed(context, operation, type, guarded):
        done = "see" if operation is Operation.DESCRIBE_CONFIGS else "alter"
        raise Refusal(code, f"no right to {done} the settings of {guarded:.260}")
