"""Who is a member of a consumer group: what a heartbeat changes of it, or why it may not.

Invariant  a member that is unknown, fenced or of another epoch changes nothing. Who joins says that
           it has nothing, so that a known member may join again.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from varve.broker.groups.assignors import Partitions
from varve.broker.groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
)
from varve.broker.groups.consumer_state import ConsumerState
from varve.wire import ErrorCode
from varve.wire.messages.groups import ConsumerGroupHeartbeatRequest

_FIRST_WITH_OWN_ID = 1


class Refused(Exception):
    """A member is told an error; nothing was changed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Client:
    """Where a member's heartbeat comes from."""

    id: str
    host: str


def check_request(
    request: ConsumerGroupHeartbeatRequest, *, version: int, assignors: Collection[str]
) -> None:
    """What can be said of a heartbeat without knowing the group."""
    epoch = request.member_epoch
    needs_id = version >= _FIRST_WITH_OWN_ID or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    for name, value in (
        ("MemberId", request.member_id if needs_id else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise Refused(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise Refused(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise Refused(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    why = None
    if request.rebalance_timeout_ms == -1:
        why = "RebalanceTimeoutMs must be provided in first request."
    elif request.topic_partitions is None or request.topic_partitions:
        why = "TopicPartitions must be empty when (re-)joining."
    elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        why = (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null "
            "when (re-)joining."
        )
    if why is not None:
        raise Refused(ErrorCode.INVALID_REQUEST, why)


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """What a member says it has; None where it says nothing."""
    if request.topic_partitions is None:
        return None
    return frozenset(
        (one.topic_id, number) for one in request.topic_partitions for number in one.partitions
    )


def admit(
    state: ConsumerState,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    client: Client,
    *,
    size_max: int,
) -> ConsumerState:
    """The state with the member as it describes itself now."""
    if request.member_epoch == JOIN_EPOCH:
        state, member = _join(state, request.instance_id, member_id, size_max)
    else:
        member = _find(state, request.instance_id, member_id)
        _check_epoch(member, request.member_epoch, owned_partitions(request))
    updated = _describe(member, request, client)
    # Most heartbeats change nothing.
    return state if state.members.get(member_id) is updated else state.put(updated)


def _join(
    state: ConsumerState, instance_id: str | None, member_id: str, size_max: int
) -> tuple[ConsumerState, ConsumerMember]:
    known = state.find_static(instance_id) if instance_id is not None else None
    if known is not None and known.id != member_id:
        if not known.has_left:
            raise Refused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {known.id} member.",
            )
        member = known.come_back_as(member_id)
        return state.rename(known.id, member), member
    member = state.members.get(member_id) or ConsumerMember(member_id)
    if member_id not in state.members and len(state.members) >= size_max:
        raise Refused(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )
    return state, member.come_back_as(member_id) if member.has_left else member


def _find(state: ConsumerState, instance_id: str | None, member_id: str) -> ConsumerMember:
    if instance_id is None:
        member = state.members.get(member_id)
        if member is None:
            raise Refused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group."
            )
        return member
    known = state.find_static(instance_id)
    if known is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.id != member_id:
        raise Refused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{known.id}.",
        )
    return known


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """The epoch before counts too where the member has nothing that it should not: the answer that
    told it of the new one was lost.
    """
    is_before = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    is_known = member.state is not MemberState.UNKNOWN
    if is_known and (epoch == member.epoch or (epoch < member.epoch and is_before)):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    why = f"has a {than} member epoch ({epoch}) than the one known by the group coordinator"
    if not is_known:
        why = f"is in a state that is not known, at epoch ({epoch}), the group coordinator's being"
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member {why} ({member.epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _describe(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """What is not said stays as it was; the same member where nothing changed."""
    said: dict[str, Any] = {"client_id": client.id, "client_host": client.host}
    if request.instance_id is not None:
        said["instance_id"] = request.instance_id
    if request.rack_id is not None:
        said["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        said["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        said["server_assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        said["topic_names"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        said["topic_regex"] = request.subscribed_topic_regex
    is_same = all(getattr(member, name) == value for name, value in said.items())
    return member if is_same else replace(member, **said)


def leave(state: ConsumerState, request: ConsumerGroupHeartbeatRequest) -> ConsumerState:
    """The state without the member, or with a static one that is away for a while."""
    member = _find(state, request.instance_id, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        return state.put(member.leave_for_a_while())
    return state.remove(member.id)


def is_subscription_changed(before: ConsumerState, after: ConsumerState, member_id: str) -> bool:
    """Whether others may have to give or get partitions."""
    if before.epoch == 0 or len(before.members) != len(after.members):
        return True
    member = after.members[member_id]
    known = before.members.get(member_id)
    if known is None and member.instance_id is not None:
        known = before.find_static(member.instance_id)
    if known is None:
        return True
    return (known.topic_names, known.topic_regex or "") != (
        member.topic_names,
        member.topic_regex or "",
    )
