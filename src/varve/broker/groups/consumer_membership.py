"""Heartbeats of consumer group members: checks, the change of the member, and the response.

Invariant  a member that is unknown, fenced or of another epoch changes nothing and gets a
           KafkaError. A member that joins reports no partitions, so a known member may join again.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from varve.broker.groups.assignors import Partitions
from varve.broker.groups.consumer_state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    ConsumerState,
    MemberState,
)
from varve.broker.topics import by_topic
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import groups as messages

_FIRST_WITH_OWN_ID = 1


@dataclass(frozen=True, slots=True)
class Client:
    """The client that sends a heartbeat."""

    id: str
    host: str


def check_request(
    request: messages.ConsumerGroupHeartbeatRequest, *, version: int, assignors: Collection[str]
) -> None:
    """Checks that do not depend on the group."""
    epoch = request.member_epoch
    needs_id = version >= _FIRST_WITH_OWN_ID or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    for name, value in (
        ("MemberId", request.member_id if needs_id else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: messages.ConsumerGroupHeartbeatRequest) -> None:
    error = None
    if request.rebalance_timeout_ms == -1:
        error = "RebalanceTimeoutMs must be provided in first request."
    elif request.topic_partitions is None or request.topic_partitions:
        error = "TopicPartitions must be empty when (re-)joining."
    elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        error = (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null "
            "when (re-)joining."
        )
    if error is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error)


def owned_partitions(request: messages.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """The partitions that a member reports; None where it reports none."""
    if request.topic_partitions is None:
        return None
    return frozenset(
        (topic_partitions.topic_id, number)
        for topic_partitions in request.topic_partitions
        for number in topic_partitions.partitions
    )


def apply_heartbeat(
    state: ConsumerState,
    request: messages.ConsumerGroupHeartbeatRequest,
    member_id: str,
    client: Client,
    *,
    size_max: int,
) -> ConsumerState:
    """The state with the member as it describes itself now; raises KafkaError."""
    if request.member_epoch == JOIN_EPOCH:
        state, member = _join(state, request.instance_id, member_id, size_max)
    else:
        member = _get_member(state, request.instance_id, member_id)
        _check_epoch(member, request.member_epoch, owned_partitions(request))
    updated = _update(member, request, client)
    # Most heartbeats change nothing.
    return state if state.members.get(member_id) is updated else state.put(updated)


def _join(
    state: ConsumerState, instance_id: str | None, member_id: str, size_max: int
) -> tuple[ConsumerState, ConsumerMember]:
    owner = state.find_static(instance_id) if instance_id is not None else None
    if owner is not None and owner.id != member_id:
        if not owner.has_left:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {owner.id} member.",
            )
        member = owner.rejoin_as(member_id)
        return state.rename(owner.id, member), member
    member = state.members.get(member_id) or ConsumerMember(member_id)
    if member_id not in state.members and len(state.members) >= size_max:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )
    return state, member.rejoin_as(member_id) if member.has_left else member


def _get_member(state: ConsumerState, instance_id: str | None, member_id: str) -> ConsumerMember:
    if instance_id is None:
        member = state.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group."
            )
        return member
    owner = state.find_static(instance_id)
    if owner is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if owner.id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{owner.id}.",
        )
    return owner


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """The previous epoch is valid, too, where the member has no partition it must not have: the
    response with the new epoch was lost.
    """
    is_before = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    is_known = member.state is not MemberState.UNKNOWN
    if is_known and (epoch == member.epoch or (epoch < member.epoch and is_before)):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    why = f"has a {than} member epoch ({epoch}) than the one known by the group coordinator"
    if not is_known:
        why = f"is in a state that is not known, at epoch ({epoch}), the group coordinator's being"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member {why} ({member.epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _update(
    member: ConsumerMember, request: messages.ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """Fields that are not sent do not change; the same member where nothing changed."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    fields: dict[str, Any] = {
        "client_id": client.id,
        "client_host": client.host,
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "rebalance_timeout_ms": None if timeout_ms == -1 else timeout_ms,
        "server_assignor": request.server_assignor,
        "topic_names": None if names is None else frozenset(names),
        "topic_regex": request.subscribed_topic_regex,
    }
    sent = {name: value for name, value in fields.items() if value is not None}
    is_same = all(getattr(member, name) == value for name, value in sent.items())
    return member if is_same else replace(member, **sent)


def apply_leave(
    state: ConsumerState, request: messages.ConsumerGroupHeartbeatRequest
) -> ConsumerState:
    """The state without the member, or with a static one that has left temporarily."""
    member = _get_member(state, request.instance_id, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        return state.put(member.leave_temporarily())
    return state.remove(member.id)


def is_subscription_changed(before: ConsumerState, after: ConsumerState, member_id: str) -> bool:
    """Whether the partitions of other members may change."""
    if before.epoch == 0 or len(before.members) != len(after.members):
        return True
    member = after.members[member_id]
    previous = before.members.get(member_id)
    if previous is None and member.instance_id is not None:
        previous = before.find_static(member.instance_id)
    if previous is None:
        return True
    return (previous.topic_names, previous.topic_regex or "") != (
        member.topic_names,
        member.topic_regex or "",
    )


def heartbeat_response(
    request: messages.ConsumerGroupHeartbeatRequest,
    before: ConsumerMember | None,
    member: ConsumerMember,
    interval_ms: int,
) -> messages.ConsumerGroupHeartbeatResponse:
    """Has the assignment when it changed, and for a member that may have missed it."""
    response = messages.ConsumerGroupHeartbeatResponse(
        member_id=member.id, member_epoch=member.epoch, heartbeat_interval_ms=interval_ms
    )
    joins = request.member_epoch == JOIN_EPOCH
    is_changed = before is None or before.assigned != member.assigned
    if joins or is_changed or _is_full(request):
        response.assignment = messages.HeartbeatAssignment(
            [
                messages.TopicPartitions(topic, numbers)
                for topic, numbers in by_topic(member.assigned).items()
            ]
        )
    return response


def _is_full(request: messages.ConsumerGroupHeartbeatRequest) -> bool:
    """Whether it has all fields: after an error a member does not know what was received."""
    subscribes = request.subscribed_topic_names is not None
    subscribes |= request.subscribed_topic_regex is not None
    has_owned = request.topic_partitions is not None
    return subscribes and has_owned and request.rebalance_timeout_ms != -1
