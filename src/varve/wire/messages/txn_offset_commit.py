"""TxnOffsetCommit, API key 28."""

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
class TxnOffsetCommitRequestPartition:
    partition_index: int = scalar(INT32)
    committed_offset: int = scalar(INT64)
    committed_leader_epoch: int = scalar(INT32, "2+", -1)
    committed_metadata: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class TxnOffsetCommitRequestTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@wire_message("0-5", flexible="3+", api_key=28)
class TxnOffsetCommitRequest(Message):
    transactional_id: str = scalar(STRING, "0+", "")
    group_id: str = scalar(STRING, "0+", "")
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT16)
    generation_id: int = scalar(INT32, "3+", -1)
    member_id: str = scalar(STRING, "3+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@wire_struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)


@wire_struct
class TxnOffsetCommitResponseTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@wire_message("0-5", flexible="3+", api_key=28)
class TxnOffsetCommitResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
