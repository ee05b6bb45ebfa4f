"""Messages of consumer groups: classic and KIP-848 membership, committed offsets, descriptions."""

from uuid import UUID

from varve.wire.schema import Int8, Int16, Int32, Int64, Message, Struct, field


class JoinGroupRequestProtocol(Struct):
    name: str = field()
    metadata: bytes = field()


class JoinGroupRequest(Message, versions="0-9", flexible="6+", api_key=11):
    group_id: str = field()
    session_timeout_ms: Int32 = field()
    rebalance_timeout_ms: Int32 = field("1+", -1)
    member_id: str = field()
    group_instance_id: str | None = field("5+", None)
    protocol_type: str = field()
    protocols: list[JoinGroupRequestProtocol] = field()
    reason: str | None = field("8+", None)


class JoinGroupResponseMember(Struct):
    member_id: str = field()
    group_instance_id: str | None = field("5+", None)
    metadata: bytes = field()


class JoinGroupResponse(Message, versions="0-9", flexible="6+", api_key=11):
    throttle_time_ms: Int32 = field("2+")
    error_code: Int16 = field()
    generation_id: Int32 = field("0+", -1)
    protocol_type: str | None = field("7+", None)
    protocol_name: str | None = field(nullable="7+")
    leader: str = field()
    skip_assignment: bool = field("9+")
    member_id: str = field()
    members: list[JoinGroupResponseMember] = field()


class SyncGroupRequestAssignment(Struct):
    member_id: str = field()
    assignment: bytes = field()


class SyncGroupRequest(Message, versions="0-5", flexible="4+", api_key=14):
    group_id: str = field()
    generation_id: Int32 = field()
    member_id: str = field()
    group_instance_id: str | None = field("3+", None)
    protocol_type: str | None = field("5+", None)
    protocol_name: str | None = field("5+", None)
    assignments: list[SyncGroupRequestAssignment] = field()


class SyncGroupResponse(Message, versions="0-5", flexible="4+", api_key=14):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field()
    protocol_type: str | None = field("5+", None)
    protocol_name: str | None = field("5+", None)
    assignment: bytes = field()


class HeartbeatRequest(Message, versions="0-4", flexible="4+", api_key=12):
    group_id: str = field()
    generation_id: Int32 = field()
    member_id: str = field()
    group_instance_id: str | None = field("3+", None)


class HeartbeatResponse(Message, versions="0-4", flexible="4+", api_key=12):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field()


class MemberIdentity(Struct):
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+", None)
    reason: str | None = field("5+", None)


class LeaveGroupRequest(Message, versions="0-5", flexible="4+", api_key=13):
    group_id: str = field()
    member_id: str = field("0-2")
    members: list[MemberIdentity] = field("3+")


class MemberResponse(Struct):
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+")
    error_code: Int16 = field("3+")


class LeaveGroupResponse(Message, versions="0-5", flexible="4+", api_key=13):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field()
    members: list[MemberResponse] = field("3+")


class DescribeGroupsRequest(Message, versions="0-6", flexible="5+", api_key=15):
    groups: list[str] = field()
    include_authorized_operations: bool = field("3+")


class DescribedGroupMember(Struct):
    member_id: str = field()
    group_instance_id: str | None = field("4+", None)
    client_id: str = field()
    client_host: str = field()
    member_metadata: bytes = field()
    member_assignment: bytes = field()


class DescribedGroup(Struct):
    error_code: Int16 = field()
    error_message: str | None = field("6+", None)
    group_id: str = field()
    group_state: str = field()
    protocol_type: str = field()
    protocol_data: str = field()
    members: list[DescribedGroupMember] = field()
    authorized_operations: Int32 = field("3+", -2147483648)


class DescribeGroupsResponse(Message, versions="0-6", flexible="5+", api_key=15):
    throttle_time_ms: Int32 = field("1+")
    groups: list[DescribedGroup] = field()


class ListGroupsRequest(Message, versions="0-5", flexible="3+", api_key=16):
    states_filter: list[str] = field("4+")
    types_filter: list[str] = field("5+")


class ListedGroup(Struct):
    group_id: str = field()
    protocol_type: str = field()
    group_state: str = field("4+")
    group_type: str = field("5+")


class ListGroupsResponse(Message, versions="0-5", flexible="3+", api_key=16):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field()
    groups: list[ListedGroup] = field()


class DeleteGroupsRequest(Message, versions="0-2", flexible="2+", api_key=42):
    groups_names: list[str] = field()


class DeletableGroupResult(Struct):
    group_id: str = field()
    error_code: Int16 = field()


class DeleteGroupsResponse(Message, versions="0-2", flexible="2+", api_key=42):
    throttle_time_ms: Int32 = field()
    results: list[DeletableGroupResult] = field()


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = field()
    committed_offset: Int64 = field()
    committed_leader_epoch: Int32 = field("6+", -1)
    committed_metadata: str | None = field()


class OffsetCommitRequestTopic(Struct):
    name: str = field("0-9")
    topic_id: UUID = field("10+")
    partitions: list[OffsetCommitRequestPartition] = field()


class OffsetCommitRequest(Message, versions="2-10", flexible="8+", api_key=8):
    group_id: str = field()
    generation_id_or_member_epoch: Int32 = field("1+", -1)
    member_id: str = field("1+")
    group_instance_id: str | None = field("7+", None)
    retention_time_ms: Int64 = field("2-4", -1)
    topics: list[OffsetCommitRequestTopic] = field()


class PartitionErrorCode(Struct):
    partition_index: Int32 = field()
    error_code: Int16 = field()


class OffsetCommitResponseTopic(Struct):
    name: str = field("0-9")
    topic_id: UUID = field("10+")
    partitions: list[PartitionErrorCode] = field()


class OffsetCommitResponse(Message, versions="2-10", flexible="8+", api_key=8):
    throttle_time_ms: Int32 = field("3+")
    topics: list[OffsetCommitResponseTopic] = field()


class OffsetFetchRequestTopic(Struct):
    name: str = field("0-9")
    topic_id: UUID = field("10+")
    partition_indexes: list[Int32] = field()


class OffsetFetchRequestGroup(Struct):
    group_id: str = field("8+")
    member_id: str | None = field("9+", None)
    member_epoch: Int32 = field("9+", -1)
    topics: list[OffsetFetchRequestTopic] | None = field("8+")


class OffsetFetchRequest(Message, versions="1-10", flexible="6+", api_key=9):
    group_id: str = field("0-7")
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+")
    require_stable: bool = field("7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = field()
    committed_offset: Int64 = field()
    committed_leader_epoch: Int32 = field("5+", -1)
    metadata: str | None = field()
    error_code: Int16 = field()


class OffsetFetchResponseTopic(Struct):
    name: str = field("0-9")
    topic_id: UUID = field("10+")
    partitions: list[OffsetFetchResponsePartition] = field()


class OffsetFetchResponseGroup(Struct):
    group_id: str = field("8+")
    topics: list[OffsetFetchResponseTopic] = field("8+")
    error_code: Int16 = field("8+")


class OffsetFetchResponse(Message, versions="1-10", flexible="6+", api_key=9):
    throttle_time_ms: Int32 = field("3+")
    topics: list[OffsetFetchResponseTopic] = field("0-7")
    error_code: Int16 = field("2-7")
    groups: list[OffsetFetchResponseGroup] = field("8+")


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = field()


class OffsetDeleteRequestTopic(Struct):
    name: str = field()
    partitions: list[OffsetDeleteRequestPartition] = field()


class OffsetDeleteRequest(Message, versions="0", api_key=47):
    group_id: str = field()
    topics: list[OffsetDeleteRequestTopic] = field()


class OffsetDeleteResponseTopic(Struct):
    name: str = field()
    partitions: list[PartitionErrorCode] = field()


class OffsetDeleteResponse(Message, versions="0", api_key=47):
    error_code: Int16 = field()
    throttle_time_ms: Int32 = field()
    topics: list[OffsetDeleteResponseTopic] = field()


class TopicPartitions(Struct):
    topic_id: UUID = field()
    partitions: list[Int32] = field()


class ConsumerGroupHeartbeatRequest(Message, versions="0-1", flexible="0+", api_key=68):
    group_id: str = field()
    member_id: str = field()
    member_epoch: Int32 = field()
    instance_id: str | None = field("0+", None)
    rack_id: str | None = field("0+", None)
    rebalance_timeout_ms: Int32 = field("0+", -1)
    subscribed_topic_names: list[str] | None = field("0+", None)
    subscribed_topic_regex: str | None = field("1+", None)
    server_assignor: str | None = field("0+", None)
    topic_partitions: list[TopicPartitions] | None = field("0+", None)


class HeartbeatAssignment(Struct):
    topic_partitions: list[TopicPartitions] = field()


class ConsumerGroupHeartbeatResponse(Message, versions="0-1", flexible="0+", api_key=68):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field("0+", None)
    member_id: str | None = field("0+", None)
    member_epoch: Int32 = field()
    heartbeat_interval_ms: Int32 = field()
    assignment: HeartbeatAssignment | None = field("0+", None)


class ConsumerGroupDescribeRequest(Message, versions="0-1", flexible="0+", api_key=69):
    group_ids: list[str] = field()
    include_authorized_operations: bool = field()


class DescribedTopicPartitions(Struct):
    topic_id: UUID = field()
    topic_name: str = field()
    partitions: list[Int32] = field()


class DescribedAssignment(Struct):
    topic_partitions: list[DescribedTopicPartitions] = field()


class Member(Struct):
    member_id: str = field()
    instance_id: str | None = field("0+", None)
    rack_id: str | None = field("0+", None)
    member_epoch: Int32 = field()
    client_id: str = field()
    client_host: str = field()
    subscribed_topic_names: list[str] = field()
    subscribed_topic_regex: str | None = field("0+", None)
    assignment: DescribedAssignment = field()
    target_assignment: DescribedAssignment = field()
    member_type: Int8 = field("1+", -1)


class DescribedConsumerGroup(Struct):
    error_code: Int16 = field()
    error_message: str | None = field("0+", None)
    group_id: str = field()
    group_state: str = field()
    group_epoch: Int32 = field()
    assignment_epoch: Int32 = field()
    assignor_name: str = field()
    members: list[Member] = field()
    authorized_operations: Int32 = field("0+", -2147483648)


class ConsumerGroupDescribeResponse(Message, versions="0-1", flexible="0+", api_key=69):
    throttle_time_ms: Int32 = field()
    groups: list[DescribedConsumerGroup] = field()


# Metadata that members of a classic group exchange through the coordinator


class OwnedPartitions(Struct):
    topic: str = field("1+")
    partitions: list[Int32] = field("1+")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = field()
    user_data: bytes | None = field("0+", None)
    owned_partitions: list[OwnedPartitions] = field("1+")
    generation_id: Int32 = field("2+", -1)
    rack_id: str | None = field("3+", None)
