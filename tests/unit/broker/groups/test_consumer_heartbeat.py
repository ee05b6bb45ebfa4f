"""Members of consumer groups join, share partitions and go, by heartbeats alone."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import ConsumerMember as Member
from tests.support.group_bench import commit_request, settle
from varve.broker.admin.configs import Changes
from varve.broker.settings import GroupSettings
from varve.wire import ErrorCode
from varve.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)


def join_pair(kit: BrokerKit, **fields: Any) -> tuple[Member, Member]:
    """Two members that have joined one after the other; the fields are those of the first."""
    first, second = Member(kit, "a", **fields), Member(kit, "b")
    first.join()
    second.join()
    return first, second


def describe(kit: BrokerKit, group: str = "g") -> Any:
    return kit.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version=1).groups[0]


def list_groups(kit: BrokerKit) -> list[tuple[str, str, str]]:
    listed = kit.ask(ListGroupsRequest(), version=5).groups
    return [(one.group_id, one.group_state, one.group_type) for one in listed]


def test_the_first_member_gets_all_partitions(kit: BrokerKit) -> None:
    response = Member(kit, "a").join()
    assert response.error_code == ErrorCode.NONE
    assert (response.member_id, response.member_epoch) == ("a", 1)
    assert response.heartbeat_interval_ms == 5_000
    (told,) = response.assignment.topic_partitions
    assert (told.topic_id, told.partitions) == (kit.topic("events").id, [0, 1, 2, 3])


def test_a_group_with_timeouts_of_its_own(kit: BrokerKit) -> None:
    own: Changes = {"consumer.session.timeout.ms": "60000"}
    own["consumer.heartbeat.interval.ms"] = "7000"
    kit.broker.group_configs.apply("g", own)
    member = Member(kit, "a")
    assert member.join().heartbeat_interval_ms == 7_000
    kit.advance(59_000)
    assert len(describe(kit).members) == 1
    kit.advance(2_000)
    assert describe(kit).members == []


def test_version_0_gives_a_member_its_id(kit: BrokerKit) -> None:
    response = Member(kit, "").ask(version=0, topic_partitions=[], subscribed_topic_regex=None)
    assert response.error_code == ErrorCode.NONE
    assert response.member_id


def test_an_assignment_is_told_again_only_when_it_changed(kit: BrokerKit) -> None:
    member = Member(kit, "a")
    member.join()
    quiet = {"subscribed_topic_names": None, "rebalance_timeout_ms": -1}
    assert member.beat(tells_owned=False, **quiet).assignment is None
    assert member.beat().assignment is not None


def test_a_partition_goes_to_its_new_owner_when_the_old_one_has_given_it_up(
    kit: BrokerKit,
) -> None:
    old, new = join_pair(kit)
    assert (new.epoch, new.owned) == (2, set())
    assert describe(kit).group_state == "Reconciling"
    had = set(old.owned)
    old.beat()
    assert (old.epoch, len(old.owned)) == (1, 2), "it is told what to keep, in its old epoch"
    new.beat()
    assert new.owned == set()
    old.beat()
    assert old.epoch == 2
    new.beat()
    assert new.owned == had - old.owned
    assert describe(kit).group_state == "Stable"


def test_a_member_that_leaves_frees_its_partitions_at_once(kit: BrokerKit) -> None:
    old, new = join_pair(kit)
    assert old.ask(member_epoch=-1).member_epoch == -1
    new.beat()
    assert len(new.owned) == 4
    assert old.ask(topic_partitions=[], member_epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_after_its_session(kit: BrokerKit) -> None:
    old, new = join_pair(kit)
    settle(old, new)
    kit.advance(30_000)
    new.beat()
    kit.advance(15_000)
    new.beat()
    assert len(new.owned) == 4
    assert old.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_keeps_its_partitions_too_long_is_removed(kit: BrokerKit) -> None:
    old, new = join_pair(kit)
    old.beat()
    for _ in range(3):
        kit.advance(10_000)
        old.beat(tells_owned=False)
        new.beat()
    new.beat()
    assert len(new.owned) == 4
    assert old.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_epochs_that_are_not_the_members_are_fenced(kit: BrokerKit) -> None:
    member = Member(kit, "a")
    member.join()
    assert member.ask(member_epoch=5).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    Member(kit, "b").join()
    settle(member)
    assert member.epoch == 2
    lost = member.ask(member_epoch=1, topic_partitions=member.tell_owned())
    assert (lost.error_code, lost.member_epoch) == (ErrorCode.NONE, 2)
    assert member.ask(member_epoch=1).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_known_member_may_join_again(kit: BrokerKit) -> None:
    member = Member(kit, "a")
    member.join()
    member.join()
    assert (member.epoch, len(member.owned)) == (1, 4)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_group(
    kit: BrokerKit, changes: dict[str, Any], code: ErrorCode
) -> None:
    member = Member(kit, "a")
    response = member.ask(**{"topic_partitions": [], **changes})
    assert response.error_code == code
    assert response.error_message
    assert list_groups(kit) == []


def test_a_group_has_a_greatest_size() -> None:
    with BrokerKit(groups=GroupSettings(group_consumer_max_size=1)) as kit:
        Member(kit, "a").join()
        assert Member(kit, "b").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert Member(kit, "a").join().error_code == ErrorCode.NONE


def test_topics_that_are_made_grow_or_go_change_assignments(kit: BrokerKit) -> None:
    member = Member(kit, "a", topics=["events", "later"])
    member.join()
    assert member.epoch == 1
    kit.make_topic("later", partitions=2)
    member.beat()
    assert (member.epoch, len(member.owned)) == (2, 6)
    kit.store.add_partitions("later", 3)
    kit.broker.topics.refresh()
    member.beat()
    assert (member.epoch, len(member.owned)) == (3, 7)
    kit.store.delete_topic("events")
    kit.broker.topics.refresh()
    settle(member)
    assert {topic for topic, _ in member.owned} == {kit.topic("later").id}
    kit.make_topic("unrelated")
    member.beat()
    assert member.epoch == 4


def test_a_regular_expression_follows_topics(kit: BrokerKit) -> None:
    member = Member(kit, "a", topics=None, regex="ev.*|x-[0-9]+")
    member.join()
    assert len(member.owned) == 4
    kit.make_topic("x-17", partitions=2)
    kit.make_topic("x-y", partitions=2)
    member.beat()
    assert len(member.owned) == 6
    member.regex = ""
    settle(member)
    assert member.owned == set()


def test_a_changed_subscription_moves_partitions(kit: BrokerKit) -> None:
    kit.make_topic("other", partitions=2)
    one, two = join_pair(kit)
    settle(one, two)
    two.topics = ["other"]
    settle(one, two)
    assert len(one.owned) == 4
    assert two.owned == {(kit.topic("other").id, 0), (kit.topic("other").id, 1)}


def test_members_may_ask_for_ranges(kit: BrokerKit) -> None:
    members = [Member(kit, id, assignor="range") for id in ("a", "b")]
    for one in members:
        one.join()
    settle(*members)
    assert [sorted(number for _, number in one.owned) for one in members] == [[0, 1], [2, 3]]
    assert describe(kit).assignor_name == "range"


def test_a_static_member_keeps_its_place_while_it_is_away(kit: BrokerKit) -> None:
    static, other = join_pair(kit, instance_id="i")
    settle(static, other)
    owned, epoch = set(static.owned), other.epoch
    stranger = Member(kit, "c", instance_id="i")
    assert stranger.join().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert static.ask(member_epoch=-2).member_epoch == -2
    other.beat()
    assert len(other.owned) == 2
    stranger.join()
    other.beat()
    assert (stranger.owned, stranger.epoch) == (owned, epoch)
    assert other.epoch == epoch, "nobody else has noticed"
    assert static.ask(member_epoch=epoch).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_removed(kit: BrokerKit) -> None:
    static, other = join_pair(kit, instance_id="i")
    settle(static, other)
    static.ask(member_epoch=-2)
    for _ in range(5):
        kit.advance(10_000)
        other.beat()
    assert len(other.owned) == 4


def test_a_static_member_that_leaves_need_not_give_partitions_back(kit: BrokerKit) -> None:
    static, other = join_pair(kit, instance_id="i")
    static.beat(tells_owned=False)
    static.ask(member_epoch=-2)
    other.beat()
    assert len(other.owned) == 2
    kit.advance(35_000)
    again = Member(kit, "c", instance_id="i")
    again.join()
    assert len(again.owned) == 2
    assert len(describe(kit).members) == 2


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_group_is_there_again_after_a_restart(kit: BrokerKit, is_crash: bool) -> None:
    one, two = Member(kit, "a"), Member(kit, "b", topics=None, regex="ev.*", instance_id="i")
    one.join()
    two.join()
    settle(one, two)
    before = describe(kit)
    kit.restart(is_crash=is_crash)
    assert describe(kit) == before
    epoch, owned = one.epoch, set(one.owned)
    settle(one, two)
    assert (one.epoch, one.owned) == (epoch, owned), "nothing moves"
    kit.advance(44_000)
    two.beat()
    kit.advance(2_000)
    two.beat()
    assert len(two.owned) == 4


def test_a_revocation_goes_on_after_a_restart(kit: BrokerKit) -> None:
    old, new = join_pair(kit)
    old.beat()
    kit.restart()
    new.beat()
    assert new.owned == set()
    settle(old, new)
    assert (len(old.owned), len(new.owned)) == (2, 2)


def test_an_answer_waits_for_the_log(kit: BrokerKit) -> None:
    Member(kit, "a").join()
    kit.hold_work(appends=True)
    waiting = kit.begin(Member(kit, "b").request(topic_partitions=[]))
    assert not waiting.done()
    assert len(describe(kit).members) == 1, "what is not written is not told"
    kit.release_work()
    assert waiting.result().error_code == ErrorCode.NONE
    assert len(describe(kit).members) == 2


def test_groups_of_both_kinds_are_listed_and_described(kit: BrokerKit) -> None:
    Member(kit, "a").join()
    assert list_groups(kit) == [("g", "Stable", "consumer")]
    classic = kit.ask(DescribeGroupsRequest(groups=["g"]), version=6).groups[0]
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    older = kit.ask(DescribeGroupsRequest(groups=["g"]), version=5).groups[0]
    assert (older.error_code, older.group_state) == (ErrorCode.NONE, "Dead")
    assert describe(kit, "none").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = describe(kit).members
    assert member.assignment.topic_partitions[0].topic_name == "events"
    assert member.target_assignment == member.assignment
    assert (member.member_type, member.client_host) == (1, "/127.0.0.1")


def test_an_empty_group_is_deleted_for_good(kit: BrokerKit) -> None:
    member = Member(kit, "a")
    member.join()
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert kit.ask(delete).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    member.ask(member_epoch=-1)
    assert list_groups(kit) == [("g", "Empty", "consumer")]
    kit.restart()
    assert list_groups(kit) == [("g", "Empty", "consumer")]
    assert kit.ask(delete).results[0].error_code == ErrorCode.NONE
    assert list_groups(kit) == []
    kit.restart()
    assert list_groups(kit) == []


def join_classic(kit: BrokerKit) -> Any:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"")],
    )
    return kit.begin(request, version=3)


def test_classic_members_do_not_mix_with_others(kit: BrokerKit) -> None:
    member = Member(kit, "a")
    member.join()
    refused = join_classic(kit).result()
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    member.ask(member_epoch=-1)
    joining = join_classic(kit)
    kit.advance(3_000)
    assert joining.result().error_code == ErrorCode.NONE
    assert list_groups(kit)[0][2] == "classic"
    response = member.join()
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "online upgrade is disabled" in response.error_message
    assert member.ask(member_epoch=3).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_classic_group_becomes_a_consumer_group_with_its_offsets(kit: BrokerKit) -> None:
    assert commit(kit, version=8, member_id="", epoch=-1) == ErrorCode.NONE
    assert list_groups(kit) == [("g", "Empty", "classic")]
    member = Member(kit, "a")
    member.join()
    assert list_groups(kit) == [("g", "Stable", "consumer")]
    kit.restart()
    assert list_groups(kit) == [("g", "Stable", "consumer")]
    assert fetch(kit, "a", member.epoch).topics[0].partitions[0].committed_offset == 7


def commit(kit: BrokerKit, *, version: int = 9, member_id: str, epoch: int) -> int:
    fields = {"generation_id_or_member_epoch": epoch, "member_id": member_id}
    request = commit_request("g", "events", 0, 7, **fields)
    answer = kit.ask(request, version=version)
    return int(answer.topics[0].partitions[0].error_code)


def fetch(kit: BrokerKit, member_id: str | None, epoch: int) -> Any:
    group = OffsetFetchRequestGroup(
        group_id="g", member_id=member_id, member_epoch=epoch, topics=None
    )
    return kit.ask(OffsetFetchRequest(groups=[group]), version=9).groups[0]


def test_offsets_are_committed_and_fetched_in_the_members_epoch(kit: BrokerKit) -> None:
    assert commit(kit, member_id="a", epoch=1) == ErrorCode.GROUP_ID_NOT_FOUND
    member = Member(kit, "a")
    member.join()
    assert commit(kit, member_id="a", epoch=1) == ErrorCode.NONE
    assert commit(kit, member_id="a", epoch=0) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(kit, member_id="b", epoch=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(kit, version=8, member_id="a", epoch=1) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(kit, member_id="", epoch=-1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(kit, "a", 1).topics[0].partitions[0].committed_offset == 7
    assert fetch(kit, None, -1).error_code == ErrorCode.NONE
    assert fetch(kit, "a", 2).error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(kit, "b", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    member.ask(member_epoch=-1)
    assert commit(kit, member_id="", epoch=-1) == ErrorCode.NONE
