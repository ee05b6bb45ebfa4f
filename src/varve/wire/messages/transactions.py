"""Messages of transactional producers, and of the APIs that list and describe transactions."""

from varve.wire.messages.groups import PartitionErrorCode
from varve.wire.schema import Int16, Int32, Int64, Message, Struct, field


class InitProducerIdRequest(Message, versions="0-6", flexible="2+", api_key=22, served="0-5"):
    transactional_id: str | None = field()
    transaction_timeout_ms: Int32 = field()
    producer_id: Int64 = field("3+", -1)
    producer_epoch: Int16 = field("3+", -1)
    enable2_pc: bool = field("6+")
    keep_prepared_txn: bool = field("6+")


class InitProducerIdResponse(Message, versions="0-6", flexible="2+", api_key=22):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    producer_id: Int64 = field("0+", -1)
    producer_epoch: Int16 = field()
    ongoing_txn_producer_id: Int64 = field("6+", -1)
    ongoing_txn_producer_epoch: Int16 = field("6+", -1)


class AddPartitionsToTxnTopic(Struct):
    name: str = field()
    partitions: list[Int32] = field()


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = field("4+")
    producer_id: Int64 = field("4+")
    producer_epoch: Int16 = field("4+")
    verify_only: bool = field("4+")
    topics: list[AddPartitionsToTxnTopic] = field("4+")


class AddPartitionsToTxnRequest(Message, versions="0-5", flexible="3+", api_key=24, served="0-3"):
    transactions: list[AddPartitionsToTxnTransaction] = field("4+")
    v3_and_below_transactional_id: str = field("0-3")
    v3_and_below_producer_id: Int64 = field("0-3")
    v3_and_below_producer_epoch: Int16 = field("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32 = field()
    partition_error_code: Int16 = field()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = field()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field()


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field("4+")


class AddPartitionsToTxnResponse(Message, versions="0-5", flexible="3+", api_key=24):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3")


class AddOffsetsToTxnRequest(Message, versions="0-4", flexible="3+", api_key=25):
    transactional_id: str = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    group_id: str = field()


class AddOffsetsToTxnResponse(Message, versions="0-4", flexible="3+", api_key=25):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()


class EndTxnRequest(Message, versions="0-5", flexible="3+", api_key=26, served="0-4"):
    transactional_id: str = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    committed: bool = field()


class EndTxnResponse(Message, versions="0-5", flexible="3+", api_key=26):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    producer_id: Int64 = field("5+", -1)
    producer_epoch: Int16 = field("5+", -1)


class WritableTxnMarkerTopic(Struct):
    name: str = field()
    partition_indexes: list[Int32] = field()


class WritableTxnMarker(Struct):
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    transaction_result: bool = field()
    topics: list[WritableTxnMarkerTopic] = field()
    coordinator_epoch: Int32 = field()


class WriteTxnMarkersRequest(Message, versions="1", flexible="1+", api_key=27):
    markers: list[WritableTxnMarker] = field()


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32 = field()
    error_code: Int16 = field()


class WritableTxnMarkerTopicResult(Struct):
    name: str = field()
    partitions: list[WritableTxnMarkerPartitionResult] = field()


class WritableTxnMarkerResult(Struct):
    producer_id: Int64 = field()
    topics: list[WritableTxnMarkerTopicResult] = field()


class WriteTxnMarkersResponse(Message, versions="1", flexible="1+", api_key=27):
    markers: list[WritableTxnMarkerResult] = field()


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: Int32 = field()
    committed_offset: Int64 = field()
    committed_leader_epoch: Int32 = field("2+", -1)
    committed_metadata: str | None = field()


class TxnOffsetCommitRequestTopic(Struct):
    name: str = field()
    partitions: list[TxnOffsetCommitRequestPartition] = field()


class TxnOffsetCommitRequest(Message, versions="0-5", flexible="3+", api_key=28, served="0-4"):
    transactional_id: str = field()
    group_id: str = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    generation_id: Int32 = field("3+", -1)
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+", None)
    topics: list[TxnOffsetCommitRequestTopic] = field()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = field()
    partitions: list[PartitionErrorCode] = field()


class TxnOffsetCommitResponse(Message, versions="0-5", flexible="3+", api_key=28):
    throttle_time_ms: Int32 = field()
    topics: list[TxnOffsetCommitResponseTopic] = field()


class DescribeTransactionsRequest(Message, versions="0", flexible="0+", api_key=65):
    transactional_ids: list[str] = field()


class TopicData(Struct):
    topic: str = field()
    partitions: list[Int32] = field()


class DescribedTransaction(Struct):
    error_code: Int16 = field()
    transactional_id: str = field()
    transaction_state: str = field()
    transaction_timeout_ms: Int32 = field()
    transaction_start_time_ms: Int64 = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    topics: list[TopicData] = field()


class DescribeTransactionsResponse(Message, versions="0", flexible="0+", api_key=65):
    throttle_time_ms: Int32 = field()
    transaction_states: list[DescribedTransaction] = field()


class ListTransactionsRequest(Message, versions="0-2", flexible="0+", api_key=66):
    state_filters: list[str] = field()
    producer_id_filters: list[Int64] = field()
    duration_filter: Int64 = field("1+", -1)
    transactional_id_pattern: str | None = field("2+", None)


class ListedTransaction(Struct):
    transactional_id: str = field()
    producer_id: Int64 = field()
    transaction_state: str = field()


class ListTransactionsResponse(Message, versions="0-2", flexible="0+", api_key=66):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    unknown_state_filters: list[str] = field()
    transaction_states: list[ListedTransaction] = field()
