"""Consumer groups as records of `__consumer_offsets`.

Invariant  the difference between two states is written, in Kafka's order: assignment and target of
           a member are removed before the member, and the group last. Without a record of its epoch
           a group does not exist, whatever else of it is in the log.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from varve.broker.groups.assignors import Partitions
from varve.broker.groups.consumer_state import ConsumerMember, ConsumerState, MemberState
from varve.broker.groups.records import GroupRecord, Records
from varve.broker.topics import by_topic
from varve.wire.messages.groups import TopicPartitions
from varve.wire.messages.state_records import (
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


def changes(group_id: str, before: ConsumerState, after: ConsumerState) -> Records:
    """Records of the difference between two states."""
    records = _removed(group_id, before, after)
    touched = [
        consumer_member
        for consumer_member in after.members.values()
        if before.members.get(consumer_member.id) is not consumer_member
    ]
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
            records.append((key, ConsumerGroupTargetAssignmentMemberValue(_to_wire(target))))
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
        match record.key, record.value:
            case ConsumerGroupMetadataKey() as key, ConsumerGroupMetadataValue() as group:
                self._get(key.group_id).group = group
            case (
                ConsumerGroupMemberMetadataKey() as key,
                ConsumerGroupMemberMetadataValue() as metadata,
            ):
                member = _to_member(key.member_id, metadata)
                self._get(key.group_id).members[key.member_id] = member
            case (
                ConsumerGroupTargetAssignmentMetadataKey() as key,
                ConsumerGroupTargetAssignmentMetadataValue() as epoch,
            ):
                self._get(key.group_id).assignment_epoch = epoch.assignment_epoch
            case (
                ConsumerGroupTargetAssignmentMemberKey() as key,
                ConsumerGroupTargetAssignmentMemberValue() as target,
            ):
                partitions = _from_wire(target.topic_partitions)
                self._get(key.group_id).targets[key.member_id] = partitions
            case (
                ConsumerGroupCurrentMemberAssignmentKey() as key,
                ConsumerGroupCurrentMemberAssignmentValue() as current,
            ):
                self._get(key.group_id).current[key.member_id] = current

    def _get(self, group_id: str) -> _GroupRecords:
        return self._groups.setdefault(group_id, _GroupRecords())


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
        state=MemberState.of(value.state),
        assigned=_from_wire(value.assigned_partitions),
        revoking=_from_wire(value.partitions_pending_revocation),
    )
