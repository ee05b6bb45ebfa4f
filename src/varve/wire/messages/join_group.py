"""JoinGroup, API key 11."""

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


@wire_struct
class JoinGroupRequestProtocol:
    name: str = scalar(STRING, "0+", "")
    metadata: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-9", flexible="6+", api_key=11)
class JoinGroupRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    session_timeout_ms: int = scalar(INT32)
    rebalance_timeout_ms: int = scalar(INT32, "1+", -1)
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "5+", None, nullable="5+")
    protocol_type: str = scalar(STRING, "0+", "")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = scalar(STRING, "8+", None, nullable="8+")


@wire_struct
class JoinGroupResponseMember:
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "5+", None, nullable="5+")
    metadata: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-9", flexible="6+", api_key=11)
class JoinGroupResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    error_code: int = scalar(INT16)
    generation_id: int = scalar(INT32, "0+", -1)
    protocol_type: str | None = scalar(STRING, "7+", None, nullable="7+")
    protocol_name: str | None = scalar(STRING, "0+", "", nullable="7+")
    leader: str = scalar(STRING, "0+", "")
    skip_assignment: bool = scalar(BOOLEAN, "9+", False)
    member_id: str = scalar(STRING, "0+", "")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
