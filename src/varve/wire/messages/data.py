"""Messages that read and write records: Produce, Fetch and the lookups of offsets."""

from uuid import UUID

from varve.wire.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    RECORDS,
    STRING,
    UUID_TYPE,
    Message,
    array,
    nested,
    scalar,
    wire_message,
    wire_struct,
)

# Produce, API key 0


@wire_struct
class PartitionProduceData:
    index: int = scalar(INT32)
    records: memoryview | None = scalar(RECORDS, "0+", None, nullable="0+")


@wire_struct
class TopicProduceData:
    name: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@wire_message("3-13", flexible="9+", api_key=0)
class ProduceRequest(Message):
    transactional_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    acks: int = scalar(INT16)
    timeout_ms: int = scalar(INT32)
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@wire_struct
class BatchIndexAndErrorMessage:
    batch_index: int = scalar(INT32, "8+")
    batch_index_error_message: str | None = scalar(STRING, "8+", None, nullable="8+")


@wire_struct
class ProduceLeader:
    leader_id: int = scalar(INT32, "10+", -1)
    leader_epoch: int = scalar(INT32, "10+", -1)


@wire_struct
class PartitionProduceResponse:
    index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    base_offset: int = scalar(INT64)
    log_append_time_ms: int = scalar(INT64, "2+", -1)
    log_start_offset: int = scalar(INT64, "5+", -1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+")
    error_message: str | None = scalar(STRING, "8+", None, nullable="8+")
    current_leader: ProduceLeader = nested(ProduceLeader, "10+", tag=0)


@wire_struct
class TopicProduceResponse:
    name: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@wire_struct
class ProduceNodeEndpoint:
    node_id: int = scalar(INT32, "10+")
    host: str = scalar(STRING, "10+", "")
    port: int = scalar(INT32, "10+")
    rack: str | None = scalar(STRING, "10+", None, nullable="10+")


@wire_message("3-13", flexible="9+", api_key=0)
class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = scalar(INT32, "1+")
    node_endpoints: list[ProduceNodeEndpoint] = array(ProduceNodeEndpoint, "10+", tag=0)


# Fetch, API key 1


@wire_struct
class ReplicaState:
    replica_id: int = scalar(INT32, "15+", -1)
    replica_epoch: int = scalar(INT64, "15+", -1)


@wire_struct
class FetchPartition:
    partition: int = scalar(INT32)
    current_leader_epoch: int = scalar(INT32, "9+", -1)
    fetch_offset: int = scalar(INT64)
    last_fetched_epoch: int = scalar(INT32, "12+", -1)
    log_start_offset: int = scalar(INT64, "5+", -1)
    partition_max_bytes: int = scalar(INT32)
    replica_directory_id: UUID = scalar(UUID_TYPE, "17+", NO_ID, tag=0)
    high_watermark: int = scalar(INT64, "18+", 9223372036854775807, tag=1)


@wire_struct
class FetchTopic:
    topic: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partitions: list[FetchPartition] = array(FetchPartition)


@wire_struct
class ForgottenTopic:
    topic: str = scalar(STRING, "7-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partitions: list[int] = array(INT32, "7+")


@wire_message("4-18", flexible="12+", api_key=1, served="4-17")
class FetchRequest(Message):
    cluster_id: str | None = scalar(STRING, "12+", None, nullable="12+", tag=0)
    replica_id: int = scalar(INT32, "0-14", -1)
    replica_state: ReplicaState = nested(ReplicaState, "15+", tag=1)
    max_wait_ms: int = scalar(INT32)
    min_bytes: int = scalar(INT32)
    max_bytes: int = scalar(INT32, "3+", 2147483647)
    isolation_level: int = scalar(INT8, "4+")
    session_id: int = scalar(INT32, "7+")
    session_epoch: int = scalar(INT32, "7+", -1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = scalar(STRING, "11+", "")


@wire_struct
class EpochEndOffset:
    epoch: int = scalar(INT32, "12+", -1)
    end_offset: int = scalar(INT64, "12+", -1)


@wire_struct
class LeaderIdAndEpoch:
    leader_id: int = scalar(INT32, "12+", -1)
    leader_epoch: int = scalar(INT32, "12+", -1)


@wire_struct
class SnapshotId:
    end_offset: int = scalar(INT64, "0+", -1)
    epoch: int = scalar(INT32, "0+", -1)


@wire_struct
class AbortedTransaction:
    producer_id: int = scalar(INT64, "4+")
    first_offset: int = scalar(INT64, "4+")


@wire_struct
class PartitionData:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    high_watermark: int = scalar(INT64)
    last_stable_offset: int = scalar(INT64, "4+", -1)
    log_start_offset: int = scalar(INT64, "5+", -1)
    diverging_epoch: EpochEndOffset = nested(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = nested(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+"
    )
    preferred_read_replica: int = scalar(INT32, "11+", -1)
    records: memoryview | None = scalar(RECORDS, "0+", None, nullable="0+")


@wire_struct
class FetchableTopicResponse:
    topic: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partitions: list[PartitionData] = array(PartitionData)


@wire_struct
class NodeEndpoint:
    node_id: int = scalar(INT32, "16+")
    host: str = scalar(STRING, "16+", "")
    port: int = scalar(INT32, "16+")
    rack: str | None = scalar(STRING, "16+", None, nullable="16+")


@wire_message("4-18", flexible="12+", api_key=1)
class FetchResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16, "7+")
    session_id: int = scalar(INT32, "7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)


# ListOffsets, API key 2


@wire_struct
class ListOffsetsPartition:
    partition_index: int = scalar(INT32)
    current_leader_epoch: int = scalar(INT32, "4+", -1)
    timestamp: int = scalar(INT64)


@wire_struct
class ListOffsetsTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@wire_message("1-11", flexible="6+", api_key=2)
class ListOffsetsRequest(Message):
    replica_id: int = scalar(INT32)
    isolation_level: int = scalar(INT8, "2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = scalar(INT32, "10+")


@wire_struct
class ListOffsetsPartitionResponse:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    timestamp: int = scalar(INT64, "1+", -1)
    offset: int = scalar(INT64, "1+", -1)
    leader_epoch: int = scalar(INT32, "4+", -1)


@wire_struct
class ListOffsetsTopicResponse:
    name: str = scalar(STRING, "0+", "")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@wire_message("1-11", flexible="6+", api_key=2)
class ListOffsetsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


# OffsetForLeaderEpoch, API key 23


@wire_struct
class OffsetForLeaderPartition:
    partition: int = scalar(INT32)
    current_leader_epoch: int = scalar(INT32, "2+", -1)
    leader_epoch: int = scalar(INT32)


@wire_struct
class OffsetForLeaderTopic:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@wire_message("2-4", flexible="4+", api_key=23)
class OffsetForLeaderEpochRequest(Message):
    replica_id: int = scalar(INT32, "3+", -2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@wire_struct
class LeaderEpochEndOffset:
    error_code: int = scalar(INT16)
    partition: int = scalar(INT32)
    leader_epoch: int = scalar(INT32, "1+", -1)
    end_offset: int = scalar(INT64, "0+", -1)


@wire_struct
class OffsetForLeaderTopicResult:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[LeaderEpochEndOffset] = array(LeaderEpochEndOffset)


@wire_message("2-4", flexible="4+", api_key=23)
class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


# DeleteRecords, API key 21


@wire_struct
class DeleteRecordsPartition:
    partition_index: int = scalar(INT32)
    offset: int = scalar(INT64)


@wire_struct
class DeleteRecordsTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@wire_message("0-2", flexible="2+", api_key=21)
class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = scalar(INT32)


@wire_struct
class DeleteRecordsPartitionResult:
    partition_index: int = scalar(INT32)
    low_watermark: int = scalar(INT64)
    error_code: int = scalar(INT16)


@wire_struct
class DeleteRecordsTopicResult:
    name: str = scalar(STRING, "0+", "")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@wire_message("0-2", flexible="2+", api_key=21)
class DeleteRecordsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


# DescribeProducers, API key 61


@wire_struct
class DescribeProducersTopic:
    name: str = scalar(STRING, "0+", "")
    partition_indexes: list[int] = array(INT32)


@wire_message("0", flexible="0+", api_key=61)
class DescribeProducersRequest(Message):
    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic)


@wire_struct
class ProducerState:
    producer_id: int = scalar(INT64)
    producer_epoch: int = scalar(INT32)
    last_sequence: int = scalar(INT32, "0+", -1)
    last_timestamp: int = scalar(INT64, "0+", -1)
    coordinator_epoch: int = scalar(INT32)
    current_txn_start_offset: int = scalar(INT64, "0+", -1)


@wire_struct
class PartitionResponse:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    active_producers: list[ProducerState] = array(ProducerState)


@wire_struct
class TopicResponse:
    name: str = scalar(STRING, "0+", "")
    partitions: list[PartitionResponse] = array(PartitionResponse)


@wire_message("0", flexible="0+", api_key=61)
class DescribeProducersResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[TopicResponse] = array(TopicResponse)
