"""DescribeProducers, API key 61."""

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
class TopicRequest:
    name: str = scalar(STRING, "0+", "")
    partition_indexes: list[int] = array(INT32)


@wire_message("0", flexible="0+", api_key=61)
class DescribeProducersRequest(Message):
    topics: list[TopicRequest] = array(TopicRequest)


@wire_struct
class ProducerState:
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT32)
    last_sequence: int = scalar(INT32, "0+", -1)
    last_timestamp: int = scalar(INT64, "0+", -1)
    coordinator_epoch: int = scalar(INT32)
    current_txn_start_offset: int = scalar(INT64, "0+", -1)


@wire_struct
class PartitionResponse:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    active_producers: list[ProducerState] = array(ProducerState)


@wire_struct
class TopicResponse:
    name: str = scalar(STRING, "0+", "")
    partitions: list[PartitionResponse] = array(PartitionResponse)


@wire_message("0", flexible="0+", api_key=61)
class DescribeProducersResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[TopicResponse] = array(TopicResponse)
