"""DeleteRecords, API key 21."""

from varve.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class DeleteRecordsPartition:
    partition_index: int = scalar(INT32)
    offset: int = scalar(INT64)


@wire_struct
class DeleteRecordsTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@wire_message("0-2", flexible="2+", api_key=21)
class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = scalar(INT32)


@wire_struct
class DeleteRecordsPartitionResult:
    partition_index: int = scalar(INT32)
    low_watermark: int = scalar(INT64)
    error_code: int = scalar(INT16)


@wire_struct
class DeleteRecordsTopicResult:
    name: str = scalar(STRING, "0+", "")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@wire_message("0-2", flexible="2+", api_key=21)
class DeleteRecordsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
