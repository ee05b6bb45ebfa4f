"""DescribeTransactions, API key 65."""

from varve.wire.schema import (
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


@wire_message("0", flexible="0+", api_key=65)
class DescribeTransactionsRequest(Message):
    transactional_ids: list[str] = array(STRING)


@wire_struct
class TopicData:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_struct
class TransactionState:
    error_code: int = scalar(INT16)
    transactional_id: str = scalar(STRING, "0+", "")
    transaction_state: str = scalar(STRING, "0+", "")
    transaction_timeout_ms: int = scalar(INT32)
    transaction_start_time_ms: int = scalar(INT64)
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT16)
    topics: list[TopicData] = array(TopicData)


@wire_message("0", flexible="0+", api_key=65)
class DescribeTransactionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    transaction_states: list[TransactionState] = array(TransactionState)
