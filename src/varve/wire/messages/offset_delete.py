"""OffsetDelete, API key 47."""

from varve.wire.schema import (
    INT16,
    INT32,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class OffsetDeleteRequestPartition:
    partition_index: int = scalar(INT32)


@wire_struct
class OffsetDeleteRequestTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@wire_message("0", api_key=47)
class OffsetDeleteRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@wire_struct
class OffsetDeleteResponsePartition:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)


@wire_struct
class OffsetDeleteResponseTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@wire_message("0", api_key=47)
class OffsetDeleteResponse(Message):
    error_code: int = scalar(INT16)
    throttle_time_ms: int = scalar(INT32)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
