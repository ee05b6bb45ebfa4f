"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: what members of classic groups ask."""

from typing import Final

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.classic_member import refused_join
from varve.broker.security.rights import Operation, ResourceType
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_NULL_PROTOCOL_VERSION: Final = 7
_FIRST_WITH_MEMBERS: Final = 3
_FIRST_WITH_PROTOCOL: Final = 5


def _may_read(broker: Broker, context: RequestContext, group_id: str) -> bool:
    return broker.authorizer.is_allowed(context, Operation.READ, ResourceType.GROUP, group_id)


async def answer_join(
    broker: Broker, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse:
    if not _may_read(broker, context, request.group_id):
        response = refused_join("", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        response = await broker.groups.classic.join(
            request,
            version=context.version,
            client_id=context.client_id,
            client_host=f"/{context.connection.client_host}",
        )
    if response.protocol_name is None and context.version < _NULL_PROTOCOL_VERSION:
        response.protocol_name = ""
    return response


async def answer_sync(
    broker: Broker, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse:
    if not _may_read(broker, context, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    told = (request.protocol_type, request.protocol_name)
    if context.version >= _FIRST_WITH_PROTOCOL and None in told:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await broker.groups.classic.sync(request)


def answer_heartbeat(
    broker: Broker, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse:
    if not _may_read(broker, context, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return HeartbeatResponse(error_code=broker.groups.classic.heartbeat(request))


def answer_leave(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Before version 3 one member leaves at a time, and its error is that of the answer."""
    if not _may_read(broker, context, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    leave = broker.groups.classic.leave
    if context.version < _FIRST_WITH_MEMBERS:
        only = MemberIdentity(member_id=request.member_id)
        return LeaveGroupResponse(error_code=leave(request.group_id, [only])[0])
    codes = leave(request.group_id, request.members)
    members = [
        MemberResponse(one.member_id, one.group_instance_id, code)
        for one, code in zip(request.members, codes, strict=True)
    ]
    return LeaveGroupResponse(members=members)
