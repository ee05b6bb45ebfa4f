"""Messages of consumer groups: classic and KIP-848 membership, committed offsets, descriptions."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
    BYTES,
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

# JoinGroup, API key 11


@wire_struct
class JoinGroupRequestProtocol:
    name: str = scalar(STRING, "0+", "")
    metadata: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-9", flexible="6+", api_key=11)
class JoinGroupRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    session_timeout_ms: int = scalar(INT32)
    rebalance_timeout_ms: int = scalar(INT32, "1+", -1)
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "5+", None, nullable="5+")
    protocol_type: str = scalar(STRING, "0+", "")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = scalar(STRING, "8+", None, nullable="8+")


@wire_struct
class JoinGroupResponseMember:
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "5+", None, nullable="5+")
    metadata: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-9", flexible="6+", api_key=11)
class JoinGroupResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    error_code: int = scalar(INT16)
    generation_id: int = scalar(INT32, "0+", -1)
    protocol_type: str | None = scalar(STRING, "7+", None, nullable="7+")
    protocol_name: str | None = scalar(STRING, "0+", "", nullable="7+")
    leader: str = scalar(STRING, "0+", "")
    skip_assignment: bool = scalar(BOOLEAN, "9+", False)
    member_id: str = scalar(STRING, "0+", "")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


# SyncGroup, API key 14


@wire_struct
class SyncGroupRequestAssignment:
    member_id: str = scalar(STRING, "0+", "")
    assignment: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-5", flexible="4+", api_key=14)
class SyncGroupRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    generation_id: int = scalar(INT32)
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    protocol_type: str | None = scalar(STRING, "5+", None, nullable="5+")
    protocol_name: str | None = scalar(STRING, "5+", None, nullable="5+")
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@wire_message("0-5", flexible="4+", api_key=14)
class SyncGroupResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
    protocol_type: str | None = scalar(STRING, "5+", None, nullable="5+")
    protocol_name: str | None = scalar(STRING, "5+", None, nullable="5+")
    assignment: bytes = scalar(BYTES, "0+", b"")


# Heartbeat, API key 12


@wire_message("0-4", flexible="4+", api_key=12)
class HeartbeatRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    generation_id: int = scalar(INT32)
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")


@wire_message("0-4", flexible="4+", api_key=12)
class HeartbeatResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)


# LeaveGroup, API key 13


@wire_struct
class MemberIdentity:
    member_id: str = scalar(STRING, "3+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    reason: str | None = scalar(STRING, "5+", None, nullable="5+")


@wire_message("0-5", flexible="4+", api_key=13)
class LeaveGroupRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    member_id: str = scalar(STRING, "0-2", "")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


@wire_struct
class MemberResponse:
    member_id: str = scalar(STRING, "3+", "")
    group_instance_id: str | None = scalar(STRING, "3+", "", nullable="3+")
    error_code: int = scalar(INT16, "3+")


@wire_message("0-5", flexible="4+", api_key=13)
class LeaveGroupResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
    members: list[MemberResponse] = array(MemberResponse, "3+")


# DescribeGroups, API key 15


@wire_message("0-6", flexible="5+", api_key=15)
class DescribeGroupsRequest(Message):
    groups: list[str] = array(STRING)
    include_authorized_operations: bool = scalar(BOOLEAN, "3+", False)


@wire_struct
class DescribedGroupMember:
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "4+", None, nullable="4+")
    client_id: str = scalar(STRING, "0+", "")
    client_host: str = scalar(STRING, "0+", "")
    member_metadata: bytes = scalar(BYTES, "0+", b"")
    member_assignment: bytes = scalar(BYTES, "0+", b"")


@wire_struct
class DescribedGroup:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "6+", None, nullable="6+")
    group_id: str = scalar(STRING, "0+", "")
    group_state: str = scalar(STRING, "0+", "")
    protocol_type: str = scalar(STRING, "0+", "")
    protocol_data: str = scalar(STRING, "0+", "")
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = scalar(INT32, "3+", -2147483648)


@wire_message("0-6", flexible="5+", api_key=15)
class DescribeGroupsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    groups: list[DescribedGroup] = array(DescribedGroup)


# ListGroups, API key 16


@wire_message("0-5", flexible="3+", api_key=16)
class ListGroupsRequest(Message):
    states_filter: list[str] = array(STRING, "4+")
    types_filter: list[str] = array(STRING, "5+")


@wire_struct
class ListedGroup:
    group_id: str = scalar(STRING, "0+", "")
    protocol_type: str = scalar(STRING, "0+", "")
    group_state: str = scalar(STRING, "4+", "")
    group_type: str = scalar(STRING, "5+", "")


@wire_message("0-5", flexible="3+", api_key=16)
class ListGroupsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16)
    groups: list[ListedGroup] = array(ListedGroup)


# DeleteGroups, API key 42


@wire_message("0-2", flexible="2+", api_key=42)
class DeleteGroupsRequest(Message):
    groups_names: list[str] = array(STRING)


@wire_struct
class DeletableGroupResult:
    group_id: str = scalar(STRING, "0+", "")
    error_code: int = scalar(INT16)


@wire_message("0-2", flexible="2+", api_key=42)
class DeleteGroupsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


# OffsetCommit, API key 8


@wire_struct
class OffsetCommitRequestPartition:
    partition_index: int = scalar(INT32)
    committed_offset: int = scalar(INT64)
    committed_leader_epoch: int = scalar(INT32, "6+", -1)
    committed_metadata: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class OffsetCommitRequestTopic:
    name: str = scalar(STRING, "0-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@wire_message("2-10", flexible="8+", api_key=8)
class OffsetCommitRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    generation_id_or_member_epoch: int = scalar(INT32, "1+", -1)
    member_id: str = scalar(STRING, "1+", "")
    group_instance_id: str | None = scalar(STRING, "7+", None, nullable="7+")
    retention_time_ms: int = scalar(INT64, "2-4", -1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@wire_struct
class OffsetCommitResponsePartition:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)


@wire_struct
class OffsetCommitResponseTopic:
    name: str = scalar(STRING, "0-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@wire_message("2-10", flexible="8+", api_key=8)
class OffsetCommitResponse(Message):
    throttle_time_ms: int = scalar(INT32, "3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


# OffsetFetch, API key 9


@wire_struct
class OffsetFetchRequestTopic:
    name: str = scalar(STRING, "0-7", "")
    partition_indexes: list[int] = array(INT32, "0-7")


@wire_struct
class OffsetFetchRequestTopics:
    name: str = scalar(STRING, "8-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partition_indexes: list[int] = array(INT32, "8+")


@wire_struct
class OffsetFetchRequestGroup:
    group_id: str = scalar(STRING, "8+", "")
    member_id: str | None = scalar(STRING, "9+", None, nullable="9+")
    member_epoch: int = scalar(INT32, "9+", -1)
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "8+", nullable="8+"
    )


@wire_message("1-10", flexible="6+", api_key=9)
class OffsetFetchRequest(Message):
    group_id: str = scalar(STRING, "0-7", "")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = scalar(BOOLEAN, "7+", False)


@wire_struct
class OffsetFetchResponsePartition:
    partition_index: int = scalar(INT32, "0-7")
    committed_offset: int = scalar(INT64, "0-7")
    committed_leader_epoch: int = scalar(INT32, "5-7", -1)
    metadata: str | None = scalar(STRING, "0-7", "", nullable="0-7")
    error_code: int = scalar(INT16, "0-7")


@wire_struct
class OffsetFetchResponseTopic:
    name: str = scalar(STRING, "0-7", "")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@wire_struct
class OffsetFetchResponsePartitions:
    partition_index: int = scalar(INT32, "8+")
    committed_offset: int = scalar(INT64, "8+")
    committed_leader_epoch: int = scalar(INT32, "8+", -1)
    metadata: str | None = scalar(STRING, "8+", "", nullable="8+")
    error_code: int = scalar(INT16, "8+")


@wire_struct
class OffsetFetchResponseTopics:
    name: str = scalar(STRING, "8-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


@wire_struct
class OffsetFetchResponseGroup:
    group_id: str = scalar(STRING, "8+", "")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = scalar(INT16, "8+")


@wire_message("1-10", flexible="6+", api_key=9)
class OffsetFetchResponse(Message):
    throttle_time_ms: int = scalar(INT32, "3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = scalar(INT16, "2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


# OffsetDelete, API key 47


@wire_struct
class OffsetDeleteRequestPartition:
    partition_index: int = scalar(INT32)


@wire_struct
class OffsetDeleteRequestTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@wire_message("0", api_key=47)
class OffsetDeleteRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@wire_struct
class OffsetDeleteResponsePartition:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)


@wire_struct
class OffsetDeleteResponseTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@wire_message("0", api_key=47)
class OffsetDeleteResponse(Message):
    error_code: int = scalar(INT16)
    throttle_time_ms: int = scalar(INT32)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)


# ConsumerGroupHeartbeat, API key 68


@wire_struct
class HeartbeatTopicPartitions:
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    partitions: list[int] = array(INT32)


@wire_message("0-1", flexible="0+", api_key=68)
class ConsumerGroupHeartbeatRequest(Message):
    group_id: str = scalar(STRING, "0+", "")
    member_id: str = scalar(STRING, "0+", "")
    member_epoch: int = scalar(INT32)
    instance_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    rack_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    rebalance_timeout_ms: int = scalar(INT32, "0+", -1)
    subscribed_topic_names: list[str] | None = array(STRING, nullable="0+", is_null=True)
    subscribed_topic_regex: str | None = scalar(STRING, "1+", None, nullable="1+")
    server_assignor: str | None = scalar(STRING, "0+", None, nullable="0+")
    topic_partitions: list[HeartbeatTopicPartitions] | None = array(
        HeartbeatTopicPartitions, nullable="0+", is_null=True
    )


@wire_struct
class HeartbeatAssignment:
    topic_partitions: list[HeartbeatTopicPartitions] = array(HeartbeatTopicPartitions)


@wire_message("0-1", flexible="0+", api_key=68)
class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    member_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    member_epoch: int = scalar(INT32)
    heartbeat_interval_ms: int = scalar(INT32)
    assignment: HeartbeatAssignment | None = nested(
        HeartbeatAssignment, nullable="0+", is_null=True
    )


# ConsumerGroupDescribe, API key 69


@wire_message("0-1", flexible="0+", api_key=69)
class ConsumerGroupDescribeRequest(Message):
    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class DescribedTopicPartitions:
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    topic_name: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_struct
class DescribedAssignment:
    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


@wire_struct
class Member:
    member_id: str = scalar(STRING, "0+", "")
    instance_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    rack_id: str | None = scalar(STRING, "0+", None, nullable="0+")
    member_epoch: int = scalar(INT32)
    client_id: str = scalar(STRING, "0+", "")
    client_host: str = scalar(STRING, "0+", "")
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = scalar(STRING, "0+", None, nullable="0+")
    assignment: DescribedAssignment = nested(DescribedAssignment)
    target_assignment: DescribedAssignment = nested(DescribedAssignment)
    member_type: int = scalar(INT8, "1+", -1)


@wire_struct
class DescribedConsumerGroup:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    group_id: str = scalar(STRING, "0+", "")
    group_state: str = scalar(STRING, "0+", "")
    group_epoch: int = scalar(INT32)
    assignment_epoch: int = scalar(INT32)
    assignor_name: str = scalar(STRING, "0+", "")
    members: list[Member] = array(Member)
    authorized_operations: int = scalar(INT32, "0+", -2147483648)


@wire_message("0-1", flexible="0+", api_key=69)
class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)


# What members of a consumer group say to each other through the coordinator


@wire_struct
class OwnedPartitions:
    topic: str = scalar(STRING, "1+", "")
    partitions: list[int] = array(INT32, "1+")


@wire_message("0-3")
class ConsumerProtocolSubscription(Message):
    topics: list[str] = array(STRING)
    user_data: bytes | None = scalar(BYTES, "0+", None, nullable="0+")
    owned_partitions: list[OwnedPartitions] = array(OwnedPartitions, "1+")
    generation_id: int = scalar(INT32, "2+", -1)
    rack_id: str | None = scalar(STRING, "3+", None, nullable="3+")
