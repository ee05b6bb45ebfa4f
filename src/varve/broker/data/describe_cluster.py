"""DescribeCluster: this broker is all there is."""

from typing import Final

from varve.broker.authorized_operations import NOT_ASKED, authorized_operations
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.wire import ErrorCode
from varve.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def answer_describe_cluster(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The broker by the listener that the client came in through."""
    if request.endpoint_type == _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker's endpoint, not a controller's",
        )
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoints of type {request.endpoint_type} are not known",
        )
    settings, endpoint = broker.settings, broker.endpoints[context.connection.listener]
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.store.cluster_id,
        controller_id=settings.node_id,
        brokers=[
            DescribeClusterBroker(
                settings.node_id, endpoint.host, endpoint.port, settings.rack or None
            )
        ],
        cluster_authorized_operations=_operations(broker, context, request),
    )


def _operations(broker: Broker, context: RequestContext, request: DescribeClusterRequest) -> int:
    if not request.include_cluster_authorized_operations:
        return NOT_ASKED
    cluster, authorizer = ResourceType.CLUSTER, broker.authorizer
    if not authorizer.is_allowed(context, Operation.DESCRIBE, cluster, CLUSTER_NAME):
        return 0
    return authorized_operations(authorizer, context, cluster, CLUSTER_NAME)
