"""What members of consumer groups are told."""

from varve.broker.groups.consumer_member import JOIN_EPOCH, ConsumerMember
from varve.broker.topics import by_topic
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)


def refused(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


def answered(
    request: ConsumerGroupHeartbeatRequest,
    before: ConsumerMember | None,
    member: ConsumerMember,
    interval_ms: int,
) -> ConsumerGroupHeartbeatResponse:
    """What a member has is told when it changed, and to one that may have missed it."""
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.id, member_epoch=member.epoch, heartbeat_interval_ms=interval_ms
    )
    joins = request.member_epoch == JOIN_EPOCH
    is_changed = before is None or before.assigned != member.assigned
    if joins or is_changed or _is_full(request):
        told = [
            HeartbeatTopicPartitions(topic, numbers)
            for topic, numbers in by_topic(member.assigned).items()
        ]
        response.assignment = HeartbeatAssignment(told)
    return response


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether it says all that a member can: after an error it does not know what was heard."""
    subscribes = request.subscribed_topic_names is not None
    subscribes |= request.subscribed_topic_regex is not None
    has_owned = request.topic_partitions is not None
    return subscribes and has_owned and request.rebalance_timeout_ms != -1
