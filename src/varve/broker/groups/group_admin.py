"""DescribeGroups, ListGroups and DeleteGroups."""

from typing import Final

from varve.broker.authorized_operations import authorized_operations
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.classic_group import ClassicGroup, ClassicState
from varve.broker.groups.classic_member import ClassicMember
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_FIRST_WITH_MISSING: Final = 6
"""Before this version a group that does not exist is described as dead."""


def answer_describe(
    broker: Broker, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    described = []
    for id in request.groups:
        one = _describe(broker, context, id)
        may_tell = one.error_code == ErrorCode.NONE
        if request.include_authorized_operations and may_tell:
            one.authorized_operations = authorized_operations(
                broker.authorizer, context, ResourceType.GROUP, id
            )
        described.append(one)
    return DescribeGroupsResponse(groups=described)


def _describe(broker: Broker, context: RequestContext, id: str) -> DescribedGroup:
    if not broker.authorizer.is_allowed(context, Operation.DESCRIBE, ResourceType.GROUP, id):
        return DescribedGroup(group_id=id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    group = broker.groups.groups.find(id)
    if isinstance(group, ClassicGroup):
        return _describe_group(group)
    missing = DescribedGroup(group_id=id, group_state=ClassicState.DEAD)
    if context.version >= _FIRST_WITH_MISSING:
        missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        kind = "is no classic group" if group is not None else "does not exist"
        missing.error_message = f"group {id} {kind}"
    return missing


def _describe_group(group: ClassicGroup) -> DescribedGroup:
    """What members said and what they were assigned is told of a stable group alone."""
    protocol = group.protocol if group.state is ClassicState.STABLE else None
    return DescribedGroup(
        group_id=group.id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=protocol or "",
        members=[_describe_member(one, protocol) for one in group.members.values()],
    )


def _describe_member(member: ClassicMember, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.subscriber.client_id,
        client_host=member.subscriber.client_host,
        member_metadata=member.metadata_of(protocol),
        member_assignment=b"" if protocol is None else member.assignment,
    )


def answer_list(
    broker: Broker, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    """Groups that may be described, of the states and kinds asked for or of all."""
    may = broker.authorizer.is_allowed
    sees_all = may(context, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    states = {one.lower() for one in request.states_filter}
    kinds = {one.lower() for one in request.types_filter}
    listed = [
        ListedGroup(group.id, group.protocol_type, group.state_name, group.kind)
        for group in broker.groups.groups
        if (not states or group.state_name.lower() in states)
        and (not kinds or group.kind in kinds)
        and (sees_all or may(context, Operation.DESCRIBE, ResourceType.GROUP, group.id))
    ]
    return ListGroupsResponse(groups=listed)


async def answer_delete(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results = []
    for id in dict.fromkeys(request.groups_names):
        if broker.authorizer.is_allowed(context, Operation.DELETE, ResourceType.GROUP, id):
            code = await broker.groups.delete_group(id)
        else:
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        results.append(DeletableGroupResult(id, code))
    return DeleteGroupsResponse(results=results)
