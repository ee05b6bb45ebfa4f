"""The state of a consumer group: its members, their targets, and their way towards them.

    group:   Empty -> Assigning -> Reconciling -> Stable
    member:  Stable -> UnrevokedPartitions -> (UnreleasedPartitions ->) Stable

Members and subscriptions make the epoch of the group; targets are computed for an epoch; each
member moves to that epoch on its own.

Invariant  values are replaced, never changed, so that what is being written exists beside what is
           in the log. No partition is held by two members.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Final, Self

from varve.broker.groups.assignors import NO_PARTITIONS, Partitions

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
