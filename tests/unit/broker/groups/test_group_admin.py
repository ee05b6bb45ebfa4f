"""Finding the coordinator; describing, listing and deleting groups; and who may."""

from typing import Any

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import Member, commit, commit_request, leap, offset_of, subscription
from tests.support.rights import Rights
from varve.broker.request import Operation, ResourceType
from varve.wire import ErrorCode
from varve.wire.messages.cluster import FindCoordinatorRequest
from varve.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from varve.wire.messages.state_records import OFFSETS_TOPIC

# FindCoordinator


def test_this_broker_coordinates_everything(kit: BrokerKit) -> None:
    for version in range(7):
        request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
        answer = kit.ask(request, version=version)
        found = answer.coordinators if version >= 4 else [answer]
        assert [(one.node_id, one.host, one.port, one.error_code) for one in found] == [
            (1, "localhost", 9092, 0)
        ] * len(found)
    assert kit.broker.topics.find(OFFSETS_TOPIC) is not None


def test_other_kinds_of_coordinators_are_refused(kit: BrokerKit) -> None:
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=["g"])
    [found] = kit.ask(request, version=6).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert "type 2" in found.error_message


# DescribeGroups


def test_a_stable_group_is_described_with_its_assignments(kit: BrokerKit) -> None:
    member = Member(kit, "g").settle()
    for version in range(7):
        [group] = kit.ask(DescribeGroupsRequest(["g"]), version=version).groups
        assert (group.error_code, group.group_state) == (0, "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        [one] = group.members
        assert (one.member_id, one.client_id, one.client_host) == (
            member.id,
            "client",
            "/127.0.0.1",
        )
        assert (one.member_metadata, one.member_assignment) == (subscription("events"), b"all")


def test_a_group_in_between_is_described_without_assignments(kit: BrokerKit) -> None:
    member = Member(kit, "g").settle()
    member.leave()
    [group] = kit.ask(DescribeGroupsRequest(["g"])).groups
    assert (group.group_state, group.members, group.protocol_data) == ("Empty", [], "")
    Member(kit, "g").enter()
    [group] = kit.ask(DescribeGroupsRequest(["g"])).groups
    assert group.group_state == "PreparingRebalance"
    assert [one.member_metadata for one in group.members] == [b""]
    leap(kit, 3_000)
    [group] = kit.ask(DescribeGroupsRequest(["g"])).groups
    assert group.group_state == "CompletingRebalance"


def test_a_missing_group_is_dead_before_version_6_and_an_error_from_then_on(
    kit: BrokerKit,
) -> None:
    [group] = kit.ask(DescribeGroupsRequest(["g"]), version=5).groups
    assert (group.error_code, group.group_state) == (0, "Dead")
    [group] = kit.ask(DescribeGroupsRequest(["g"]), version=6).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "g does not exist" in group.error_message


def test_what_one_may_do_is_told_if_asked_for(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    [group] = kit.ask(DescribeGroupsRequest(["g"], True)).groups
    expected = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
    assert all(group.authorized_operations & (1 << one) for one in expected)
    [group] = kit.ask(DescribeGroupsRequest(["g"])).groups
    assert group.authorized_operations == -(1 << 31)


# ListGroups


def _list(kit: BrokerKit, version: int = 5, **fields: Any) -> list[str]:
    answer = kit.ask(ListGroupsRequest(**fields), version=version)
    return [one.group_id for one in answer.groups]


def test_groups_are_listed_by_state_and_kind(kit: BrokerKit) -> None:
    commit(kit, "simple", "events", 0, 1)
    Member(kit, "members").settle()
    for version in range(6):
        assert _list(kit, version) == ["members", "simple"]
    assert _list(kit, states_filter=["stable"]) == ["members"]
    assert _list(kit, states_filter=["Empty"]) == ["simple"]
    assert _list(kit, types_filter=["Classic"]) == ["members", "simple"]
    assert _list(kit, types_filter=["consumer"]) == []
    answer = kit.ask(ListGroupsRequest())
    told = [(one.group_state, one.group_type, one.protocol_type) for one in answer.groups]
    assert told == [("Stable", "classic", "consumer"), ("Empty", "classic", "")]


# DeleteGroups


def _delete(kit: BrokerKit, *groups: str, version: int = 2) -> list[int]:
    answer = kit.ask(DeleteGroupsRequest(list(groups)), version=version)
    return [one.error_code for one in answer.results]


def test_a_group_is_deleted_with_its_offsets_for_good(kit: BrokerKit) -> None:
    member = Member(kit, "g").settle()
    assert _delete(kit, "g") == [ErrorCode.NON_EMPTY_GROUP]
    member.leave()
    commit(kit, "g", "events", 0, 1)
    commit(kit, "h", "events", 0, 2)
    assert _delete(kit, "g", "none") == [0, ErrorCode.GROUP_ID_NOT_FOUND]
    for _ in range(2):
        assert offset_of(kit, "g", "events", 0) == -1
        assert offset_of(kit, "h", "events", 0) == 2
        assert _list(kit) == ["h"]
        kit.restart(is_crash=True)


def test_who_joins_while_a_group_is_deleted_begins_another(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.hold_work(syncs=True)
    deletion = kit.begin(DeleteGroupsRequest(["g"]))
    member = Member(kit, "g")
    joined = member.enter()
    kit.release_work()
    assert deletion.result().results[0].error_code == 0
    leap(kit, 3_000)
    assert member.take(joined).generation_id == 1
    member.sync({member.id: b"all"})
    kit.restart(is_crash=True)
    assert member.heartbeat() == 0


def test_a_group_that_the_log_keeps_is_kept(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.store.alter_topic(OFFSETS_TOPIC, {"max.message.bytes": 50})
    assert _delete(kit, "g") == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert _list(kit) == ["g"]
    assert offset_of(kit, "g", "events", 0) == 1


# Rights


def test_without_rights_on_a_topic_its_offsets_are_told_apart(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.broker.authorizer = Rights(lambda *right: right[1] is not ResourceType.TOPIC)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for version, topic_id in ((9, None), (10, kit.topic("events").id)):
        request = commit_request("g", "events", 0, 2)
        asked = OffsetFetchRequestTopic("events", partition_indexes=[0])
        if topic_id is not None:
            request.topics[0].topic_id = asked.topic_id = topic_id
        answer = kit.ask(request, version=version)
        assert answer.topics[0].partitions[0].error_code == refused
        for topics, expected in (([asked], [refused]), (None, [])):
            fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])
            [group] = kit.ask(fetch, version=version).groups
            assert [one.partitions[0].error_code for one in group.topics] == expected
    parts = [OffsetDeleteRequestPartition(0)]
    deletion = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("events", parts)])
    assert kit.ask(deletion).topics[0].partitions[0].error_code == refused
