"""What members of classic groups ask: to join, for their assignment, that they are alive, to leave.

Invariant  every question is answered once; joining and assignments are answered when the group has
           come so far. A member that is unknown or of another generation changes nothing.
Threads    the loop's alone.
"""

import random as random_module
from uuid import UUID

from varve.broker.groups.classic_group import NO_MEMBER, ClassicGroup, ClassicState
from varve.broker.groups.classic_member import JoinReply, Subscriber, SyncReply, refused_join
from varve.broker.groups.classic_rebalance import ClassicRebalance, joined, synced
from varve.broker.groups.classic_static import StaticRejoin
from varve.broker.settings import GroupSettings
from varve.wire import ErrorCode
from varve.wire.messages.groups import MemberIdentity, SyncGroupRequest, SyncGroupResponse

_SKIPPING_VERSION = 9
_KNOWN_MEMBER_VERSION = 4


class ClassicProtocol:
    """Answers members of groups that are found."""

    def __init__(
        self,
        rebalance: ClassicRebalance,
        static_rejoin: StaticRejoin,
        *,
        settings: GroupSettings,
        random: random_module.Random,
    ) -> None:
        self._rebalance = rebalance
        self._static_rejoin = static_rejoin
        self._settings = settings
        self._random = random

    # JoinGroup

    def join(
        self,
        group: ClassicGroup,
        member_id: str,
        subscriber: Subscriber,
        *,
        version: int,
        reply: JoinReply,
    ) -> None:
        error = self._check_join(group, member_id, subscriber)
        if error is not ErrorCode.NONE:
            self._rebalance.forget_expected(group, member_id)
            reply(refused_join(member_id, error))
        elif member_id == NO_MEMBER:
            self._join_as_new(group, subscriber, version, reply)
        elif member_id in group.expected:
            self._rebalance.add(group, member_id, subscriber, reply)
        else:
            self._join_again(group, member_id, subscriber, reply)

    def _check_join(self, group: ClassicGroup, member_id: str, subscriber: Subscriber) -> ErrorCode:
        if not self._has_room(group, member_id, subscriber):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        names = {name for name, _ in subscriber.protocols}
        if not group.supports(subscriber.protocol_type, names):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_room(self, group: ClassicGroup, member_id: str, subscriber: Subscriber) -> bool:
        size_max = self._settings.group_max_size
        known = group.members.get(member_id)
        if subscriber.instance_id in group.static_members:
            return True
        match group.state:
            case ClassicState.PREPARING_REBALANCE:
                joining = sum(one.is_joining for one in group.members.values())
                return (known is not None and known.is_joining) or joining < size_max
            case ClassicState.COMPLETING_REBALANCE | ClassicState.STABLE:
                return known is not None or len(group.members) < size_max
            case _:
                return True

    def _join_as_new(
        self, group: ClassicGroup, subscriber: Subscriber, version: int, reply: JoinReply
    ) -> None:
        prefix = subscriber.client_id if subscriber.instance_id is None else subscriber.instance_id
        member_id = f"{prefix}-{UUID(int=self._random.getrandbits(128), version=4)}"
        if subscriber.instance_id is None:
            if version >= _KNOWN_MEMBER_VERSION:
                self._rebalance.expect(group, member_id, subscriber.session_timeout_ms)
                reply(refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))
                return
        elif subscriber.instance_id in group.static_members:
            may_skip = version >= _SKIPPING_VERSION
            self._static_rejoin.rejoin(group, member_id, subscriber, reply, may_skip=may_skip)
            return
        self._rebalance.add(group, member_id, subscriber, reply)

    def _join_again(
        self, group: ClassicGroup, member_id: str, subscriber: Subscriber, reply: JoinReply
    ) -> None:
        error = group.check_member(member_id, subscriber.instance_id)
        if error is not ErrorCode.NONE:
            reply(refused_join(member_id, error))
            return
        member = group.members[member_id]
        is_same = member.subscriber.protocols == subscriber.protocols
        is_stable = group.state is ClassicState.STABLE
        is_settled = is_same and (
            group.state is ClassicState.COMPLETING_REBALANCE
            or (is_stable and not group.is_leader(member_id))
        )
        if is_settled:
            # Its answer was lost, or it found nothing that would need another generation.
            self._rebalance.restart_session(group, member)
            reply(joined(group, member))
        else:
            self._rebalance.rejoin(group, member, subscriber, reply)

    # SyncGroup

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, reply: SyncReply) -> None:
        error = self._check_sync(group, request)
        if error is not ErrorCode.NONE:
            reply(SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(member.id)
        if group.state is ClassicState.STABLE:
            self._rebalance.restart_session(group, member)
            reply(synced(group, member))
            return
        # Who asks twice has given up its first request.
        member.answer_sync(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if group.is_leader(member.id):
            assignments = {one.member_id: bytes(one.assignment) for one in request.assignments}
            self._rebalance.assign(group, assignments)

    def _check_sync(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, group.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in (None, group.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # Heartbeat

    def heartbeat(
        self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.note_alive(group, member_id)
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def note_alive(self, group: ClassicGroup, member_id: str) -> None:
        """A member was heard of; whom nobody knows is not noted."""
        member = group.members.get(member_id)
        if member is not None and not member.is_new:
            self._rebalance.restart_session(group, member)

    # LeaveGroup

    def leave(self, group: ClassicGroup, leaving: MemberIdentity) -> ErrorCode:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == NO_MEMBER and instance_id is not None:
            # An operator removes whoever has the instance id.
            member_id = group.static_members.get(instance_id, NO_MEMBER)
        if member_id in group.expected and instance_id is None:
            self._rebalance.forget_expected(group, member_id)
            return ErrorCode.NONE
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._rebalance.remove(group, group.members[member_id])
        return error
