"""OffsetDelete: forgets how far a group has come in topics that it does not read."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.group import Group
from varve.broker.security.rights import Operation, ResourceType
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def answer_offset_delete(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    group_id = request.group_id
    group = broker.groups.groups.find(group_id)
    error = _check_group(broker, context, group_id)
    if error is not ErrorCode.NONE or group is None:
        return OffsetDeleteResponse(error_code=error)
    response = OffsetDeleteResponse()
    deleted: list[tuple[TopicPartition, OffsetDeleteResponsePartition]] = []
    for topic in request.topics:
        refusal = _check_topic(broker, context, group, topic.name)
        answered = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answered)
        for one in topic.partitions:
            part = OffsetDeleteResponsePartition(one.partition_index, refusal)
            answered.partitions.append(part)
            if refusal is ErrorCode.NONE:
                deleted.append((TopicPartition(topic.name, one.partition_index), part))
    code = await broker.groups.delete_offsets(group_id, [partition for partition, _ in deleted])
    for _, part in deleted:
        part.error_code = code
    return response


def _check_group(broker: Broker, context: RequestContext, group_id: str) -> ErrorCode:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DELETE, ResourceType.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    return broker.groups.check_offset_delete(group_id)


def _check_topic(broker: Broker, context: RequestContext, group: Group, name: str) -> ErrorCode:
    if not broker.authorizer.is_allowed(context, Operation.READ, ResourceType.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if broker.topics.find(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if group.is_subscribed_to(name):
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE
