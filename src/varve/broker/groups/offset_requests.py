"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Invariant  the offsets of one request are committed together; a partition that cannot be committed
           has its own error. OffsetFetch returns -1 without an error where no offset was committed,
           and with `require_stable` an error, to be retried, for a partition whose offset waits for
           a transaction.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from varve.broker.answers import AnswerSize, in_turns
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.groups.committed_offsets import Commits, CommittedOffset
from varve.broker.groups.group import Committer
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.topics import ServedTopic, group_by_topic
from varve.commit_log import TopicPartition
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import groups as messages
from varve.wire.messages import transactions

_FIRST_WITH_IDS: Final = 10
"""Of OffsetCommit and OffsetFetch."""


class _RequestedCommits:
    """The partitions of a commit request that may be committed, and their results."""

    def __init__(self, broker: Broker) -> None:
        self._metadata_bytes_max = broker.groups.settings.offset_metadata_max_bytes
        self._now_ms = broker.clock.now_ms()
        self._accepted: list[messages.PartitionErrorCode] = []
        self.offsets: dict[TopicPartition, CommittedOffset] = {}

    def add_topic(
        self,
        partitions: Sequence[
            messages.OffsetCommitRequestPartition | transactions.TxnOffsetCommitRequestPartition
        ],
        get_topic: Callable[[], ServedTopic],
        *,
        retention_ms: int = -1,
        needs_partition: bool = False,
    ) -> list[messages.PartitionErrorCode]:
        """The results of the partitions of a topic; with its error where it cannot be had."""
        results = [
            messages.PartitionErrorCode(partition.partition_index) for partition in partitions
        ]
        for partition, result in zip(partitions, results, strict=True):
            number, metadata = partition.partition_index, partition.committed_metadata or ""
            with reporting(result):
                topic = get_topic()
                if needs_partition and not 0 <= number < len(topic.logs):
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if len(metadata) > self._metadata_bytes_max:
                    raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                self.offsets[TopicPartition(topic.name, number)] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    self._now_ms,
                    -1 if retention_ms < 0 else self._now_ms + retention_ms,
                    topic.id,
                )
                self._accepted.append(result)
        return results

    async def finish(self, committing: Callable[[Commits], Awaitable[None]]) -> None:
        """Commits the offsets together; all results have the error of that."""
        if self.offsets:
            with reporting(*self._accepted):
                await committing(self.offsets)


# OffsetCommit


async def handle_offset_commit(
    broker: Broker, context: RequestContext, request: messages.OffsetCommitRequest
) -> messages.OffsetCommitResponse:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    client = Committer(
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        version=context.version,
    )
    broker.groups.check_commit(request.group_id, client)
    commits = _RequestedCommits(broker)
    response = messages.OffsetCommitResponse()
    for topic in request.topics:
        by_id = context.version >= _FIRST_WITH_IDS
        key = {"id": topic.topic_id} if by_id else {"name": topic.name}
        results = commits.add_topic(
            topic.partitions,
            partial(context.get_topic, Operation.READ, **key),
            retention_ms=request.retention_time_ms,
        )
        response.topics.append(
            messages.OffsetCommitResponseTopic(topic.name, topic.topic_id, results)
        )
    await commits.finish(partial(broker.groups.commit, request.group_id))
    return response


# TxnOffsetCommit


async def handle_txn_offset_commit(
    broker: Broker, context: RequestContext, request: transactions.TxnOffsetCommitRequest
) -> transactions.TxnOffsetCommitResponse:
    """Offsets that count once the transaction is committed."""
    _check_txn_commit(broker, context, request)
    commits = _RequestedCommits(broker)
    response = transactions.TxnOffsetCommitResponse()
    for topic in request.topics:
        get_topic = partial(context.get_topic, Operation.READ, name=topic.name)
        results = commits.add_topic(topic.partitions, get_topic, needs_partition=True)
        response.topics.append(transactions.TxnOffsetCommitResponseTopic(topic.name, results))
    await commits.finish(
        partial(
            broker.groups.commit_in_transaction,
            request.group_id,
            request.producer_id,
            request.producer_epoch,
        )
    )
    return response


def _check_txn_commit(
    broker: Broker, context: RequestContext, request: transactions.TxnOffsetCommitRequest
) -> None:
    transactional_id, group = request.transactional_id, request.group_id
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    context.authorize(Operation.READ, ResourceType.GROUP, group)
    # In the same turn of the loop in which the offsets are written, so that markers follow them.
    error = broker.transactions.check_produce(
        transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partition=broker.groups.log.topic.partition_of(group),
    )
    if error is ErrorCode.NOT_ENOUGH_REPLICAS:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error:
        raise KafkaError(error)
    client = Committer(
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        version=context.version,
        is_transactional=True,
    )
    broker.groups.check_commit(group, client)


# OffsetFetch

_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_ERROR: Final = 2
_NO_OFFSET: Final = -1


async def handle_offset_fetch(
    broker: Broker, context: RequestContext, request: messages.OffsetFetchRequest
) -> messages.OffsetFetchResponse:
    """The offsets of one group; of several from version 8 on, and by topic id from 10 on.

    A group that is named several times is answered once, with an error.
    """
    if context.version >= _FIRST_WITH_GROUPS:
        counts = Counter(group.group_id for group in request.groups)
        unique = {group.group_id: group for group in request.groups}
        response = messages.OffsetFetchResponse()
        size = AnswerSize(broker, context)
        async for requested in in_turns(unique.values()):
            if counts[requested.group_id] > 1:
                group = messages.OffsetFetchResponseGroup(
                    requested.group_id, error_code=ErrorCode.INVALID_REQUEST
                )
            else:
                group = await _fetch_group(broker, context, request, requested)
            size.add(group)
            response.groups.append(group)
        return response
    only = messages.OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)
    group = await _fetch_group(broker, context, request, only)
    if group.error_code and context.version < _FIRST_WITH_ERROR:
        group.topics = [_failed_topic(topic, group.error_code) for topic in request.topics or ()]
    return messages.OffsetFetchResponse(topics=group.topics, error_code=group.error_code)


async def _fetch_group(
    broker: Broker,
    context: RequestContext,
    request: messages.OffsetFetchRequest,
    requested: messages.OffsetFetchRequestGroup,
) -> messages.OffsetFetchResponseGroup:
    response = messages.OffsetFetchResponseGroup(group_id=requested.group_id)
    with reporting(response):
        context.authorize(Operation.DESCRIBE, ResourceType.GROUP, requested.group_id)
        group = broker.groups.groups.find(requested.group_id)
        if group is not None:
            group.check_fetch(requested.member_id, requested.member_epoch)
        topics = requested.topics
        if topics is None:
            topics = _committed_topics(broker, requested.group_id)
        async for topic in in_turns(topics):
            try:
                fetched = await _fetch_topic(broker, context, request, requested.group_id, topic)
            except KafkaError as error:
                if requested.topics is None:
                    continue
                fetched = _failed_topic(topic, error.code)
            response.topics.append(fetched)
    return response


def _committed_topics(broker: Broker, group_id: str) -> list[messages.OffsetFetchRequestTopic]:
    """Topics in which the group has committed offsets."""
    committed = broker.groups.offsets.of_group(group_id)
    topics = []
    for name, numbers in group_by_topic(committed).items():
        served = broker.topics.find(name)
        id = NO_ID if served is None else served.id
        topics.append(messages.OffsetFetchRequestTopic(name, id, numbers))
    return topics


def _failed_topic(
    topic: messages.OffsetFetchRequestTopic, error: int
) -> messages.OffsetFetchResponseTopic:
    partitions = [_no_offset(number, error) for number in topic.partition_indexes]
    return messages.OffsetFetchResponseTopic(topic.name, topic.topic_id, partitions)


def _no_offset(
    partition: int, error: int = ErrorCode.NONE
) -> messages.OffsetFetchResponsePartition:
    return messages.OffsetFetchResponsePartition(
        partition_index=partition, committed_offset=_NO_OFFSET, error_code=error
    )


async def _fetch_topic(
    broker: Broker,
    context: RequestContext,
    request: messages.OffsetFetchRequest,
    group_id: str,
    topic: messages.OffsetFetchRequestTopic,
) -> messages.OffsetFetchResponseTopic:
    """By name also of a topic that does not exist."""
    name = topic.name
    if context.version >= _FIRST_WITH_IDS:
        name = context.get_topic(Operation.DESCRIBE, id=topic.topic_id).name
    else:
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, name)
    result = messages.OffsetFetchResponseTopic(name=name, topic_id=topic.topic_id)
    async for number in in_turns(topic.partition_indexes):
        partition = TopicPartition(name, number)
        if request.require_stable and broker.groups.offsets.is_pending(group_id, partition):
            result.partitions.append(_no_offset(number, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        else:
            result.partitions.append(_fetch_offset(broker, group_id, partition, topic.topic_id))
    return result


def _fetch_offset(
    broker: Broker, group_id: str, partition: TopicPartition, topic_id: UUID
) -> messages.OffsetFetchResponsePartition:
    committed = broker.groups.offsets.find(group_id, partition)
    # An offset in a topic that was deleted and recreated does not apply to the new one.
    if committed is None or len({NO_ID, topic_id, committed.topic_id}) > 2:
        return _no_offset(partition.partition)
    return messages.OffsetFetchResponsePartition(
        partition_index=partition.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


# OffsetDelete


async def handle_offset_delete(
    broker: Broker, context: RequestContext, request: messages.OffsetDeleteRequest
) -> messages.OffsetDeleteResponse:
    """Removes committed offsets in topics that the group does not subscribe to."""
    group_id = request.group_id
    context.authorize(Operation.DELETE, ResourceType.GROUP, group_id)
    group = broker.groups.get_for_offset_delete(group_id)
    response = messages.OffsetDeleteResponse()
    deleted: dict[TopicPartition, messages.PartitionErrorCode] = {}
    for topic in request.topics:
        results = [
            messages.PartitionErrorCode(partition.partition_index) for partition in topic.partitions
        ]
        response.topics.append(messages.OffsetDeleteResponseTopic(topic.name, results))
        with reporting(*results):
            context.get_topic(Operation.READ, name=topic.name)
            if group.is_subscribed_to(topic.name):
                raise KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            for result in results:
                deleted[TopicPartition(topic.name, result.partition_index)] = result
    with reporting(*deleted.values()):
        await broker.groups.delete_offsets(group_id, list(deleted))
    return response
