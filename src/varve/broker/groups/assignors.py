"""Assignors of consumer groups: which member reads which partition.

`uniform` assigns as equal numbers of partitions as subscriptions allow, and moves no more than that
needs. `range` assigns each subscriber of a topic a range of its partitions, so that partitions with
the same number in topics of the same size go to one member.

Invariant  every partition of a topic with a subscriber has exactly one owner, who subscribes to it;
           no other partition has any. Equal arguments give equal results.
Threads    pure; large groups are computed off the loop.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

PartitionId = tuple[UUID, int]
"""Id of the topic and number; plain, since groups handle many."""
Partitions = frozenset[PartitionId]

NO_PARTITIONS: Final[Partitions] = frozenset()

Subscriptions = Mapping[str, frozenset[UUID]]
"""Topics that each member subscribes to; ones that do not exist are left out."""
Targets = Mapping[str, Partitions]

Assignor = Callable[[Subscriptions, Mapping[UUID, int], Targets], dict[str, Partitions]]
"""Takes subscriptions, the number of partitions of each topic, and who owned what before."""


def assign_range(
    subscriptions: Subscriptions, partition_counts: Mapping[UUID, int], before: Targets
) -> dict[str, Partitions]:
    """Members take their runs in the order of their ids."""
    assigned: dict[str, set[PartitionId]] = {member: set() for member in subscriptions}
    for topic, members in _subscribers(subscriptions, partition_counts).items():
        quota, extra = divmod(partition_counts[topic], len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + quota + (index < extra)
            assigned[member].update((topic, number) for number in range(start, end))
            start = end
    return {member: frozenset(own) for member, own in assigned.items()}


def assign_uniform(
    subscriptions: Subscriptions, partition_counts: Mapping[UUID, int], before: Targets
) -> dict[str, Partitions]:
    """Members keep their partitions; free ones go to the least loaded; then loads are balanced."""
    assignment = _UniformAssignment(subscriptions, partition_counts)
    assignment.keep(before)
    assignment.assign_free()
    assignment.balance()
    return assignment.result()


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


def _subscribers(
    subscriptions: Subscriptions, partition_counts: Mapping[UUID, int]
) -> dict[UUID, tuple[str, ...]]:
    """Members by topic, both in order."""
    members: dict[UUID, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            if partition_counts.get(topic, 0) > 0:
                members.setdefault(topic, []).append(member)
    return {topic: tuple(members[topic]) for topic in sorted(members)}


class _UniformAssignment:
    """Partitions while they are assigned to members."""

    def __init__(self, subscriptions: Subscriptions, partition_counts: Mapping[UUID, int]) -> None:
        self._subscriptions = subscriptions
        self._counts = partition_counts
        self._subscribers = _subscribers(subscriptions, partition_counts)
        self._owned: dict[str, dict[UUID, set[int]]] = {
            subscription: {} for subscription in subscriptions
        }
        self._load = dict.fromkeys(sorted(subscriptions), 0)
        self._free = {topic: set(range(partition_counts[topic])) for topic in self._subscribers}

    def keep(self, before: Targets) -> None:
        for member in self._load:
            for topic, number in before.get(member, NO_PARTITIONS):
                is_subscribed = topic in self._subscriptions[member]
                if is_subscribed and number in self._free.get(topic, ()):
                    self._free[topic].remove(number)
                    self._assign(member, topic, number)

    def _assign(self, member: str, topic: UUID, number: int) -> None:
        self._owned[member].setdefault(topic, set()).add(number)
        self._load[member] += 1

    def assign_free(self) -> None:
        """Topics with few subscribers come first: their partitions have fewer possible owners."""
        # Topics with the same subscribers share a heap. Loads only grow here, so that an entry
        # which is out of date is too early in the heap and is put back with its current load.
        heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        for topic, members in sorted(self._subscribers.items(), key=lambda item: len(item[1])):
            heap = heaps.get(members)
            if heap is None:
                heap = heaps[members] = [(self._load[member], member) for member in members]
                heapq.heapify(heap)
            for number in sorted(self._free[topic]):
                while heap[0][0] != self._load[heap[0][1]]:
                    heapq.heapreplace(heap, (self._load[heap[0][1]], heap[0][1]))
                member = heap[0][1]
                self._assign(member, topic, number)
                heapq.heapreplace(heap, (self._load[member], member))

    def balance(self) -> None:
        """Moves partitions from the members with most, perhaps by way of others, to those with
        least.

        Once no member that can be reached from the one with most has two less, none of them can
        give a partition away: no later step changes their loads.
        """
        active = dict.fromkeys(self._load)
        while active:
            source = max(active, key=lambda member: self._load[member])
            givers = self._reach(source)
            target = min(givers, key=lambda member: self._load[member])
            if self._load[target] <= self._load[source] - 2:
                self._pass_on(source, target, givers)
            else:
                for member in givers:
                    active.pop(member, None)

    def _reach(self, source: str) -> dict[str, tuple[str, UUID] | None]:
        """Members that could get a partition if `source` gave one away, each with the giver."""
        givers: dict[str, tuple[str, UUID] | None] = {source: None}
        seen: set[UUID] = set()
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for topic, numbers in self._owned[giver].items():
                if topic in seen or not numbers:
                    continue
                seen.add(topic)
                for member in self._subscribers[topic]:
                    if member not in givers:
                        givers[member] = (giver, topic)
                        queue.append(member)
        return givers

    def _pass_on(
        self, source: str, target: str, givers: Mapping[str, tuple[str, UUID] | None]
    ) -> None:
        taker = target
        while (step := givers[taker]) is not None:
            giver, topic = step
            number = max(self._owned[giver][topic])
            self._owned[giver][topic].remove(number)
            self._owned[taker].setdefault(topic, set()).add(number)
            taker = giver
        self._load[source] -= 1
        self._load[target] += 1

    def result(self) -> dict[str, Partitions]:
        return {
            member: frozenset(
                (topic, number) for topic, numbers in owned.items() for number in numbers
            )
            for member, owned in self._owned.items()
        }
