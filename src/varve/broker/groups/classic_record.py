"""Classic groups as records of `__consumer_offsets`.

Invariant  a group that is read back is stable with the members of its last stored generation, or
           empty; whoever has gone meanwhile is missed when its session ends.
"""

from collections.abc import Mapping

from varve.broker.groups.classic_group import ClassicGroup, ClassicState
from varve.broker.groups.classic_member import ClassicMember, Subscriber
from varve.wire import Message
from varve.wire.messages.state_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata


def to_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> tuple[Message, Message]:
    """A group as it is now, its members with the assignments they are about to have."""
    since_ms = -1 if group.state_since_ms is None else group.state_since_ms
    members = [_to_metadata(one, group.protocol, assignments) for one in group.members.values()]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=since_ms,
        members=members,
    )
    return GroupMetadataKey(group=group.id), value


def _to_metadata(
    member: ClassicMember, protocol: str | None, assignments: Mapping[str, bytes]
) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.subscriber.client_id,
        client_host=member.subscriber.client_host,
        rebalance_timeout=member.subscriber.rebalance_timeout_ms,
        session_timeout=member.subscriber.session_timeout_ms,
        subscription=member.metadata_of(protocol),
        assignment=assignments.get(member.id, b""),
    )


def from_record(id: str, value: GroupMetadataValue, now_ms: int) -> ClassicGroup:
    """The group; sessions of its members are for the caller to begin."""
    group = ClassicGroup(id, now_ms)
    for one in value.members:
        group.add(_from_metadata(one, value))
    group.protocol_type = value.protocol_type
    group.protocol = value.protocol
    group.generation = value.generation
    group.leader = value.leader
    group.state = ClassicState.STABLE if group.members else ClassicState.EMPTY
    since_ms = value.current_state_timestamp
    group.state_since_ms = None if since_ms < 0 else since_ms
    group.note_subscriptions()
    return group


def _from_metadata(one: MemberMetadata, value: GroupMetadataValue) -> ClassicMember:
    rebalance_ms = one.session_timeout if one.rebalance_timeout < 0 else one.rebalance_timeout
    subscriber = Subscriber(
        client_id=one.client_id,
        client_host=one.client_host,
        instance_id=one.group_instance_id,
        protocol_type=value.protocol_type,
        protocols=((value.protocol or "", bytes(one.subscription)),),
        session_timeout_ms=one.session_timeout,
        rebalance_timeout_ms=rebalance_ms,
    )
    return ClassicMember(one.member_id, subscriber, bytes(one.assignment))
