"""Messages about brokers and where topics are: ApiVersions, Metadata, log directories."""

from uuid import UUID

from varve.wire.schema import Int8, Int16, Int32, Int64, Message, Struct, UInt16, field


class ApiVersionsRequest(Message, versions="0-4", flexible="3+", api_key=18):
    client_software_name: str = field("3+")
    client_software_version: str = field("3+")


class ApiVersion(Struct):
    api_key: Int16 = field()
    min_version: Int16 = field()
    max_version: Int16 = field()


class SupportedFeatureKey(Struct):
    name: str = field("3+")
    min_version: Int16 = field("3+")
    max_version: Int16 = field("3+")


class FinalizedFeatureKey(Struct):
    name: str = field("3+")
    max_version_level: Int16 = field("3+")
    min_version_level: Int16 = field("3+")


class ApiVersionsResponse(Message, versions="0-4", flexible="3+", api_key=18):
    error_code: Int16 = field()
    api_keys: list[ApiVersion] = field()
    throttle_time_ms: Int32 = field("1+")
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0)
    finalized_features_epoch: Int64 = field("3+", -1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2)
    zk_migration_ready: bool = field("3+", tag=3)


class MetadataRequestTopic(Struct):
    topic_id: UUID = field("10+")
    name: str | None = field(nullable="10+")


class MetadataRequest(Message, versions="0-13", flexible="9+", api_key=3):
    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: bool = field("4+", True)
    include_cluster_authorized_operations: bool = field("8-10")
    include_topic_authorized_operations: bool = field("8+")


class MetadataResponseBroker(Struct):
    node_id: Int32 = field()
    host: str = field()
    port: Int32 = field()
    rack: str | None = field("1+", None)


class MetadataResponsePartition(Struct):
    error_code: Int16 = field()
    partition_index: Int32 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field("7+", -1)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    offline_replicas: list[Int32] = field("5+")


class MetadataResponseTopic(Struct):
    error_code: Int16 = field()
    name: str | None = field(nullable="12+")
    topic_id: UUID = field("10+")
    is_internal: bool = field("1+")
    partitions: list[MetadataResponsePartition] = field()
    topic_authorized_operations: Int32 = field("8+", -2147483648)


class MetadataResponse(Message, versions="0-13", flexible="9+", api_key=3):
    throttle_time_ms: Int32 = field("3+")
    brokers: list[MetadataResponseBroker] = field()
    cluster_id: str | None = field("2+", None)
    controller_id: Int32 = field("1+", -1)
    topics: list[MetadataResponseTopic] = field()
    cluster_authorized_operations: Int32 = field("8-10", -2147483648)
    error_code: Int16 = field("13+")


class DescribeClusterRequest(Message, versions="0-2", flexible="0+", api_key=60):
    include_cluster_authorized_operations: bool = field()
    endpoint_type: Int8 = field("1+", 1)
    include_fenced_brokers: bool = field("2+")


class DescribeClusterBroker(Struct):
    broker_id: Int32 = field()
    host: str = field()
    port: Int32 = field()
    rack: str | None = field("0+", None)
    is_fenced: bool = field("2+")


class DescribeClusterResponse(Message, versions="0-2", flexible="0+", api_key=60):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field("0+", None)
    endpoint_type: Int8 = field("1+", 1)
    cluster_id: str = field()
    controller_id: Int32 = field("0+", -1)
    brokers: list[DescribeClusterBroker] = field()
    cluster_authorized_operations: Int32 = field("0+", -2147483648)


class FindCoordinatorRequest(Message, versions="0-6", flexible="3+", api_key=10):
    key: str = field("0-3")
    key_type: Int8 = field("1+")
    coordinator_keys: list[str] = field("4+")


class Coordinator(Struct):
    key: str = field("4+")
    node_id: Int32 = field("4+")
    host: str = field("4+")
    port: Int32 = field("4+")
    error_code: Int16 = field("4+")
    error_message: str | None = field("4+")


class FindCoordinatorResponse(Message, versions="0-6", flexible="3+", api_key=10):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field("0-3")
    error_message: str | None = field("1-3")
    node_id: Int32 = field("0-3")
    host: str = field("0-3")
    port: Int32 = field("0-3")
    coordinators: list[Coordinator] = field("4+")


class TopicPartitionIndexes(Struct):
    topic: str = field()
    partitions: list[Int32] = field()


class ElectLeadersRequest(Message, versions="0-2", flexible="2+", api_key=43):
    election_type: Int8 = field("1+")
    topic_partitions: list[TopicPartitionIndexes] | None = field()
    timeout_ms: Int32 = field("0+", 60000)


class PartitionResult(Struct):
    partition_id: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field()


class ReplicaElectionResult(Struct):
    topic: str = field()
    partition_result: list[PartitionResult] = field()


class ElectLeadersResponse(Message, versions="0-2", flexible="2+", api_key=43):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("1+")
    replica_election_results: list[ReplicaElectionResult] = field()


class DescribeLogDirsRequest(Message, versions="1-4", flexible="2+", api_key=35):
    topics: list[TopicPartitionIndexes] | None = field()


class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = field()
    partition_size: Int64 = field()
    offset_lag: Int64 = field()
    is_future_key: bool = field()


class DescribeLogDirsTopic(Struct):
    name: str = field()
    partitions: list[DescribeLogDirsPartition] = field()


class DescribeLogDirsResult(Struct):
    error_code: Int16 = field()
    log_dir: str = field()
    topics: list[DescribeLogDirsTopic] = field()
    total_bytes: Int64 = field("4+", -1)
    usable_bytes: Int64 = field("4+", -1)


class DescribeLogDirsResponse(Message, versions="1-4", flexible="2+", api_key=35):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("3+")
    results: list[DescribeLogDirsResult] = field()


class DescribeTopicPartitionsTopic(Struct):
    name: str = field()


class Cursor(Struct):
    topic_name: str = field()
    partition_index: Int32 = field()


class DescribeTopicPartitionsRequest(Message, versions="0", flexible="0+", api_key=75):
    topics: list[DescribeTopicPartitionsTopic] = field()
    response_partition_limit: Int32 = field("0+", 2000)
    cursor: Cursor | None = field("0+", None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16 = field()
    partition_index: Int32 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field("0+", -1)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    eligible_leader_replicas: list[Int32] | None = field("0+", None)
    last_known_elr: list[Int32] | None = field("0+", None)
    offline_replicas: list[Int32] = field()


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16 = field()
    name: str | None = field()
    topic_id: UUID = field()
    is_internal: bool = field()
    partitions: list[DescribeTopicPartitionsResponsePartition] = field()
    topic_authorized_operations: Int32 = field("0+", -2147483648)


class DescribeTopicPartitionsResponse(Message, versions="0", flexible="0+", api_key=75):
    throttle_time_ms: Int32 = field()
    topics: list[DescribeTopicPartitionsResponseTopic] = field()
    next_cursor: Cursor | None = field("0+", None)


class ListPartitionReassignmentsTopics(Struct):
    name: str = field()
    partition_indexes: list[Int32] = field()


class ListPartitionReassignmentsRequest(Message, versions="0", flexible="0+", api_key=46):
    timeout_ms: Int32 = field("0+", 60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field("0+", None)


class OngoingPartitionReassignment(Struct):
    partition_index: Int32 = field()
    replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    removing_replicas: list[Int32] = field()


class OngoingTopicReassignment(Struct):
    name: str = field()
    partitions: list[OngoingPartitionReassignment] = field()


class ListPartitionReassignmentsResponse(Message, versions="0", flexible="0+", api_key=46):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field()
    topics: list[OngoingTopicReassignment] = field()


class QuorumPartitionIndex(Struct):
    partition_index: Int32 = field()


class QuorumTopic(Struct):
    topic_name: str = field()
    partitions: list[QuorumPartitionIndex] = field()


class DescribeQuorumRequest(Message, versions="0-2", flexible="0+", api_key=55):
    topics: list[QuorumTopic] = field()


class QuorumReplica(Struct):
    replica_id: Int32 = field()
    replica_directory_id: UUID = field("2+")
    log_end_offset: Int64 = field()
    last_fetch_timestamp: Int64 = field("1+", -1)
    last_caught_up_timestamp: Int64 = field("1+", -1)


class QuorumPartition(Struct):
    partition_index: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field("2+")
    leader_id: Int32 = field()
    leader_epoch: Int32 = field()
    high_watermark: Int64 = field()
    current_voters: list[QuorumReplica] = field()
    observers: list[QuorumReplica] = field()


class QuorumTopicResult(Struct):
    topic_name: str = field()
    partitions: list[QuorumPartition] = field()


class QuorumListener(Struct):
    name: str = field("2+")
    host: str = field("2+")
    port: UInt16 = field("2+")


class QuorumNode(Struct):
    node_id: Int32 = field("2+")
    listeners: list[QuorumListener] = field("2+")


class DescribeQuorumResponse(Message, versions="0-2", flexible="0+", api_key=55):
    error_code: Int16 = field()
    error_message: str | None = field("2+")
    topics: list[QuorumTopicResult] = field()
    nodes: list[QuorumNode] = field("2+")
