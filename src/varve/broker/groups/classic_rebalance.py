"""How a classic group comes from one generation to the next.

Invariant  a rebalance ends when all have joined or its time is up, so that nobody waits for ever:
           who does not join in time is no longer a member, and who does not ask for its assignment
           in time begins another rebalance without it. Static members that are away stay until
           their session ends.
Crash      an assignment is in the log before any member is told of it.
Threads    the loop's alone. Answers are calls; `persist` answers later.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from varve.broker.background import Timers
from varve.broker.groups.classic_group import ClassicGroup, ClassicState, InitialWait
from varve.broker.groups.classic_member import (
    NEW_MEMBER_TIMEOUT_MS,
    ClassicMember,
    JoinReply,
    Subscriber,
)
from varve.broker.settings import GroupSettings
from varve.foundation.clock import Clock
from varve.wire import ErrorCode
from varve.wire.messages.groups import JoinGroupResponse, SyncGroupResponse

Stored = Callable[[ErrorCode], None]
Persist = Callable[[ClassicGroup, Mapping[str, bytes], Stored], None]
"""Writes a group with the assignments of its members as it is now, and calls when that is done."""

_GENERATION_STATES = (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)


class ClassicRebalance:
    """Moves groups from state to state."""

    def __init__(
        self, *, clock: Clock, timers: Timers, settings: GroupSettings, persist: Persist
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._settings = settings
        self._persist = persist
        self.generation_count = 0
        """Of all groups, since the start."""

    # Members

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """An id was given out; a rebalance waits for it to join."""

        def give_up() -> None:
            self.forget_expected(group, member_id)

        group.expected[member_id] = self._timers.call_later(timeout_ms, give_up)

    def forget_expected(self, group: ClassicGroup, member_id: str) -> None:
        timer = group.expected.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            self.try_complete(group)

    def add(
        self, group: ClassicGroup, member_id: str, subscriber: Subscriber, reply: JoinReply
    ) -> None:
        """A new member waits for its first generation."""
        timer = group.expected.pop(member_id, None)
        if timer is not None:
            timer.cancel()
        member = ClassicMember(member_id, subscriber, is_new=True, join_reply=reply)
        group.add(member)
        if group.initial_wait is not None:
            group.initial_wait.has_newcomer = True
        self.restart_session(group, member)
        self.rebalance(group)

    def rejoin(
        self, group: ClassicGroup, member: ClassicMember, subscriber: Subscriber, reply: JoinReply
    ) -> None:
        """A member joins the next generation, perhaps on other terms."""
        self.update(member, subscriber, reply)
        self.rebalance(group)

    def update(self, member: ClassicMember, subscriber: Subscriber, reply: JoinReply) -> None:
        """A member waits for an answer, perhaps on other terms; its instance id stays."""
        # Who asks twice has given up its first request.
        member.refuse(ErrorCode.REBALANCE_IN_PROGRESS)
        member.subscriber = replace(subscriber, instance_id=member.instance_id)
        member.join_reply = reply

    def remove(self, group: ClassicGroup, member: ClassicMember) -> None:
        """A member left or was lost; the others share what it had."""
        group.remove(member)
        member.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        self.rebalance(group)

    def restart_session(self, group: ClassicGroup, member: ClassicMember) -> None:
        """The member was heard of."""
        timeout_ms = member.subscriber.session_timeout_ms
        if member.is_new:
            timeout_ms = NEW_MEMBER_TIMEOUT_MS
        member.stop_session()
        member.session = self._timers.call_later(
            timeout_ms, lambda: self._end_session(group, member)
        )

    def _end_session(self, group: ClassicGroup, member: ClassicMember) -> None:
        member.session = None
        if group.members.get(member.id) is not member:
            return
        is_waiting = member.is_joining or member.sync_reply is not None
        if is_waiting and not member.is_new:
            return  # The session begins anew with the answer.
        self.remove(group, member)

    # Joining

    def rebalance(self, group: ClassicGroup) -> None:
        """Begins a rebalance unless there is one, and ends it if nobody is missing."""
        if group.state is ClassicState.EMPTY and not group.members:
            return
        if group.state is not ClassicState.PREPARING_REBALANCE:
            self.prepare(group)
        self.try_complete(group)

    def prepare(self, group: ClassicGroup) -> None:
        """All members are to join again."""
        was_empty = group.is_empty
        for member in group.members.values():
            self._answer_sync(group, member, _failed_sync(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.sync_timer is not None:
            group.sync_timer.cancel()
            group.sync_timer = None
        group.become(ClassicState.PREPARING_REBALANCE, self._clock.now_ms())
        if was_empty:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.initial_wait = InitialWait(max(0, group.rebalance_timeout_ms - delay_ms))
            self._await_joins(group, delay_ms)
        else:
            self._await_joins(group, group.rebalance_timeout_ms)

    def _await_joins(self, group: ClassicGroup, timeout_ms: int) -> None:
        group.rebalance_timer = self._timers.call_later(
            timeout_ms, lambda: self._end_joining(group)
        )

    def _end_joining(self, group: ClassicGroup) -> None:
        wait = group.initial_wait
        if wait is not None and wait.has_newcomer and wait.left_ms > 0:
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, wait.left_ms)
            group.initial_wait = InitialWait(wait.left_ms - delay_ms)
            self._await_joins(group, delay_ms)
            return
        self._complete(group)

    def try_complete(self, group: ClassicGroup) -> None:
        is_open = group.state is ClassicState.PREPARING_REBALANCE and group.initial_wait is None
        if is_open and group.is_joining_complete:
            self._complete(group)

    def _complete(self, group: ClassicGroup) -> None:
        if group.rebalance_timer is not None:
            group.rebalance_timer.cancel()
            group.rebalance_timer = None
        group.initial_wait = None
        for member in list(group.members.values()):
            if not member.is_joining and member.instance_id is None:
                group.remove(member)
        if group.members and not group.elect_leader():
            # Only static members are left, and all are away: their sessions decide.
            self._await_joins(group, group.rebalance_timeout_ms)
            return
        group.begin_generation(self._clock.now_ms())
        self.generation_count += 1
        if group.is_empty:
            self._persist(group, {}, _ignore)
        else:
            self._announce(group)

    def _announce(self, group: ClassicGroup) -> None:
        generation = group.generation
        for member in group.members.values():
            member.is_new = False
            self.restart_session(group, member)
            member.answer_join(joined(group, member))
        group.sync_timer = self._timers.call_later(
            group.rebalance_timeout_ms, lambda: self._end_syncing(group, generation)
        )

    # Assigning

    def _end_syncing(self, group: ClassicGroup, generation: int) -> None:
        if group.generation != generation or group.state not in _GENERATION_STATES:
            return
        late = [group.members[one] for one in group.unsynced]
        for member in late:
            group.remove(member)
        if late:
            self.rebalance(group)

    def assign(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        """The leader brought the assignments; members hear of them once they are in the log."""
        generation = group.generation
        complete = {id: assignments.get(id, b"") for id in group.members}

        def stored(error: ErrorCode) -> None:
            is_awaited = group.state is ClassicState.COMPLETING_REBALANCE
            if not is_awaited or group.generation != generation:
                return
            if error is ErrorCode.NONE:
                self._settle(group, complete)
            else:
                self._fail(group, error)

        self._persist(group, complete, stored)

    def _settle(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        group.become(ClassicState.STABLE, self._clock.now_ms())
        for member in group.members.values():
            member.assignment = assignments[member.id]
            self._answer_sync(group, member, synced(group, member))

    def _fail(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            self._answer_sync(group, member, _failed_sync(error))
        self.rebalance(group)

    def _answer_sync(
        self, group: ClassicGroup, member: ClassicMember, response: SyncGroupResponse
    ) -> None:
        if member.sync_reply is not None:
            self.restart_session(group, member)
            member.answer_sync(response)


def joined(
    group: ClassicGroup, member: ClassicMember, *, skip_assignment: bool = False
) -> JoinGroupResponse:
    """What a member is told of its generation; the leader hears of all members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member.id,
        members=group.described_members() if group.is_leader(member.id) else [],
    )


def synced(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def _failed_sync(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def _ignore(error: ErrorCode) -> None:
    """That nobody is left need not be known after a restart: sessions end again."""
