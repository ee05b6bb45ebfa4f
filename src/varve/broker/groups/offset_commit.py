"""OffsetCommit: how far a group has come; by topic id from version 10 on."""

from collections.abc import Callable
from typing import Final

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.offsets import CommittedOffset
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_WITH_IDS: Final = 10


async def answer_offset_commit(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Offsets of one request are committed together; those that may not be are told apart."""
    error = _check_group(broker, context, request)
    response = OffsetCommitResponse()
    waiting: list[OffsetCommitResponsePartition] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        served, refusal = _find_topic(broker, context, topic)
        answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answered)
        for one in topic.partitions:
            code = error or refusal or _check_metadata(broker, one)
            answered.partitions.append(OffsetCommitResponsePartition(one.partition_index, code))
            if code is ErrorCode.NONE and served is not None:
                partition = TopicPartition(served.name, one.partition_index)
                offsets[partition] = _committed(broker, request, served, one)
                waiting.append(answered.partitions[-1])
    if offsets:
        code = await broker.groups.commit(request.group_id, offsets)
        for part in waiting:
            part.error_code = code
    return response


def _check_group(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> ErrorCode:
    group = request.group_id
    if not broker.authorizer.is_allowed(context, Operation.READ, ResourceType.GROUP, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return broker.groups.check_commit(
        group,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        version=context.version,
    )


def _find_topic(
    broker: Broker, context: RequestContext, topic: OffsetCommitRequestTopic
) -> tuple[ServedTopic | None, ErrorCode]:
    """A topic, or why its offsets cannot be committed."""
    may: Callable[..., bool] = broker.authorizer.is_allowed
    if context.version >= _FIRST_WITH_IDS:
        served = broker.topics.find_by_id(topic.topic_id)
        if served is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        if not may(context, Operation.READ, ResourceType.TOPIC, served.name):
            return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return served, ErrorCode.NONE
    if not may(context, Operation.READ, ResourceType.TOPIC, topic.name):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    served = broker.topics.find(topic.name)
    if served is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return served, ErrorCode.NONE


def _check_metadata(broker: Broker, one: OffsetCommitRequestPartition) -> ErrorCode:
    size_max = broker.groups.settings.offset_metadata_max_bytes
    if len(one.committed_metadata or "") > size_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(
    broker: Broker,
    request: OffsetCommitRequest,
    topic: ServedTopic,
    one: OffsetCommitRequestPartition,
) -> CommittedOffset:
    now_ms = broker.clock.now_ms()
    retention_ms = request.retention_time_ms
    return CommittedOffset(
        one.committed_offset,
        one.committed_leader_epoch,
        one.committed_metadata or "",
        now_ms,
        -1 if retention_ms < 0 else now_ms + retention_ms,
        topic.id,
    )
