"""Assignments of consumer groups, and heartbeats in any order.

The model of a client begins at once to read what it is told to have, gives the rest up some time
later, and loses answers. Whatever happens, no partition has two readers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from varve.broker.groups.assignors import (
    ASSIGNORS,
    NO_PARTITIONS,
    PartitionId,
    Partitions,
    assign_uniform,
)
from varve.broker.groups.consumer_state import (
    Client,
    ConsumerState,
    apply_heartbeat,
    apply_leave,
    owned_partitions,
    reconcile,
)
from varve.wire.errors import KafkaError
from varve.wire.messages.groups import ConsumerGroupHeartbeatRequest, TopicPartitions

TOPICS = [UUID(int=one) for one in range(1, 4)]
MEMBERS = ["a", "b", "c", "d"]

counts_of_topics = st.fixed_dictionaries({one: st.integers(0, 4) for one in TOPICS})
subscriptions_of_members = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(TOPICS)), max_size=4
)


def wanted(subscriptions: Mapping[str, frozenset[UUID]], counts: Mapping[UUID, int]) -> Partitions:
    topics = frozenset().union(*subscriptions.values())
    return frozenset((one, number) for one in topics for number in range(counts[one]))


def check_whole(
    subscriptions: Mapping[str, frozenset[UUID]],
    counts: Mapping[UUID, int],
    assigned: Mapping[str, Partitions],
) -> None:
    assert assigned.keys() == subscriptions.keys()
    owners = Counter(one for own in assigned.values() for one in own)
    assert owners == Counter(wanted(subscriptions, counts))
    for member, own in assigned.items():
        assert {topic for topic, _ in own} <= subscriptions[member]


@given(subscriptions_of_members, subscriptions_of_members, counts_of_topics, counts_of_topics)
def test_every_partition_has_one_owner_that_subscribes_to_it(
    first: dict[str, frozenset[UUID]],
    second: dict[str, frozenset[UUID]],
    few: dict[UUID, int],
    more: dict[UUID, int],
) -> None:
    for assignor in ASSIGNORS.values():
        before = assignor(first, few, {})
        check_whole(first, few, before)
        after = assignor(second, more, before)
        check_whole(second, more, after)
        assert assignor(second, more, before) == after


def best_loads(subscriptions: Mapping[str, frozenset[UUID]], counts: Mapping[UUID, int]) -> int:
    """The least sum of squares over all assignments, by trying them."""
    partitions = sorted(wanted(subscriptions, counts))
    choices = [
        [member for member in subscriptions if topic in subscriptions[member]]
        for topic, _ in partitions
    ]
    loads = (Counter(one).values() for one in product(*choices))
    return min(sum(load * load for load in one) for one in loads)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(MEMBERS[:3]), st.frozensets(st.sampled_from(TOPICS)), max_size=3
    ),
    st.fixed_dictionaries({one: st.integers(0, 2) for one in TOPICS}),
    st.data(),
)
def test_uniform_is_as_even_as_subscriptions_allow(
    subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int], data: st.DataObject
) -> None:
    pool = sorted(wanted(subscriptions, counts))
    owners = [data.draw(st.sampled_from(MEMBERS)) for _ in pool]
    before = {
        member: frozenset(one for one, owner in zip(pool, owners, strict=True) if owner == member)
        for member in MEMBERS
    }
    assigned = assign_uniform(subscriptions, counts, before)
    loads = sum(len(one) ** 2 for one in assigned.values())
    assert loads == best_loads(subscriptions, counts)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 30))
def test_uniform_moves_no_more_than_it_must(before_count: int, count: int, size: int) -> None:
    topic = TOPICS[0]
    counts = {topic: size}
    first = {f"m{one}": frozenset({topic}) for one in range(before_count)}
    second = {f"m{one}": frozenset({topic}) for one in range(count)}
    before = assign_uniform(first, counts, {})
    after = assign_uniform(second, counts, before)
    kept = sum(len(before[one] & after[one]) for one in first if one in second)
    fair = sorted((len(one) for one in after.values()), reverse=True)
    had = sorted((len(before[one]) for one in first if one in second), reverse=True)
    assert fair[0] - fair[-1] <= 1
    assert kept == sum(min(some, most) for some, most in zip(had, fair, strict=False))


@dataclass
class ModelMember:
    """A client: what it reads, what it was told to have, and the epoch it knows."""

    id: str
    epoch: int = 0
    reads: set[PartitionId] = field(default_factory=set)
    told: Partitions = NO_PARTITIONS
    is_full: bool = True

    def request(self, tells_owned: bool) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.id, member_epoch=self.epoch, rebalance_timeout_ms=1_000
        )
        if self.epoch == 0 or self.is_full:
            request.subscribed_topic_names = ["t"]
        if self.epoch == 0 or self.is_full or tells_owned:
            request.topic_partitions = [TopicPartitions(t, [n]) for t, n in sorted(self.reads)]
        return request


class ModelGroup:
    """The coordinator's steps without log and clock, and the clients of one group."""

    def __init__(self, partition_count: int) -> None:
        self.state = ConsumerState()
        self.counts = {TOPICS[0]: partition_count}
        self.clients: dict[str, ModelMember] = {}

    def beat(self, id: str, *, tells_owned: bool, is_lost: bool) -> None:
        client = self.clients.setdefault(id, ModelMember(id))
        request = client.request(tells_owned)
        try:
            state = apply_heartbeat(self.state, request, id, Client("c", "h"), size_max=100)
        except KafkaError:
            # It gives up everything and joins again.
            self.clients[id] = ModelMember(id)
            return
        self.state = self._step(state, request, id)
        if is_lost:
            client.is_full = True
            return
        member = self.state.members[id]
        client.epoch, client.told, client.is_full = member.epoch, member.assigned, False
        client.reads |= client.told

    def _step(
        self, state: ConsumerState, request: ConsumerGroupHeartbeatRequest, id: str
    ) -> ConsumerState:
        if len(state.members) != len(self.state.members):
            state = self._retarget(state)
        member = reconcile(
            state.members[id],
            target=state.target_of(id),
            target_epoch=state.assignment_epoch,
            owned=owned_partitions(request),
            held_by_others=lambda some: state.held_by_others(id, some),
        )
        return state.put(member)

    def _retarget(self, state: ConsumerState) -> ConsumerState:
        subscriptions = {one: frozenset(self.counts) for one in state.members}
        targets = assign_uniform(subscriptions, self.counts, state.targets)
        epoch = state.epoch + 1
        return replace(state, epoch=epoch, assignment_epoch=epoch, targets=targets)

    def follow(self, id: str) -> None:
        """A client has given up what it was not told to have."""
        client = self.clients.get(id)
        if client is not None:
            client.reads &= client.told

    def go(self, id: str) -> None:
        """A client leaves, or its session ends while it has stopped to read."""
        client = self.clients.pop(id, None)
        if client is not None and id in self.state.members:
            gone = ConsumerGroupHeartbeatRequest(member_id=id, member_epoch=-1)
            self.state = self._retarget(apply_leave(self.state, gone))

    def grow(self) -> None:
        self.counts[TOPICS[0]] += 1
        self.state = self._retarget(self.state)

    def check(self) -> None:
        readers = Counter(one for client in self.clients.values() for one in client.reads)
        assert not readers or max(readers.values()) == 1, "two members read one partition"
        holders = Counter(one for member in self.state.members.values() for one in member.held)
        assert not holders or max(holders.values()) == 1, "two members hold one partition"


# Heartbeats and doing as told most of the time: a fault needs several of them in a row.
STEPS = ["beat"] * 6 + ["follow"] * 4 + ["silent", "lost", "go", "grow"]
steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(MEMBERS[:3])), min_size=25, max_size=50
)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), steps)
def test_no_partition_has_two_readers_in_any_order_of_heartbeats(
    partition_count: int, taken: list[tuple[str, str]]
) -> None:
    group = ModelGroup(partition_count)
    for step, id in taken:
        match step:
            case "follow":
                group.follow(id)
            case "go":
                group.go(id)
            case "grow":
                group.grow()
            case _:
                group.beat(id, tells_owned=step == "beat", is_lost=step == "lost")
        group.check()
    for _ in range(5):
        for id in group.clients:
            group.beat(id, tells_owned=True, is_lost=False)
            group.follow(id)
            group.check()
    read = {one for client in group.clients.values() for one in client.reads}
    assert read == (wanted({"": frozenset(TOPICS[:1])}, group.counts) if group.clients else set())
