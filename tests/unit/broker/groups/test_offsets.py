"""Committing offsets, asking for them, deleting them."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import Member, commit, commit_request, fetch, leap, offset_of
from varve.broker.groups.committed_offsets import CommittedOffset
from varve.broker.settings import GroupSettings
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode, KafkaError
from varve.wire.messages.groups import (
    DeleteGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from varve.wire.messages.state_records import OFFSETS_TOPIC
from varve.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState

EVENTS = TopicPartition("events", 0)


# OffsetCommit and OffsetFetch


def test_an_offset_is_committed_and_found_in_every_version(kit: BrokerKit) -> None:
    for version in range(2, 10):
        answer = kit.ask(commit_request("g", "events", 1, version), version=version)
        assert answer.topics[0].partitions[0].error_code == 0
        found = fetch(kit, "g", "events", 1)
        assert (found.committed_offset, found.metadata) == (version, "note")


def test_one_group_is_asked_for_before_version_8(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 7)
    topics = [OffsetFetchRequestTopic("events", partition_indexes=[0, 1])]
    for version in range(1, 8):
        answer = kit.ask(OffsetFetchRequest("g", topics), version=version)
        first, second = answer.topics[0].partitions
        assert (first.committed_offset, first.error_code) == (7, 0)
        assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)
        assert answer.error_code == 0


def test_topics_come_by_id_from_version_10_on(kit: BrokerKit) -> None:
    id = kit.topic("events").id
    topic = OffsetCommitRequestTopic(topic_id=id, partitions=[OffsetCommitRequestPartition(0, 5)])
    unknown = OffsetCommitRequestTopic(
        topic_id=UUID(int=9), partitions=[OffsetCommitRequestPartition(0, 5)]
    )
    answer = kit.ask(OffsetCommitRequest("g", topics=[topic, unknown]), version=10)
    assert [one.partitions[0].error_code for one in answer.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert answer.topics[0].topic_id == id
    asked = [OffsetFetchRequestTopic("", one, [0]) for one in (id, UUID(int=9))]
    fetched = kit.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=asked)]))
    first, second = fetched.groups[0].topics
    assert (first.topic_id, first.partitions[0].committed_offset) == (id, 5)
    assert second.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_all_topics_are_told_where_none_is_named(kit: BrokerKit) -> None:
    kit.make_topic("other")
    commit(kit, "g", "events", 1, 1)
    commit(kit, "g", "other", 0, 2)
    for version in (2, 7, 8, 9, 10):
        if version < 8:
            topics = kit.ask(OffsetFetchRequest("g", None), version=version).topics
        else:
            groups = [OffsetFetchRequestGroup("g", topics=None)]
            topics = kit.ask(OffsetFetchRequest(groups=groups), version=version).groups[0].topics
        assert [one.partitions[0].committed_offset for one in topics] == [1, 2]


def test_several_groups_are_answered_one_by_one(kit: BrokerKit) -> None:
    commit(kit, "a", "events", 0, 1)
    commit(kit, "b", "events", 0, 2)
    groups = [OffsetFetchRequestGroup(one, topics=None) for one in ("b", "none", "a")]
    answer = kit.ask(OffsetFetchRequest(groups=groups), version=8)
    assert [one.group_id for one in answer.groups] == ["b", "none", "a"]
    assert [len(one.topics) for one in answer.groups] == [1, 0, 1]


def test_an_unknown_topic_does_not_keep_the_others_from_being_committed(kit: BrokerKit) -> None:
    request = commit_request("g", "none", 0, 1)
    request.topics += commit_request("g", "events", 0, 2).topics
    answer = kit.ask(request, version=9)
    codes = [one.partitions[0].error_code for one in answer.topics]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert offset_of(kit, "g", "events", 0) == 2


def test_metadata_has_a_limit(kit: BrokerKit) -> None:
    request = commit_request("g", "events", 0, 1)
    request.topics[0].partitions[0].committed_metadata = "x" * 4097
    answer = kit.ask(request, version=9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_who_is_no_member_commits_only_while_there_are_none(kit: BrokerKit) -> None:
    member = Member(kit, "g").settle()
    assert commit(kit, "g", "events", 0, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(kit, "g", "events", 0, 1, **by(member)) == ErrorCode.NONE
    assert commit(kit, "g", "events", 0, 1, **by(member, 2)) == ErrorCode.ILLEGAL_GENERATION
    other = Member(kit, "g", id="other")
    assert commit(kit, "g", "events", 0, 1, **by(other)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.leave() == 0
    assert commit(kit, "g", "events", 0, 3) == ErrorCode.NONE


def test_a_generation_of_a_group_that_does_not_exist_is_illegal(kit: BrokerKit) -> None:
    fields = by(Member(kit, "g", id="m"), 3)
    assert commit(kit, "g", "events", 0, 1, **fields) == ErrorCode.GROUP_ID_NOT_FOUND
    older = kit.ask(commit_request("g", "events", 0, 1, **fields), version=8)
    assert older.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION
    assert kit.broker.groups.groups.find("g") is None


def test_a_commit_is_told_of_a_rebalance_while_assignments_are_made(kit: BrokerKit) -> None:
    member = Member(kit, "g")
    member.join(wait_ms=3_000)
    assert commit(kit, "g", "events", 0, 1, **by(member)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_counts_as_a_sign_of_life(kit: BrokerKit) -> None:
    member = Member(kit, "g").settle()
    for _ in range(3):
        kit.advance(9_000)
        assert commit(kit, "g", "events", 0, 1, **by(member)) == ErrorCode.NONE


def test_a_commit_is_answered_when_it_is_on_disk(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.hold_work(syncs=True)
    waiting = kit.begin(commit_request("g", "events", 0, 2), version=9)
    assert not waiting.done()
    assert offset_of(kit, "g", "events", 0) == 1
    kit.release_work()
    assert waiting.result().topics[0].partitions[0].error_code == 0
    assert offset_of(kit, "g", "events", 0) == 2


def test_a_client_that_goes_away_does_not_cut_its_commit(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.hold_work(syncs=True)
    kit.begin(commit_request("g", "events", 0, 2), version=9).cancel()
    kit.release_work()
    assert offset_of(kit, "g", "events", 0) == 2


def test_offsets_too_many_for_a_batch_are_refused_and_change_nothing(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.store.alter_topic(OFFSETS_TOPIC, {"max.message.bytes": 120})
    request = commit_request("g", "events", 0, 2)
    request.topics[0].partitions[0].committed_metadata = "x" * 200
    answer = kit.ask(request, version=9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert offset_of(kit, "g", "events", 0) == 1


# Transactions


def by(member: Member, generation: int = 1) -> dict[str, Any]:
    """The fields of a commit by a member of a group."""
    return {"member_id": member.id, "generation_id_or_member_epoch": generation}


async def _transactional(kit: BrokerKit, offset: int, epoch: int = 0) -> None:
    offsets = {EVENTS: CommittedOffset(offset)}
    await kit.broker.groups.commit_in_transaction("g", 9, epoch, offsets)


def _commit_in_transaction(kit: BrokerKit, offset: int, epoch: int = 0) -> None:
    kit.run(_transactional(kit, offset, epoch))


def _end(kit: BrokerKit, committed: bool) -> None:
    partition = kit.broker.groups.log.topic.partition_of("g").partition
    log = kit.log(OFFSETS_TOPIC, partition)
    log.end_transaction(producer_id=9, producer_epoch=0, committed=committed)
    kit.broker.groups.offsets.complete_transaction(9, committed)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_offsets_of_a_transaction_wait_for_its_end(
    kit: BrokerKit, committed: bool, crashes: bool
) -> None:
    commit(kit, "g", "events", 0, 1)
    _commit_in_transaction(kit, 5)
    if crashes:
        kit.restart(is_crash=True)
    unstable = fetch(kit, "g", "events", 0, require_stable=True)
    assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert unstable.committed_offset == -1
    assert offset_of(kit, "g", "events", 0) == 1
    _end(kit, committed)
    stable = fetch(kit, "g", "events", 0, require_stable=True)
    assert (stable.error_code, stable.committed_offset) == (0, 5 if committed else 1)
    kit.restart(is_crash=crashes)
    assert offset_of(kit, "g", "events", 0) == (5 if committed else 1)


def test_a_commit_behind_that_of_a_transaction_counts(kit: BrokerKit) -> None:
    _commit_in_transaction(kit, 5)
    commit(kit, "g", "events", 0, 8)
    _end(kit, committed=True)
    assert offset_of(kit, "g", "events", 0) == 8
    kit.restart()
    assert offset_of(kit, "g", "events", 0) == 8


def test_a_transactional_commit_that_the_log_refused_leaves_nothing_pending(
    kit: BrokerKit,
) -> None:
    _commit_in_transaction(kit, 5)
    _end(kit, committed=True)
    with pytest.raises(KafkaError) as raised:
        _commit_in_transaction(kit, 6, epoch=-1)
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert fetch(kit, "g", "events", 0, require_stable=True).committed_offset == 5


def test_the_end_of_a_transaction_may_overtake_the_answer_to_a_commit(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.hold_work(syncs=True)
    task = kit.loop.create_task(_transactional(kit, 5))
    kit.settle()
    kit.broker.groups.offsets.complete_transaction(9, False)
    kit.release_work()
    kit.run(task)
    assert fetch(kit, "g", "events", 0, require_stable=True).committed_offset == 1


def test_a_transactional_commit_goes_on_when_its_client_goes_away(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    kit.hold_work(syncs=True)
    task = kit.loop.create_task(_transactional(kit, 5))
    kit.settle()
    task.cancel()
    kit.release_work()
    _end(kit, committed=True)
    assert offset_of(kit, "g", "events", 0) == 5


# OffsetDelete


def _delete(kit: BrokerKit, group: str, topic: str, partition: int) -> tuple[int, list[int]]:
    parts = [OffsetDeleteRequestPartition(partition)]
    request = OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(topic, parts)])
    answer = kit.ask(request)
    return answer.error_code, [one.error_code for t in answer.topics for one in t.partitions]


def test_offsets_are_deleted_for_good(kit: BrokerKit) -> None:
    commit(kit, "g", "events", 0, 1)
    commit(kit, "g", "events", 1, 2)
    assert _delete(kit, "g", "events", 0) == (0, [0])
    kit.restart()
    assert offset_of(kit, "g", "events", 0) == -1
    assert offset_of(kit, "g", "events", 1) == 2


def test_offsets_of_topics_that_members_read_are_not_deleted(kit: BrokerKit) -> None:
    kit.make_topic("other")
    Member(kit, "g", topics=("events",)).settle()
    assert _delete(kit, "g", "events", 0) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert _delete(kit, "g", "other", 0) == (0, [ErrorCode.NONE])
    assert _delete(kit, "g", "none", 0) == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert _delete(kit, "none", "events", 0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


# Expiry


@pytest.fixture
def short() -> Iterator[BrokerKit]:
    """Its offsets expire after a minute."""
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    with BrokerKit(groups=settings) as kit:
        kit.make_topic("events")
        yield kit


def test_offsets_of_an_empty_group_expire_and_the_group_with_them(short: BrokerKit) -> None:
    kit = short
    commit(kit, "g", "events", 0, 1)
    leap(kit, 59_000)
    assert offset_of(kit, "g", "events", 0) == 1
    leap(kit, 2_000)
    assert offset_of(kit, "g", "events", 0) == -1
    assert kit.broker.groups.groups.find("g") is None
    kit.restart()
    assert kit.broker.groups.groups.find("g") is None


def test_a_group_that_expires_during_its_first_commit_is_listed_after_it(short: BrokerKit) -> None:
    kit = short
    commit(kit, "other", "events", 0, 1)
    kit.hold_work(appends=True)
    committing = kit.begin(commit_request("new", "events", 0, 5), version=9)
    kit.advance(2_000)
    kit.release_work()
    assert committing.result().topics[0].partitions[0].error_code == ErrorCode.NONE
    assert offset_of(kit, "new", "events", 0) == 5
    listed = {group.group_id for group in kit.ask(ListGroupsRequest()).groups}
    assert listed == {"new", "other"}
    (deleted,) = kit.ask(DeleteGroupsRequest(groups_names=["new"])).results
    assert deleted.error_code == ErrorCode.NONE
    assert offset_of(kit, "new", "events", 0) == -1


def test_offsets_are_kept_while_members_read_the_topic(short: BrokerKit) -> None:
    kit = short
    kit.make_topic("other")
    commit(kit, "g", "events", 0, 1)
    commit(kit, "g", "other", 0, 1)
    member = Member(kit, "g", topics=("events",), session_ms=30_000).settle()
    for _ in range(4):
        leap(kit, 20_000)
        assert member.heartbeat() == 0
    assert offset_of(kit, "g", "events", 0) == 1
    assert offset_of(kit, "g", "other", 0) == -1
    assert member.leave() == 0
    leap(kit, 58_000)
    assert offset_of(kit, "g", "events", 0) == 1
    leap(kit, 5_000)
    assert offset_of(kit, "g", "events", 0) == -1


def test_an_old_client_may_give_offsets_a_time_of_their_own(short: BrokerKit) -> None:
    kit = short
    request = commit_request("g", "events", 0, 1)
    request.retention_time_ms = 200_000
    kit.ask(request, version=4)
    leap(kit, 61_000)
    kit.restart()
    leap(kit, 61_000)
    assert offset_of(kit, "g", "events", 0) == 1
    leap(kit, 100_000)
    assert offset_of(kit, "g", "events", 0) == -1


def test_offsets_that_wait_for_a_transaction_do_not_expire(short: BrokerKit) -> None:
    kit = short
    commit(kit, "g", "events", 0, 1)
    _commit_in_transaction(kit, 5)
    leap(kit, 100_000)
    assert offset_of(kit, "g", "events", 0) == 1


def test_offsets_go_with_their_topic(kit: BrokerKit) -> None:
    kit.make_topic("other")
    commit(kit, "g", "events", 0, 1)
    commit(kit, "g", "other", 0, 2)
    answer = kit.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="events")]), version=6)
    assert answer.responses[0].error_code == 0
    kit.settle()
    kit.make_topic("events")
    assert offset_of(kit, "g", "events", 0) == -1
    assert offset_of(kit, "g", "other", 0) == 2
