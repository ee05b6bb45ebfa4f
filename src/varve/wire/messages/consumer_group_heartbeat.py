"""ConsumerGroupHeartbeat, API key 68."""

from uuid import UUID

from varve.wire.schema import (
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
class TopicPartitions:
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    partitions: list[int] = array(INT32)


@wire_message("0-1", flexible="0+", api_key=68)
class ConsumerGroupHeartbeatRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    member_id: str = scalar(STRING, "0+", "")
    member_epoch: int = scalar(INT32)
    instance_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    rack_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    rebalance_timeout_ms: int = scalar(INT32, "0+", -1)
    subscribed_topic_names: list[str] | None = array(STRING, nullable="0+", is_null=True)
    subscribed_topic_regex: str | None = scalar(STRING, "1+", None, nullable="1+")
    server_assignor: str | None = scalar(STRING, "0+", None, nullable="0+")
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", is_null=True
    )


@wire_struct
class Assignment:
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@wire_message("0-1", flexible="0+", api_key=68)
class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    member_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    member_epoch: int = scalar(INT32)
    heartbeat_interval_ms: int = scalar(INT32)
    assignment: Assignment | None = nested(Assignment, nullable="0+", is_null=True)
