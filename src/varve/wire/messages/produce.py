"""Produce, API key 0."""

from uuid import UUID

from varve.wire.schema import (
    INT16,
    INT32,
    INT64,
    NO_ID,
    RECORDS,
    STRING,
    UUID_TYPE,
    Message,
    array,
    nested,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class PartitionProduceData:
    index: int = scalar(INT32)
    records: memoryview | None = scalar(RECORDS, "0+", None, nullable="0+")


@wire_struct
class TopicProduceData:
    name: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@wire_message("3-13", flexible="9+", api_key=0)
class ProduceRequest(Message):
    transactional_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    acks: int = scalar(INT16)
    timeout_ms: int = scalar(INT32)
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@wire_struct
class BatchIndexAndErrorMessage:
    batch_index: int = scalar(INT32, "8+")
    batch_index_error_message: str | None = scalar(STRING, "8+", None, nullable="8+")


@wire_struct
class LeaderIdAndEpoch:
    leader_id: int = scalar(INT32, "10+", -1)
    leader_epoch: int = scalar(INT32, "10+", -1)


@wire_struct
class PartitionProduceResponse:
    index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    base_offset: int = scalar(INT64)
    log_append_time_ms: int = scalar(INT64, "2+", -1)
    log_start_offset: int = scalar(INT64, "5+", -1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+")
    error_message: str | None = scalar(STRING, "8+", None, nullable="8+")
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "10+", tag=0)


@wire_struct
class TopicProduceResponse:
    name: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@wire_struct
class NodeEndpoint:
    node_id: int = scalar(INT32, "10+")
    host: str = scalar(STRING, "10+", "")
    port: int = scalar(INT32, "10+")
    rack: str | None = scalar(STRING, "10+", None, nullable="10+")


@wire_message("3-13", flexible="9+", api_key=0)
class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = scalar(INT32, "1+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)
