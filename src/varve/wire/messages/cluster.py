"""Messages about brokers and where topics are: ApiVersions, Metadata, log directories."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    STRING,
    UUID_TYPE,
    Message,
    array,
    nested,
    scalar,
    wire_message,
    wire_struct,
)

# ApiVersions, API key 18


@wire_message("0-4", flexible="3+", api_key=18)
class ApiVersionsRequest(Message):
    client_software_name: str = scalar(STRING, "3+", "")
    client_software_version: str = scalar(STRING, "3+", "")


@wire_struct
class ApiVersion:
    api_key: int = scalar(INT16)
    min_version: int = scalar(INT16)
    max_version: int = scalar(INT16)


@wire_struct
class SupportedFeatureKey:
    name: str = scalar(STRING, "3+", "")
    min_version: int = scalar(INT16, "3+")
    max_version: int = scalar(INT16, "3+")


@wire_struct
class FinalizedFeatureKey:
    name: str = scalar(STRING, "3+", "")
    max_version_level: int = scalar(INT16, "3+")
    min_version_level: int = scalar(INT16, "3+")


@wire_message("0-4", flexible="3+", api_key=18)
class ApiVersionsResponse(Message):
    error_code: int = scalar(INT16)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = scalar(INT32, "1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = scalar(INT64, "3+", -1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = scalar(BOOLEAN, "3+", False, tag=3)


# Metadata, API key 3


@wire_struct
class MetadataRequestTopic:
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    name: str | None = scalar(STRING, "0+", "", nullable="10+")


@wire_message("0-13", flexible="9+", api_key=3)
class MetadataRequest(Message):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = scalar(BOOLEAN, "4+", True)
    include_cluster_authorized_operations: bool = scalar(BOOLEAN, "8-10", False)
    include_topic_authorized_operations: bool = scalar(BOOLEAN, "8+", False)


@wire_struct
class MetadataResponseBroker:
    node_id: int = scalar(INT32)
    host: str = scalar(STRING, "0+", "")
    port: int = scalar(INT32)
    rack: str | None = scalar(STRING, "1+", None, nullable="1+")


@wire_struct
class MetadataResponsePartition:
    error_code: int = scalar(INT16)
    partition_index: int = scalar(INT32)
    leader_id: int = scalar(INT32)
    leader_epoch: int = scalar(INT32, "7+", -1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    offline_replicas: list[int] = array(INT32, "5+")


@wire_struct
class MetadataResponseTopic:
    error_code: int = scalar(INT16)
    name: str | None = scalar(STRING, "0+", "", nullable="12+")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    is_internal: bool = scalar(BOOLEAN, "1+", False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = scalar(INT32, "8+", -2147483648)


@wire_message("0-13", flexible="9+", api_key=3)
class MetadataResponse(Message):
    throttle_time_ms: int = scalar(INT32, "3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = scalar(STRING, "2+", None, nullable="2+")
    controller_id: int = scalar(INT32, "1+", -1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = scalar(INT32, "8-10", -2147483648)
    error_code: int = scalar(INT16, "13+")


# DescribeCluster, API key 60


@wire_message("0-2", flexible="0+", api_key=60)
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = scalar(BOOLEAN, "0+", False)
    endpoint_type: int = scalar(INT8, "1+", 1)
    include_fenced_brokers: bool = scalar(BOOLEAN, "2+", False)


@wire_struct
class DescribeClusterBroker:
    broker_id: int = scalar(INT32)
    host: str = scalar(STRING, "0+", "")
    port: int = scalar(INT32)
    rack: str | None = scalar(STRING, "0+", None, nullable="0+")
    is_fenced: bool = scalar(BOOLEAN, "2+", False)


@wire_message("0-2", flexible="0+", api_key=60)
class DescribeClusterResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    endpoint_type: int = scalar(INT8, "1+", 1)
    cluster_id: str = scalar(STRING, "0+", "")
    controller_id: int = scalar(INT32, "0+", -1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = scalar(INT32, "0+", -2147483648)


# FindCoordinator, API key 10


@wire_message("0-6", flexible="3+", api_key=10)
class FindCoordinatorRequest(Message):
    key: str = scalar(STRING, "0-3", "")
    key_type: int = scalar(INT8, "1+")
    coordinator_keys: list[str] = array(STRING, "4+")


@wire_struct
class Coordinator:
    key: str = scalar(STRING, "4+", "")
    node_id: int = scalar(INT32, "4+")
    host: str = scalar(STRING, "4+", "")
    port: int = scalar(INT32, "4+")
    error_code: int = scalar(INT16, "4+")
    error_message: str | None = scalar(STRING, "4+", "", nullable="4+")


@wire_message("0-6", flexible="3+", api_key=10)
class FindCoordinatorResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16, "0-3")
    error_message: str | None = scalar(STRING, "1-3", "", nullable="1-3")
    node_id: int = scalar(INT32, "0-3")
    host: str = scalar(STRING, "0-3", "")
    port: int = scalar(INT32, "0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")


# ElectLeaders, API key 43


@wire_struct
class ElectLeadersTopic:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_message("0-2", flexible="2+", api_key=43)
class ElectLeadersRequest(Message):
    election_type: int = scalar(INT8, "1+")
    topic_partitions: list[ElectLeadersTopic] | None = array(ElectLeadersTopic, nullable="0+")
    timeout_ms: int = scalar(INT32, "0+", 60000)


@wire_struct
class PartitionResult:
    partition_id: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class ReplicaElectionResult:
    topic: str = scalar(STRING, "0+", "")
    partition_result: list[PartitionResult] = array(PartitionResult)


@wire_message("0-2", flexible="2+", api_key=43)
class ElectLeadersResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


# DescribeLogDirs, API key 35


@wire_struct
class DescribableLogDirTopic:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_message("1-4", flexible="2+", api_key=35)
class DescribeLogDirsRequest(Message):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")


@wire_struct
class DescribeLogDirsPartition:
    partition_index: int = scalar(INT32)
    partition_size: int = scalar(INT64)
    offset_lag: int = scalar(INT64)
    is_future_key: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class DescribeLogDirsTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@wire_struct
class DescribeLogDirsResult:
    error_code: int = scalar(INT16)
    log_dir: str = scalar(STRING, "0+", "")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = scalar(INT64, "4+", -1)
    usable_bytes: int = scalar(INT64, "4+", -1)


@wire_message("1-4", flexible="2+", api_key=35)
class DescribeLogDirsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16, "3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


# DescribeTopicPartitions, API key 75


@wire_struct
class DescribeTopicPartitionsTopic:
    name: str = scalar(STRING, "0+", "")


@wire_struct
class Cursor:
    topic_name: str = scalar(STRING, "0+", "")
    partition_index: int = scalar(INT32)


@wire_message("0", flexible="0+", api_key=75)
class DescribeTopicPartitionsRequest(Message):
    topics: list[DescribeTopicPartitionsTopic] = array(DescribeTopicPartitionsTopic)
    response_partition_limit: int = scalar(INT32, "0+", 2000)
    cursor: Cursor | None = nested(Cursor, nullable="0+", is_null=True)


@wire_struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = scalar(INT16)
    partition_index: int = scalar(INT32)
    leader_id: int = scalar(INT32)
    leader_epoch: int = scalar(INT32, "0+", -1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    eligible_leader_replicas: list[int] | None = array(INT32, nullable="0+", is_null=True)
    last_known_elr: list[int] | None = array(INT32, nullable="0+", is_null=True)
    offline_replicas: list[int] = array(INT32)


@wire_struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = scalar(INT16)
    name: str | None = scalar(STRING, "0+", "", nullable="0+")
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    is_internal: bool = scalar(BOOLEAN, "0+", False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = scalar(INT32, "0+", -2147483648)


@wire_message("0", flexible="0+", api_key=75)
class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = nested(Cursor, nullable="0+", is_null=True)


# ListPartitionReassignments, API key 46


@wire_struct
class ListPartitionReassignmentsTopics:
    name: str = scalar(STRING, "0+", "")
    partition_indexes: list[int] = array(INT32)


@wire_message("0", flexible="0+", api_key=46)
class ListPartitionReassignmentsRequest(Message):
    timeout_ms: int = scalar(INT32, "0+", 60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", is_null=True
    )


@wire_struct
class OngoingPartitionReassignment:
    partition_index: int = scalar(INT32)
    replicas: list[int] = array(INT32)
    adding_replicas: list[int] = array(INT32)
    removing_replicas: list[int] = array(INT32)


@wire_struct
class OngoingTopicReassignment:
    name: str = scalar(STRING, "0+", "")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@wire_message("0", flexible="0+", api_key=46)
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
