"""What is known of a consumer group at one moment.

    Empty -> Assigning -> Reconciling -> Stable

Members and subscriptions make the group's epoch; targets are computed for an epoch; each member
comes to that epoch by itself.

Invariant  never changed, only replaced, so that what is being written stands beside what is in the
           log. No partition is held by two members.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from varve.broker.groups.assignors import NO_PARTITIONS, Partitions
from varve.broker.groups.consumer_member import ConsumerMember


class ConsumerStateName(StrEnum):
    """By Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """Members by id, what they shall have, and the epochs of both."""

    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    targets: Mapping[str, Partitions] = field(default_factory=dict)
    resolved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Topics by regular expression, as far as they were looked for. Not kept in the log."""
    seen_topics: int = -1
    """The generation of topics that subscriptions were compared with. Not kept in the log."""

    @property
    def name(self) -> ConsumerStateName:
        if not self.members:
            return ConsumerStateName.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerStateName.ASSIGNING
        epoch = self.assignment_epoch
        if all(one.is_reconciled_to(epoch) for one in self.members.values()):
            return ConsumerStateName.STABLE
        return ConsumerStateName.RECONCILING

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def find_static(self, instance_id: str) -> ConsumerMember | None:
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def put(self, member: ConsumerMember) -> Self:
        return replace(self, members={**self.members, member.id: member})

    def remove(self, member_id: str) -> Self:
        members = {id: one for id, one in self.members.items() if id != member_id}
        targets = {id: one for id, one in self.targets.items() if id != member_id}
        return replace(self, members=members, targets=targets)

    def rename(self, member_id: str, member: ConsumerMember) -> Self:
        """A static member came back under another id; what it shall have is as before."""
        after = self.remove(member_id).put(member)
        return replace(after, targets={**after.targets, member.id: self.target_of(member_id)})

    def held_by_others(self, member_id: str, partitions: Partitions) -> Partitions:
        """Those of some partitions that a member cannot have yet."""
        found = [
            partitions & one.held
            for id, one in self.members.items()
            if id != member_id and not one.held.isdisjoint(partitions)
        ]
        return NO_PARTITIONS.union(*found)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Names that a member subscribes to, whether there are such topics or not."""
        if not member.topic_regex:
            return member.topic_names
        return member.topic_names | self.resolved.get(member.topic_regex, frozenset())

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(self.topics_of(one) for one in self.members.values()))

    def regexes(self) -> Iterator[str]:
        found = {one.topic_regex for one in self.members.values() if one.topic_regex}
        return iter(sorted(one for one in found if one))

    def preferred_assignor(self, known: tuple[str, ...]) -> str:
        """The one that most members ask for; the first of those known where nobody asks."""
        votes = dict.fromkeys(known, 0)
        for member in self.members.values():
            if member.server_assignor in votes:
                votes[member.server_assignor] += 1
        return max(votes, key=lambda name: votes[name])
