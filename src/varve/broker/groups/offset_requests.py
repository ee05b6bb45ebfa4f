"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Invariant  the offsets of one request are committed together; a partition that cannot be committed
           has its own error. OffsetFetch returns -1 without an error where no offset was committed,
           and with `require_stable` an error, to be retried, for a partition whose offset waits for
           a transaction.
"""

from typing import Final
from uuid import UUID

from varve.broker.broker import Broker
from varve.broker.groups.committed_offsets import CommittedOffset
from varve.broker.groups.group import Group
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.topics import ServedTopic, by_topic
from varve.commit_log import TopicPartition
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    PartitionErrorCode,
)
from varve.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)

_FIRST_WITH_IDS: Final = 10
"""Of OffsetCommit and OffsetFetch."""


# OffsetCommit


async def handle_offset_commit(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    _check_commit(broker, context, request)
    response = OffsetCommitResponse()
    committed: list[PartitionErrorCode] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        results: list[PartitionErrorCode] = []
        response.topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, results))
        for requested in topic.partitions:
            result = PartitionErrorCode(requested.partition_index)
            results.append(result)
            try:
                served = _get_committed_topic(context, topic)
                _check_metadata(broker, requested.committed_metadata)
            except KafkaError as error:
                result.error_code = error.code
                continue
            partition = TopicPartition(served.name, requested.partition_index)
            offsets[partition] = _to_commit(broker, request, served, requested)
            committed.append(result)
    if offsets:
        code = await broker.groups.commit(request.group_id, offsets)
        for result in committed:
            result.error_code = code
    return response


def _check_commit(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> None:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    error = broker.groups.check_commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        version=context.version,
    )
    if error:
        raise KafkaError(error)


def _get_committed_topic(context: RequestContext, topic: OffsetCommitRequestTopic) -> ServedTopic:
    if context.version >= _FIRST_WITH_IDS:
        return context.get_topic(Operation.READ, id=topic.topic_id)
    return context.get_topic(Operation.READ, name=topic.name)


def _check_metadata(broker: Broker, metadata: str | None) -> None:
    if len(metadata or "") > broker.groups.settings.offset_metadata_max_bytes:
        raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE)


def _to_commit(
    broker: Broker,
    request: OffsetCommitRequest,
    topic: ServedTopic,
    requested: OffsetCommitRequestPartition,
) -> CommittedOffset:
    now_ms = broker.clock.now_ms()
    retention_ms = request.retention_time_ms
    return CommittedOffset(
        requested.committed_offset,
        requested.committed_leader_epoch,
        requested.committed_metadata or "",
        now_ms,
        -1 if retention_ms < 0 else now_ms + retention_ms,
        topic.id,
    )


# TxnOffsetCommit


async def handle_txn_offset_commit(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Offsets that count once the transaction is committed."""
    _check_txn_commit(broker, context, request)
    response = TxnOffsetCommitResponse()
    committed: list[PartitionErrorCode] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        results: list[PartitionErrorCode] = []
        response.topics.append(TxnOffsetCommitResponseTopic(topic.name, results))
        for requested in topic.partitions:
            result = PartitionErrorCode(requested.partition_index)
            results.append(result)
            try:
                served = context.get_topic(Operation.READ, name=topic.name)
                if not 0 <= requested.partition_index < len(served.logs):
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                _check_metadata(broker, requested.committed_metadata)
            except KafkaError as error:
                result.error_code = error.code
                continue
            partition = TopicPartition(topic.name, requested.partition_index)
            offsets[partition] = _to_commit_in_txn(broker, served, requested)
            committed.append(result)
    if offsets:
        code = await broker.groups.commit_in_transaction(
            request.group_id, request.producer_id, request.producer_epoch, offsets
        )
        for result in committed:
            result.error_code = code
    return response


def _check_txn_commit(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> None:
    transactional_id, group = request.transactional_id, request.group_id
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    context.authorize(Operation.READ, ResourceType.GROUP, group)
    # In the same turn of the loop in which the offsets are written, so that markers follow them.
    error = broker.transactions.check_produce(
        transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partition=broker.groups.log.partition_of(group),
    )
    if error is ErrorCode.NOT_ENOUGH_REPLICAS:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = error or broker.groups.check_commit(
        group,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        version=context.version,
        is_transactional=True,
    )
    if error:
        raise KafkaError(error)


def _to_commit_in_txn(
    broker: Broker, topic: ServedTopic, requested: TxnOffsetCommitRequestPartition
) -> CommittedOffset:
    return CommittedOffset(
        requested.committed_offset,
        requested.committed_leader_epoch,
        requested.committed_metadata or "",
        broker.clock.now_ms(),
        topic_id=topic.id,
    )


# OffsetFetch

_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_ERROR: Final = 2
_NO_OFFSET: Final = -1


def handle_offset_fetch(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """The offsets of one group; of several from version 8 on, and by topic id from 10 on."""
    if context.version >= _FIRST_WITH_GROUPS:
        return OffsetFetchResponse(
            groups=[_fetch_group(broker, context, request, group) for group in request.groups]
        )
    group = _fetch_group(broker, context, request, _single_group(request))
    return _single_group_response(group)


def _single_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The group of a request before version 8."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopic(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _single_group_response(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    response = OffsetFetchResponse(error_code=group.error_code)
    for topic in group.topics:
        partitions = [
            OffsetFetchResponsePartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                metadata=partition.metadata,
                error_code=partition.error_code,
            )
            for partition in topic.partitions
        ]
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return response


def _fetch_group(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    requested: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=requested.group_id)
    try:
        _check_fetch(broker, context, requested)
    except KafkaError as error:
        response.error_code = error.code
        if context.version < _FIRST_WITH_ERROR and requested.topics is not None:
            response.topics = [_failed_topic(topic, error.code) for topic in requested.topics]
        return response
    is_all = requested.topics is None
    topics = requested.topics
    for topic in _committed_topics(broker, requested.group_id) if topics is None else topics:
        try:
            name = _get_topic_name(context, topic)
        except KafkaError as error:
            if not is_all:
                response.topics.append(_failed_topic(topic, error.code))
            continue
        response.topics.append(_fetch_topic(broker, request, requested.group_id, topic, name))
    return response


def _check_fetch(
    broker: Broker, context: RequestContext, requested: OffsetFetchRequestGroup
) -> None:
    context.authorize(Operation.DESCRIBE, ResourceType.GROUP, requested.group_id)
    group = broker.groups.groups.find(requested.group_id)
    error = ErrorCode.NONE
    if group is not None:
        error = group.check_fetch(requested.member_id, requested.member_epoch)
    if error:
        raise KafkaError(error)


def _committed_topics(broker: Broker, group_id: str) -> list[OffsetFetchRequestTopic]:
    """Topics in which the group has committed offsets."""
    committed = broker.groups.offsets.of_group(group_id)
    topics = []
    for name, numbers in by_topic(
        (partition.topic, partition.partition) for partition in committed
    ).items():
        served = broker.topics.find(name)
        id = NO_ID if served is None else served.id
        topics.append(OffsetFetchRequestTopic(name, id, numbers))
    return topics


def _get_topic_name(context: RequestContext, topic: OffsetFetchRequestTopic) -> str:
    """By name also of a topic that does not exist."""
    if context.version >= _FIRST_WITH_IDS:
        return context.get_topic(Operation.DESCRIBE, id=topic.topic_id).name
    context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    return topic.name


def _failed_topic(topic: OffsetFetchRequestTopic, error: ErrorCode) -> OffsetFetchResponseTopic:
    partitions = [_no_offset(number, error) for number in topic.partition_indexes]
    return OffsetFetchResponseTopic(topic.name, topic.topic_id, partitions)


def _no_offset(partition: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition, committed_offset=_NO_OFFSET, error_code=error
    )


def _fetch_topic(
    broker: Broker,
    request: OffsetFetchRequest,
    group_id: str,
    topic: OffsetFetchRequestTopic,
    name: str,
) -> OffsetFetchResponseTopic:
    result = OffsetFetchResponseTopic(name=name, topic_id=topic.topic_id)
    for number in topic.partition_indexes:
        partition = TopicPartition(name, number)
        if request.require_stable and broker.groups.offsets.is_pending(group_id, partition):
            result.partitions.append(_no_offset(number, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        else:
            result.partitions.append(_fetch_offset(broker, group_id, partition, topic.topic_id))
    return result


def _fetch_offset(
    broker: Broker, group_id: str, partition: TopicPartition, topic_id: UUID
) -> OffsetFetchResponsePartition:
    committed = broker.groups.offsets.find(group_id, partition)
    # An offset in a topic that was deleted and recreated does not apply to the new one.
    if committed is None or len({NO_ID, topic_id, committed.topic_id}) > 2:
        return _no_offset(partition.partition)
    return OffsetFetchResponsePartition(
        partition_index=partition.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


# OffsetDelete


async def handle_offset_delete(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Removes committed offsets in topics that the group does not subscribe to."""
    group_id = request.group_id
    context.authorize(Operation.DELETE, ResourceType.GROUP, group_id)
    group = broker.groups.get_for_offset_delete(group_id)
    response = OffsetDeleteResponse()
    deleted: list[PartitionErrorCode] = []
    partitions: list[TopicPartition] = []
    for topic in request.topics:
        error = _find_delete_error(context, group, topic.name)
        results: list[PartitionErrorCode] = []
        response.topics.append(OffsetDeleteResponseTopic(topic.name, results))
        for requested in topic.partitions:
            results.append(PartitionErrorCode(requested.partition_index, error))
            if error is ErrorCode.NONE:
                deleted.append(results[-1])
                partitions.append(TopicPartition(topic.name, requested.partition_index))
    code = await broker.groups.delete_offsets(group_id, partitions)
    for result in deleted:
        result.error_code = code
    return response


def _find_delete_error(context: RequestContext, group: Group, topic: str) -> ErrorCode:
    try:
        context.get_topic(Operation.READ, name=topic)
    except KafkaError as error:
        return error.code
    if group.is_subscribed_to(topic):
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE
