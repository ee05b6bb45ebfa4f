"""SyncGroup, API key 14."""

from varve.wire.schema import (
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
class SyncGroupRequestAssignment:
    member_id: str = scalar(STRING, "0+", "")
    assignment: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-5", flexible="4+", api_key=14)
class SyncGroupRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    generation_id: int = scalar(INT32)
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    protocol_type: str | None = scalar(STRING, "5+", None, nullable="5+")
    protocol_name: str | None = scalar(STRING, "5+", None, nullable="5+")
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@wire_message("0-5", flexible="4+", api_key=14)
class SyncGroupResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
    protocol_type: str | None = scalar(STRING, "5+", None, nullable="5+")
    protocol_name: str | None = scalar(STRING, "5+", None, nullable="5+")
    assignment: bytes = scalar(BYTES, "0+", b"")
