"""A classic group: a state machine of its members, with its own timers.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...

Members join until all have joined or time is up; that makes a generation. Its leader then sends the
assignment of each member.

Invariant  a generation has one leader and one protocol, which all of its members know. An instance
           id belongs to one member. A rebalance ends when all have joined or its time is up: a
           member that does not join in time is removed, and one that does not sync in time causes
           another rebalance without it. Static members that are away stay until their session ends.
           Every request is answered once; one of a member that is unknown or of another generation
           changes nothing.
Crash      an assignment, and the new id of a static member, is in the log before any member learns
           of it. A group comes back as Stable with the members of its last stored generation, or
           as Empty; members that have gone meanwhile are removed when their session ends.
Threads    the loop's.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self
from uuid import UUID

from varve.broker.background import Timer, cancel_timer
from varve.broker.groups.classic_member import (
    ClassicMember,
    ClassicMembers,
    JoinRequest,
    failed_join,
    member_from_record,
)
from varve.broker.groups.group import Committer, Group, GroupKind, GroupServices, group_error_code
from varve.broker.groups.records import CONSUMER_PROTOCOL, Records, find_subscribed_topics
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from varve.wire.messages.state_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata

logger = logging.getLogger(__name__)

NO_MEMBER: Final = ""

_NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long a member may wait for its first generation: old clients join again with another id when
their request times out, and leave the first one behind."""
_GENERATION_MAX: Final = (1 << 31) - 1
"""As in Kafka, 0 follows."""
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9
_FIRST_WITH_REQUIRED_MEMBER_ID: Final = 4


class ClassicState(StrEnum):
    """By Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_GENERATION_STATES: Final = (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)


@dataclass(slots=True)
class _InitialWait:
    """The wait of a group that was empty; it continues while members come and time is left."""

    left_ms: int
    has_new_member: bool = False


class ClassicGroup(Group):
    """A group whose members agree on assignments among themselves."""

    kind = GroupKind.CLASSIC

    def __init__(self, id: str, services: GroupServices) -> None:
        super().__init__(id)
        self._services = services
        self._timers = services.timers
        self._settings = services.settings
        self.state = ClassicState.EMPTY
        self.state_since_ms: int | None = services.clock.now_ms()
        """None where the log does not have it."""
        self.protocol_type = ""
        self.protocol: str | None = None
        self.generation = 0
        self.members = ClassicMembers()
        self.pending_members: dict[str, Timer] = {}
        """Member ids that were assigned and have not joined yet, with their timeouts."""
        self._initial_wait: _InitialWait | None = None
        """While the first rebalance waits for more members, however many there are."""
        self._rebalance_timer: Timer | None = None
        self._sync_timer: Timer | None = None
        self._subscribed: frozenset[str] | None = None

    # As every group

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def member_count(self) -> int:
        return len(self.members)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.is_empty or self.protocol_type != CONSUMER_PROTOCOL:
            return False
        return self._subscribed is None or topic in self._subscribed

    def check_commit(self, client: Committer) -> None:
        """A client without a generation may commit while there are no members."""
        if self.state is ClassicState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if client.epoch < 0 and self.is_empty:
            return
        if client.epoch >= 0 or client.has_id:
            self._check_member(client.member_id, client.instance_id, client.epoch)
        elif not client.is_transactional:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not client.is_transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._renew_session_of(client.member_id)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Every client may fetch offsets."""

    def expiry_base_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        if self.is_empty:
            if not self.protocol_type or self.state_since_ms is None:
                return commit_timestamp_ms
            return self.state_since_ms
        is_unread = self.state is ClassicState.STABLE and self._subscribed is not None
        return commit_timestamp_ms if is_unread and not self.is_subscribed_to(topic) else None

    def tombstones(self) -> Records:
        return [(GroupMetadataKey(group=self.id), None)]

    def close(self) -> None:
        """Members that wait get an error, with which they look for the coordinator again."""
        self.state = ClassicState.DEAD
        for timer in (self._rebalance_timer, self._sync_timer, *self.pending_members.values()):
            cancel_timer(timer)
        self.pending_members.clear()
        for member in self.members.values():
            cancel_timer(member.session)
            member.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # JoinGroup

    async def join(
        self, member_id: str, request: JoinRequest, *, version: int
    ) -> JoinGroupResponse:
        """Answered when the group has a new generation; raises KafkaError."""
        try:
            self._check_join(member_id, request)
        except KafkaError:
            self._forget_pending(member_id)
            raise
        if member_id == NO_MEMBER:
            return await self._join_as_new(request, version)
        if member_id in self.pending_members:
            return await self._add(member_id, request)
        return await self._join_again(member_id, request)

    def _check_join(self, member_id: str, request: JoinRequest) -> None:
        if not self._may_grow(member_id, request):
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        names = {name for name, _ in request.protocols}
        if self.members:
            is_known = request.protocol_type == self.protocol_type
            is_supported = is_known and bool(self.members.common_protocols() & names)
        else:
            is_supported = bool(request.protocol_type and names)
        if not is_supported:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _may_grow(self, member_id: str, request: JoinRequest) -> bool:
        size_max = self._settings.group_max_size
        existing = self.members.get(member_id)
        if request.instance_id in self.members.ids_by_instance:
            return True
        match self.state:
            case ClassicState.PREPARING_REBALANCE:
                joining = sum(member.is_joining for member in self.members.values())
                return (existing is not None and existing.is_joining) or joining < size_max
            case ClassicState.COMPLETING_REBALANCE | ClassicState.STABLE:
                return existing is not None or len(self.members) < size_max
            case _:
                return True

    async def _join_as_new(self, request: JoinRequest, version: int) -> JoinGroupResponse:
        instance_id = request.instance_id
        prefix = request.client_id if instance_id is None else instance_id
        random_bits = self._services.random.getrandbits(128)
        member_id = f"{prefix}-{UUID(int=random_bits, version=4)}"
        if instance_id in self.members.ids_by_instance:
            may_skip = version >= _FIRST_WITH_SKIPPED_ASSIGNMENT
            return await self._rejoin_static(member_id, request, may_skip=may_skip)
        if instance_id is None and version >= _FIRST_WITH_REQUIRED_MEMBER_ID:
            self.pending_members[member_id] = self._timers.call_later(
                request.session_timeout_ms, lambda: self._forget_pending(member_id)
            )
            return failed_join(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        return await self._add(member_id, request)

    def _forget_pending(self, member_id: str) -> None:
        timer = self.pending_members.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            self._complete_if_all_joined()

    async def _add(self, member_id: str, request: JoinRequest) -> JoinGroupResponse:
        """A new member waits for its first generation."""
        cancel_timer(self.pending_members.pop(member_id, None))
        waiting: asyncio.Future[JoinGroupResponse] = self._services.loop.create_future()
        member = ClassicMember(member_id, request, is_new=True, join=waiting)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        if self._initial_wait is not None:
            self._initial_wait.has_new_member = True
        self._renew_session(member)
        self._rebalance()
        return await waiting

    async def _join_again(self, member_id: str, request: JoinRequest) -> JoinGroupResponse:
        self._check_member(member_id, request.instance_id)
        member = self.members[member_id]
        is_same = member.request.protocols == request.protocols
        is_follower = self.state is ClassicState.STABLE and self.members.leader != member_id
        if is_same and (self.state is ClassicState.COMPLETING_REBALANCE or is_follower):
            # Its response was lost, or nothing has changed that needs another generation.
            self._renew_session(member)
            return self._joined(member)
        waiting = self._wait_for_join(member, request)
        self._rebalance()
        return await waiting

    def _wait_for_join(
        self, member: ClassicMember, request: JoinRequest
    ) -> "asyncio.Future[JoinGroupResponse]":
        """A known member waits for a generation; its instance id stays."""
        # A second request replaces the first.
        member.fail(ErrorCode.REBALANCE_IN_PROGRESS)
        member.request = replace(request, instance_id=member.instance_id)
        member.join = self._services.loop.create_future()
        return member.join

    async def _rejoin_static(
        self, member_id: str, request: JoinRequest, *, may_skip: bool
    ) -> JoinGroupResponse:
        """A static member returns under another id (KIP-345); the former one is fenced.

        Where the group is stable and would select the same protocol, it keeps its assignment, and
        the others notice nothing.
        """
        assert request.instance_id is not None
        member = self.members[self.members.ids_by_instance[request.instance_id]]
        old_leader = self.members.leader or ""
        member.fail(ErrorCode.FENCED_INSTANCE_ID)
        self.members.rename(member, member_id)
        waiting = self._wait_for_join(member, request)
        self._renew_session(member)
        if self.state is ClassicState.STABLE and self.members.select_protocol() == self.protocol:
            self._update_subscriptions()
            record = self._to_record({id: other.assignment for id, other in self.members.items()})
            keeping = self._keep_assignment(member, record, may_skip, old_leader)
            self._services.tasks.start(keeping)
        else:
            self._rebalance()
        return await waiting

    async def _keep_assignment(
        self, member: ClassicMember, record: GroupMetadataValue, may_skip: bool, old_leader: str
    ) -> None:
        generation, id = record.generation, member.id
        error = await self._store(record)
        is_unchanged = self.state is ClassicState.STABLE and self.generation == generation
        if self.members.get(id) is not member or not is_unchanged:
            return  # It waits for the next generation like all others, or was answered.
        self._renew_session(member)
        if error is not ErrorCode.NONE:
            self._remove(member)
            return
        skips = may_skip and self.members.leader == member.id
        response = self._joined(member, skip_assignment=skips)
        if not may_skip:
            # A leader that cannot skip the assignment must not act as the leader.
            response.leader = old_leader
            response.members = []
        member.answer_join(response)

    def _joined(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """The generation of a member; the leader's has all members."""
        members = []
        if self.members.leader == member.id:
            members = [
                JoinGroupResponseMember(
                    member_id=other.id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata_of(self.protocol),
                )
                for other in self.members.values()
            ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.members.leader or "",
            skip_assignment=skip_assignment,
            member_id=member.id,
            members=members,
        )

    # SyncGroup

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """Answered when the leader's assignment is stored; raises KafkaError."""
        self._check_sync(request)
        member = self.members[request.member_id]
        self.members.unsynced.discard(member.id)
        if self.state is ClassicState.STABLE:
            self._renew_session(member)
            return self._synced(member)
        # A second request replaces the first.
        member.answer_sync(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        waiting: asyncio.Future[SyncGroupResponse] = self._services.loop.create_future()
        member.sync = waiting
        if self.members.leader == member.id:
            sent = {
                assignment.member_id: bytes(assignment.assignment)
                for assignment in request.assignments
            }
            assignments = {id: sent.get(id, b"") for id in self.members}
            record = self._to_record(assignments)
            self._services.tasks.start(self._assign(assignments, record))
        return await waiting

    def _check_sync(self, request: SyncGroupRequest) -> None:
        self._check_member(request.member_id, request.group_instance_id, request.generation_id)
        is_same_type = request.protocol_type in (None, self.protocol_type)
        if not is_same_type or request.protocol_name not in (None, self.protocol):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    async def _assign(self, assignments: Mapping[str, bytes], record: GroupMetadataValue) -> None:
        """Members learn of their assignments once those are in the log."""
        error = await self._store(record)
        is_awaited = self.state is ClassicState.COMPLETING_REBALANCE
        if not is_awaited or self.generation != record.generation:
            return
        is_stored = error is ErrorCode.NONE
        if is_stored:
            self._become(ClassicState.STABLE)
        for member in self.members.values():
            member.assignment = assignments[member.id] if is_stored else b""
            response = self._synced(member) if is_stored else SyncGroupResponse(error_code=error)
            self._answer_sync(member, response)
        if not is_stored:
            self._rebalance()

    def _synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def _answer_sync(self, member: ClassicMember, response: SyncGroupResponse) -> None:
        if member.sync is not None:
            self._renew_session(member)
            member.answer_sync(response)

    # Heartbeat and LeaveGroup

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Renews the session of a member; raises KafkaError."""
        self._check_member(member_id, instance_id, generation)
        self._renew_session_of(member_id)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def _renew_session_of(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None and not member.is_new:
            self._renew_session(member)

    def leave(self, leaving: MemberIdentity) -> None:
        """Removes a member; raises KafkaError."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == NO_MEMBER and instance_id is not None:
            # An operator removes the member with an instance id.
            member_id = self.members.ids_by_instance.get(instance_id, NO_MEMBER)
        if member_id in self.pending_members and instance_id is None:
            self._forget_pending(member_id)
            return
        self._check_member(member_id, instance_id)
        self._remove(self.members[member_id])

    def _check_member(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> None:
        self.members.check(member_id, instance_id)
        if generation not in (None, self.generation):
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    # Sessions

    def start_sessions(self) -> None:
        """To be called for a group that was read from the log."""
        for member in self.members.values():
            self._renew_session(member)

    def _renew_session(self, member: ClassicMember) -> None:
        timeout_ms = member.request.session_timeout_ms
        if member.is_new:
            timeout_ms = _NEW_MEMBER_TIMEOUT_MS
        cancel_timer(member.session)
        member.session = self._timers.call_later(timeout_ms, lambda: self._expire_member(member))

    def _expire_member(self, member: ClassicMember) -> None:
        if self.members.get(member.id) is not member:
            return
        is_waiting = member.is_joining or member.sync is not None
        if is_waiting and not member.is_new:
            return  # The response starts a new session.
        self._remove(member)

    # Rebalancing

    def _rebalance(self) -> None:
        """Starts a rebalance unless there is one, and completes it if all have joined."""
        if self.state is ClassicState.EMPTY and not self.members:
            return
        if self.state is not ClassicState.PREPARING_REBALANCE:
            self._prepare_rebalance()
        self._complete_if_all_joined()

    def _prepare_rebalance(self) -> None:
        """All members must join again."""
        was_empty = self.is_empty
        for member in self.members.values():
            response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            self._answer_sync(member, response)
        cancel_timer(self._sync_timer)
        self._become(ClassicState.PREPARING_REBALANCE)
        timeout_ms = self.members.rebalance_timeout_ms
        if was_empty:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            self._initial_wait = _InitialWait(max(0, timeout_ms - delay_ms))
            self._wait_for_joins(delay_ms)
        else:
            self._wait_for_joins(timeout_ms)

    def _wait_for_joins(self, timeout_ms: int) -> None:
        self._rebalance_timer = self._timers.call_later(timeout_ms, self._end_joining)

    def _end_joining(self) -> None:
        wait = self._initial_wait
        if wait is not None and wait.has_new_member and wait.left_ms > 0:
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, wait.left_ms)
            self._initial_wait = _InitialWait(wait.left_ms - delay_ms)
            self._wait_for_joins(delay_ms)
            return
        self._complete_rebalance()

    def _complete_if_all_joined(self) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE or self._initial_wait is not None:
            return
        if self.pending_members or not all(member.is_joining for member in self.members.values()):
            return
        self._complete_rebalance()

    def _complete_rebalance(self) -> None:
        cancel_timer(self._rebalance_timer)
        self._initial_wait = None
        for member in list(self.members.values()):
            if not member.is_joining and member.instance_id is None:
                self.members.remove(member)
        if self.members and not self.members.elect_leader():
            # Only static members are left, and all are away: their sessions decide.
            self._wait_for_joins(self.members.rebalance_timeout_ms)
            return
        self._start_generation()
        self._services.rebalance_counts[self.kind] += 1
        if self.is_empty:
            # Need not be in the log before anything else: sessions would end again after a restart.
            self._services.tasks.start(self._store(self._to_record({})))
            return
        generation = self.generation
        for member in self.members.values():
            member.is_new = False
            self._renew_session(member)
            member.answer_join(self._joined(member))
        self._sync_timer = self._timers.call_later(
            self.members.rebalance_timeout_ms, lambda: self._end_syncing(generation)
        )

    def _start_generation(self) -> None:
        """The members of now make a generation, or leave the group empty."""
        self.generation = self.generation + 1 if self.generation < _GENERATION_MAX else 0
        self.members.unsynced = set(self.members)
        if self.members:
            self.protocol = self.members.select_protocol()
            self._become(ClassicState.COMPLETING_REBALANCE)
        else:
            self.protocol = None
            self._become(ClassicState.EMPTY)
        self._update_subscriptions()

    def _end_syncing(self, generation: int) -> None:
        if self.generation != generation or self.state not in _GENERATION_STATES:
            return
        late = [self.members[id] for id in self.members.unsynced]
        for member in late:
            self.members.remove(member)
        if late:
            self._rebalance()

    def _become(self, state: ClassicState) -> None:
        self.state = state
        self.state_since_ms = self._services.clock.now_ms()

    def _update_subscriptions(self) -> None:
        self._subscribed = None
        if self.protocol_type == CONSUMER_PROTOCOL:
            self._subscribed = find_subscribed_topics(
                member.metadata_of(self.protocol) for member in self.members.values()
            )

    def _remove(self, member: ClassicMember) -> None:
        """A member left or expired; the others share its partitions."""
        self.members.remove(member)
        member.fail(ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalance()

    # The log

    async def _store(self, record: GroupMetadataValue) -> ErrorCode:
        try:
            await self._services.log.append(self.id, [(GroupMetadataKey(group=self.id), record)])
        except StoreError as error:
            logger.warning("group was not stored", extra={"group": self.id, "error": str(error)})
            return group_error_code(error)
        except Exception:
            logger.exception("storing a group failed", extra={"group": self.id})
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _to_record(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """The group as it is now, with the assignments that its members will have."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.request.client_id,
                    client_host=member.request.client_host,
                    rebalance_timeout=member.request.rebalance_timeout_ms,
                    session_timeout=member.request.session_timeout_ms,
                    subscription=member.metadata_of(self.protocol),
                    assignment=assignments.get(member.id, b""),
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_record(cls, id: str, value: GroupMetadataValue, services: GroupServices) -> Self:
        """The group; `start_sessions` is for the caller."""
        group = cls(id, services)
        for metadata in value.members:
            group.members.add(member_from_record(metadata, value))
        group.protocol_type = value.protocol_type
        group.protocol = value.protocol
        group.generation = value.generation
        group.members.leader = value.leader
        group.state = ClassicState.STABLE if group.members else ClassicState.EMPTY
        since_ms = value.current_state_timestamp
        group.state_since_ms = None if since_ms < 0 else since_ms
        group._update_subscriptions()
        return group
