"""AddPartitionsToTxn, API key 24."""

from varve.wire.schema import (
    BOOLEAN,
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


@wire_struct
class AddPartitionsToTxnTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = scalar(STRING, "4+", "")
    producer_id: int = scalar(INT64, "4+")
    producer_epoch: int = scalar(INT16, "4+")
    verify_only: bool = scalar(BOOLEAN, "4+", False)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


@wire_message("0-5", flexible="3+", api_key=24)
class AddPartitionsToTxnRequest(Message):
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = scalar(STRING, "0-3", "")
    v3_and_below_producer_id: int = scalar(INT64, "0-3")
    v3_and_below_producer_epoch: int = scalar(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


@wire_struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = scalar(INT32)
    partition_error_code: int = scalar(INT16)


@wire_struct
class AddPartitionsToTxnTopicResult:
    name: str = scalar(STRING, "0+", "")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


@wire_struct
class AddPartitionsToTxnResult:
    transactional_id: str = scalar(STRING, "4+", "")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


@wire_message("0-5", flexible="3+", api_key=24)
class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16, "4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )
