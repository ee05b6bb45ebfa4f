"""CreatePartitions, API key 37."""

from varve.wire.schema import (
    BOOLEAN,
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
class CreatePartitionsAssignment:
    broker_ids: list[int] = array(INT32)


@wire_struct
class CreatePartitionsTopic:
    name: str = scalar(STRING, "0+", "")
    count: int = scalar(INT32)
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+"
    )


@wire_message("0-3", flexible="2+", api_key=37)
class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = scalar(INT32)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class CreatePartitionsTopicResult:
    name: str = scalar(STRING, "0+", "")
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")


@wire_message("0-3", flexible="2+", api_key=37)
class CreatePartitionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
