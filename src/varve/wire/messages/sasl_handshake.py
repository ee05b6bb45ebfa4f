"""SaslHandshake, API key 17."""

from varve.wire.schema import (
    INT16,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
)


@wire_message("0-1", api_key=17)
class SaslHandshakeRequest(Message):
    mechanism: str = scalar(STRING, "0+", "")


@wire_message("0-1", api_key=17)
class SaslHandshakeResponse(Message):
    error_code: int = scalar(INT16)
    mechanisms: list[str] = array(STRING)
