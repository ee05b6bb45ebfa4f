"""EndTxn, API key 26."""

from varve.wire.schema import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    scalar,
    wire_message,
)


@wire_message("0-5", flexible="3+", api_key=26)
class EndTxnRequest(Message):
    transactional_id: str = scalar(STRING, "0+", "")
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT16)
    committed: bool = scalar(BOOLEAN, "0+", False)


@wire_message("0-5", flexible="3+", api_key=26)
class EndTxnResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    producer_id: int = scalar(INT64, "5+", -1)
    producer_epoch: int = scalar(INT16, "5+", -1)
