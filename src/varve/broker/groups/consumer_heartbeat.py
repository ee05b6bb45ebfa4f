"""ConsumerGroupHeartbeat: the one request by which members of consumer groups join, stay and go."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.consumer_membership import Client
from varve.broker.groups.consumer_replies import refused
from varve.broker.security.rights import Operation, ResourceType
from varve.wire import ErrorCode
from varve.wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


async def answer_consumer_heartbeat(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def may_describe(topic: str) -> bool:
        return may(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)

    if not all(may_describe(one) for one in request.subscribed_topic_names or ()):
        return refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return await broker.groups.consumer.heartbeat(
        request,
        version=context.version,
        client=Client(context.client_id, f"/{context.connection.client_host}"),
        may_describe=may_describe,
    )
