"""DeleteRecords: the log start of partitions is raised."""

import asyncio

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.data.within import within
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)


async def answer_delete_records(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Deletes up to the offset given, -1 being the high watermark; durable when answered."""
    topics = [_delete_of_topic(broker, context, one, request.timeout_ms) for one in request.topics]
    return DeleteRecordsResponse(topics=list(await asyncio.gather(*topics)))


async def _delete_of_topic(
    broker: Broker, context: RequestContext, asked: DeleteRecordsTopic, timeout_ms: int
) -> DeleteRecordsTopicResult:
    topic, error = _find_topic(broker, context, asked.name)
    if topic is None:
        failed = [_failed(one.partition_index, error) for one in asked.partitions]
        return DeleteRecordsTopicResult(asked.name, failed)
    partitions = [_delete(broker, topic, one, timeout_ms) for one in asked.partitions]
    return DeleteRecordsTopicResult(asked.name, list(await asyncio.gather(*partitions)))


def _find_topic(
    broker: Broker, context: RequestContext, name: str
) -> tuple[ServedTopic | None, ErrorCode]:
    if not broker.authorizer.is_allowed(context, Operation.DELETE, ResourceType.TOPIC, name):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = broker.topics.find(name)
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_internal:
        return None, ErrorCode.INVALID_TOPIC_EXCEPTION
    return topic, ErrorCode.NONE


async def _delete(
    broker: Broker, topic: ServedTopic, asked: DeleteRecordsPartition, timeout_ms: int
) -> DeleteRecordsPartitionResult:
    log = topic.find_log(asked.partition_index)
    if log is None:
        return _failed(asked.partition_index, topic.why_missing(asked.partition_index))
    work = broker.offload(log.delete_records, asked.offset)
    work.add_done_callback(lambda _: broker.fetches.wake(log.topic_partition))
    try:
        low_watermark = await within(broker.timers, work, timeout_ms)
    except TimeoutError:
        return _failed(asked.partition_index, ErrorCode.REQUEST_TIMED_OUT)
    except StoreError as error:
        return _failed(asked.partition_index, code_for(error))
    return DeleteRecordsPartitionResult(asked.partition_index, low_watermark, ErrorCode.NONE)


def _failed(partition: int, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition, -1, error)
