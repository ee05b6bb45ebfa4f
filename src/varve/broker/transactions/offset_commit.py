"""TxnOffsetCommit: how far a group has come, if the transaction is committed."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.offsets import CommittedOffset
from varve.broker.security.rights import Operation, ResourceType
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode
from varve.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


async def answer_offset_commit(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Offsets of one request are written together; those that may not be are told apart."""
    refusal = _refuse(broker, context, request)
    response = TxnOffsetCommitResponse()
    waiting: list[TxnOffsetCommitResponsePartition] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        topic_refusal = refusal or _refuse_topic(broker, context, topic)
        answered = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answered)
        for one in topic.partitions:
            code = topic_refusal or _refuse_partition(broker, topic.name, one)
            part = TxnOffsetCommitResponsePartition(one.partition_index, code)
            answered.partitions.append(part)
            if code is ErrorCode.NONE:
                partition = TopicPartition(topic.name, one.partition_index)
                offsets[partition] = _committed(broker, topic.name, one)
                waiting.append(part)
    if offsets:
        code = await broker.groups.commit_in_transaction(
            request.group_id, request.producer_id, request.producer_epoch, offsets
        )
        for part in waiting:
            part.error_code = code
    return response


def _refuse(broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode:
    allows = broker.authorizer.is_allowed
    transactional_id, group = request.transactional_id, request.group_id
    if not allows(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not allows(context, Operation.READ, ResourceType.GROUP, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    # In the turn of the loop in which the offsets are written: markers stand behind them.
    error = broker.transactions.check_produce(
        transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partition=broker.groups.log.partition_of(group),
    )
    if error is ErrorCode.NOT_ENOUGH_REPLICAS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error or broker.groups.check_commit(
        group,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        version=context.version,
        is_transactional=True,
    )


def _refuse_topic(
    broker: Broker, context: RequestContext, topic: TxnOffsetCommitRequestTopic
) -> ErrorCode:
    if not broker.authorizer.is_allowed(context, Operation.READ, ResourceType.TOPIC, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _refuse_partition(
    broker: Broker, topic: str, one: TxnOffsetCommitRequestPartition
) -> ErrorCode:
    served = broker.topics.find(topic)
    if served is None or not 0 <= one.partition_index < len(served.logs):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(one.committed_metadata or "") > broker.groups.settings.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(broker: Broker, topic: str, one: TxnOffsetCommitRequestPartition) -> CommittedOffset:
    served = broker.topics.find(topic)
    assert served is not None
    return CommittedOffset(
        one.committed_offset,
        one.committed_leader_epoch,
        one.committed_metadata or "",
        broker.clock.now_ms(),
        topic_id=served.id,
    )
