"""DescribeTopicPartitions: topics page by page, by name.

Invariant  a page holds no more partitions than the limit; the cursor names the first that is left
           out. Replica lists are empty, never null: Java's clients take them so.
"""

from typing import Final

from varve.broker.authorized_operations import authorized_operations
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic, leader_epoch_of
from varve.foundation.errors import InvalidRequest
from varve.wire import ErrorCode
from varve.wire.messages.cluster import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_PARTITIONS_MAX: Final = 2_000
"""Of one answer, whatever the client allows."""


def answer_describe_topics(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """The topics named, or all, from the cursor on."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise InvalidRequest(f"a cursor at partition {cursor.partition_index}; it begins at 0")
    room = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    response = DescribeTopicPartitionsResponse()
    for name in _names(broker, request):
        if cursor is not None and name < cursor.topic_name:
            continue
        if not _may_describe(broker, context, name):
            if request.topics:
                response.topics.append(_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        topic = broker.topics.find(name)
        if topic is None:
            response.topics.append(_failed(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        is_resumed = cursor is not None and name == cursor.topic_name
        start = cursor.partition_index if cursor is not None and is_resumed else 0
        if not room:
            response.next_cursor = Cursor(name, start)
            break
        end = min(len(topic.logs), start + room)
        response.topics.append(_tell(broker, context, topic, range(start, end)))
        room -= max(0, end - start)
        if end < len(topic.logs):
            response.next_cursor = Cursor(name, end)
            break
    return response


def _names(broker: Broker, request: DescribeTopicPartitionsRequest) -> list[str]:
    if request.topics:
        return sorted({one.name for one in request.topics})
    return [one.name for one in broker.topics]


def _may_describe(broker: Broker, context: RequestContext, name: str) -> bool:
    return broker.authorizer.is_allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, name)


def _failed(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error, name)


def _tell(
    broker: Broker, context: RequestContext, topic: ServedTopic, numbers: range
) -> DescribeTopicPartitionsResponseTopic:
    node_id = broker.settings.node_id
    return DescribeTopicPartitionsResponseTopic(
        ErrorCode.NONE,
        topic.name,
        topic.id,
        topic.is_internal,
        [_tell_partition(topic, number, node_id) for number in numbers],
        authorized_operations(broker.authorizer, context, ResourceType.TOPIC, topic.name),
    )


def _tell_partition(
    topic: ServedTopic, number: int, node_id: int
) -> DescribeTopicPartitionsResponsePartition:
    log = topic.logs[number]
    if log is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
        return DescribeTopicPartitionsResponsePartition(
            error, number, -1, -1, [node_id], [], [], [], [node_id]
        )
    return DescribeTopicPartitionsResponsePartition(
        ErrorCode.NONE, number, node_id, leader_epoch_of(log), [node_id], [node_id], [], [], []
    )
