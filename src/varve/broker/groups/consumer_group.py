"""A consumer group (KIP-848): the coordinator assigns, and members learn of it by heartbeats.

Invariant  `state` is what the log has; it is replaced once the log has the next one. Every member
           has a session, and one that must revoke partitions has a timeout to do so.
Threads    the loop's. Changes of one group are ordered by its lock in `Groups`.
"""

from collections.abc import Callable
from typing import Final

from varve.broker.background import Timer, Timers
from varve.broker.groups.consumer_records import tombstones
from varve.broker.groups.consumer_state import ConsumerMember, ConsumerState
from varve.broker.groups.group import GroupKind
from varve.broker.groups.records import CONSUMER_PROTOCOL, Records
from varve.wire import ErrorCode

_FIRST_COMMIT_VERSION: Final = 9
"""Before this version OffsetCommit had no field for a member epoch."""

ExpireMember = Callable[["ConsumerGroup", str], None]
"""Called for a member whose session, or whose time to revoke partitions, is over."""


class ConsumerGroup:
    """A group whose assignments are made by the coordinator."""

    def __init__(
        self,
        id: str,
        timers: Timers,
        *,
        session_timeout_ms: int,
        expire_member: ExpireMember,
        state: ConsumerState | None = None,
    ) -> None:
        self.id = id
        self.state = state or ConsumerState()
        self._timers = timers
        self._session_timeout_ms = session_timeout_ms
        self._expire_member = expire_member
        self._sessions: dict[str, Timer] = {}
        self._revocations: dict[str, Timer] = {}
        self._is_closed = False

    def start(self) -> None:
        """Starts the timers of members that were read from the log."""
        for member in self.state.members.values():
            self.renew_session(member.id)
            self._start_revocation_timer(member)

    def become(self, state: ConsumerState) -> None:
        """To be called when the log has the state."""
        before, self.state = self.state, state
        for id in before.members:
            if id not in state.members:
                _cancel(self._sessions.pop(id, None))
                _cancel(self._revocations.pop(id, None))
        for id, member in state.members.items():
            known = before.members.get(id)
            if known is not member and (known is None or not member.is_revoking_as(known)):
                self._start_revocation_timer(member)

    def renew_session(self, member_id: str) -> None:
        _cancel(self._sessions.pop(member_id, None))
        if not self._is_closed:
            self._sessions[member_id] = self._timers.call_later(
                self._session_timeout_ms, lambda: self._end_session(member_id)
            )

    def is_expired(self, member_id: str) -> bool:
        """Whether a member is still to be removed: it may be back."""
        member = self.state.members.get(member_id)
        if member is None:
            return False
        is_late = member.is_revoking and member_id not in self._revocations
        return is_late or member_id not in self._sessions

    def postpone_expiry(self, member_id: str) -> None:
        """A member could not be removed; it expires once more later."""
        self.renew_session(member_id)
        self._start_revocation_timer(self.state.members[member_id])

    def _end_session(self, member_id: str) -> None:
        del self._sessions[member_id]
        self._expire_member(self, member_id)

    def _start_revocation_timer(self, member: ConsumerMember) -> None:
        _cancel(self._revocations.pop(member.id, None))
        if member.is_revoking and not self._is_closed:
            self._revocations[member.id] = self._timers.call_later(
                member.rebalance_timeout_ms, lambda: self._end_revocation(member.id)
            )

    def _end_revocation(self, member_id: str) -> None:
        del self._revocations[member_id]
        self._expire_member(self, member_id)

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
        return any(topic in self.state.topics_of(member) for member in self.state.members.values())

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        is_transactional: bool,
    ) -> ErrorCode:
        """A client that is not a member may commit while there are none, or in a transaction."""
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
