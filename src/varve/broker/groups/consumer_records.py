"""Consumer groups as records of `__consumer_offsets`.

Invariant  the difference between two states is written, in Kafka's order: assignment and target of
           a member are removed before the member, and the group last. Without a record of its epoch
           a group does not exist, whatever else of it is in the log.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

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
    records = _tombstones(
        group_id,
        [id for id in before.members if id not in after.members],
        [id for id in before.targets if id not in after.targets],
    )
    changed = [
        (before.members.get(id), member)
        for id, member in after.members.items()
        if before.members.get(id) is not member
    ]
    for known, member in changed:
        metadata = _metadata(member)
        if known is None or _metadata(known) != metadata:
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
    for known, member in changed:
        current = _current(member)
        if known is None or _current(known) != current:
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


def _tombstones(group_id: str, members: list[str], targets: list[str]) -> Records:
    return [
        *((ConsumerGroupCurrentMemberAssignmentKey(group_id, id), None) for id in members),
        *((ConsumerGroupTargetAssignmentMemberKey(group_id, id), None) for id in targets),
        *((ConsumerGroupMemberMetadataKey(group_id, id), None) for id in members),
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
        state=MemberState.of(value.state),
        assigned=_from_wire(value.assigned_partitions),
        revoking=_from_wire(value.partitions_pending_revocation),
    )
