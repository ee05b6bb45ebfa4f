"""ConsumerGroupDescribe, API key 69."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
    INT8,
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


@wire_message("0-1", flexible="0+", api_key=69)
class ConsumerGroupDescribeRequest(Message):
    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class TopicPartitions:
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    topic_name: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_struct
class Assignment:
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@wire_struct
class Member:
    member_id: str = scalar(STRING, "0+", "")
    instance_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    rack_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    member_epoch: int = scalar(INT32)
    client_id: str = scalar(STRING, "0+", "")
    client_host: str = scalar(STRING, "0+", "")
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = scalar(STRING, "0+", None, nullable="0+")
    assignment: Assignment = nested(Assignment)
    target_assignment: Assignment = nested(Assignment)
    member_type: int = scalar(INT8, "1+", -1)


@wire_struct
class DescribedGroup:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    group_id: str = scalar(STRING, "0+", "")
    group_state: str = scalar(STRING, "0+", "")
    group_epoch: int = scalar(INT32)
    assignment_epoch: int = scalar(INT32)
    assignor_name: str = scalar(STRING, "0+", "")
    members: list[Member] = array(Member)
    authorized_operations: int = scalar(INT32, "0+", -2147483648)


@wire_message("0-1", flexible="0+", api_key=69)
class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    groups: list[DescribedGroup] = array(DescribedGroup)
