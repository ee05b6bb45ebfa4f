"""A member of a classic group.

Invariant  whoever waits for an answer gets exactly one: an answer is taken from its place before it
           is given.
Threads    the loop's alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from varve.broker.background import Timer
from varve.wire import ErrorCode
from varve.wire.messages.groups import JoinGroupResponse, SyncGroupResponse

JoinReply = Callable[[JoinGroupResponse], None]
SyncReply = Callable[[SyncGroupResponse], None]

NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long one that never was in a generation may wait for its first: clients of old versions join
anew with another id when they lose patience, and leave the first one behind."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who asks to be a member, and on which terms."""

    client_id: str
    client_host: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, the one it likes best first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int


@dataclass(slots=True)
class ClassicMember:
    """A member by its id, and what it waits for."""

    id: str
    subscriber: Subscriber
    assignment: bytes = b""
    is_new: bool = False
    """Whether it waits for its first generation."""
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None
    session: Timer | None = field(default=None, repr=False)

    @property
    def instance_id(self) -> str | None:
        return self.subscriber.instance_id

    @property
    def is_joining(self) -> bool:
        return self.join_reply is not None

    def metadata_of(self, protocol: str | None) -> bytes:
        """What it says to the leader in a protocol; empty where it does not know that."""
        return dict(self.subscriber.protocols).get(protocol or "", b"")

    def vote(self, candidates: set[str]) -> str:
        """The candidate it likes best; there is one that it knows."""
        return next(name for name, _ in self.subscriber.protocols if name in candidates)

    def answer_join(self, response: JoinGroupResponse) -> None:
        """Nothing happens where it does not wait."""
        reply, self.join_reply = self.join_reply, None
        if reply is not None:
            reply(response)

    def answer_sync(self, response: SyncGroupResponse) -> None:
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(response)

    def refuse(self, error: ErrorCode) -> None:
        """Answers whatever it waits for with an error."""
        self.answer_join(refused_join(self.id, error))
        self.answer_sync(SyncGroupResponse(error_code=error))

    def stop_session(self) -> None:
        if self.session is not None:
            self.session.cancel()
            self.session = None


def refused_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)
