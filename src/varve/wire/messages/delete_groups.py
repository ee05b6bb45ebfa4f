"""DeleteGroups, API key 42."""

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


@wire_message("0-2", flexible="2+", api_key=42)
class DeleteGroupsRequest(Message):
    groups_names: list[str] = array(STRING)


@wire_struct
class DeletableGroupResult:
    group_id: str = scalar(STRING, "0+", "")
    error_code: int = scalar(INT16)


@wire_message("0-2", flexible="2+", api_key=42)
class DeleteGroupsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
