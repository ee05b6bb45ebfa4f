"""Finds or creates the classic group that a request names.

Threads    the loop's.
"""

from collections.abc import Sequence

from varve.broker.groups.classic_group import NO_MEMBER, ClassicGroup
from varve.broker.groups.classic_member import JoinRequest, failed_join
from varve.broker.groups.group import Group, Groups, GroupServices, group_error_code
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import groups as messages


class ClassicCoordinator:
    """Serves members of classic groups."""

    def __init__(self, groups: Groups, services: GroupServices) -> None:
        self._groups = groups
        self._services = services

    def get_or_create(self, id: str) -> Group:
        """The group with this id, of either kind; an empty classic one where there is none."""
        group = self._groups.find(id)
        if group is None:
            group = ClassicGroup(id, self._services)
            self._groups.put(group)
        return group

    async def join(
        self, request: messages.JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> messages.JoinGroupResponse:
        """Answered when the group has a new generation."""
        try:
            group = await self._get_joined_group(request)
        except KafkaError as error:
            return failed_join(request.member_id, error.code)
        join_request = JoinRequest.from_message(
            request, version=version, client_id=client_id, client_host=client_host
        )
        return await group.join(request.member_id, join_request, version=version)

    async def _get_joined_group(self, request: messages.JoinGroupRequest) -> ClassicGroup:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        settings = self._services.settings
        low, high = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._groups.find(request.group_id)
        if group is not None and not isinstance(group, ClassicGroup):
            await self._replace(group)
            group = self._groups.find(request.group_id)
        if group is None and request.member_id != NO_MEMBER:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = self.get_or_create(request.group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return group

    async def _replace(self, group: Group) -> None:
        """Replaces a group of the other kind if it has no members; raises KafkaError."""
        async with self._groups.lock(group.id):
            if self._groups.find(group.id) is not group:
                return
            if not group.is_empty:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            try:
                await self._services.log.append(group.id, group.tombstones())
            except StoreError as error:
                raise KafkaError(group_error_code(error)) from error
            self._groups.put(ClassicGroup(group.id, self._services))

    async def sync(self, request: messages.SyncGroupRequest) -> messages.SyncGroupResponse:
        """Answered when the leader has sent the assignments; raises KafkaError."""
        return await self._get(request.group_id).sync(request)

    def heartbeat(self, request: messages.HeartbeatRequest) -> ErrorCode:
        """Raises KafkaError where there is no such group."""
        return self._get(request.group_id).heartbeat(
            request.member_id, request.group_instance_id, request.generation_id
        )

    def leave(self, group_id: str, leaving: Sequence[messages.MemberIdentity]) -> list[ErrorCode]:
        """The result of each member."""
        try:
            group = self._get(group_id)
        except KafkaError as error:
            return [error.code] * len(leaving)
        return [group.leave(member) for member in leaving]

    def _get(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.find(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group
