"""OffsetCommit, API key 8."""

from uuid import UUID

from varve.wire.schema import (
    INT16,
    INT32,
    INT64,
    NO_ID,
    STRING,
    UUID_TYPE,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class OffsetCommitRequestPartition:
    partition_index: int = scalar(INT32)
    committed_offset: int = scalar(INT64)
    committed_leader_epoch: int = scalar(INT32, "6+", -1)
    committed_metadata: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class OffsetCommitRequestTopic:
    name: str = scalar(STRING, "0-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@wire_message("2-10", flexible="8+", api_key=8)
class OffsetCommitRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    generation_id_or_member_epoch: int = scalar(INT32, "1+", -1)
    member_id: str = scalar(STRING, "1+", "")
    group_instance_id: str | None = scalar(STRING, "7+", None, nullable="7+")
    retention_time_ms: int = scalar(INT64, "2-4", -1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@wire_struct
class OffsetCommitResponsePartition:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)


@wire_struct
class OffsetCommitResponseTopic:
    name: str = scalar(STRING, "0-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@wire_message("2-10", flexible="8+", api_key=8)
class OffsetCommitResponse(Message):
    throttle_time_ms: int = scalar(INT32, "3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
