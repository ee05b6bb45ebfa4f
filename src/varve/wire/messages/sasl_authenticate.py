"""SaslAuthenticate, API key 36."""

from varve.wire.schema import (
    BYTES,
    INT16,
    INT64,
    STRING,
    Message,
    scalar,
    wire_message,
)


@wire_message("0-2", flexible="2+", api_key=36)
class SaslAuthenticateRequest(Message):
    auth_bytes: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-2", flexible="2+", api_key=36)
class SaslAuthenticateResponse(Message):
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    auth_bytes: bytes = scalar(BYTES, "0+", b"")
    session_lifetime_ms: int = scalar(INT64, "1+")
