"""ListOffsets: the first, the last and other offsets of partitions, by name or by time.

Invariant  an offset that is not there is -1 and no error.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final, NamedTuple

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.data.within import within
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic, check_leader_epoch, epoch_at, leader_epoch_of
from varve.commit_log import Log, TimestampOffset
from varve.embedded import Store
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.data import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

_FIRST_WITH_TIMEOUT: Final = 10
_TIMEOUT_MS: Final = 30_000
"""For those who name none."""
_READ_COMMITTED: Final = 1
_CONSUMER: Final = -1


class SpecialTime(IntEnum):
    """Times that are none, by Kafka's numbers."""

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


class _Found(NamedTuple):
    offset: int = -1
    epoch: int = -1
    timestamp: int = -1


_NOTHING: Final = _Found()


async def answer_list_offsets(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """One offset for each partition asked for; what must be looked up is looked up at once."""
    listing = _Listing(broker, context, request)
    return ListOffsetsResponse(topics=[await listing.answer_topic(one) for one in request.topics])


class _Listing:
    """One request under way."""

    def __init__(
        self, broker: Broker, context: RequestContext, request: ListOffsetsRequest
    ) -> None:
        self._broker = broker
        self._context = context
        self._is_committed = request.isolation_level == _READ_COMMITTED
        self._is_consumer = request.replica_id == _CONSUMER
        has_timeout = context.version >= _FIRST_WITH_TIMEOUT and request.timeout_ms > 0
        self._timeout_ms = request.timeout_ms if has_timeout else _TIMEOUT_MS
        self._counts = Counter(
            (topic.name, one.partition_index)
            for topic in request.topics
            for one in topic.partitions
        )

    async def answer_topic(self, asked: ListOffsetsTopic) -> ListOffsetsTopicResponse:
        topic = self._broker.topics.find(asked.name)
        error = ErrorCode.NONE
        if not self._broker.authorizer.is_allowed(
            self._context, Operation.DESCRIBE, ResourceType.TOPIC, asked.name
        ):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers: list[ListOffsetsPartitionResponse] = []
        lookups: list[Awaitable[None]] = []
        for one in asked.partitions:
            answer = ListOffsetsPartitionResponse(one.partition_index, error)
            answers.append(answer)
            if topic is not None and not error:
                lookup = self._answer(topic, one, answer)
                if lookup is not None:
                    lookups.append(lookup)
        await asyncio.gather(*lookups)
        return ListOffsetsTopicResponse(asked.name, answers)

    def _answer(
        self, topic: ServedTopic, asked: ListOffsetsPartition, answer: ListOffsetsPartitionResponse
    ) -> Awaitable[None] | None:
        """Fills in an answer now, or gives what will do so."""
        answer.error_code = self._refuse(topic, asked)
        log = topic.find_log(asked.partition_index)
        if answer.error_code or log is None:
            return None
        match asked.timestamp:
            case SpecialTime.LATEST:
                _fill(answer, _Found(self._limit(log), leader_epoch_of(log)))
            case SpecialTime.EARLIEST:
                _fill(answer, _at(log, log.log_start_offset))
            case SpecialTime.EARLIEST_LOCAL:
                _fill(answer, _at(log, max(log.log_start_offset, log.local_start_offset)))
            case _:
                return self._look_up(topic, log, asked.timestamp, answer)
        return None

    async def _look_up(
        self, topic: ServedTopic, log: Log, timestamp: int, answer: ListOffsetsPartitionResponse
    ) -> None:
        try:
            if timestamp in (SpecialTime.LATEST_TIERED, SpecialTime.EARLIEST_PENDING_UPLOAD):
                found = await self._find_tiered(topic, log, timestamp)
            elif timestamp == SpecialTime.MAX_TIMESTAMP:
                found = await self._find_record(log, log.find_max_timestamp)
            else:
                found = await self._find_record(log, lambda: log.find_offset_by_time(timestamp))
            _fill(answer, found)
        except TimeoutError:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        except StoreError as failure:
            answer.error_code = code_for(failure)

    def _refuse(self, topic: ServedTopic, asked: ListOffsetsPartition) -> ErrorCode:
        if self._counts[topic.name, asked.partition_index] > 1:
            return ErrorCode.INVALID_REQUEST
        if asked.timestamp < 0:
            first = _FIRST_VERSIONS.get(asked.timestamp)
            if first is None or self._context.version < first:
                return ErrorCode.UNSUPPORTED_VERSION
        log = topic.find_log(asked.partition_index)
        if log is None:
            return topic.why_missing(asked.partition_index)
        return check_leader_epoch(log, asked.current_leader_epoch)

    def _limit(self, log: Log) -> int:
        if not self._is_consumer:
            return log.end_offset
        return log.last_stable_offset if self._is_committed else log.high_watermark

    async def _find_record(self, log: Log, look: Callable[[], TimestampOffset | None]) -> _Found:
        found = await within(self._broker.timers, self._broker.offload(look), self._timeout_ms)
        if found is None or found.offset >= self._limit(log):
            return _NOTHING
        return _Found(found.offset, epoch_at(log, found.offset), found.timestamp)

    async def _find_tiered(self, topic: ServedTopic, log: Log, timestamp: int) -> _Found:
        """By what is copied to object storage; nothing where the topic has no part there."""
        if not topic.settings.remote_storage_enable:
            return _NOTHING
        work = self._broker.offload(_find_copied, self._broker.store, log)
        copied = await within(self._broker.timers, work, self._timeout_ms)
        if timestamp == SpecialTime.EARLIEST_PENDING_UPLOAD:
            return _at(log, max(log.log_start_offset, copied))
        if copied <= log.log_start_offset:
            return _NOTHING
        return _at(log, copied - 1)


def _find_copied(store: Store, log: Log) -> int:
    """The first offset that is not in object storage."""
    return store.tier.status(log.topic_partition).copied_offset or 0


def _at(log: Log, offset: int) -> _Found:
    return _Found(offset, epoch_at(log, offset))


def _fill(answer: ListOffsetsPartitionResponse, found: _Found) -> None:
    answer.offset, answer.leader_epoch, answer.timestamp = found
