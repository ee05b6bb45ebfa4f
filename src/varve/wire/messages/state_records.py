"""Records of the internal topics __consumer_offsets and __transaction_state."""

from typing import Final
from uuid import UUID

from varve.wire.messages.groups import JoinGroupRequestProtocol, TopicPartitions
from varve.wire.schema import Int8, Int16, Int32, Int64, Message, Struct, field

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
METADATA_TOPIC: Final = "__remote_log_metadata"
"""Not internal in Kafka's sense: clients see it like any other topic."""
BROKER_TOPICS: Final = INTERNAL_TOPICS | {METADATA_TOPIC}
"""Topics that the broker alone creates and writes."""

# Keys and values of the records in `__consumer_offsets`


class OffsetCommitKey(Message, versions="0"):
    group: str = field("0")
    topic: str = field("0")
    partition: Int32 = field("0")


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    offset: Int64 = field()
    leader_epoch: Int32 = field("3+", -1)
    metadata: str = field()
    commit_timestamp: Int64 = field()
    expire_timestamp: Int64 = field("1", -1)
    topic_id: UUID = field("4+", tag=0)


class GroupMetadataKey(Message, versions="0"):
    group: str = field("0")


class MemberMetadata(Struct):
    member_id: str = field()
    group_instance_id: str | None = field("3+", None)
    client_id: str = field()
    client_host: str = field()
    rebalance_timeout: Int32 = field("1+", -1)
    session_timeout: Int32 = field()
    subscription: bytes = field()
    assignment: bytes = field()


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    protocol_type: str = field()
    generation: Int32 = field()
    protocol: str | None = field()
    leader: str | None = field()
    current_state_timestamp: Int64 = field("2+", -1)
    members: list[MemberMetadata] = field()


class ConsumerGroupMetadataKey(Message, versions="0"):
    group_id: str = field("0")


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    epoch: Int32 = field()
    metadata_hash: Int64 = field(tag=0)


class ConsumerGroupMemberMetadataKey(Message, versions="0"):
    group_id: str = field("0")
    member_id: str = field("0")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = field()
    supported_protocols: list[JoinGroupRequestProtocol] = field()


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    instance_id: str | None = field()
    rack_id: str | None = field()
    client_id: str = field()
    client_host: str = field()
    subscribed_topic_names: list[str] = field()
    subscribed_topic_regex: str | None = field()
    rebalance_timeout_ms: Int32 = field("0+", -1)
    server_assignor: str | None = field()
    classic_member_metadata: ClassicMemberMetadata | None = field("0+", None, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="0"):
    group_id: str = field("0")


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    assignment_epoch: Int32 = field()


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="0"):
    group_id: str = field("0")
    member_id: str = field("0")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    topic_partitions: list[TopicPartitions] = field()


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="0"):
    group_id: str = field("0")
    member_id: str = field("0")


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    member_epoch: Int32 = field()
    previous_member_epoch: Int32 = field()
    state: Int8 = field()
    assigned_partitions: list[TopicPartitions] = field()
    partitions_pending_revocation: list[TopicPartitions] = field()


GROUP_RECORDS: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
}
"""Keys and values by the type that a key begins with; 0 was written for offsets by old brokers."""


# Keys and values of the records in `__transaction_state`


class TransactionLogKey(Message, versions="0"):
    transactional_id: str = field("0")


class PartitionsSchema(Struct):
    topic: str = field()
    partition_ids: list[Int32] = field()


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    producer_id: Int64 = field()
    previous_producer_id: Int64 = field("1+", -1, tag=0)
    next_producer_id: Int64 = field("1+", -1, tag=1)
    producer_epoch: Int16 = field()
    next_producer_epoch: Int16 = field("1+", -1, tag=3)
    transaction_timeout_ms: Int32 = field()
    transaction_status: Int8 = field()
    transaction_partitions: list[PartitionsSchema] | None = field()
    transaction_last_update_timestamp_ms: Int64 = field()
    transaction_start_timestamp_ms: Int64 = field()
    client_transaction_version: Int16 = field("1+", tag=2)
