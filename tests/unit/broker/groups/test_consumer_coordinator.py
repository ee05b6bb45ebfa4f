"""Consumer groups when the log fails, requests overlap, or rights are missing."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import ConsumerMember
from tests.support.rights import Rights
from varve.broker.settings import GroupSettings
from varve.foundation.errors import DiskFull, InvalidSetting
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    TopicPartitions,
)


def heartbeat(
    kit: BrokerKit, member_id: str, epoch: int = 0, **changes: Any
) -> ConsumerGroupHeartbeatRequest:
    member = ConsumerMember(kit, member_id, epoch=epoch)
    owned: list[TopicPartitions] | None = [] if epoch == 0 else None
    return member.request(**{"topic_partitions": owned, "rebalance_timeout_ms": 1_000} | changes)


def describe(kit: BrokerKit) -> Any:
    return kit.ask(ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0]


def fail_appends(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    async def append(*args: object, **named: object) -> int:
        raise DiskFull("no room is left")

    monkeypatch.setattr(kit.broker.groups.log, "append", append)


def test_what_the_log_refuses_has_not_happened(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_appends(kit, patch)
        assert kit.ask(heartbeat(kit, "a")).error_code == ErrorCode.NOT_COORDINATOR
        assert kit.broker.groups.groups.find("g") is None
    assert kit.ask(heartbeat(kit, "a")).member_epoch == 1
    before = describe(kit)
    with monkeypatch.context() as patch:
        fail_appends(kit, patch)
        assert kit.ask(heartbeat(kit, "b")).error_code == ErrorCode.NOT_COORDINATOR
        assert kit.ask(heartbeat(kit, "a", -1)).error_code == ErrorCode.NOT_COORDINATOR
        assert kit.ask(heartbeat(kit, "a", 1)).error_code == ErrorCode.NONE
    assert describe(kit) == before


def test_a_member_that_could_not_be_removed_is_removed_later(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.ask(heartbeat(kit, "a"))
    with monkeypatch.context() as patch:
        fail_appends(kit, patch)
        kit.advance(46_000)
    assert len(describe(kit).members) == 1
    kit.advance(45_000)
    assert describe(kit).group_state == "Empty"


def test_heartbeats_that_overlap_are_answered_one_after_the_other(kit: BrokerKit) -> None:
    kit.hold_work(appends=True, work=True)
    answers = [kit.begin(heartbeat(kit, id)) for id in ("a", "b", "c")]
    assert not any(one.done() for one in answers)
    kit.release_work()
    assert [one.result().member_epoch for one in answers] == [1, 2, 3]
    assert len(describe(kit).members) == 3


def test_a_member_that_joins_while_its_group_is_deleted_begins_another(kit: BrokerKit) -> None:
    kit.ask(heartbeat(kit, "a"))
    kit.ask(heartbeat(kit, "a", -1))
    kit.hold_work(appends=True)
    deleting = kit.begin(DeleteGroupsRequest(groups_names=["g"]))
    joining = kit.begin(heartbeat(kit, "b"))
    kit.release_work()
    assert deleting.result().results[0].error_code == ErrorCode.NONE
    assert joining.result().member_epoch == 1
    kit.restart()
    assert [one.member_id for one in describe(kit).members] == ["b"]


def test_a_group_that_somebody_joins_first_is_not_deleted(kit: BrokerKit) -> None:
    kit.ask(heartbeat(kit, "a"))
    kit.ask(heartbeat(kit, "a", -1))
    kit.hold_work(appends=True)
    joining = kit.begin(heartbeat(kit, "b"))
    deleting = kit.begin(DeleteGroupsRequest(groups_names=["g"]))
    kit.release_work()
    assert joining.result().error_code == ErrorCode.NONE
    assert deleting.result().results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert [one.member_id for one in describe(kit).members] == ["b"]


def test_what_a_client_that_went_away_asked_for_is_done(kit: BrokerKit) -> None:
    kit.hold_work(appends=True)
    waiting = kit.begin(heartbeat(kit, "a"))
    waiting.cancel()
    kit.release_work()
    assert len(describe(kit).members) == 1


def hidden(name: str) -> Rights:
    return Rights(lambda *right: name not in right)


def test_rights_on_topics_are_asked_for(kit: BrokerKit) -> None:
    kit.ask(heartbeat(kit, "a"))
    kit.broker.authorizer = hidden("events")
    assert kit.ask(heartbeat(kit, "a", 1)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = describe(kit)
    assert (refused.error_code, refused.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])


def test_a_regular_expression_finds_internal_topics_but_no_hidden_ones(kit: BrokerKit) -> None:
    kit.make_topic("secret", partitions=2)
    kit.broker.authorizer = hidden("secret")
    request = heartbeat(kit, "a", subscribed_topic_names=None, subscribed_topic_regex=".*")
    kit.ask(request)
    answer = kit.ask(request)
    told = {one.topic_id for one in answer.assignment.topic_partitions}
    assert told == {kit.topic("events").id, kit.topic("__consumer_offsets").id}


def test_targets_of_a_large_group_are_computed_off_the_loop(kit: BrokerKit) -> None:
    kit.make_topic("wide", partitions=600)
    kit.ask(heartbeat(kit, "a"))
    kit.hold_work(work=True)
    waiting = kit.begin(
        heartbeat(kit, "a", 1, subscribed_topic_names=["wide"], topic_partitions=[])
    )
    assert kit.work.count == 1
    kit.release_work()
    assert len(waiting.result().assignment.topic_partitions[0].partitions) == 600


@pytest.mark.parametrize(
    "values",
    [
        {"group_consumer_assignors": "uniform,best"},
        {"group_consumer_assignors": ""},
        {"group_consumer_heartbeat_interval_ms": 45_000},
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=r"group\.consumer"):
        GroupSettings(**values)
