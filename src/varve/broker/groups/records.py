"""Records of `__consumer_offsets` as Kafka writes them, and the log of groups that holds them.

Layout     see `wire.state_records` and `wire.messages.state_records`.
Invariant  records of unknown types or versions are left where they are. Of a consumer group the
           difference between two states is written, in Kafka's order: assignment and target of a
           member are removed before the member, and the group last. Without a record of its epoch
           a consumer group does not exist, whatever else of it is in the log.
Threads    the loop's; decoding is pure.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from varve.broker.groups.assignors import Partitions
from varve.broker.groups.consumer_state import ConsumerMember, ConsumerState, MemberState
from varve.broker.state_topic import StateRecord, StateTopic
from varve.broker.topics import by_topic
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.records import Producer, Record
from varve.wire import Message
from varve.wire.messages.groups import ConsumerProtocolSubscription, TopicPartitions
from varve.wire.messages.state_records import (
    GROUP_RECORDS,
    OFFSETS_TOPIC,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataValue,
    OffsetCommitValue,
)
from varve.wire.state_records import (
    decode_numbered,
    decode_state_record,
    encode_numbered,
    read_number,
)

Records = list[tuple[Message, Message | None]]
"""Keys and values; None for a tombstone."""

CONSUMER_PROTOCOL: Final = "consumer"
_VERSION_WITH_EXPIRY: Final = 1
"""The only version of an offset commit with a field for its own expiry time."""
_WRITTEN_VERSIONS: Final[dict[type, int]] = {OffsetCommitValue: 4, GroupMetadataValue: 3}
"""Of values that are not written at version 0."""
# The last type of a key is the one that is written.
_TYPES: Final = {key: (number, value) for number, (key, value) in GROUP_RECORDS.items()}


def encode_record(key: Message, value: Message | None, timestamp: int) -> Record:
    """A record as it is stored; its type follows from the class of the key."""
    number, value_kind = _TYPES.get(type(key), (-1, Message))
    if number < 0 or not (value is None or isinstance(value, value_kind)):
        raise InvalidRequest(
            f"{type(key).__name__} with {type(value).__name__} is not a record of {OFFSETS_TOPIC}"
        )
    data = None
    if value is not None:
        version = _WRITTEN_VERSIONS.get(type(value), 0)
        if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
            version = _VERSION_WITH_EXPIRY
        data = encode_numbered(version, value, version)
    return Record(encode_numbered(number, key, 0), data, timestamp=timestamp)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A decoded record; `producer_id` is set in a transaction that has not ended."""

    key: Message
    value: Message | None
    offset: int
    producer_id: int


def decode_record(record: StateRecord, where: str) -> GroupRecord | None:
    """None for a record of an unknown type or version; raises Corrupt."""
    decoded = decode_state_record(OFFSETS_TOPIC, record.key, record.value, where)
    return None if decoded is None else GroupRecord(*decoded, record.offset, record.producer_id)


class GroupLog:
    """The records of groups and committed offsets; those of a group are in one partition."""

    def __init__(self, topic: StateTopic, clock: Clock) -> None:
        self.topic = topic
        self._clock = clock

    async def append(self, group: str, records: Records) -> int:
        """Writes records as one batch; see StateTopic."""
        return await self.topic.append(group, self._encode(records))

    def submit(self, group: str, records: Records, producer: Producer) -> "asyncio.Future[int]":
        """Like `append`, as part of the producer's transaction, for a topic that exists."""
        return self.topic.submit(group, self._encode(records), producer=producer)

    def _encode(self, records: Records) -> Sequence[Record]:
        now_ms = self._clock.now_ms()
        return [encode_record(key, value, now_ms) for key, value in records]

    async def replay(self) -> AsyncIterator[GroupRecord]:
        """Live records, and those of transactions that have not ended."""
        async for replayed in self.topic.replay():
            for state_record in (*replayed.live, *replayed.pending):
                record, where = None, f"{replayed.where} {state_record.offset}"
                with self.topic.setting_aside(where):
                    record = decode_record(state_record, where)
                if record is not None:
                    yield record


# Subscriptions of classic groups


def find_subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members with the consumer protocol; None where one is unreadable.

    The coordinator passes the metadata of members on unread, except for the topics: offsets in
    those are in use.
    """
    topics: set[str] = set()
    for data in subscriptions:
        subscribed = _find_topics(data)
        if subscribed is None:
            return None
        topics.update(subscribed)
    return frozenset(topics)


def _find_topics(data: bytes) -> list[str] | None:
    try:
        version = read_number(data, "a subscription")
        if version < 0:
            return None
        # Later versions begin like earlier ones, so they are read as the last known one.
        readable = min(version, ConsumerProtocolSubscription.VERSIONS.last)
        return decode_numbered(ConsumerProtocolSubscription, data, readable).topics
    except Corrupt:
        return None


def changes(group_id: str, before: ConsumerState, after: ConsumerState) -> Records:
    """Records of the difference between two states."""
    removed = [id for id in before.members if id not in after.members]
    untargeted = [id for id in before.targets if id not in after.targets]
    records: Records = [
        *((ConsumerGroupCurrentMemberAssignmentKey(group_id, id), None) for id in removed),
        *((ConsumerGroupTargetAssignmentMemberKey(group_id, id), None) for id in untargeted),
        *((ConsumerGroupMemberMetadataKey(group_id, id), None) for id in removed),
    ]
    changed = [
        (before.members.get(id), member)
        for id, member in after.members.items()
        if before.members.get(id) is not member
    ]
    for previous, member in changed:
        metadata = _metadata(member)
        if previous is None or _metadata(previous) != metadata:
            records.append((ConsumerGroupMemberMetadataKey(group_id, member.id), metadata))
    if (before.epoch, before.metadata_hash) != (after.epoch, after.metadata_hash):
        epoch = ConsumerGroupMetadataValue(after.epoch, after.metadata_hash)
        records.append((ConsumerGroupMetadataKey(group_id), epoch))
    for id, target in after.targets.items():
        if before.targets.get(id) != target:
            key = ConsumerGroupTargetAssignmentMemberKey(group_id, id)
            records.append((key, ConsumerGroupTargetAssignmentMemberValue(_to_wire(target))))
    if before.assignment_epoch != after.assignment_epoch:
        done = ConsumerGroupTargetAssignmentMetadataValue(after.assignment_epoch)
        records.append((ConsumerGroupTargetAssignmentMetadataKey(group_id), done))
    for previous, member in changed:
        current = _current(member)
        if previous is None or _current(previous) != current:
            current_key = ConsumerGroupCurrentMemberAssignmentKey(group_id, member.id)
            records.append((current_key, current))
    return records


def tombstones(group_id: str, state: ConsumerState) -> Records:
    """Records that remove a group from the log."""
    return [
        *((ConsumerGroupCurrentMemberAssignmentKey(group_id, id), None) for id in state.members),
        *((ConsumerGroupTargetAssignmentMemberKey(group_id, id), None) for id in state.targets),
        (ConsumerGroupTargetAssignmentMetadataKey(group_id), None),
        *((ConsumerGroupMemberMetadataKey(group_id, id), None) for id in state.members),
        (ConsumerGroupMetadataKey(group_id), None),
    ]


def _metadata(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
    )


def _current(member: ConsumerMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_to_wire(member.assigned),
        partitions_pending_revocation=_to_wire(member.revoking),
    )


def _to_wire(partitions: Partitions) -> list[TopicPartitions]:
    return [TopicPartitions(topic, numbers) for topic, numbers in by_topic(partitions).items()]


def _from_wire(partitions: Iterable[TopicPartitions]) -> Partitions:
    return frozenset(
        (topic_partitions.topic_id, number)
        for topic_partitions in partitions
        for number in topic_partitions.partitions
    )


@dataclass(slots=True)
class _GroupRecords:
    """The records of one group, in any order."""

    group: ConsumerGroupMetadataValue | None = None
    assignment_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    current: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = field(default_factory=dict)

    def state(self, group: ConsumerGroupMetadataValue) -> ConsumerState:
        members = {
            id: _with_current(member, self.current.get(id)) for id, member in self.members.items()
        }
        return ConsumerState(
            epoch=group.epoch,
            metadata_hash=group.metadata_hash,
            assignment_epoch=self.assignment_epoch,
            members=members,
            targets={id: target for id, target in self.targets.items() if id in members},
        )


class ConsumerStateReader:
    """Collects the records of all consumer groups while the log is read."""

    def __init__(self) -> None:
        self._groups: dict[str, _GroupRecords] = {}

    def states(self) -> dict[str, ConsumerState]:
        """The groups by id, once all records are loaded."""
        return {
            id: records.state(records.group)
            for id, records in self._groups.items()
            if records.group is not None
        }

    def load(self, record: GroupRecord) -> None:
        """Takes a live record of a consumer group."""
        key: Any = record.key
        group = self._groups.setdefault(key.group_id, _GroupRecords())
        match record.value:
            case ConsumerGroupMetadataValue() as value:
                group.group = value
            case ConsumerGroupMemberMetadataValue() as value:
                group.members[key.member_id] = _to_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataValue() as value:
                group.assignment_epoch = value.assignment_epoch
            case ConsumerGroupTargetAssignmentMemberValue() as value:
                group.targets[key.member_id] = _from_wire(value.topic_partitions)
            case ConsumerGroupCurrentMemberAssignmentValue() as value:
                group.current[key.member_id] = value


def _to_member(id: str, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    return ConsumerMember(
        id=id,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
    )


def _with_current(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> ConsumerMember:
    if value is None:
        return member
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState.from_number(value.state),
        assigned=_from_wire(value.assigned_partitions),
        revoking=_from_wire(value.partitions_pending_revocation),
    )
