"""AddOffsetsToTxn, API key 25."""

from varve.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    scalar,
    wire_message,
)


@wire_message("0-4", flexible="3+", api_key=25)
class AddOffsetsToTxnRequest(Message):
    transactional_id: str = scalar(STRING, "0+", "")
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT16)
    group_id: str = scalar(STRING, "0+", "")


@wire_message("0-4", flexible="3+", api_key=25)
class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
