"""InitProducerId, API key 22."""

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


@wire_message("0-6", flexible="2+", api_key=22)
class InitProducerIdRequest(Message):
    transactional_id: str | None = scalar(STRING, "0+", "", nullable="0+")
    transaction_timeout_ms: int = scalar(INT32)
    producer_id: int = scalar(INT64, "3+", -1)
    producer_epoch: int = scalar(INT16, "3+", -1)
    enable2_pc: bool = scalar(BOOLEAN, "6+", False)
    keep_prepared_txn: bool = scalar(BOOLEAN, "6+", False)


@wire_message("0-6", flexible="2+", api_key=22)
class InitProducerIdResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    producer_id: int = scalar(INT64, "0+", -1)
    producer_epoch: int = scalar(INT16)
    ongoing_txn_producer_id: int = scalar(INT64, "6+", -1)
    ongoing_txn_producer_epoch: int = scalar(INT16, "6+", -1)
