"""OffsetFetch: how far groups have come; several groups from version 8 on, by topic id from 10 on.

Invariant  where no offset was committed the answer is -1 without an error. With `require_stable` a
           partition whose offset waits for a transaction is answered with an error, to be asked for
           again.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.commit_log import TopicPartition
from varve.wire import NO_ID, ErrorCode
from varve.wire.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_IDS: Final = 10
_FIRST_WITH_ERROR: Final = 2
_NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class _AskedTopic:
    """A topic as it was asked for, and its name unless the id finds none."""

    asked: OffsetFetchRequestTopics
    name: str | None


def answer_offset_fetch(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    if context.version >= _FIRST_WITH_GROUPS:
        return OffsetFetchResponse(
            groups=[_answer_group(broker, context, request, one) for one in request.groups]
        )
    return _as_one_group(_answer_group(broker, context, request, _only_group(request)))


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The group of an earlier version, as if it were one of several."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=one.name, partition_indexes=one.partition_indexes)
            for one in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _as_one_group(answered: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    response = OffsetFetchResponse(error_code=answered.error_code)
    for topic in answered.topics:
        partitions = [
            OffsetFetchResponsePartition(
                partition_index=one.partition_index,
                committed_offset=one.committed_offset,
                committed_leader_epoch=one.committed_leader_epoch,
                metadata=one.metadata,
                error_code=one.error_code,
            )
            for one in topic.partitions
        ]
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return response


def _answer_group(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    asked: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=asked.group_id)
    error = _check_group(broker, context, asked)
    if error is not ErrorCode.NONE:
        response.error_code = error
        if context.version < _FIRST_WITH_ERROR and asked.topics is not None:
            response.topics = [_refuse(one, error) for one in asked.topics]
        return response
    is_all = asked.topics is None
    for topic in _all_topics(broker, asked.group_id) if asked.topics is None else asked.topics:
        found = _find_name(broker, context, topic)
        refusal = _check_topic(broker, context, found)
        if refusal is ErrorCode.NONE:
            answered = _answer_topic(broker, asked.group_id, found, request.require_stable)
            response.topics.append(answered)
        elif not is_all:
            response.topics.append(_refuse(topic, refusal))
    return response


def _check_group(
    broker: Broker, context: RequestContext, asked: OffsetFetchRequestGroup
) -> ErrorCode:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DESCRIBE, ResourceType.GROUP, asked.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    group = broker.groups.groups.find(asked.group_id)
    if group is None:
        return ErrorCode.NONE
    return group.check_fetch(asked.member_id, asked.member_epoch)


def _all_topics(broker: Broker, group_id: str) -> list[OffsetFetchRequestTopics]:
    """Topics that the group has committed offsets of."""
    by_name: dict[str, list[int]] = {}
    for partition in broker.groups.offsets.of_group(group_id):
        by_name.setdefault(partition.topic, []).append(partition.partition)
    topics = []
    for name, partitions in sorted(by_name.items()):
        served = broker.topics.find(name)
        id = NO_ID if served is None else served.id
        topics.append(OffsetFetchRequestTopics(name, id, sorted(partitions)))
    return topics


def _find_name(
    broker: Broker, context: RequestContext, topic: OffsetFetchRequestTopics
) -> _AskedTopic:
    if context.version < _FIRST_WITH_IDS:
        return _AskedTopic(topic, topic.name)
    served = broker.topics.find_by_id(topic.topic_id)
    return _AskedTopic(topic, None if served is None else served.name)


def _check_topic(broker: Broker, context: RequestContext, topic: _AskedTopic) -> ErrorCode:
    if topic.name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _refuse(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    partitions = [_empty(one, error) for one in topic.partition_indexes]
    return OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions)


def _empty(partition: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=_NO_OFFSET, error_code=error
    )


def _answer_topic(
    broker: Broker, group_id: str, topic: _AskedTopic, require_stable: bool
) -> OffsetFetchResponseTopics:
    assert topic.name is not None
    asked = topic.asked
    answered = OffsetFetchResponseTopics(name=topic.name, topic_id=asked.topic_id)
    for number in asked.partition_indexes:
        partition = TopicPartition(topic.name, number)
        if require_stable and broker.groups.offsets.is_pending(group_id, partition):
            answered.partitions.append(_empty(number, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        else:
            answered.partitions.append(_answer(broker, group_id, partition, asked.topic_id))
    return answered


def _answer(
    broker: Broker, group_id: str, partition: TopicPartition, topic_id: UUID
) -> OffsetFetchResponsePartitions:
    committed = broker.groups.offsets.find(group_id, partition)
    # An offset of a topic that was deleted and made anew says nothing about the new one.
    if committed is None or len({NO_ID, topic_id, committed.topic_id}) > 2:
        return _empty(partition.partition)
    return OffsetFetchResponsePartitions(
        partition_index=partition.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
