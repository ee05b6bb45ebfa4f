"""Records of the internal topics __consumer_offsets and __transaction_state."""

from uuid import UUID

from varve.wire.schema import (
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

# Keys and values of the records in `__consumer_offsets`


@wire_message("0")
class OffsetCommitKey(Message):
    group: str = scalar(STRING, "0", "")
    topic: str = scalar(STRING, "0", "")
    partition: int = scalar(INT32, "0")


@wire_message("0-4", flexible="4+")
class OffsetCommitValue(Message):
    offset: int = scalar(INT64)
    leader_epoch: int = scalar(INT32, "3+", -1)
    metadata: str = scalar(STRING, "0+", "")
    commit_timestamp: int = scalar(INT64)
    expire_timestamp: int = scalar(INT64, "1", -1)
    topic_id: UUID = scalar(UUID_TYPE, "4+", NO_ID, tag=0)


@wire_message("0")
class GroupMetadataKey(Message):
    group: str = scalar(STRING, "0", "")


@wire_struct
class MemberMetadata:
    member_id: str = scalar(STRING, "0+", "")
    group_instance_id: str | None = scalar(STRING, "3+", None, nullable="3+")
    client_id: str = scalar(STRING, "0+", "")
    client_host: str = scalar(STRING, "0+", "")
    rebalance_timeout: int = scalar(INT32, "1+", -1)
    session_timeout: int = scalar(INT32)
    subscription: bytes = scalar(BYTES, "0+", b"")
    assignment: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-4", flexible="4+")
class GroupMetadataValue(Message):
    protocol_type: str = scalar(STRING, "0+", "")
    generation: int = scalar(INT32)
    protocol: str | None = scalar(STRING, "0+", "", nullable="0+")
    leader: str | None = scalar(STRING, "0+", "", nullable="0+")
    current_state_timestamp: int = scalar(INT64, "2+", -1)
    members: list[MemberMetadata] = array(MemberMetadata)


@wire_message("0")
class ConsumerGroupMetadataKey(Message):
    group_id: str = scalar(STRING, "0", "")


@wire_message("0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    epoch: int = scalar(INT32)
    metadata_hash: int = scalar(INT64, tag=0)


@wire_message("0")
class ConsumerGroupMemberMetadataKey(Message):
    group_id: str = scalar(STRING, "0", "")
    member_id: str = scalar(STRING, "0", "")


@wire_struct
class ClassicProtocol:
    name: str = scalar(STRING, "0+", "")
    metadata: bytes = scalar(BYTES, "0+", b"")


@wire_struct
class ClassicMemberMetadata:
    session_timeout_ms: int = scalar(INT32)
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


@wire_message("0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
    instance_id: str | None = scalar(STRING, "0+", "", nullable="0+")
    rack_id: str | None = scalar(STRING, "0+", "", nullable="0+")
    client_id: str = scalar(STRING, "0+", "")
    client_host: str = scalar(STRING, "0+", "")
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = scalar(STRING, "0+", "", nullable="0+")
    rebalance_timeout_ms: int = scalar(INT32, "0+", -1)
    server_assignor: str | None = scalar(STRING, "0+", "", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, nullable="0+", is_null=True, tag=0
    )


@wire_message("0")
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    group_id: str = scalar(STRING, "0", "")


@wire_message("0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    assignment_epoch: int = scalar(INT32)


@wire_message("0")
class ConsumerGroupTargetAssignmentMemberKey(Message):
    group_id: str = scalar(STRING, "0", "")
    member_id: str = scalar(STRING, "0", "")


@wire_struct
class AssignedTopicPartitions:
    topic_id: UUID = scalar(UUID_TYPE, "0+", NO_ID)
    partitions: list[int] = array(INT32)


@wire_message("0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Message):
    topic_partitions: list[AssignedTopicPartitions] = array(AssignedTopicPartitions)


@wire_message("0")
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    group_id: str = scalar(STRING, "0", "")
    member_id: str = scalar(STRING, "0", "")


@wire_message("0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    member_epoch: int = scalar(INT32)
    previous_member_epoch: int = scalar(INT32)
    state: int = scalar(INT8)
    assigned_partitions: list[AssignedTopicPartitions] = array(AssignedTopicPartitions)
    partitions_pending_revocation: list[AssignedTopicPartitions] = array(AssignedTopicPartitions)


# Keys and values of the records in `__transaction_state`


@wire_message("0")
class TransactionLogKey(Message):
    transactional_id: str = scalar(STRING, "0", "")


@wire_struct
class PartitionsSchema:
    topic: str = scalar(STRING, "0+", "")
    partition_ids: list[int] = array(INT32)


@wire_message("0-1", flexible="1+")
class TransactionLogValue(Message):
    producer_id: int = scalar(INT64)
    previous_producer_id: int = scalar(INT64, "1+", -1, tag=0)
    next_producer_id: int = scalar(INT64, "1+", -1, tag=1)
    producer_epoch: int = scalar(INT16)
    next_producer_epoch: int = scalar(INT16, "1+", -1, tag=3)
    transaction_timeout_ms: int = scalar(INT32)
    transaction_status: int = scalar(INT8)
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = scalar(INT64)
    transaction_start_timestamp_ms: int = scalar(INT64)
    client_transaction_version: int = scalar(INT16, "1+", tag=2)
