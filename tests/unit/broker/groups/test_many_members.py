"""Groups of more members than anybody counts on one hand."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import ConsumerMember, Member, settle
from varve.broker.settings import GroupSettings

MEMBERS = 25
PARTITIONS = 60


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(groups=GroupSettings(group_initial_rebalance_delay_ms=0)) as kit:
        kit.make_topic("events", partitions=PARTITIONS)
        yield kit


def test_all_members_of_a_classic_group_come_to_one_generation(kit: BrokerKit) -> None:
    members = [Member(kit).settle()]
    newcomers = [Member(kit) for _ in range(MEMBERS - 1)]
    for one in newcomers:
        one.take_id()
    waiting = [one.begin_join() for one in [*newcomers, *members]]
    members = [*newcomers, *members]
    answers = [one.take(future) for one, future in zip(members, waiting, strict=True)]
    assert {one.error_code for one in answers} == {0}
    assert len({one.generation for one in members}) == 1
    [leader] = [one for one, answer in zip(members, answers, strict=True) if answer.members]
    assert max(len(answer.members) for answer in answers) == MEMBERS
    given = {one.id: one.id.encode() for one in members}
    syncs = [one.begin_sync(given if one is leader else None) for one in members]
    assert [one.result().assignment for one in syncs] == [one.id.encode() for one in members]
    kit.restart()
    assert [one.heartbeat() for one in members] == [0] * MEMBERS


def test_all_members_of_a_consumer_group_share_the_partitions_out(kit: BrokerKit) -> None:
    members = [ConsumerMember(kit, f"m{number}") for number in range(MEMBERS)]
    settle(*members)
    settle(*members)
    assert len({one.epoch for one in members}) == 1
    shared = Counter(number for one in members for _, number in one.owned)
    assert shared == Counter(range(PARTITIONS))
    assert {len(one.owned) for one in members} == {2, 3}
