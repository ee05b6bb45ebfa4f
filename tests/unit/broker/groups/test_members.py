"""Members of classic groups: joining, assignments, signs of life, leaving."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import Member, classic_group, leap
from varve.broker.groups.classic_group import ClassicState
from varve.broker.settings import GroupSettings
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from varve.wire.messages.state_records import OFFSETS_TOPIC


def _pair(kit: BrokerKit, **fields: Any) -> tuple[Member, Member]:
    """Two members of a stable group; the first one leads."""
    first, second = Member(kit, **fields), Member(kit, **fields)
    waiting = [first.enter(), second.enter()]
    leap(kit, 6_000)
    assert first.take(waiting[0]).leader == first.id
    second.take(waiting[1])
    parked = second.begin_sync()
    assert first.sync({first.id: b"one", second.id: b"two"}).assignment == b"one"
    assert parked.result().assignment == b"two"
    return first, second


# JoinGroup


def test_a_member_joins_in_every_version(kit: BrokerKit) -> None:
    for version in range(10):
        member = Member(kit, group=f"group{version}")
        if version >= 4:
            refused = member.begin_join(version).result()
            assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
            member.id = refused.member_id
        waiting = member.begin_join(version)
        leap(kit, 3_000)
        response = member.take(waiting)
        assert (response.error_code, response.generation_id) == (0, 1)
        assert response.member_id.startswith("client-")
        assert response.leader == response.member_id
        assert response.protocol_name == "range"
        assert [one.member_id for one in response.members] == [response.member_id]


def test_the_first_rebalance_waits_for_more_members_as_long_as_they_come(kit: BrokerKit) -> None:
    members = [Member(kit) for _ in range(3)]
    waiting = []
    for member in members:
        waiting.append(member.enter())
        leap(kit, 2_000)
    assert not waiting[0].done()
    leap(kit, 3_000)
    responses = [one.result() for one in waiting]
    assert {one.generation_id for one in responses} == {1}
    assert len({one.leader for one in responses}) == 1
    assert [len(one.members) for one in responses] == [3, 0, 0]


def test_the_first_rebalance_waits_no_longer_than_members_do() -> None:
    with BrokerKit(groups=GroupSettings(group_initial_rebalance_delay_ms=1_000)) as kit:
        first = Member(kit, rebalance_ms=2_500)
        waiting = first.enter()
        for _ in range(3):
            leap(kit, 800)
            Member(kit, rebalance_ms=2_500).enter()
        assert not waiting.done()
        leap(kit, 400)
        assert len(waiting.result().members) == 4


def test_a_rebalance_ends_when_all_have_joined(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    third = Member(kit)
    waiting = [third.enter()]
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    waiting.append(first.begin_join())
    assert not waiting[0].done()
    waiting.append(second.begin_join())
    assert {one.result().generation_id for one in waiting} == {2}


def test_a_rebalance_waits_for_ids_that_were_given_out(kit: BrokerKit) -> None:
    first = Member(kit).settle()
    second, third = Member(kit), Member(kit)
    second.take_id()
    third.take_id()
    waiting = [second.begin_join(), first.begin_join()]
    assert not waiting[0].done()
    waiting.append(third.begin_join())
    assert all(one.done() for one in waiting)


def test_an_id_that_never_joins_is_not_waited_for_longer_than_its_session(kit: BrokerKit) -> None:
    first = Member(kit).settle()
    second, never = Member(kit), Member(kit)
    second.take_id()
    never.take_id()
    waiting = [second.begin_join(), first.begin_join()]
    leap(kit, 10_000)
    assert [one.result().error_code for one in waiting] == [0, 0]


def test_who_does_not_join_in_time_is_no_longer_a_member(kit: BrokerKit) -> None:
    first, second = _pair(kit, rebalance_ms=5_000, session_ms=60_000)
    second.protocols = ("range", "sticky")
    waiting = second.begin_join()
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    leap(kit, 5_000)
    assert second.take(waiting).leader == second.id
    assert first.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_protocol_is_the_one_most_members_like_best_of_those_all_know(kit: BrokerKit) -> None:
    likes = [("a", "b", "c"), ("b", "a"), ("b", "c", "a")]
    members = [Member(kit, protocols=one) for one in likes]
    waiting = [one.enter() for one in members]
    leap(kit, 6_000)
    assert {one.result().protocol_name for one in waiting} == {"b"}


def test_protocols_that_do_not_fit_are_refused(kit: BrokerKit) -> None:
    Member(kit).settle()
    other = Member(kit, protocols=("other",))
    assert other.begin_join().result().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    none = Member(kit, group="empty", protocols=())
    assert none.begin_join().result().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_cannot_be_is_refused(
    kit: BrokerKit, fields: dict[str, Any], code: ErrorCode
) -> None:
    assert Member(kit, **fields).begin_join().result().error_code == code
    assert not list(kit.broker.groups.groups)


def test_a_group_has_a_largest_size() -> None:
    with BrokerKit(groups=GroupSettings(group_max_size=2)) as kit:
        first, _ = _pair(kit)
        third = Member(kit)
        assert third.begin_join(3).result().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert first.heartbeat() == 0


def test_a_member_that_joins_again_unchanged_is_told_of_its_generation(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    again = second.begin_join().result()
    assert (again.generation_id, again.members) == (1, [])
    assert classic_group(kit).state is ClassicState.STABLE
    leader = first.begin_join()
    assert not leader.done()
    assert classic_group(kit).state is ClassicState.PREPARING_REBALANCE


# SyncGroup


def test_members_hear_of_their_assignments_once_these_are_on_disk(kit: BrokerKit) -> None:
    member = Member(kit)
    member.join(wait_ms=3_000)
    kit.hold_work(syncs=True)
    waiting = member.begin_sync({member.id: b"mine"})
    assert not waiting.done()
    assert classic_group(kit).state is ClassicState.COMPLETING_REBALANCE
    kit.release_work()
    assert waiting.result().assignment == b"mine"
    assert classic_group(kit).state is ClassicState.STABLE


def test_an_assignment_that_cannot_be_stored_begins_another_rebalance(kit: BrokerKit) -> None:
    member = Member(kit).settle()
    waiting = member.begin_join()
    member.take(waiting)
    kit.store.alter_topic(OFFSETS_TOPIC, {"max.message.bytes": 50})
    response = member.sync({member.id: b"too much"})
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert classic_group(kit).state is ClassicState.PREPARING_REBALANCE


def test_a_failure_nobody_planned_leaves_no_member_waiting(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(kit)
    member.join(wait_ms=3_000)
    monkeypatch.setattr(kit.broker.groups.log, "append", lambda *_: 1 / 0)
    assert member.sync({member.id: b""}).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_member_the_leader_forgot_gets_nothing(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    waiting = first.begin_join()
    assert second.join().generation_id == 2
    first.take(waiting)
    parked = second.begin_sync()
    assert first.sync({first.id: b"all"}).assignment == b"all"
    assert parked.result().assignment == b""


def test_syncs_are_checked(kit: BrokerKit) -> None:
    member = Member(kit).settle()

    def code(**fields: Any) -> int:
        given: dict[str, Any] = {"group_id": "group", "generation_id": 1, "member_id": member.id}
        given |= {"protocol_type": "consumer", "protocol_name": "range"} | fields
        return int(kit.ask(SyncGroupRequest(**given)).error_code)

    assert code() == 0
    assert code(generation_id=2) == ErrorCode.ILLEGAL_GENERATION
    assert code(member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(group_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(group_id="") == ErrorCode.INVALID_GROUP_ID
    assert code(group_instance_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(protocol_type="x") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(protocol_name="x") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(protocol_type=None) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_who_does_not_ask_for_its_assignment_in_time_is_left_behind(kit: BrokerKit) -> None:
    first, second = _pair(kit, rebalance_ms=5_000, session_ms=60_000)
    second.protocols = ("range", "x")
    waiting = [second.begin_join(), first.begin_join()]
    second.take(waiting[0])
    first.take(waiting[1])
    parked = second.begin_sync()
    leap(kit, 5_000)
    assert parked.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert first.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


# Heartbeat and sessions


def test_a_silent_member_is_lost_when_its_session_ends(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    for _ in range(2):
        leap(kit, 6_000)
        first.heartbeat()
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.join().generation_id == 2


def test_a_lost_connection_does_not_end_a_member(kit: BrokerKit) -> None:
    member = Member(kit).settle()
    kit.disconnect(kit.connection)
    kit.connection = kit.connect()
    leap(kit, 8_000)
    assert member.heartbeat() == 0


def test_a_member_that_waits_is_not_lost(kit: BrokerKit) -> None:
    first, second = _pair(kit, rebalance_ms=60_000)
    second.protocols = ("range", "x")
    waiting = second.begin_join()
    for _ in range(5):
        leap(kit, 8_000)
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    assert second.take(waiting).generation_id == 2
    leap(kit, 8_000)
    assert second.heartbeat() == 0


def test_the_session_begins_anew_when_a_sync_is_answered_with_an_error(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    second.protocols = ("range", "x")
    waiting = [second.begin_join(), first.begin_join()]
    second.take(waiting[0])
    first.take(waiting[1])
    parked = second.begin_sync()
    for _ in range(3):
        leap(kit, 8_000)
        assert first.heartbeat() == 0
    assert first.leave() == 0
    assert parked.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leap(kit, 10_000)
    assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert classic_group(kit).is_empty


def test_heartbeats_are_checked(kit: BrokerKit) -> None:
    member = Member(kit).settle()
    for version in range(5):
        request = HeartbeatRequest("group", 1, member.id)
        assert kit.ask(request, version=version).error_code == 0
    member.generation = 5
    assert member.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    member.id = "x"
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    member.group = "x"
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    member.group = ""
    assert member.heartbeat() == ErrorCode.INVALID_GROUP_ID


# LeaveGroup


def test_the_others_share_what_one_that_leaves_had(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    assert first.leave() == 0
    assert second.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    response = second.join()
    assert (response.generation_id, response.leader) == (2, second.id)


def test_a_member_leaves_in_every_version(kit: BrokerKit) -> None:
    for version in range(6):
        member = Member(kit).settle()
        request = LeaveGroupRequest("group", member.id, [MemberIdentity(member.id)])
        answer = kit.ask(request, version=version)
        assert answer.error_code == 0
        assert [one.error_code for one in answer.members] == ([0] if version >= 3 else [])
        assert classic_group(kit).is_empty
        again = kit.ask(request, version=version)
        code = again.members[0].error_code if version >= 3 else again.error_code
        assert code == ErrorCode.UNKNOWN_MEMBER_ID


def test_several_leave_at_once_each_with_its_answer(kit: BrokerKit) -> None:
    first, second = _pair(kit)
    expected = Member(kit)
    expected.take_id()
    leaving = [MemberIdentity(one) for one in (first.id, "x", expected.id, second.id)]
    answer = kit.ask(LeaveGroupRequest("group", members=leaving))
    codes = [one.error_code for one in answer.members]
    assert codes == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0, 0]
    assert classic_group(kit).is_empty


# Restart


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_group_comes_back_with_its_members(kit: BrokerKit, is_crash: bool) -> None:
    first, second = _pair(kit)
    kit.restart(is_crash=is_crash)
    assert first.heartbeat() == 0
    assert second.sync().assignment == b"two"
    leap(kit, 9_000)
    assert first.heartbeat() == 0
    leap(kit, 2_000)
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert first.join().generation_id == 2


def test_a_group_that_became_empty_comes_back_empty(kit: BrokerKit) -> None:
    member = Member(kit).settle()
    member.leave()
    kit.settle()
    kit.restart(is_crash=True)
    assert classic_group(kit).is_empty
    assert classic_group(kit).generation == 2
    newcomer = Member(kit)
    waiting = newcomer.enter()
    leap(kit, 3_000)
    assert newcomer.take(waiting).generation_id == 3


def test_who_waits_when_the_broker_stops_is_answered(kit: BrokerKit) -> None:
    member = Member(kit)
    waiting = member.enter()
    kit.run(kit.broker.groups.stop())
    assert waiting.result().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_rebalance_timeouts_of_version_0_are_session_timeouts(kit: BrokerKit) -> None:
    request = JoinGroupRequest(
        "group",
        9_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"")],
    )
    kit.begin(request, version=0)
    (member,) = classic_group(kit).members.values()
    assert member.request.rebalance_timeout_ms == 9_000
