"""ListTransactions, API key 66."""

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


@wire_message("0-2", flexible="0+", api_key=66)
class ListTransactionsRequest(Message):
    state_filters: list[str] = array(STRING)
    producer_id_filters: list[int] = array(INT64)
    duration_filter: int = scalar(INT64, "1+", -1)
    transactional_id_pattern: str | None = scalar(STRING, "2+", None, nullable="2+")


@wire_struct
class TransactionState:
    transactional_id: str = scalar(STRING, "0+", "")
    producer_id: int = scalar(INT64)
    transaction_state: str = scalar(STRING, "0+", "")


@wire_message("0-2", flexible="0+", api_key=66)
class ListTransactionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    unknown_state_filters: list[str] = array(STRING)
    transaction_states: list[TransactionState] = array(TransactionState)
