"""Groups of more members than anybody counts on one hand."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import Member
from varve.broker.settings import GroupSettings
from varve.wire.messages.groups import ConsumerGroupHeartbeatRequest, TopicPartitions

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
    epochs = {f"m{number}": 0 for number in range(MEMBERS)}
    owned: dict[str, list[int]] = {}
    for _ in range(8):
        for member in epochs:
            _beat(kit, member, epochs, owned)
    assert set(epochs.values()) == {max(epochs.values())}
    shared = Counter(number for numbers in owned.values() for number in numbers)
    assert shared == Counter(range(PARTITIONS))
    assert {len(numbers) for numbers in owned.values()} == {2, 3}


def _beat(kit: BrokerKit, member: str, epochs: dict[str, int], owned: dict[str, list[int]]) -> None:
    """One heartbeat, after which the member has what it was given."""
    topic_id = kit.topic("events").id
    held = [TopicPartitions(topic_id, owned[member])] if owned.get(member) else []
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epochs[member],
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["events"],
        topic_partitions=held,
    )
    answer = kit.ask(request)
    assert answer.error_code == 0, answer.error_message
    epochs[member] = answer.member_epoch
    if answer.assignment is not None:
        owned[member] = [
            one for part in answer.assignment.topic_partitions for one in part.partitions
        ]
