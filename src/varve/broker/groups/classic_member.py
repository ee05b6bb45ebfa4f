"""The members of a classic group, their leader, and the requests they wait for.

Invariant  a request is answered once: its future is taken from the member before it is answered.
           An instance id belongs to one member. The leader is a member unless there is none.
Threads    the loop's.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Self, TypeVar

from varve.broker.background import Timer, cancel_timer
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
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


class ClassicMembers(Mapping[str, ClassicMember]):
    """The members of a group by id, in the order in which they joined."""

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self.ids_by_instance: dict[str, str] = {}
        """The member ids of static members by instance id."""
        self.leader: str | None = None
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""

    def __getitem__(self, id: str) -> ClassicMember:
        return self._by_id[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def values(self) -> ValuesView[ClassicMember]:
        return self._by_id.values()

    def check(self, member_id: str, instance_id: str | None) -> None:
        """Raises KafkaError unless the id is that of a member, and the instance id its own."""
        if instance_id is not None:
            static_id = self.ids_by_instance.get(instance_id)
            if static_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if static_id != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self._by_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    # Joining and leaving

    def add(self, member: ClassicMember) -> None:
        """The first member is the leader."""
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self.ids_by_instance[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: ClassicMember) -> None:
        """Ends its session; the next member follows a leader."""
        cancel_timer(member.session)
        del self._by_id[member.id]
        self.unsynced.discard(member.id)
        if member.instance_id is not None:
            del self.ids_by_instance[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._by_id), None)

    def rename(self, member: ClassicMember, id: str) -> None:
        """A static member returned under another id."""
        assert member.instance_id is not None
        del self._by_id[member.id]
        self.unsynced.discard(member.id)
        if self.leader == member.id:
            self.leader = id
        member.id = id
        self._by_id[id] = member
        self.ids_by_instance[member.instance_id] = id

    # What they agree on

    @property
    def rebalance_timeout_ms(self) -> int:
        timeouts = (member.request.rebalance_timeout_ms for member in self.values())
        return max(timeouts, default=0)

    def elect_leader(self) -> bool:
        """Keeps the leader if it joins, else elects one that does; False where none joins."""
        leader = None if self.leader is None else self.get(self.leader)
        if leader is not None and leader.is_joining:
            return True
        for member in self.values():
            if member.is_joining:
                self.leader = member.id
                return True
        return False

    def common_protocols(self) -> set[str]:
        names = [{name for name, _ in member.request.protocols} for member in self.values()]
        return set.intersection(*names) if names else set()

    def select_protocol(self) -> str:
        """The one that most members prefer; of equals the one that was voted for first."""
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.values())
        return max(votes, key=lambda name: votes[name])


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
