"""The door to classic groups: finds the group somebody means, and keeps it in the log.

Crash      a group comes back with the members of its last assignment, whose sessions begin anew.
Threads    the loop's alone.
"""

import asyncio
import logging
import random as random_module
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from varve.broker.background import Timers
from varve.broker.groups.classic_group import NO_MEMBER, ClassicGroup
from varve.broker.groups.classic_member import Subscriber, refused_join
from varve.broker.groups.classic_protocol import ClassicProtocol
from varve.broker.groups.classic_rebalance import ClassicRebalance, Stored
from varve.broker.groups.classic_record import from_record, to_record
from varve.broker.groups.classic_static import StaticRejoin
from varve.broker.groups.failure import group_code_of
from varve.broker.groups.group import Group, Groups
from varve.broker.groups.offsets_log import OffsetsLog
from varve.broker.groups.record_types import RecordType
from varve.broker.settings import GroupSettings
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode, Message
from varve.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from varve.wire.messages.state_records import GroupMetadataKey, GroupMetadataValue

logger = logging.getLogger(__name__)

Begin = Callable[[Coroutine[Any, Any, None]], object]
"""Has work go on by itself."""


class ClassicCoordinator:
    """Answers members of classic groups, and makes groups of those who come first."""

    def __init__(
        self,
        groups: Groups,
        log: OffsetsLog,
        *,
        clock: Clock,
        timers: Timers,
        settings: GroupSettings,
        random: random_module.Random,
        begin: Begin,
    ) -> None:
        self._groups = groups
        self._log = log
        self._clock = clock
        self._settings = settings
        self._begin = begin
        self._rebalance = ClassicRebalance(
            clock=clock, timers=timers, settings=settings, persist=self._persist
        )
        static_rejoin = StaticRejoin(self._rebalance, self._persist)
        self._protocol = ClassicProtocol(
            self._rebalance, static_rejoin, settings=settings, random=random
        )
        log.on_loaded(RecordType.GROUP_METADATA, self._load)

    def _load(self, key: GroupMetadataKey, value: GroupMetadataValue, offset: int) -> None:
        self._groups.put(from_record(key.group, value, self._clock.now_ms()))

    @property
    def generation_count(self) -> int:
        """Generations that were begun since the start."""
        return self._rebalance.generation_count

    def start(self) -> None:
        """Begins the sessions of members that were read back."""
        for group in self._groups:
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    self._rebalance.restart_session(group, member)

    def get_or_make(self, id: str) -> Group:
        """The group of this name, of whatever kind; an empty one where there is none."""
        group = self._groups.find(id)
        if group is None:
            group = ClassicGroup(id, self._clock.now_ms())
            self._groups.put(group)
        return group

    # Members

    async def join(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> JoinGroupResponse:
        """Answered when the group has a new generation."""
        error = self._check_join(request)
        group = self._groups.find(request.group_id)
        if error is ErrorCode.NONE and group is not None and not isinstance(group, ClassicGroup):
            error = await self._replace(group)
            group = self._groups.find(request.group_id)
        if error is ErrorCode.NONE and group is None and request.member_id != NO_MEMBER:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is ErrorCode.NONE:
            group = self.get_or_make(request.group_id)
            if not isinstance(group, ClassicGroup):
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is not ErrorCode.NONE:
            return refused_join(request.member_id, error)
        assert isinstance(group, ClassicGroup)
        answer: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        self._protocol.join(
            group,
            request.member_id,
            _subscriber(request, version, client_id, client_host),
            version=version,
            reply=_fill(answer),
        )
        return await answer

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low = self._settings.group_min_session_timeout_ms
        high = self._settings.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    async def _replace(self, group: Group) -> ErrorCode:
        """A group of another kind makes room if it has no members."""
        async with self._groups.line(group.id):
            if self._groups.find(group.id) is not group:
                return ErrorCode.NONE
            if not group.is_empty:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            try:
                await self._log.append(group.id, group.tombstones())
            except StoreError as error:
                return group_code_of(error)
            self._groups.put(ClassicGroup(group.id, self._clock.now_ms()))
        return ErrorCode.NONE

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """Answered when the leader has brought the assignments."""
        found = self._find(request.group_id)
        if not isinstance(found, ClassicGroup):
            return SyncGroupResponse(error_code=found)
        answer: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
        self._protocol.sync(found, request, _fill(answer))
        return await answer

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        found = self._find(request.group_id)
        if not isinstance(found, ClassicGroup):
            return found
        return self._protocol.heartbeat(
            found, request.member_id, request.group_instance_id, request.generation_id
        )

    def leave(self, group_id: str, leaving: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """What became of each."""
        found = self._find(group_id)
        if not isinstance(found, ClassicGroup):
            return [found] * len(leaving)
        return [self._protocol.leave(found, one) for one in leaving]

    def note_alive(self, group: Group, member_id: str) -> None:
        if isinstance(group, ClassicGroup):
            self._protocol.note_alive(group, member_id)

    def _find(self, group_id: str) -> ClassicGroup | ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.find(group_id)
        return group if isinstance(group, ClassicGroup) else ErrorCode.UNKNOWN_MEMBER_ID

    # The log

    def _persist(
        self, group: ClassicGroup, assignments: Mapping[str, bytes], stored: Stored
    ) -> None:
        self._begin(self._store(group.id, to_record(group, assignments), stored))

    async def _store(self, id: str, record: tuple[Message, Message], stored: Stored) -> None:
        code = ErrorCode.NONE
        try:
            await self._log.append(id, [record])
        except StoreError as error:
            logger.warning("a group was not stored", extra={"group": id, "error": str(error)})
            code = group_code_of(error)
        except Exception:
            logger.exception("storing a group failed", extra={"group": id})
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        stored(code)


def _subscriber(
    request: JoinGroupRequest, version: int, client_id: str, client_host: str
) -> Subscriber:
    rebalance_ms = request.session_timeout_ms if version == 0 else request.rebalance_timeout_ms
    return Subscriber(
        client_id=client_id,
        client_host=client_host,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_ms,
    )


def _fill(answer: "asyncio.Future[Any]") -> Callable[[Any], None]:
    def fill(response: object) -> None:
        # Nobody is there to hear it if the request was given up.
        if not answer.done():
            answer.set_result(response)

    return fill
