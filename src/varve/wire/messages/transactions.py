"""Messages of transactional producers, and of the APIs that list and describe transactions."""

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

# InitProducerId, API key 22


@wire_message("0-6", flexible="2+", api_key=22, served="0-5")
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


# AddPartitionsToTxn, API key 24


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


@wire_message("0-5", flexible="3+", api_key=24, served="0-3")
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


# AddOffsetsToTxn, API key 25


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


# EndTxn, API key 26


@wire_message("0-5", flexible="3+", api_key=26, served="0-4")
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


# TxnOffsetCommit, API key 28


@wire_struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = scalar(INT32)
    committed_offset: int = scalar(INT64)
    committed_leader_epoch: int = scalar(INT32, "2+", -1)
    committed_metadata: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class TxnOffsetCommitRequestTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@wire_message("0-5", flexible="3+", api_key=28, served="0-4")
class TxnOffsetCommitRequest(Message):
    transactional_id: str = scalar(STRING, "0+", "")
    group_id: str = scalar(STRING, "0+", "")
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT16)
    generation_id: int = scalar(INT32, "3+", -1)
    member_id: str = scalar(STRING, "3+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@wire_struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)


@wire_struct
class TxnOffsetCommitResponseTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@wire_message("0-5", flexible="3+", api_key=28)
class TxnOffsetCommitResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


# DescribeTransactions, API key 65


@wire_message("0", flexible="0+", api_key=65)
class DescribeTransactionsRequest(Message):
    transactional_ids: list[str] = array(STRING)


@wire_struct
class TopicData:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_struct
class DescribedTransaction:
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
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction)


# ListTransactions, API key 66


@wire_message("0-2", flexible="0+", api_key=66)
class ListTransactionsRequest(Message):
    state_filters: list[str] = array(STRING)
    producer_id_filters: list[int] = array(INT64)
    duration_filter: int = scalar(INT64, "1+", -1)
    transactional_id_pattern: str | None = scalar(STRING, "2+", None, nullable="2+")


@wire_struct
class ListedTransaction:
    transactional_id: str = scalar(STRING, "0+", "")
    producer_id: int = scalar(INT64)
    transaction_state: str = scalar(STRING, "0+", "")


@wire_message("0-2", flexible="0+", api_key=66)
class ListTransactionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    unknown_state_filters: list[str] = array(STRING)
    transaction_states: list[ListedTransaction] = array(ListedTransaction)
