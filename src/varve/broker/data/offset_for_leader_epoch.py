"""OffsetForLeaderEpoch: where an epoch ended, for clients that were away meanwhile. KIP-101."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic, check_leader_epoch, leader_epoch_of
from varve.commit_log import Log
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    LeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


def answer_offset_for_leader_epoch(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """The largest epoch known up to the one asked for, and the offset behind it."""
    return OffsetForLeaderEpochResponse(
        topics=[_answer_topic(broker, context, one) for one in request.topics]
    )


def _answer_topic(
    broker: Broker, context: RequestContext, asked: OffsetForLeaderTopic
) -> OffsetForLeaderTopicResult:
    topic = broker.topics.find(asked.topic)
    error = ErrorCode.NONE
    if not broker.authorizer.is_allowed(
        context, Operation.DESCRIBE, ResourceType.TOPIC, asked.topic
    ):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetForLeaderTopicResult(
        asked.topic,
        [
            LeaderEpochEndOffset(error, one.partition)
            if error or topic is None
            else _answer_partition(topic, one)
            for one in asked.partitions
        ],
    )


def _answer_partition(topic: ServedTopic, asked: OffsetForLeaderPartition) -> LeaderEpochEndOffset:
    log = topic.find_log(asked.partition)
    if log is None:
        return LeaderEpochEndOffset(topic.why_missing(asked.partition), asked.partition)
    error = check_leader_epoch(log, asked.current_leader_epoch)
    if error:
        return LeaderEpochEndOffset(error, asked.partition)
    epoch, end_offset = _find_end(log, asked.leader_epoch)
    return LeaderEpochEndOffset(ErrorCode.NONE, asked.partition, epoch, end_offset)


def _find_end(log: Log, epoch: int) -> tuple[int, int]:
    if epoch == leader_epoch_of(log):
        return epoch, log.end_offset
    return log.end_offset_for_epoch(epoch) or (-1, -1)
