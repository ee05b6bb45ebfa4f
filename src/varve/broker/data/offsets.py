"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers.

Invariant  ListOffsets answers -1 without an error where there is no such offset.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple, TypeVar

from varve.broker.answers import AnswerSize, in_turns
from varve.broker.background import wait_with_timeout
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.request import Operation, RequestContext
from varve.broker.topics import ServedTopic, current_leader_epoch, epoch_at
from varve.commit_log import Log, TimestampOffset
from varve.commit_log.producer_state import ProducerStateEntry
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import data as messages

T = TypeVar("T")

_FIRST_WITH_TIMEOUT: Final = 10
_DEFAULT_TIMEOUT_MS: Final = 30_000
_READ_COMMITTED: Final = 1
_CONSUMER_REPLICA_ID: Final = -1
_NO_OFFSET: Final = -1


# ListOffsets


class SpecialTime(IntEnum):
    """Timestamps below 0 that name a position in the log, by Kafka's numbers."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


_FIRST_VERSIONS: Final[dict[int, int]] = {
    SpecialTime.LATEST: 1,
    SpecialTime.EARLIEST: 1,
    SpecialTime.MAX_TIMESTAMP: 7,
    SpecialTime.EARLIEST_LOCAL: 8,
    SpecialTime.LATEST_TIERED: 9,
    SpecialTime.EARLIEST_PENDING_UPLOAD: 11,
}


class _OffsetAtTime(NamedTuple):
    offset: int = _NO_OFFSET
    epoch: int = -1
    timestamp: int = -1


_NOT_FOUND: Final = _OffsetAtTime()


async def handle_list_offsets(
    broker: Broker, context: RequestContext, request: messages.ListOffsetsRequest
) -> messages.ListOffsetsResponse:
    """One offset for each requested partition; lookups on disk run concurrently."""
    listing = _OffsetListing(broker, context, request)
    return messages.ListOffsetsResponse(
        topics=[await listing.list_topic(topic) async for topic in in_turns(request.topics)]
    )


class _OffsetListing:
    """One ListOffsets request in progress."""

    def __init__(
        self, broker: Broker, context: RequestContext, request: messages.ListOffsetsRequest
    ) -> None:
        self._broker = broker
        self._context = context
        self._is_committed = request.isolation_level == _READ_COMMITTED
        self._is_consumer = request.replica_id == _CONSUMER_REPLICA_ID
        has_timeout = context.version >= _FIRST_WITH_TIMEOUT and request.timeout_ms > 0
        self._timeout_ms = request.timeout_ms if has_timeout else _DEFAULT_TIMEOUT_MS
        self._counts = Counter(
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )

    async def list_topic(
        self, requested: messages.ListOffsetsTopic
    ) -> messages.ListOffsetsTopicResponse:
        results = [
            messages.ListOffsetsPartitionResponse(partition.partition_index)
            for partition in requested.partitions
        ]
        lookups: list[Awaitable[None]] = []
        async for partition, result in in_turns(zip(requested.partitions, results, strict=True)):
            with reporting(result):
                topic = self._context.get_topic(Operation.DESCRIBE, name=requested.name)
                lookup = self._list_partition(topic, partition, result)
                if lookup is not None:
                    lookups.append(lookup)
        await asyncio.gather(*lookups)
        return messages.ListOffsetsTopicResponse(requested.name, results)

    def _list_partition(
        self,
        topic: ServedTopic,
        requested: messages.ListOffsetsPartition,
        result: messages.ListOffsetsPartitionResponse,
    ) -> Awaitable[None] | None:
        """Fills in the result now, or returns what will do so."""
        log = self._get_log(topic, requested)
        find: Callable[[], Awaitable[_OffsetAtTime]]
        match requested.timestamp:
            case SpecialTime.LATEST:
                _fill(result, _OffsetAtTime(self._limit(log), current_leader_epoch(log)))
                return None
            case SpecialTime.EARLIEST:
                _fill(result, _at(log, log.log_start_offset))
                return None
            case SpecialTime.EARLIEST_LOCAL:
                _fill(result, _at(log, max(log.log_start_offset, log.local_start_offset)))
                return None
            case SpecialTime.LATEST_TIERED | SpecialTime.EARLIEST_PENDING_UPLOAD as timestamp:
                find = partial(self._find_tiered, topic, log, timestamp)
            case SpecialTime.MAX_TIMESTAMP:
                find = partial(self._find_record, log, log.find_max_timestamp)
            case timestamp:
                by_time = partial(log.find_offset_by_time, timestamp)
                find = partial(self._find_record, log, by_time)
        return _look_up(find, result)

    def _get_log(self, topic: ServedTopic, requested: messages.ListOffsetsPartition) -> Log:
        if self._counts[topic.name, requested.partition_index] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if requested.timestamp < 0:
            first_version = _FIRST_VERSIONS.get(requested.timestamp)
            if first_version is None or self._context.version < first_version:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        return topic.get_log(requested.partition_index, leader_epoch=requested.current_leader_epoch)

    def _limit(self, log: Log) -> int:
        if not self._is_consumer:
            return log.end_offset
        return log.last_stable_offset if self._is_committed else log.high_watermark

    async def _run(self, work: Callable[[], T]) -> T:
        """Off the loop, up to the timeout of the request."""
        running = self._broker.blocking.run(work)
        return await wait_with_timeout(self._broker.timers, running, self._timeout_ms)

    async def _find_record(
        self, log: Log, find: Callable[[], TimestampOffset | None]
    ) -> _OffsetAtTime:
        record = await self._run(find)
        if record is None or record.offset >= self._limit(log):
            return _NOT_FOUND
        return _OffsetAtTime(record.offset, epoch_at(log, record.offset), record.timestamp)

    async def _find_tiered(self, topic: ServedTopic, log: Log, timestamp: int) -> _OffsetAtTime:
        """By the first offset that is not in object storage; none if the topic is not tiered."""
        if not topic.settings.remote_storage_enable:
            return _NOT_FOUND
        tier = self._broker.store.tier
        status = await self._run(partial(tier.status, log.topic_partition))
        copied = status.copied_offset or 0
        if timestamp == SpecialTime.EARLIEST_PENDING_UPLOAD:
            return _at(log, max(log.log_start_offset, copied))
        if copied <= log.log_start_offset:
            return _NOT_FOUND
        return _at(log, copied - 1)


async def _look_up(
    find: Callable[[], Awaitable[_OffsetAtTime]], result: messages.ListOffsetsPartitionResponse
) -> None:
    with reporting(result):
        _fill(result, await find())


def _at(log: Log, offset: int) -> _OffsetAtTime:
    return _OffsetAtTime(offset, epoch_at(log, offset))


def _fill(result: messages.ListOffsetsPartitionResponse, position: _OffsetAtTime) -> None:
    result.offset, result.leader_epoch, result.timestamp = position


# OffsetForLeaderEpoch


async def handle_offset_for_leader_epoch(
    broker: Broker, context: RequestContext, request: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    """The largest known epoch up to the requested one, and its end offset. KIP-101."""
    response = messages.OffsetForLeaderEpochResponse()
    async for topic in in_turns(request.topics):
        results = [
            messages.LeaderEpochEndOffset(partition=item.partition) for item in topic.partitions
        ]
        response.topics.append(messages.OffsetForLeaderTopicResult(topic.topic, results))
        async for requested, result in in_turns(zip(topic.partitions, results, strict=True)):
            with reporting(result):
                served = context.get_topic(Operation.DESCRIBE, name=topic.topic)
                result.leader_epoch, result.end_offset = _find_epoch_end(served, requested)
    return response


def _find_epoch_end(
    topic: ServedTopic, requested: messages.OffsetForLeaderPartition
) -> tuple[int, int]:
    log = topic.get_log(requested.partition, leader_epoch=requested.current_leader_epoch)
    if requested.leader_epoch == current_leader_epoch(log):
        return requested.leader_epoch, log.end_offset
    return log.end_offset_for_epoch(requested.leader_epoch) or (-1, _NO_OFFSET)


# DeleteRecords


async def handle_delete_records(
    broker: Broker, context: RequestContext, request: messages.DeleteRecordsRequest
) -> messages.DeleteRecordsResponse:
    """Deletes records before an offset, -1 for the high watermark; durable in the response.

    A partition that is named twice keeps its records.
    """
    response = messages.DeleteRecordsResponse()
    counts = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    deletions: list[Awaitable[None]] = []
    async for topic in in_turns(request.topics):
        results = [
            messages.DeleteRecordsPartitionResult(partition.partition_index, _NO_OFFSET)
            for partition in topic.partitions
        ]
        response.topics.append(messages.DeleteRecordsTopicResult(topic.name, results))
        async for partition, result in in_turns(zip(topic.partitions, results, strict=True)):
            with reporting(result):
                served = context.get_topic(Operation.DELETE, name=topic.name)
                if not served.is_written_by_clients:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                if counts[topic.name, result.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                log = served.get_log(result.partition_index)
                deletions.append(
                    _delete_until(broker, log, partition.offset, result, request.timeout_ms)
                )
    await asyncio.gather(*deletions)
    return response


async def _delete_until(
    broker: Broker,
    log: Log,
    offset: int,
    result: messages.DeleteRecordsPartitionResult,
    timeout_ms: int,
) -> None:
    with reporting(result):
        work = broker.blocking.run(log.delete_records, offset)
        work.add_done_callback(lambda _: broker.parked_fetches.wake(log.topic_partition))
        # As in Kafka, a timeout of 0 does not keep the leader itself from deleting.
        is_bounded = timeout_ms > 0
        result.low_watermark = await (
            wait_with_timeout(broker.timers, work, timeout_ms) if is_bounded else work
        )


# DescribeProducers


async def handle_describe_producers(
    broker: Broker, context: RequestContext, request: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """The producers that each log knows, and their open transactions."""
    response = messages.DescribeProducersResponse()
    size = AnswerSize(broker, context)
    numbers: dict[str, list[int]] = {}
    for topic in request.topics:
        numbers.setdefault(topic.name, []).extend(topic.partition_indexes)
    async for name, requested in in_turns(numbers.items()):
        results = [messages.PartitionResponse(number) for number in dict.fromkeys(requested)]
        response.topics.append(messages.TopicResponse(name, results))
        async for result in in_turns(results):
            with reporting(result):
                served = context.get_topic(Operation.READ, name=name)
                log = served.get_log(result.partition_index)
                result.active_producers = [
                    _producer_state(entry) for entry in log.producer_entries()
                ]
            size.add(result)
    return response


def _producer_state(entry: ProducerStateEntry) -> messages.ProducerState:
    first_offset = entry.transaction_first_offset
    return messages.ProducerState(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_timestamp,
        entry.coordinator_epoch,
        _NO_OFFSET if first_offset is None else first_offset,
    )
