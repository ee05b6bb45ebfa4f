"""A consumer group (KIP-848): the coordinator assigns, and each member hears of it by heartbeats.

Invariant  `state` is what the log says; it is replaced once the log has what is new. Every member
           has a session, and one that must give partitions back has a time to do so.
Threads    the loop's alone. `line` of the groups keeps changes of one group in order.
"""

from collections.abc import Callable
from typing import Final

from varve.broker.background import Timer, Timers
from varve.broker.groups.consumer_member import ConsumerMember
from varve.broker.groups.consumer_records import Records, tombstones
from varve.broker.groups.consumer_state import ConsumerState
from varve.broker.groups.group import GroupKind
from varve.broker.groups.subscription import CONSUMER_PROTOCOL
from varve.wire import ErrorCode

_FIRST_COMMIT_VERSION: Final = 9
"""Of OffsetCommit: before it, requests had no room for a member epoch."""

GiveUp = Callable[["ConsumerGroup", str], None]
"""A member was not heard of, or did not give its partitions back, for too long."""


class ConsumerGroup:
    """A group whose assignments are made by the coordinator."""

    def __init__(
        self,
        id: str,
        timers: Timers,
        *,
        session_timeout_ms: int,
        give_up: GiveUp,
        state: ConsumerState | None = None,
    ) -> None:
        self.id = id
        self.state = state or ConsumerState()
        self._timers = timers
        self._session_timeout_ms = session_timeout_ms
        self._give_up = give_up
        self._sessions: dict[str, Timer] = {}
        self._revocations: dict[str, Timer] = {}
        self._is_closed = False

    def start(self) -> None:
        """Members that were read back have all their time before them."""
        for member in self.state.members.values():
            self.heard_of(member.id)
            self._time_revocation(member)

    def become(self, state: ConsumerState) -> None:
        """The log has what is new."""
        before, self.state = self.state, state
        for id in before.members:
            if id not in state.members:
                _cancel(self._sessions.pop(id, None))
                _cancel(self._revocations.pop(id, None))
        for id, member in state.members.items():
            known = before.members.get(id)
            if known is not member and (known is None or not member.is_revoking_as(known)):
                self._time_revocation(member)

    def heard_of(self, member_id: str) -> None:
        """Begins a member's session anew."""
        _cancel(self._sessions.pop(member_id, None))
        if not self._is_closed:
            self._sessions[member_id] = self._timers.call_later(
                self._session_timeout_ms, lambda: self._end_session(member_id)
            )

    def is_missed(self, member_id: str) -> bool:
        """Whether a member that was given up is still to be removed: it may have come back."""
        member = self.state.members.get(member_id)
        if member is None:
            return False
        is_late = member.is_revoking and member_id not in self._revocations
        return is_late or member_id not in self._sessions

    def wait_again(self, member_id: str) -> None:
        """A member could not be removed; it is given up once more later."""
        self.heard_of(member_id)
        self._time_revocation(self.state.members[member_id])

    def _end_session(self, member_id: str) -> None:
        del self._sessions[member_id]
        self._give_up(self, member_id)

    def _time_revocation(self, member: ConsumerMember) -> None:
        _cancel(self._revocations.pop(member.id, None))
        if member.is_revoking and not self._is_closed:
            self._revocations[member.id] = self._timers.call_later(
                member.rebalance_timeout_ms, lambda: self._end_revocation(member.id)
            )

    def _end_revocation(self, member_id: str) -> None:
        del self._revocations[member_id]
        self._give_up(self, member_id)

    # As every group

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CONSUMER

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL

    @property
    def state_name(self) -> str:
        return self.state.name.value

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def member_count(self) -> int:
        return len(self.state.members)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.state.topics_of(one) for one in self.state.members.values())

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        is_transactional: bool,
    ) -> ErrorCode:
        """Who is no member may commit while there are none, or in a transaction."""
        if epoch < 0 and self.is_empty:
            return ErrorCode.NONE
        is_nobody = epoch == -1 and not member_id and instance_id is None
        if is_transactional and is_nobody:
            return ErrorCode.NONE
        member = self.state.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and version < _FIRST_COMMIT_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if is_transactional else ErrorCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.state.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def expiry_base_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def tombstones(self) -> Records:
        return tombstones(self.id, self.state)

    def close(self) -> None:
        self._is_closed = True
        for timer in (*self._sessions.values(), *self._revocations.values()):
            timer.cancel()
        self._sessions.clear()
        self._revocations.clear()


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()
