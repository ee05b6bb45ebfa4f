"""Heartbeat, API key 12."""

from varve.wire.schema import (
    INT16,
    INT32,
    STRING,
    Message,
    scalar,
    wire_message,
)


@wire_message("0-4", flexible="4+", api_key=12)
class HeartbeatRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    generation_id: int = scalar(INT32)
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")


@wire_message("0-4", flexible="4+", api_key=12)
class HeartbeatResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
