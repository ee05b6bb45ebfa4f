"""DeleteTopics, API key 20."""

from uuid import UUID

from varve.wire.schema import (
    INT16,
    INT32,
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
class DeleteTopicState:
    name: str | None = scalar(STRING, "6+", None, nullable="6+")
    topic_id: UUID = scalar(UUID_TYPE, "6+", NO_ID)


@wire_message("1-6", flexible="4+", api_key=20)
class DeleteTopicsRequest(Message):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(STRING, "0-5")
    timeout_ms: int = scalar(INT32)


@wire_struct
class DeletableTopicResult:
    name: str | None = scalar(STRING, "0+", "", nullable="6+")
    topic_id: UUID = scalar(UUID_TYPE, "6+", NO_ID)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "5+", None, nullable="5+")


@wire_message("1-6", flexible="4+", api_key=20)
class DeleteTopicsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
