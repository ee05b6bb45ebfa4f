"""ConsumerGroupDescribe: members of consumer groups, what they have and what they shall have."""

from typing import Final

from varve.broker.authorized_operations import authorized_operations
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.consumer_assignment import Partitions, by_topic
from varve.broker.groups.consumer_group import ConsumerGroup
from varve.broker.groups.consumer_member import ConsumerMember
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import Topics
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
    Member,
)

_CONSUMER_MEMBER: Final = 1


def answer_consumer_describe(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    described = []
    for id in dict.fromkeys(request.group_ids):
        one = _describe(broker, context, id)
        if request.include_authorized_operations and one.error_code == ErrorCode.NONE:
            one.authorized_operations = authorized_operations(
                broker.authorizer, context, ResourceType.GROUP, id
            )
        described.append(one)
    return ConsumerGroupDescribeResponse(groups=described)


def _describe(broker: Broker, context: RequestContext, id: str) -> DescribedConsumerGroup:
    if not broker.authorizer.is_allowed(context, Operation.DESCRIBE, ResourceType.GROUP, id):
        return _refuse(id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not id:
        return _refuse(id, ErrorCode.INVALID_GROUP_ID)
    group = broker.groups.groups.find(id)
    if group is None:
        return _refuse(id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {id} not found.")
    if not isinstance(group, ConsumerGroup):
        return _refuse(id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {id} is not a consumer group.")
    described = _describe_group(group, broker.topics, broker.groups.settings.consumer_assignors)
    if not _may_see_topics(broker, context, described):
        return _refuse(
            id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The described group uses topics that the client is not authorized to describe.",
        )
    return described


def _refuse(id: str, code: ErrorCode, message: str | None = None) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(group_id=id, error_code=code, error_message=message)


def _may_see_topics(
    broker: Broker, context: RequestContext, described: DescribedConsumerGroup
) -> bool:
    names: set[str] = set()
    for member in described.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            names.update(one.topic_name for one in assignment.topic_partitions)
    may = broker.authorizer.is_allowed
    return all(may(context, Operation.DESCRIBE, ResourceType.TOPIC, one) for one in names)


def _describe_group(
    group: ConsumerGroup, topics: Topics, assignors: tuple[str, ...]
) -> DescribedConsumerGroup:
    state = group.state
    return DescribedConsumerGroup(
        group_id=group.id,
        group_state=group.state_name,
        group_epoch=state.epoch,
        assignment_epoch=state.assignment_epoch,
        assignor_name=state.preferred_assignor(assignors),
        members=[
            _describe_member(one, state.target_of(id), topics) for id, one in state.members.items()
        ],
    )


def _describe_member(member: ConsumerMember, target: Partitions, topics: Topics) -> Member:
    return Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_named(member.assigned, topics),
        target_assignment=_named(target, topics),
        member_type=_CONSUMER_MEMBER,
    )


def _named(partitions: Partitions, topics: Topics) -> DescribedAssignment:
    """Topics that were deleted have no name and are left out."""
    told = []
    for id, numbers in by_topic(partitions):
        topic = topics.find_by_id(id)
        if topic is not None:
            told.append(DescribedTopicPartitions(id, topic.name, numbers))
    return DescribedAssignment(told)
