"""LeaveGroup, API key 13."""

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
class MemberIdentity:
    member_id: str = scalar(STRING, "3+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    reason: str | None = scalar(STRING, "5+", None, nullable="5+")


@wire_message("0-5", flexible="4+", api_key=13)
class LeaveGroupRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    member_id: str = scalar(STRING, "0-2", "")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


@wire_struct
class MemberResponse:
    member_id: str = scalar(STRING, "3+", "")
    group_instance_id: str | None = scalar(STRING, "3+", "", nullable="3+")
    error_code: int = scalar(INT16, "3+")


@wire_message("0-5", flexible="4+", api_key=13)
class LeaveGroupResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
    members: list[MemberResponse] = array(MemberResponse, "3+")
