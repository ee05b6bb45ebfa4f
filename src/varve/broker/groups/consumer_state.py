"""The state of a consumer group: members, their targets, and what their heartbeats change.

    group:   Empty -> Assigning -> Reconciling -> Stable
    member:  Stable -> UnrevokedPartitions -> (UnreleasedPartitions ->) Stable

Members and subscriptions make the epoch of the group; targets are computed for an epoch; each
member moves to that epoch on its own.

Invariant  values are replaced, never changed, so that what is being written exists beside what is
           in the log. No partition is held by two members. A member that is unknown, fenced or of
           another epoch changes nothing and gets a KafkaError. A member that joins reports no
           partitions, so a known member may join again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Final, Self

from varve.broker.groups.assignors import NO_PARTITIONS, Partitions
from varve.broker.topics import by_topic
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import groups as messages

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


class MemberState(IntEnum):
    """By Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must revoke partitions before it moves to the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not revoked."""
    UNKNOWN = 127
    """A log that Kafka wrote may have states that are not known here."""

    @classmethod
    def from_number(cls, number: int) -> "MemberState":
        return cls(number) if number in set(cls) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: its client, its subscription and its progress. Never changed, only replaced."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    """Partitions it must revoke; they are its own until it no longer reports them."""

    @property
    def has_left(self) -> bool:
        """Whether it is a static member that has left temporarily."""
        return self.epoch == STATIC_LEAVE_EPOCH

    @property
    def held(self) -> Partitions:
        """Partitions that no other member may have."""
        return self.assigned | self.revoking

    @property
    def is_revoking(self) -> bool:
        """Whether it has partitions to revoke; one that has left temporarily has none."""
        return self.state is MemberState.UNREVOKED_PARTITIONS and bool(self.revoking)

    def is_revoking_as(self, other: Self) -> bool:
        """Whether it must revoke the same as `other`, so that its timeout continues."""
        both = self.is_revoking and other.is_revoking
        return both and (self.epoch, self.revoking) == (other.epoch, other.revoking)

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def leave_temporarily(self) -> Self:
        """A static member leaves; it has stopped reading."""
        return replace(self, epoch=STATIC_LEAVE_EPOCH, revoking=NO_PARTITIONS)

    def rejoin_as(self, id: str) -> Self:
        """The static member is back, perhaps in another process."""
        return replace(self, id=id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)


class ConsumerStateName(StrEnum):
    """By Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """Members by id, their targets, and the epochs of both. Never changed, only replaced."""

    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    targets: Mapping[str, Partitions] = field(default_factory=dict)
    resolved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Topics by regular expression, where they were resolved. Not in the log."""
    seen_topics: int = -1
    """The generation of topics that subscriptions were compared with. Not in the log."""

    @property
    def name(self) -> ConsumerStateName:
        if not self.members:
            return ConsumerStateName.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerStateName.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled_to(epoch) for member in self.members.values()):
            return ConsumerStateName.STABLE
        return ConsumerStateName.RECONCILING

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def find_static(self, instance_id: str) -> ConsumerMember | None:
        members = self.members.values()
        return next((member for member in members if member.instance_id == instance_id), None)

    def put(self, member: ConsumerMember) -> Self:
        return replace(self, members={**self.members, member.id: member})

    def remove(self, member_id: str) -> Self:
        members = {id: member for id, member in self.members.items() if id != member_id}
        targets = {id: target for id, target in self.targets.items() if id != member_id}
        return replace(self, members=members, targets=targets)

    def rename(self, member_id: str, member: ConsumerMember) -> Self:
        """A static member is back under another id; its target does not change."""
        after = self.remove(member_id).put(member)
        return replace(after, targets={**after.targets, member.id: self.target_of(member_id)})

    def held_by_others(self, member_id: str, partitions: Partitions) -> Partitions:
        """The partitions that other members still hold."""
        overlaps = [
            partitions & member.held
            for id, member in self.members.items()
            if id != member_id and not member.held.isdisjoint(partitions)
        ]
        return NO_PARTITIONS.union(*overlaps)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names that a member subscribes to, whether the topics exist or not."""
        if not member.topic_regex:
            return member.topic_names
        return member.topic_names | self.resolved.get(member.topic_regex, frozenset())

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(self.topics_of(member) for member in self.members.values()))

    def regexes(self) -> Iterator[str]:
        return iter(
            sorted({member.topic_regex for member in self.members.values() if member.topic_regex})
        )

    def preferred_assignor(self, assignors: tuple[str, ...]) -> str:
        """The assignor that most members request; the first where none does."""
        votes = dict.fromkeys(assignors, 0)
        for member in self.members.values():
            if member.server_assignor in votes:
                votes[member.server_assignor] += 1
        return max(votes, key=lambda name: votes[name])


FindHeld = Callable[[Partitions], Partitions]
"""Returns the partitions that other members hold."""


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: FindHeld,
) -> ConsumerMember:
    """The next state of a member; `owned` are the partitions it reports, None if it reports none.

    A member first revokes what it must not keep; only then it moves to the epoch of the target and
    gets more, as far as others have revoked it. As in Kafka, a partition that a member does not
    report it has revoked, or never started to read.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, member.revoking):
            return member
        epoch += 1
    return _advance(member, epoch, target, target_epoch, owned, held_by_others)


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """A member that does not report its partitions may still have all of them."""
    return owned is None or not owned.isdisjoint(partitions)


def _advance(
    member: ConsumerMember,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: FindHeld,
) -> ConsumerMember:
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and _owns_any(owned, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            epoch=epoch,
            assigned=kept,
            revoking=revoking,
        )
    unreleased = held_by_others(target - kept)
    is_complete = not unreleased
    return replace(
        member,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        previous_epoch=member.epoch,
        epoch=target_epoch,
        assigned=target - unreleased,
        revoking=NO_PARTITIONS,
    )


# Heartbeats

_FIRST_WITH_OWN_ID = 1


@dataclass(frozen=True, slots=True)
class Client:
    """The client that sends a heartbeat."""

    id: str
    host: str


def check_request(
    request: messages.ConsumerGroupHeartbeatRequest, *, version: int, assignors: Collection[str]
) -> None:
    """Checks that do not depend on the group."""
    epoch = request.member_epoch
    needs_id = version >= _FIRST_WITH_OWN_ID or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    for name, value in (
        ("MemberId", request.member_id if needs_id else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: messages.ConsumerGroupHeartbeatRequest) -> None:
    error = None
    if request.rebalance_timeout_ms == -1:
        error = "RebalanceTimeoutMs must be provided in first request."
    elif request.topic_partitions is None or request.topic_partitions:
        error = "TopicPartitions must be empty when (re-)joining."
    elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        error = (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null "
            "when (re-)joining."
        )
    if error is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error)


def owned_partitions(request: messages.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """The partitions that a member reports; None where it reports none."""
    if request.topic_partitions is None:
        return None
    return frozenset(
        (topic_partitions.topic_id, number)
        for topic_partitions in request.topic_partitions
        for number in topic_partitions.partitions
    )


def apply_heartbeat(
    state: ConsumerState,
    request: messages.ConsumerGroupHeartbeatRequest,
    member_id: str,
    client: Client,
    *,
    size_max: int,
) -> ConsumerState:
    """The state with the member as it describes itself now; raises KafkaError."""
    if request.member_epoch == JOIN_EPOCH:
        state, member = _join(state, request.instance_id, member_id, size_max)
    else:
        member = _get_member(state, request.instance_id, member_id)
        _check_epoch(member, request.member_epoch, owned_partitions(request))
    updated = _update(member, request, client)
    # Most heartbeats change nothing.
    return state if state.members.get(member_id) is updated else state.put(updated)


def _join(
    state: ConsumerState, instance_id: str | None, member_id: str, size_max: int
) -> tuple[ConsumerState, ConsumerMember]:
    owner = state.find_static(instance_id) if instance_id is not None else None
    if owner is not None and owner.id != member_id:
        if not owner.has_left:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {owner.id} member.",
            )
        member = owner.rejoin_as(member_id)
        return state.rename(owner.id, member), member
    member = state.members.get(member_id) or ConsumerMember(member_id)
    if member_id not in state.members and len(state.members) >= size_max:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )
    return state, member.rejoin_as(member_id) if member.has_left else member


def _get_member(state: ConsumerState, instance_id: str | None, member_id: str) -> ConsumerMember:
    if instance_id is None:
        member = state.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group."
            )
        return member
    owner = state.find_static(instance_id)
    if owner is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if owner.id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{owner.id}.",
        )
    return owner


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """The previous epoch is valid, too, where the member has no partition it must not have: the
    response with the new epoch was lost.
    """
    is_before = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    is_known = member.state is not MemberState.UNKNOWN
    if is_known and (epoch == member.epoch or (epoch < member.epoch and is_before)):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    why = f"has a {than} member epoch ({epoch}) than the one known by the group coordinator"
    if not is_known:
        why = f"is in a state that is not known, at epoch ({epoch}), the group coordinator's being"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member {why} ({member.epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _update(
    member: ConsumerMember, request: messages.ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """Fields that are not sent do not change; the same member where nothing changed."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    fields: dict[str, Any] = {
        "client_id": client.id,
        "client_host": client.host,
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "rebalance_timeout_ms": None if timeout_ms == -1 else timeout_ms,
        "server_assignor": request.server_assignor,
        "topic_names": None if names is None else frozenset(names),
        "topic_regex": request.subscribed_topic_regex,
    }
    sent = {name: value for name, value in fields.items() if value is not None}
    is_same = all(getattr(member, name) == value for name, value in sent.items())
    return member if is_same else replace(member, **sent)


def apply_leave(
    state: ConsumerState, request: messages.ConsumerGroupHeartbeatRequest
) -> ConsumerState:
    """The state without the member, or with a static one that has left temporarily."""
    member = _get_member(state, request.instance_id, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        return state.put(member.leave_temporarily())
    return state.remove(member.id)


def is_subscription_changed(before: ConsumerState, after: ConsumerState, member_id: str) -> bool:
    """Whether the partitions of other members may change."""
    if before.epoch == 0 or len(before.members) != len(after.members):
        return True
    member = after.members[member_id]
    previous = before.members.get(member_id)
    if previous is None and member.instance_id is not None:
        previous = before.find_static(member.instance_id)
    if previous is None:
        return True
    return (previous.topic_names, previous.topic_regex or "") != (
        member.topic_names,
        member.topic_regex or "",
    )


def heartbeat_response(
    request: messages.ConsumerGroupHeartbeatRequest,
    before: ConsumerMember | None,
    member: ConsumerMember,
    interval_ms: int,
) -> messages.ConsumerGroupHeartbeatResponse:
    """Has the assignment when it changed, and for a member that may have missed it."""
    response = messages.ConsumerGroupHeartbeatResponse(
        member_id=member.id, member_epoch=member.epoch, heartbeat_interval_ms=interval_ms
    )
    joins = request.member_epoch == JOIN_EPOCH
    is_changed = before is None or before.assigned != member.assigned
    if joins or is_changed or _is_full(request):
        response.assignment = messages.HeartbeatAssignment(
            [
                messages.TopicPartitions(topic, numbers)
                for topic, numbers in by_topic(member.assigned).items()
            ]
        )
    return response


def _is_full(request: messages.ConsumerGroupHeartbeatRequest) -> bool:
    """Whether it has all fields: after an error a member does not know what was received."""
    subscribes = request.subscribed_topic_names is not None
    subscribes |= request.subscribed_topic_regex is not None
    has_owned = request.topic_partitions is not None
    return subscribes and has_owned and request.rebalance_timeout_ms != -1
