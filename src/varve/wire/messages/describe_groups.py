"""DescribeGroups, API key 15."""

from varve.wire.schema import (
    BOOLEAN,
    BYTES,
    INT16,
    INT32,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_message("0-6", flexible="5+", api_key=15)
class DescribeGroupsRequest(Message):
    groups: list[str] = array(STRING)
    include_authorized_operations: bool = scalar(BOOLEAN, "3+", False)


@wire_struct
class DescribedGroupMember:
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "4+", None, nullable="4+")
    client_id: str = scalar(STRING, "0+", "")
    client_host: str = scalar(STRING, "0+", "")
    member_metadata: bytes = scalar(BYTES, "0+", b"")
    member_assignment: bytes = scalar(BYTES, "0+", b"")


@wire_struct
class DescribedGroup:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "6+", None, nullable="6+")
    group_id: str = scalar(STRING, "0+", "")
    group_state: str = scalar(STRING, "0+", "")
    protocol_type: str = scalar(STRING, "0+", "")
    protocol_data: str = scalar(STRING, "0+", "")
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = scalar(INT32, "3+", -2147483648)


@wire_message("0-6", flexible="5+", api_key=15)
class DescribeGroupsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    groups: list[DescribedGroup] = array(DescribedGroup)
