"""ListGroups, API key 16."""

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


@wire_message("0-5", flexible="3+", api_key=16)
class ListGroupsRequest(Message):
    states_filter: list[str] = array(STRING, "4+")
    types_filter: list[str] = array(STRING, "5+")


@wire_struct
class ListedGroup:
    group_id: str = scalar(STRING, "0+", "")
    protocol_type: str = scalar(STRING, "0+", "")
    group_state: str = scalar(STRING, "4+", "")
    group_type: str = scalar(STRING, "5+", "")


@wire_message("0-5", flexible="3+", api_key=16)
class ListGroupsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
    groups: list[ListedGroup] = array(ListedGroup)
