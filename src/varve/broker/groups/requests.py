"""Requests of group members; DescribeGroups, ConsumerGroupDescribe, ListGroups, DeleteGroups."""

from typing import Final

from varve.broker.answers import AnswerSize, in_turns
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.groups.assignors import Partitions
from varve.broker.groups.classic_group import ClassicGroup, ClassicState
from varve.broker.groups.classic_member import ClassicMember, JoinRequest, failed_join
from varve.broker.groups.consumer_coordinator import ConsumerGroup
from varve.broker.groups.consumer_state import Client, ConsumerMember
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.topics import Topics, by_topic
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import groups as messages

# Members of classic groups

_FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
_FIRST_SYNC_WITH_PROTOCOL: Final = 5
_FIRST_LEAVE_WITH_MEMBERS: Final = 3


async def handle_join_group(
    broker: Broker, context: RequestContext, request: messages.JoinGroupRequest
) -> messages.JoinGroupResponse:
    member_id = ""
    try:
        context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
        member_id = request.member_id
        group = await broker.groups.get_joined(
            request.group_id, member_id, request.session_timeout_ms
        )
        join_request = JoinRequest.from_message(
            request,
            version=context.version,
            client_id=context.client_id,
            client_host=f"/{context.connection.client_host}",
        )
        response = await group.join(member_id, join_request, version=context.version)
    except KafkaError as error:
        response = failed_join(member_id, error.code)
    if response.protocol_name is None and context.version < _FIRST_JOIN_WITH_NULL_PROTOCOL:
        response.protocol_name = ""
    return response


async def handle_sync_group(
    broker: Broker, context: RequestContext, request: messages.SyncGroupRequest
) -> messages.SyncGroupResponse:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    protocol = (request.protocol_type, request.protocol_name)
    if context.version >= _FIRST_SYNC_WITH_PROTOCOL and None in protocol:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await broker.groups.get_classic(request.group_id).sync(request)


def handle_heartbeat(
    broker: Broker, context: RequestContext, request: messages.HeartbeatRequest
) -> messages.HeartbeatResponse:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    group = broker.groups.get_classic(request.group_id)
    group.heartbeat(request.member_id, request.group_instance_id, request.generation_id)
    return messages.HeartbeatResponse()


async def handle_leave_group(
    broker: Broker, context: RequestContext, request: messages.LeaveGroupRequest
) -> messages.LeaveGroupResponse:
    """Before version 3 one member leaves at a time, and its error is that of the response."""
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if context.version < _FIRST_LEAVE_WITH_MEMBERS:
        member = messages.MemberIdentity(member_id=request.member_id)
        broker.groups.get_classic(request.group_id).leave(member)
        return messages.LeaveGroupResponse()
    response = messages.LeaveGroupResponse()
    async for member in in_turns(request.members):
        result = messages.MemberResponse(member.member_id, member.group_instance_id)
        with reporting(result):
            broker.groups.get_classic(request.group_id).leave(member)
        response.members.append(result)
    return response


# Members of consumer groups


async def handle_consumer_group_heartbeat(
    broker: Broker, context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest
) -> messages.ConsumerGroupHeartbeatResponse:
    """The one request by which members of consumer groups join, stay and leave."""
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    for topic in request.subscribed_topic_names or ():
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    return await broker.groups.consumer.heartbeat(
        request,
        version=context.version,
        client=Client(context.client_id, f"/{context.connection.client_host}"),
        may_describe=lambda topic: context.is_authorized(
            Operation.DESCRIBE, ResourceType.TOPIC, topic
        ),
    )


# DescribeGroups

_FIRST_DESCRIBE_WITH_MISSING: Final = 6
"""Before this version a group that does not exist is described as dead."""


async def handle_describe_groups(
    broker: Broker, context: RequestContext, request: messages.DescribeGroupsRequest
) -> messages.DescribeGroupsResponse:
    described = []
    size = AnswerSize(broker, context)
    async for id in in_turns(dict.fromkeys(request.groups)):
        group = _describe_classic_group(broker, context, id)
        size.add(group)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = context.authorized_operations(ResourceType.GROUP, id)
        described.append(group)
    return messages.DescribeGroupsResponse(groups=described)


def _describe_classic_group(
    broker: Broker, context: RequestContext, id: str
) -> messages.DescribedGroup:
    if not context.is_authorized(Operation.DESCRIBE, ResourceType.GROUP, id):
        return messages.DescribedGroup(group_id=id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    group = broker.groups.groups.find(id)
    if isinstance(group, ClassicGroup):
        # Metadata and assignments are reported of a stable group alone.
        protocol = group.protocol if group.state is ClassicState.STABLE else None
        return messages.DescribedGroup(
            group_id=group.id,
            group_state=group.state_name,
            protocol_type=group.protocol_type,
            protocol_data=protocol or "",
            members=[
                _describe_classic_member(member, protocol) for member in group.members.values()
            ],
        )
    missing = messages.DescribedGroup(group_id=id, group_state=ClassicState.DEAD)
    if context.version >= _FIRST_DESCRIBE_WITH_MISSING:
        missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        reason = "is not a classic group" if group is not None else "does not exist"
        missing.error_message = f"group {id} {reason}"
    return missing


def _describe_classic_member(
    member: ClassicMember, protocol: str | None
) -> messages.DescribedGroupMember:
    return messages.DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.request.client_id,
        client_host=member.request.client_host,
        member_metadata=member.metadata_of(protocol),
        member_assignment=b"" if protocol is None else member.assignment,
    )


# ConsumerGroupDescribe

_CONSUMER_MEMBER: Final = 1


async def handle_consumer_group_describe(
    broker: Broker, context: RequestContext, request: messages.ConsumerGroupDescribeRequest
) -> messages.ConsumerGroupDescribeResponse:
    described = []
    size = AnswerSize(broker, context)
    async for id in in_turns(dict.fromkeys(request.group_ids)):
        group = messages.DescribedConsumerGroup(group_id=id)
        described.append(group)
        with reporting(group):
            _describe_consumer_group(broker, context, group)
            if request.include_authorized_operations:
                group.authorized_operations = context.authorized_operations(ResourceType.GROUP, id)
        size.add(group)
    return messages.ConsumerGroupDescribeResponse(groups=described)


def _describe_consumer_group(
    broker: Broker, context: RequestContext, described: messages.DescribedConsumerGroup
) -> None:
    id = described.group_id
    context.authorize(Operation.DESCRIBE, ResourceType.GROUP, id)
    if not id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = broker.groups.groups.find(id)
    if not isinstance(group, ConsumerGroup):
        reason = "not found" if group is None else "is not a consumer group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {id} {reason}.")
    state = group.state
    members = [
        _describe_consumer_member(member, state.target_of(member.id), broker.topics)
        for member in state.members.values()
    ]
    _check_topics_visible(context, members)
    described.group_state = group.state_name
    described.group_epoch = state.epoch
    described.assignment_epoch = state.assignment_epoch
    described.assignor_name = state.preferred_assignor(broker.groups.settings.consumer_assignors)
    described.members = members


def _check_topics_visible(context: RequestContext, members: list[messages.Member]) -> None:
    names: set[str] = set()
    for member in members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            names.update(partitions.topic_name for partitions in assignment.topic_partitions)
    for name in names:
        if not context.is_authorized(Operation.DESCRIBE, ResourceType.TOPIC, name):
            raise KafkaError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The described group uses topics that the client is not authorized to describe.",
            )


def _describe_consumer_member(
    member: ConsumerMember, target: Partitions, topics: Topics
) -> messages.Member:
    return messages.Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_describe_assignment(member.assigned, topics),
        target_assignment=_describe_assignment(target, topics),
        member_type=_CONSUMER_MEMBER,
    )


def _describe_assignment(partitions: Partitions, topics: Topics) -> messages.DescribedAssignment:
    """Topics that were deleted have no name and are left out."""
    described = []
    for id, numbers in by_topic(partitions).items():
        topic = topics.find_by_id(id)
        if topic is not None:
            described.append(messages.DescribedTopicPartitions(id, topic.name, numbers))
    return messages.DescribedAssignment(described)


# ListGroups and DeleteGroups


def handle_list_groups(
    broker: Broker, context: RequestContext, request: messages.ListGroupsRequest
) -> messages.ListGroupsResponse:
    """Groups that the client may describe, of the requested states and types or of all."""
    sees_all = context.is_authorized(Operation.DESCRIBE, ResourceType.CLUSTER)
    states = {state.lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    listed = [
        messages.ListedGroup(group.id, group.protocol_type, group.state_name, group.kind)
        for group in broker.groups.groups
        if (not states or group.state_name.lower() in states)
        and (not kinds or group.kind in kinds)
        and (sees_all or context.is_authorized(Operation.DESCRIBE, ResourceType.GROUP, group.id))
    ]
    return messages.ListGroupsResponse(groups=listed)


async def handle_delete_groups(
    broker: Broker, context: RequestContext, request: messages.DeleteGroupsRequest
) -> messages.DeleteGroupsResponse:
    results = []
    async for id in in_turns(dict.fromkeys(request.groups_names)):
        result = messages.DeletableGroupResult(id)
        with reporting(result):
            context.authorize(Operation.DELETE, ResourceType.GROUP, id)
            await broker.groups.delete_group(id)
        results.append(result)
    return messages.DeleteGroupsResponse(results=results)
