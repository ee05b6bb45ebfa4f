"""DescribeTopicPartitions, API key 75."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
    INT16,
    INT32,
    NO_ID,
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
class TopicRequest:
    name: str = scalar(STRING, "0+", "")


@wire_struct
class Cursor:
    topic_name: str = scalar(STRING, "0+", "")
    partition_index: int = scalar(INT32)


@wire_message("0", flexible="0+", api_key=75)
class DescribeTopicPartitionsRequest(Message):
    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = scalar(INT32, "0+", 2000)
    cursor: Cursor | None = nested(Cursor, nullable="0+", is_null=True)


@wire_struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = scalar(INT16)
    partition_index: int = scalar(INT32)
    leader_id: int = scalar(INT32)
    leader_epoch: int = scalar(INT32, "0+", -1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    eligible_leader_replicas: list[int] | None = array(INT32, nullable="0+", is_null=True)
    last_known_elr: list[int] | None = array(INT32, nullable="0+", is_null=True)
    offline_replicas: list[int] = array(INT32)


@wire_struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = scalar(INT16)
    name: str | None = scalar(STRING, "0+", "", nullable="0+")
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    is_internal: bool = scalar(BOOLEAN, "0+", False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = scalar(INT32, "0+", -2147483648)


@wire_message("0", flexible="0+", api_key=75)
class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = nested(Cursor, nullable="0+", is_null=True)
