"""DescribeProducers: who writes to partitions, and since when transactions are open in them."""

from typing import Final

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic
from varve.commit_log.producer_entry import ProducerEntry
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

_NONE: Final = -1


def answer_describe_producers(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers that each log knows."""
    return DescribeProducersResponse(
        topics=[_answer_topic(broker, context, one) for one in request.topics]
    )


def _answer_topic(
    broker: Broker, context: RequestContext, asked: DescribeProducersTopic
) -> TopicResponse:
    topic = broker.topics.find(asked.name)
    error = ErrorCode.NONE
    if not broker.authorizer.is_allowed(context, Operation.READ, ResourceType.TOPIC, asked.name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicResponse(
        asked.name,
        [
            PartitionResponse(number, error)
            if error or topic is None
            else _answer_partition(topic, number)
            for number in asked.partition_indexes
        ],
    )


def _answer_partition(topic: ServedTopic, number: int) -> PartitionResponse:
    log = topic.find_log(number)
    if log is None:
        return PartitionResponse(number, topic.why_missing(number))
    return PartitionResponse(
        number, ErrorCode.NONE, None, [_tell(one) for one in log.producer_entries()]
    )


def _tell(entry: ProducerEntry) -> ProducerState:
    first_offset = entry.transaction_first_offset
    return ProducerState(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_timestamp,
        entry.coordinator_epoch,
        _NONE if first_offset is None else first_offset,
    )
