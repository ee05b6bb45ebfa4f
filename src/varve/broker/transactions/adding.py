"""AddPartitionsToTxn and AddOffsetsToTxn: what a transaction reaches to, before it is written."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.transactions.codes import code_for
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode
from varve.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)


async def answer_add_partitions(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """All partitions are added or none: one that may not be keeps the others out."""
    topics = request.v3_and_below_topics
    if not broker.authorizer.is_allowed(
        context,
        Operation.WRITE,
        ResourceType.TRANSACTIONAL_ID,
        request.v3_and_below_transactional_id,
    ):
        return _tell_all(topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    refused = _refused(broker, context, topics)
    if refused:
        return _tell(topics, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    error = await broker.transactions.add_partitions(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        frozenset(
            TopicPartition(topic.name, number) for topic in topics for number in topic.partitions
        ),
    )
    return _tell_all(topics, code_for(error, context.version))


def _refused(
    broker: Broker, context: RequestContext, topics: list[AddPartitionsToTxnTopic]
) -> dict[TopicPartition, ErrorCode]:
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in topics:
        is_allowed = broker.authorizer.is_allowed(
            context, Operation.WRITE, ResourceType.TOPIC, topic.name
        )
        found = broker.topics.find(topic.name)
        count = 0 if found is None else len(found.logs)
        for number in topic.partitions:
            if not is_allowed:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= number < count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                continue
            refused[TopicPartition(topic.name, number)] = error
    return refused


def _tell_all(
    topics: list[AddPartitionsToTxnTopic], error: ErrorCode
) -> AddPartitionsToTxnResponse:
    return _tell(topics, {}, error)


def _tell(
    topics: list[AddPartitionsToTxnTopic],
    errors: dict[TopicPartition, ErrorCode],
    others: ErrorCode,
) -> AddPartitionsToTxnResponse:
    """The error of each partition; `others` for those that have none of their own."""
    results = [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number,
                    partition_error_code=errors.get(TopicPartition(topic.name, number), others),
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def answer_add_offsets(
    broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Adds the partition in which the group's offsets are kept."""
    allows = broker.authorizer.is_allowed
    transactional_id, group = request.transactional_id, request.group_id
    if not allows(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not allows(context, Operation.READ, ResourceType.GROUP, group):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        error = await broker.transactions.add_offsets(
            transactional_id, request.producer_id, request.producer_epoch, group
        )
    return AddOffsetsToTxnResponse(error_code=code_for(error, context.version))
