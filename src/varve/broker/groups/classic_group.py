"""A classic group: its members, its generation, and which state it is in.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...

Members join until all are there or time is up; that makes a generation. Its leader then brings the
assignment of each. `classic_rebalance` moves the group from state to state, `classic_protocol`
answers its members.

Invariant  a generation has one leader and one protocol, which all of its members know. An instance
           id belongs to one member.
Threads    the loop's alone.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.broker.background import Timer
from varve.broker.groups.classic_member import ClassicMember
from varve.broker.groups.group import GroupKind
from varve.broker.groups.subscription import CONSUMER_PROTOCOL, find_subscribed_topics
from varve.wire import ErrorCode, Message
from varve.wire.messages.groups import JoinGroupResponseMember
from varve.wire.messages.state_records import GroupMetadataKey

NO_MEMBER: Final = ""
NO_GENERATION: Final = -1


class ClassicState(StrEnum):
    """By Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class InitialWait:
    """The wait of a group that was empty; it goes on while newcomers come and time is left."""

    left_ms: int
    has_newcomer: bool = False


class ClassicGroup:
    """A group whose members agree among themselves."""

    def __init__(self, id: str, now_ms: int) -> None:
        self.id = id
        self.state = ClassicState.EMPTY
        self.state_since_ms: int | None = now_ms
        """None where the log does not tell."""
        self.protocol_type = ""
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.expected: dict[str, Timer] = {}
        """Ids that were given out and have not joined yet, with the end of our patience."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.initial_wait: InitialWait | None = None
        """While the first rebalance waits for more members, however many there are."""
        self.rebalance_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self._subscribed: frozenset[str] | None = None

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_joining_complete(self) -> bool:
        """Whether nobody is missing who might still join."""
        return not self.expected and all(one.is_joining for one in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max(
            (one.subscriber.rebalance_timeout_ms for one in self.members.values()), default=0
        )

    def become(self, state: ClassicState, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: ClassicMember) -> None:
        if not self.members:
            self.protocol_type = member.subscriber.protocol_type
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: ClassicMember) -> None:
        member.stop_session()
        del self.members[member.id]
        self.unsynced.discard(member.id)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: ClassicMember, id: str) -> None:
        """A static member came back under another id; its place in the group stays."""
        assert member.instance_id is not None
        del self.members[member.id]
        self.unsynced.discard(member.id)
        if self.leader == member.id:
            self.leader = id
        member.id = id
        self.members[id] = member
        self.static_members[member.instance_id] = id

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether somebody is who he says he is."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        known_member = member_id in self.members
        return ErrorCode.NONE if known_member else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Whether somebody with these protocols could be a member beside the others."""
        if not self.members:
            return bool(protocol_type and names)
        return protocol_type == self.protocol_type and bool(self._candidates() & names)

    def _candidates(self) -> set[str]:
        """The protocols that all members know."""
        known = [{name for name, _ in one.subscriber.protocols} for one in self.members.values()]
        return set.intersection(*known) if known else set()

    def select_protocol(self) -> str:
        """The one that most members like best; of equals the one that was voted for first."""
        candidates = self._candidates()
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def elect_leader(self) -> bool:
        """Keeps the leader if it joins, else chooses one that does; False where nobody does."""
        leader = self.members.get(self.leader or NO_MEMBER)
        if leader is not None and leader.is_joining:
            return True
        for member in self.members.values():
            if member.is_joining:
                self.leader = member.id
                return True
        return False

    def begin_generation(self, now_ms: int) -> None:
        """Those who are members now make a generation, or leave the group empty."""
        self.generation += 1
        if self.members:
            self.protocol = self.select_protocol()
            self.become(ClassicState.COMPLETING_REBALANCE, now_ms)
            self.unsynced = set(self.members)
        else:
            self.protocol = None
            self.become(ClassicState.EMPTY, now_ms)
            self.unsynced = set()
        self.note_subscriptions()

    def note_subscriptions(self) -> None:
        """To be called when members or their protocol have changed."""
        self._subscribed = None
        if self.protocol_type == CONSUMER_PROTOCOL:
            self._subscribed = find_subscribed_topics(
                one.metadata_of(self.protocol) for one in self.members.values()
            )

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    def described_members(self) -> list[JoinGroupResponseMember]:
        """What the leader must know to assign."""
        return [
            JoinGroupResponseMember(
                member_id=one.id,
                group_instance_id=one.instance_id,
                metadata=one.metadata_of(self.protocol),
            )
            for one in self.members.values()
        ]

    # As every group

    def is_subscribed_to(self, topic: str) -> bool:
        if self.is_empty or self.protocol_type != CONSUMER_PROTOCOL:
            return False
        return self._subscribed is None or topic in self._subscribed

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        is_transactional: bool,
    ) -> ErrorCode:
        """Who belongs to no generation may commit while there are no members."""
        if self.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and self.is_empty:
            return ErrorCode.NONE
        if epoch >= 0 or member_id != NO_MEMBER or instance_id is not None:
            error = self.check_member(member_id, instance_id)
            if error is ErrorCode.NONE and epoch != self.generation:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is not ErrorCode.NONE:
                return error
        elif not is_transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Everybody may."""
        return ErrorCode.NONE

    def expiry_base_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        if self.is_empty:
            if not self.protocol_type or self.state_since_ms is None:
                return commit_timestamp_ms
            return self.state_since_ms
        is_unread = self.state is ClassicState.STABLE and self._subscribed is not None
        return commit_timestamp_ms if is_unread and not self.is_subscribed_to(topic) else None

    def tombstones(self) -> list[tuple[Message, Message | None]]:
        return [(GroupMetadataKey(group=self.id), None)]

    def close(self) -> None:
        """Who waits is told to look for the group anew."""
        self.state = ClassicState.DEAD
        for timer in (self.rebalance_timer, self.sync_timer, *self.expected.values()):
            if timer is not None:
                timer.cancel()
        self.expected.clear()
        for member in self.members.values():
            member.stop_session()
            member.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
