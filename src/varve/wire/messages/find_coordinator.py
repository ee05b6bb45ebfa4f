"""FindCoordinator, API key 10."""

from varve.wire.schema import (
    INT8,
    INT16,
    INT32,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_message("0-6", flexible="3+", api_key=10)
class FindCoordinatorRequest(Message):
    key: str = scalar(STRING, "0-3", "")
    key_type: int = scalar(INT8, "1+")
    coordinator_keys: list[str] = array(STRING, "4+")


@wire_struct
class Coordinator:
    key: str = scalar(STRING, "4+", "")
    node_id: int = scalar(INT32, "4+")
    host: str = scalar(STRING, "4+", "")
    port: int = scalar(INT32, "4+")
    error_code: int = scalar(INT16, "4+")
    error_message: str | None = scalar(STRING, "4+", "", nullable="4+")


@wire_message("0-6", flexible="3+", api_key=10)
class FindCoordinatorResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16, "0-3")
    error_message: str | None = scalar(STRING, "1-3", "", nullable="1-3")
    node_id: int = scalar(INT32, "0-3")
    host: str = scalar(STRING, "0-3", "")
    port: int = scalar(INT32, "0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
