"""Static members keep their place when they come back (KIP-345)."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import Member, classic_group, commit, leap
from varve.broker.groups.classic_group import ClassicState
from varve.wire import ErrorCode
from varve.wire.messages.groups import LeaveGroupRequest, MemberIdentity


def _pair(kit: BrokerKit, **fields: Any) -> tuple[Member, Member]:
    """Two static members, `a` that leads and `b`."""
    a, b = (Member(kit, instance_id=one, session_ms=30_000, **fields) for one in "ab")
    waiting = [a.begin_join(), b.begin_join()]
    leap(kit, 6_000)
    a.take(waiting[0])
    b.take(waiting[1])
    parked = b.begin_sync()
    a.sync({a.id: b"one", b.id: b"two"})
    assert parked.result().assignment == b"two"
    return a, b


def test_a_static_member_needs_no_id_to_join(kit: BrokerKit) -> None:
    a, _ = _pair(kit)
    assert a.id.startswith("a-")


def test_one_that_comes_back_keeps_its_assignment_and_nobody_else_notices(kit: BrokerKit) -> None:
    a, b = _pair(kit)
    back = Member(kit, instance_id="b")
    response = back.join()
    assert (response.error_code, response.generation_id) == (0, 1)
    assert back.id != b.id
    assert back.sync().assignment == b"two"
    assert a.heartbeat() == 0


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_leader_that_comes_back_is_told_not_to_assign(kit: BrokerKit, version: int) -> None:
    a, b = _pair(kit)
    back = Member(kit, instance_id="a")
    response = back.join(version=version)
    assert response.error_code == 0
    if version >= 9:
        assert response.skip_assignment
        assert response.leader == back.id
        assert {one.group_instance_id for one in response.members} == {"a", "b"}
    else:
        assert response.leader == a.id
        assert response.members == []
    assert back.sync().assignment == b"one"
    assert b.heartbeat() == 0
    assert classic_group(kit).members.leader == back.id


def test_the_one_it_replaces_is_fenced(kit: BrokerKit) -> None:
    a, _ = _pair(kit)
    Member(kit, instance_id="a").join()
    assert a.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert a.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert a.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert a.begin_join().result().error_code == ErrorCode.FENCED_INSTANCE_ID
    fields = {"member_id": a.id, "generation_id_or_member_epoch": 1, "group_instance_id": "a"}
    assert commit(kit, "group", "events", 0, 1, **fields) == ErrorCode.FENCED_INSTANCE_ID


def test_one_that_waits_to_join_is_fenced_by_its_successor(kit: BrokerKit) -> None:
    first = Member(kit, instance_id="a")
    waiting = first.begin_join()
    second = Member(kit, instance_id="a")
    joined = second.begin_join()
    assert waiting.result().error_code == ErrorCode.FENCED_INSTANCE_ID
    leap(kit, 6_000)
    assert len(second.take(joined).members) == 1


def test_a_return_while_assignments_are_made_begins_another_generation(kit: BrokerKit) -> None:
    a, b = (Member(kit, instance_id=one) for one in "ab")
    waiting = [a.begin_join(), b.begin_join()]
    leap(kit, 6_000)
    a.take(waiting[0])
    b.take(waiting[1])
    parked = b.begin_sync()
    back = Member(kit, instance_id="a")
    joined = back.begin_join()
    assert parked.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert b.join().generation_id == 2
    assert back.take(joined).generation_id == 2


def test_other_protocols_of_one_that_comes_back_may_need_a_rebalance(kit: BrokerKit) -> None:
    _, b = _pair(kit, protocols=("x", "y"))
    back = Member(kit, instance_id="a", protocols=("y",))
    joined = back.begin_join()
    assert not joined.done()
    assert b.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert b.join().protocol_name == "y"
    assert back.take(joined).generation_id == 2


def test_the_new_id_survives_a_crash(kit: BrokerKit) -> None:
    _pair(kit)
    back = Member(kit, instance_id="b")
    back.join()
    kit.restart(is_crash=True)
    assert back.heartbeat() == 0
    assert back.sync().assignment == b"two"


def test_one_that_is_away_stays_a_member_until_its_session_ends(kit: BrokerKit) -> None:
    a, _ = _pair(kit, rebalance_ms=5_000)
    a.protocols = ("range", "x")
    waiting = a.begin_join()
    leap(kit, 5_000)
    response = a.take(waiting)
    assert {one.group_instance_id for one in response.members} == {"a", "b"}
    assert a.sync({a.id: b"one"}).assignment == b"one"
    leap(kit, 24_000)
    assert "b" not in classic_group(kit).members.ids_by_instance


def test_an_operator_removes_a_member_by_its_instance_id(kit: BrokerKit) -> None:
    _, b = _pair(kit)
    leaving = [MemberIdentity("", "a"), MemberIdentity("", "x"), MemberIdentity("x", "b")]
    answer = kit.ask(LeaveGroupRequest("group", members=leaving))
    assert [one.error_code for one in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert b.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_return_is_answered_when_the_new_id_is_on_disk(kit: BrokerKit) -> None:
    _pair(kit)
    kit.hold_work(syncs=True)
    back = Member(kit, instance_id="a")
    joined = back.begin_join()
    assert not joined.done()
    kit.release_work()
    assert joined.result().error_code == 0
    assert classic_group(kit).state is ClassicState.STABLE
