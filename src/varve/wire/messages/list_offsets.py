"""ListOffsets, API key 2."""

from varve.wire.schema import (
    INT8,
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
class ListOffsetsPartition:
    partition_index: int = scalar(INT32)
    current_leader_epoch: int = scalar(INT32, "4+", -1)
    timestamp: int = scalar(INT64)


@wire_struct
class ListOffsetsTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@wire_message("1-11", flexible="6+", api_key=2)
class ListOffsetsRequest(Message):
    replica_id: int = scalar(INT32)
    isolation_level: int = scalar(INT8, "2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = scalar(INT32, "10+")


@wire_struct
class ListOffsetsPartitionResponse:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    timestamp: int = scalar(INT64, "1+", -1)
    offset: int = scalar(INT64, "1+", -1)
    leader_epoch: int = scalar(INT32, "4+", -1)


@wire_struct
class ListOffsetsTopicResponse:
    name: str = scalar(STRING, "0+", "")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@wire_message("1-11", flexible="6+", api_key=2)
class ListOffsetsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
