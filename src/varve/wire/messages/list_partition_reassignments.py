"""ListPartitionReassignments, API key 46."""

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
class ListPartitionReassignmentsTopics:
    name: str = scalar(STRING, "0+", "")
    partition_indexes: list[int] = array(INT32)


@wire_message("0", flexible="0+", api_key=46)
class ListPartitionReassignmentsRequest(Message):
    timeout_ms: int = scalar(INT32, "0+", 60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", is_null=True
    )


@wire_struct
class OngoingPartitionReassignment:
    partition_index: int = scalar(INT32)
    replicas: list[int] = array(INT32)
    adding_replicas: list[int] = array(INT32)
    removing_replicas: list[int] = array(INT32)


@wire_struct
class OngoingTopicReassignment:
    name: str = scalar(STRING, "0+", "")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@wire_message("0", flexible="0+", api_key=46)
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
