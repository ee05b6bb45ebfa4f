"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and
ListTransactions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from varve.broker.answers import AnswerSize, in_turns
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.request import Operation, RequestContext, ResourceType, find_matching
from varve.broker.topics import group_by_topic
from varve.broker.transactions.transaction import BY_DISPLAY_NAME
from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages import transactions as messages

_FIRST_INIT_WITH_FENCED: Final = 4
_FIRST_WITH_FENCED: Final = 2
"""Of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""


@contextmanager
def _known_errors(context: RequestContext, *, first_with_fenced: int) -> Iterator[None]:
    """Older clients do not know PRODUCER_FENCED."""
    try:
        yield
    except KafkaError as error:
        if error.code is ErrorCode.PRODUCER_FENCED and context.version < first_with_fenced:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH) from error
        raise


# InitProducerId


async def handle_init_producer_id(
    broker: Broker, context: RequestContext, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """For a transactional id the coordinator chooses producer id and epoch, else a new id."""
    transactional_id = request.transactional_id
    try:
        if transactional_id is None:
            # It needs Write on some topic, or IdempotentWrite on the cluster.
            if not context.authorizer.is_allowed_somewhere(
                context.connection, Operation.WRITE, ResourceType.TOPIC
            ):
                context.authorize(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
            new_id = await broker.producer_ids.next_id()
            return messages.InitProducerIdResponse(producer_id=new_id)
        context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        with _known_errors(context, first_with_fenced=_FIRST_INIT_WITH_FENCED):
            transaction = await broker.transactions.init_producer(
                transactional_id,
                request.transaction_timeout_ms,
                request.producer_id,
                request.producer_epoch,
            )
    except StoreError as error:
        return messages.InitProducerIdResponse(error_code=code_for(error), producer_epoch=-1)
    return messages.InitProducerIdResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )


# AddPartitionsToTxn and AddOffsetsToTxn


async def handle_add_partitions_to_txn(
    broker: Broker, context: RequestContext, request: messages.AddPartitionsToTxnRequest
) -> messages.AddPartitionsToTxnResponse:
    """Adds all partitions, or none if one of them cannot be added."""
    transactional_id = request.v3_and_below_transactional_id
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    partitions: set[TopicPartition] = set()
    response = messages.AddPartitionsToTxnResponse()
    async for topic in in_turns(request.v3_and_below_topics):
        results = [
            messages.AddPartitionsToTxnPartitionResult(partition_index=number)
            for number in topic.partitions
        ]
        response.results_by_topic_v3_and_below.append(
            messages.AddPartitionsToTxnTopicResult(topic.name, results)
        )
        async for result in in_turns(results):
            with reporting(result):
                served = context.get_topic(Operation.WRITE, name=topic.name)
                if not served.is_written_by_clients:
                    # AddOffsetsToTxn adds the partition of a group.
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if not 0 <= result.partition_index < len(served.logs):
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                partitions.add(TopicPartition(topic.name, result.partition_index))
    every_result = [
        result
        for topic_result in response.results_by_topic_v3_and_below
        for result in topic_result.results_by_partition
    ]
    if any(result.partition_error_code for result in every_result):
        for result in every_result:
            result.partition_error_code = (
                result.partition_error_code or ErrorCode.OPERATION_NOT_ATTEMPTED
            )
        return response
    with _known_errors(context, first_with_fenced=_FIRST_WITH_FENCED):
        await broker.transactions.add_partitions(
            transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            frozenset(partitions),
        )
    return response


async def handle_add_offsets_to_txn(
    broker: Broker, context: RequestContext, request: messages.AddOffsetsToTxnRequest
) -> messages.AddOffsetsToTxnResponse:
    """Adds the partition that holds the group's committed offsets."""
    transactional_id = request.transactional_id
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    with _known_errors(context, first_with_fenced=_FIRST_WITH_FENCED):
        await broker.transactions.add_offsets(
            transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
    return messages.AddOffsetsToTxnResponse()


# EndTxn


async def handle_end_txn(
    broker: Broker, context: RequestContext, request: messages.EndTxnRequest
) -> messages.EndTxnResponse:
    id = request.transactional_id
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, id)
    with _known_errors(context, first_with_fenced=_FIRST_WITH_FENCED):
        await broker.transactions.end(
            id, request.producer_id, request.producer_epoch, is_commit=request.committed
        )
    return messages.EndTxnResponse()


# DescribeTransactions and ListTransactions


async def handle_describe_transactions(
    broker: Broker, context: RequestContext, request: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    described = []
    size = AnswerSize(broker, context)
    async for transactional_id in in_turns(dict.fromkeys(request.transactional_ids)):
        result = messages.DescribedTransaction(transactional_id=transactional_id)
        described.append(result)
        with reporting(result):
            _describe(broker, context, result)
        size.add(result)
    return messages.DescribeTransactionsResponse(transaction_states=described)


def _describe(
    broker: Broker, context: RequestContext, result: messages.DescribedTransaction
) -> None:
    transactional_id = result.transactional_id
    context.authorize(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    transaction = broker.transactions.find(transactional_id)
    if transaction is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    result.transaction_state = transaction.status.display_name
    result.transaction_timeout_ms = transaction.timeout_ms
    result.transaction_start_time_ms = transaction.start_ms
    result.producer_id = transaction.producer_id
    result.producer_epoch = transaction.producer_epoch
    for topic, numbers in group_by_topic(transaction.partitions).items():
        if context.is_authorized(Operation.DESCRIBE, ResourceType.TOPIC, topic):
            result.topics.append(messages.TopicData(topic=topic, partitions=numbers))


async def handle_list_transactions(
    broker: Broker, context: RequestContext, request: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    """Those that match all filters; an empty filter matches all."""
    names, producer_ids = request.state_filters, frozenset(request.producer_id_filters)
    statuses = {BY_DISPLAY_NAME.get(name) for name in names}
    duration_ms, now_ms = request.duration_filter, broker.clock.now_ms()
    listed = [
        transaction
        for transaction in broker.transactions.list_transactions()
        if (not names or transaction.status in statuses)
        and (not producer_ids or transaction.producer_id in producer_ids)
        and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
    ]
    if request.transactional_id_pattern:
        ids = [transaction.transactional_id for transaction in listed]
        pattern = request.transactional_id_pattern
        matching = await broker.blocking.run(find_matching, pattern, ids)
        listed = [listing for listing in listed if listing.transactional_id in matching]
    return messages.ListTransactionsResponse(
        unknown_state_filters=[name for name in names if name not in BY_DISPLAY_NAME],
        transaction_states=[
            messages.ListedTransaction(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.status.display_name,
            )
            for transaction in listed
            if context.is_authorized(
                Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
            )
        ],
    )
