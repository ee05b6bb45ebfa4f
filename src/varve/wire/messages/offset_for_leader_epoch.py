"""OffsetForLeaderEpoch, API key 23."""

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
class OffsetForLeaderPartition:
    partition: int = scalar(INT32)
    current_leader_epoch: int = scalar(INT32, "2+", -1)
    leader_epoch: int = scalar(INT32)


@wire_struct
class OffsetForLeaderTopic:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@wire_message("2-4", flexible="4+", api_key=23)
class OffsetForLeaderEpochRequest(Message):
    replica_id: int = scalar(INT32, "3+", -2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@wire_struct
class EpochEndOffset:
    error_code: int = scalar(INT16)
    partition: int = scalar(INT32)
    leader_epoch: int = scalar(INT32, "1+", -1)
    end_offset: int = scalar(INT64, "0+", -1)


@wire_struct
class OffsetForLeaderTopicResult:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


@wire_message("2-4", flexible="4+", api_key=23)
class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
