"""Keys and values of the records in `__transaction_state`."""

from varve.wire.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_message("0")
class TransactionLogKey(Message):
    transactional_id: str = scalar(STRING, "0", "")


@wire_struct
class PartitionsSchema:
    topic: str = scalar(STRING, "0+", "")
    partition_ids: list[int] = array(INT32)


@wire_message("0-1", flexible="1+")
class TransactionLogValue(Message):
    producer_id: int = scalar(INT64)
    previous_producer_id: int = scalar(INT64, "1+", -1, tag=0)
    next_producer_id: int = scalar(INT64, "1+", -1, tag=1)
    producer_epoch: int = scalar(INT16)
    next_producer_epoch: int = scalar(INT16, "1+", -1, tag=3)
    transaction_timeout_ms: int = scalar(INT32)
    transaction_status: int = scalar(INT8)
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = scalar(INT64)
    transaction_start_timestamp_ms: int = scalar(INT64)
    client_transaction_version: int = scalar(INT16, "1+", tag=2)
