"""The consumer groups of a broker: members, committed offsets, lag, and moving the offsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from varve.brokers.client import BrokerClient, admin_api
from varve.brokers.errors import LIST_GROUPS
from varve.brokers.topics import find_topic, read_ends, read_offsets
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.position import PositionKind, ReadPosition

PartitionKey = tuple[str, int]


class GroupSummary(NamedTuple):
    name: str
    state: str
    type: str
    member_count: int


class GroupPartition(NamedTuple):
    """`committed` and `lag` are None without a committed offset; the member if one is assigned."""

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int | None
    member: str | None
    client: str | None
    host: str | None


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    name: str
    state: str
    type: str
    assignor: str
    member_count: int
    partitions: list[GroupPartition]

    @property
    def lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)


class PlannedOffset(NamedTuple):
    """The committed offset of a partition, and the one that a reset commits."""

    topic: str
    partition: int
    committed: int | None
    new: int


def list_groups(client: BrokerClient) -> list[GroupSummary]:
    listing = client.result(client.admin().list_consumer_groups(), "the groups")
    for error in listing.errors:
        raise client.as_error(error.args[0], "the groups")
    names = sorted(group.group_id for group in listing.valid)
    if not names:
        return []
    futures = client.admin().describe_consumer_groups(names)
    groups = [client.result(futures[name], f"group {name}") for name in names]
    return [
        GroupSummary(name, _word(group.state), _word(group.type), len(group.members))
        for name, group in zip(names, groups, strict=True)
    ]


def _word(value: Any) -> str:
    """An enum's name in lower case: `stable`, `empty`, `classic`."""
    return str(getattr(value, "name", value)).lower().replace("_", " ")


def describe_group(client: BrokerClient, name: str) -> DescribedGroup:
    """Members and lag of a group; raises NotFound."""
    [future] = client.admin().describe_consumer_groups([name]).values()
    group = client.result(future, f"group {name}")
    committed = read_committed(client, name)
    if not committed and not group.members and _word(group.state) in ("dead", "unknown"):
        raise NotFound(f"there is no group {name!r:.260}; {LIST_GROUPS}")
    members: dict[PartitionKey, tuple[str, str, str]] = {}
    for member in group.members:
        for partition in member.assignment.topic_partitions if member.assignment else []:
            members[partition.topic, partition.partition] = (
                member.member_id,
                member.client_id,
                member.host.removeprefix("/"),
            )
    keys = sorted({*committed, *members})
    ends = read_ends(client, keys)
    return DescribedGroup(
        name,
        _word(group.state),
        _word(group.type),
        str(group.partition_assignor or ""),
        len(group.members),
        [_with_lag(key, committed.get(key), ends[key][1], members.get(key)) for key in keys],
    )


def _with_lag(
    key: PartitionKey, committed: int | None, end: int, member: tuple[str, str, str] | None
) -> GroupPartition:
    lag = None if committed is None or end < 0 else max(0, end - committed)
    return GroupPartition(*key, committed, end, lag, *(member or (None, None, None)))


def read_committed(client: BrokerClient, group: str) -> dict[PartitionKey, int]:
    """The committed offsets of a group."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    request = [ConsumerGroupTopicPartitions(group)]
    [future] = client.admin().list_consumer_group_offsets(request).values()
    return {
        (partition.topic, partition.partition): partition.offset
        for partition in client.result(future, f"group {group}").topic_partitions
        if partition.error is None and partition.offset >= 0
    }


def plan_offsets(
    client: BrokerClient,
    group: str,
    target: ReadPosition,
    topics: Sequence[tuple[str, int | None]],
) -> list[PlannedOffset]:
    """What a reset commits, in these topics or wherever the group has committed.

    An offset outside a partition becomes the nearest one.
    """
    committed = read_committed(client, group)
    keys = _select_partitions(client, topics) if topics else sorted(committed)
    if not keys:
        raise InvalidRequest(
            f"group {group} has no committed offsets; name the topics to read with --topic"
        )
    ends = read_ends(client, keys)
    at_time: dict[PartitionKey, int] = {}
    if target.kind is PositionKind.TIME:
        at_time = read_offsets(client, keys, admin_api().OffsetSpec.for_timestamp(target.number))
    planned = []
    for key in keys:
        first, end = ends[key]
        offset = target.resolve(first=first, end=end, at_time=at_time.get(key))
        planned.append(PlannedOffset(*key, committed.get(key), min(max(offset, first), end)))
    return planned


def _select_partitions(
    client: BrokerClient, topics: Sequence[tuple[str, int | None]]
) -> list[PartitionKey]:
    keys: set[PartitionKey] = set()
    for topic, partition in topics:
        numbers = {number.id for number in find_topic(client, topic).partitions}
        if partition is not None and partition not in numbers:
            raise NotFound(f"topic {topic} has no partition {partition}; it has {len(numbers)}")
        keys |= {(topic, number) for number in (numbers if partition is None else {partition})}
    return sorted(keys)


def commit_offsets(client: BrokerClient, group: str, planned: Sequence[PlannedOffset]) -> None:
    """Commit for a group without members."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    partitions = [TopicPartition(offset.topic, offset.partition, offset.new) for offset in planned]
    request = [ConsumerGroupTopicPartitions(group, partitions)]
    [future] = client.admin().alter_consumer_group_offsets(request).values()
    for partition in client.result(future, f"group {group}").topic_partitions:
        if partition.error is not None:
            raise client.as_error(
                partition.error, f"group {group}, {partition.topic}-{partition.partition}"
            )


def delete_group(client: BrokerClient, name: str) -> None:
    client.result(client.admin().delete_consumer_groups([name])[name], f"group {name}")
