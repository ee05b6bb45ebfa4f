"""A member of a classic group, and the requests it waits for.

Invariant  a request is answered once: its future is taken from the member before it is answered.
Threads    the loop's.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Self, TypeVar

from varve.broker.background import Timer
from varve.wire import ErrorCode
from varve.wire.messages.groups import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse
from varve.wire.messages.state_records import GroupMetadataValue, MemberMetadata

R = TypeVar("R", JoinGroupResponse, SyncGroupResponse)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Who wants to be a member, and with which protocols and timeouts."""

    client_id: str
    client_host: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, in the order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int

    @classmethod
    def from_message(
        cls, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Self:
        rebalance_ms = request.session_timeout_ms if version == 0 else request.rebalance_timeout_ms
        return cls(
            client_id=client_id,
            client_host=client_host,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocols=tuple(
                (protocol.name, bytes(protocol.metadata)) for protocol in request.protocols
            ),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_ms,
        )


@dataclass(slots=True)
class ClassicMember:
    """A member, and the requests it waits for."""

    id: str
    request: JoinRequest
    assignment: bytes = b""
    is_new: bool = False
    """Whether it waits for its first generation."""
    join: "asyncio.Future[JoinGroupResponse] | None" = None
    sync: "asyncio.Future[SyncGroupResponse] | None" = None
    session: Timer | None = field(default=None, repr=False)

    @property
    def instance_id(self) -> str | None:
        return self.request.instance_id

    @property
    def is_joining(self) -> bool:
        return self.join is not None

    def metadata_of(self, protocol: str | None) -> bytes:
        """Its metadata for the leader; empty where it does not know the protocol."""
        return dict(self.request.protocols).get(protocol or "", b"")

    def vote(self, candidates: set[str]) -> str:
        """The candidate it prefers; it knows at least one."""
        return next(name for name, _ in self.request.protocols if name in candidates)

    def answer_join(self, response: JoinGroupResponse) -> None:
        """Does nothing where it does not wait."""
        waiting, self.join = self.join, None
        _answer(waiting, response)

    def answer_sync(self, response: SyncGroupResponse) -> None:
        waiting, self.sync = self.sync, None
        _answer(waiting, response)

    def fail(self, error: ErrorCode) -> None:
        """Answers what it waits for with an error."""
        self.answer_join(failed_join(self.id, error))
        self.answer_sync(SyncGroupResponse(error_code=error))


def _answer(waiting: "asyncio.Future[R] | None", response: R) -> None:
    # The future is cancelled where the client has disconnected.
    if waiting is not None and not waiting.done():
        waiting.set_result(response)


def failed_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def member_from_record(metadata: MemberMetadata, group: GroupMetadataValue) -> ClassicMember:
    rebalance_ms = metadata.rebalance_timeout
    if rebalance_ms < 0:
        rebalance_ms = metadata.session_timeout
    request = JoinRequest(
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        instance_id=metadata.group_instance_id,
        protocol_type=group.protocol_type,
        protocols=((group.protocol or "", bytes(metadata.subscription)),),
        session_timeout_ms=metadata.session_timeout,
        rebalance_timeout_ms=rebalance_ms,
    )
    return ClassicMember(metadata.member_id, request, bytes(metadata.assignment))
