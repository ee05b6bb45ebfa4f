"""Messages that read and write records: Produce, Fetch and the lookups of offsets."""

from uuid import UUID

from varve.wire.schema import Int8, Int16, Int32, Int64, Message, Records, Struct, field


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = field("0+", -1)
    leader_epoch: Int32 = field("0+", -1)


class NodeEndpoint(Struct):
    node_id: Int32 = field()
    host: str = field()
    port: Int32 = field()
    rack: str | None = field("0+", None)


class PartitionProduceData(Struct):
    index: Int32 = field()
    records: Records | None = field("0+", None)


class TopicProduceData(Struct):
    name: str = field("0-12")
    topic_id: UUID = field("13+")
    partition_data: list[PartitionProduceData] = field()


class ProduceRequest(Message, versions="3-13", flexible="9+", api_key=0):
    transactional_id: str | None = field("3+", None)
    acks: Int16 = field()
    timeout_ms: Int32 = field()
    topic_data: list[TopicProduceData] = field()


class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = field("8+")
    batch_index_error_message: str | None = field("8+", None)


class PartitionProduceResponse(Struct):
    index: Int32 = field()
    error_code: Int16 = field()
    base_offset: Int64 = field()
    log_append_time_ms: Int64 = field("2+", -1)
    log_start_offset: Int64 = field("5+", -1)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+")
    error_message: str | None = field("8+", None)
    current_leader: LeaderIdAndEpoch = field("10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = field("0-12")
    topic_id: UUID = field("13+")
    partition_responses: list[PartitionProduceResponse] = field()


class ProduceResponse(Message, versions="3-13", flexible="9+", api_key=0):
    responses: list[TopicProduceResponse] = field()
    throttle_time_ms: Int32 = field("1+")
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0)


class ReplicaState(Struct):
    replica_id: Int32 = field("15+", -1)
    replica_epoch: Int64 = field("15+", -1)


class FetchPartition(Struct):
    partition: Int32 = field()
    current_leader_epoch: Int32 = field("9+", -1)
    fetch_offset: Int64 = field()
    last_fetched_epoch: Int32 = field("12+", -1)
    log_start_offset: Int64 = field("5+", -1)
    partition_max_bytes: Int32 = field()
    replica_directory_id: UUID = field("17+", tag=0)
    high_watermark: Int64 = field("18+", 9223372036854775807, tag=1)


class FetchTopic(Struct):
    topic: str = field("0-12")
    topic_id: UUID = field("13+")
    partitions: list[FetchPartition] = field()


class ForgottenTopic(Struct):
    topic: str = field("7-12")
    topic_id: UUID = field("13+")
    partitions: list[Int32] = field("7+")


class FetchRequest(Message, versions="4-18", flexible="12+", api_key=1):
    cluster_id: str | None = field("12+", None, tag=0)
    replica_id: Int32 = field("0-14", -1)
    replica_state: ReplicaState = field("15+", tag=1)
    max_wait_ms: Int32 = field()
    min_bytes: Int32 = field()
    max_bytes: Int32 = field("3+", 2147483647)
    isolation_level: Int8 = field("4+")
    session_id: Int32 = field("7+")
    session_epoch: Int32 = field("7+", -1)
    topics: list[FetchTopic] = field()
    forgotten_topics_data: list[ForgottenTopic] = field("7+")
    rack_id: str = field("11+")


class EpochEndOffset(Struct):
    epoch: Int32 = field("12+", -1)
    end_offset: Int64 = field("12+", -1)


class SnapshotId(Struct):
    end_offset: Int64 = field("0+", -1)
    epoch: Int32 = field("0+", -1)


class AbortedTransaction(Struct):
    producer_id: Int64 = field("4+")
    first_offset: Int64 = field("4+")


class PartitionData(Struct):
    partition_index: Int32 = field()
    error_code: Int16 = field()
    high_watermark: Int64 = field()
    last_stable_offset: Int64 = field("4+", -1)
    log_start_offset: Int64 = field("5+", -1)
    diverging_epoch: EpochEndOffset = field("12+", tag=0)
    current_leader: LeaderIdAndEpoch = field("12+", tag=1)
    snapshot_id: SnapshotId = field("12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field("4+")
    preferred_read_replica: Int32 = field("11+", -1)
    records: Records | None = field("0+", None)


class FetchableTopicResponse(Struct):
    topic: str = field("0-12")
    topic_id: UUID = field("13+")
    partitions: list[PartitionData] = field()


class FetchResponse(Message, versions="4-18", flexible="12+", api_key=1):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field("7+")
    session_id: Int32 = field("7+")
    responses: list[FetchableTopicResponse] = field()
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0)


class ListOffsetsPartition(Struct):
    partition_index: Int32 = field()
    current_leader_epoch: Int32 = field("4+", -1)
    timestamp: Int64 = field()


class ListOffsetsTopic(Struct):
    name: str = field()
    partitions: list[ListOffsetsPartition] = field()


class ListOffsetsRequest(Message, versions="1-11", flexible="6+", api_key=2):
    replica_id: Int32 = field()
    isolation_level: Int8 = field("2+")
    topics: list[ListOffsetsTopic] = field()
    timeout_ms: Int32 = field("10+")


class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32 = field()
    error_code: Int16 = field()
    timestamp: Int64 = field("1+", -1)
    offset: Int64 = field("1+", -1)
    leader_epoch: Int32 = field("4+", -1)


class ListOffsetsTopicResponse(Struct):
    name: str = field()
    partitions: list[ListOffsetsPartitionResponse] = field()


class ListOffsetsResponse(Message, versions="1-11", flexible="6+", api_key=2):
    throttle_time_ms: Int32 = field("2+")
    topics: list[ListOffsetsTopicResponse] = field()


class OffsetForLeaderPartition(Struct):
    partition: Int32 = field()
    current_leader_epoch: Int32 = field("2+", -1)
    leader_epoch: Int32 = field()


class OffsetForLeaderTopic(Struct):
    topic: str = field()
    partitions: list[OffsetForLeaderPartition] = field()


class OffsetForLeaderEpochRequest(Message, versions="2-4", flexible="4+", api_key=23):
    replica_id: Int32 = field("3+", -2)
    topics: list[OffsetForLeaderTopic] = field()


class LeaderEpochEndOffset(Struct):
    error_code: Int16 = field()
    partition: Int32 = field()
    leader_epoch: Int32 = field("1+", -1)
    end_offset: Int64 = field("0+", -1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = field()
    partitions: list[LeaderEpochEndOffset] = field()


class OffsetForLeaderEpochResponse(Message, versions="2-4", flexible="4+", api_key=23):
    throttle_time_ms: Int32 = field("2+")
    topics: list[OffsetForLeaderTopicResult] = field()


class DeleteRecordsPartition(Struct):
    partition_index: Int32 = field()
    offset: Int64 = field()


class DeleteRecordsTopic(Struct):
    name: str = field()
    partitions: list[DeleteRecordsPartition] = field()


class DeleteRecordsRequest(Message, versions="0-2", flexible="2+", api_key=21):
    topics: list[DeleteRecordsTopic] = field()
    timeout_ms: Int32 = field()


class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = field()
    low_watermark: Int64 = field()
    error_code: Int16 = field()


class DeleteRecordsTopicResult(Struct):
    name: str = field()
    partitions: list[DeleteRecordsPartitionResult] = field()


class DeleteRecordsResponse(Message, versions="0-2", flexible="2+", api_key=21):
    throttle_time_ms: Int32 = field()
    topics: list[DeleteRecordsTopicResult] = field()


class DescribeProducersTopic(Struct):
    name: str = field()
    partition_indexes: list[Int32] = field()


class DescribeProducersRequest(Message, versions="0", flexible="0+", api_key=61):
    topics: list[DescribeProducersTopic] = field()


class ProducerState(Struct):
    producer_id: Int64 = field()
    producer_epoch: Int32 = field()
    last_sequence: Int32 = field("0+", -1)
    last_timestamp: Int64 = field("0+", -1)
    coordinator_epoch: Int32 = field()
    current_txn_start_offset: Int64 = field("0+", -1)


class PartitionResponse(Struct):
    partition_index: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field("0+", None)
    active_producers: list[ProducerState] = field()


class TopicResponse(Struct):
    name: str = field()
    partitions: list[PartitionResponse] = field()


class DescribeProducersResponse(Message, versions="0", flexible="0+", api_key=61):
    throttle_time_ms: Int32 = field()
    topics: list[TopicResponse] = field()
