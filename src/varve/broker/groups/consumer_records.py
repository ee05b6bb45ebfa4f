"""Consumer groups as records of `__consumer_offsets`.

Invariant  what changed between two states is written, in Kafka's order: what a member has and shall
           have goes before the member does, and the group goes last. A group without a record of
           its epoch is none, whatever else is left of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from varve.broker.groups.assignors import Partitions
from varve.broker.groups.consumer_member import ConsumerMember, MemberState
from varve.broker.groups.consumer_state import ConsumerState
from varve.broker.groups.offsets_log import OffsetsLog
from varve.broker.groups.record_types import RecordType
from varve.broker.topics import by_topic
from varve.wire import Message
from varve.wire.messages.state_records import (
    AssignedTopicPartitions,
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
)

Records = list[tuple[Message, Message | None]]


def changes(group_id: str, before: ConsumerState, after: ConsumerState) -> Records:
    """Records that lead from one state to the other."""
    records = _removed(group_id, before, after)
    touched = [one for one in after.members.values() if before.members.get(one.id) is not one]
    for member in touched:
        value = _metadata(member)
        known = before.members.get(member.id)
        if known is None or _metadata(known) != value:
            records.append((ConsumerGroupMemberMetadataKey(group_id, member.id), value))
    if (before.epoch, before.metadata_hash) != (after.epoch, after.metadata_hash):
        epoch = ConsumerGroupMetadataValue(after.epoch, after.metadata_hash)
        records.append((ConsumerGroupMetadataKey(group_id), epoch))
    for id, target in after.targets.items():
        if before.targets.get(id) != target:
            key = ConsumerGroupTargetAssignmentMemberKey(group_id, id)
            records.append((key, ConsumerGroupTargetAssignmentMemberValue(_told(target))))
    if before.assignment_epoch != after.assignment_epoch:
        done = ConsumerGroupTargetAssignmentMetadataValue(after.assignment_epoch)
        records.append((ConsumerGroupTargetAssignmentMetadataKey(group_id), done))
    for member in touched:
        current = _current(member)
        known = before.members.get(member.id)
        if known is None or _current(known) != current:
            key_of = ConsumerGroupCurrentMemberAssignmentKey(group_id, member.id)
            records.append((key_of, current))
    return records


def _removed(group_id: str, before: ConsumerState, after: ConsumerState) -> Records:
    members = [id for id in before.members if id not in after.members]
    targets = [id for id in before.targets if id not in after.targets]
    return [
        *((ConsumerGroupCurrentMemberAssignmentKey(group_id, id), None) for id in members),
        *((ConsumerGroupTargetAssignmentMemberKey(group_id, id), None) for id in targets),
        *((ConsumerGroupMemberMetadataKey(group_id, id), None) for id in members),
    ]


def tombstones(group_id: str, state: ConsumerState) -> Records:
    """Records that take a group out of the log."""
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
        assigned_partitions=_told(member.assigned),
        partitions_pending_revocation=_told(member.revoking),
    )


def _told(partitions: Partitions) -> list[AssignedTopicPartitions]:
    return [
        AssignedTopicPartitions(topic, numbers) for topic, numbers in by_topic(partitions).items()
    ]


def _read(told: Iterable[AssignedTopicPartitions]) -> Partitions:
    return frozenset((one.topic_id, number) for one in told for number in one.partitions)


@dataclass(slots=True)
class _Found:
    """The records of one group, in whatever order they stand in the log."""

    group: ConsumerGroupMetadataValue | None = None
    assignment_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    current: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = field(default_factory=dict)

    def state(self, group: ConsumerGroupMetadataValue) -> ConsumerState:
        members = {id: _with_current(one, self.current.get(id)) for id, one in self.members.items()}
        return ConsumerState(
            epoch=group.epoch,
            metadata_hash=group.metadata_hash,
            assignment_epoch=self.assignment_epoch,
            members=members,
            targets={id: one for id, one in self.targets.items() if id in members},
        )


class ConsumerRecords:
    """Gathers the records of all consumer groups while the log is read."""

    def __init__(self, log: OffsetsLog) -> None:
        self._found: dict[str, _Found] = {}
        log.on_loaded(RecordType.CONSUMER_GROUP_METADATA, self._load_group)
        log.on_loaded(RecordType.CONSUMER_GROUP_MEMBER_METADATA, self._load_member)
        log.on_loaded(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, self._load_epoch)
        log.on_loaded(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, self._load_target)
        log.on_loaded(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, self._load_current)

    def take(self) -> dict[str, ConsumerState]:
        """The groups that were found, by name; to be called once, when all is read."""
        found, self._found = self._found, {}
        return {id: one.state(one.group) for id, one in found.items() if one.group is not None}

    def _of(self, group_id: str) -> _Found:
        return self._found.setdefault(group_id, _Found())

    def _load_group(
        self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue, offset: int
    ) -> None:
        self._of(key.group_id).group = value

    def _load_member(
        self,
        key: ConsumerGroupMemberMetadataKey,
        value: ConsumerGroupMemberMetadataValue,
        offset: int,
    ) -> None:
        self._of(key.group_id).members[key.member_id] = ConsumerMember(
            id=key.member_id,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
        )

    def _load_epoch(
        self,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue,
        offset: int,
    ) -> None:
        self._of(key.group_id).assignment_epoch = value.assignment_epoch

    def _load_target(
        self,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue,
        offset: int,
    ) -> None:
        self._of(key.group_id).targets[key.member_id] = _read(value.topic_partitions)

    def _load_current(
        self,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue,
        offset: int,
    ) -> None:
        self._of(key.group_id).current[key.member_id] = value


def _with_current(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> ConsumerMember:
    if value is None:
        return member
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState.of(value.state),
        assigned=_read(value.assigned_partitions),
        revoking=_read(value.partitions_pending_revocation),
    )
