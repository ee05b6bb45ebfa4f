"""The work of `varve group`: members, committed offsets and lag, and offsets to come."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from varve.cli.kafka_client import KafkaClient, admin_api
from varve.cli.kafka_errors import LIST_GROUPS
from varve.cli.kafka_topics import read_ends, read_offsets
from varve.cli.log_start import Start, StartKind, parse_start
from varve.cli.store_access import parse_wanted
from varve.foundation.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]


def group_rows(client: KafkaClient, admin: "AdminClient") -> list[list[object]]:
    """Name, state, type and number of members of each group."""
    found = client.result(admin.list_consumer_groups(), "the groups")
    for error in found.errors:
        raise client.as_error(error.args[0], "the groups")
    names = sorted(one.group_id for one in found.valid)
    if not names:
        return []
    asked = admin.describe_consumer_groups(names)
    rows: list[list[object]] = []
    for name in names:
        group = client.result(asked[name], f"group {name}")
        rows.append([name, _word(group.state), _word(group.type), len(group.members)])
    return rows


def _word(value: Any) -> str:
    """A name of the library's in small letters: `stable`, `empty`, `classic`."""
    return str(getattr(value, "name", value)).lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group; a row is topic, partition, committed offset, end, lag, member, client and host."""

    name: str
    state: str
    type: str
    assignor: str
    member_count: int
    rows: list[list[Any]]

    @classmethod
    def read(cls, client: KafkaClient, admin: "AdminClient", name: str) -> "GroupView":
        """As the broker tells it now; raises NotFound."""
        [asked] = admin.describe_consumer_groups([name]).values()
        group = client.result(asked, f"group {name}")
        committed = read_committed(client, admin, name)
        if not committed and not group.members and _word(group.state) in ("dead", "unknown"):
            raise NotFound(f"there is no group {name!r:.260}; {LIST_GROUPS}")
        readers: dict[Place, tuple[str, str, str]] = {}
        for member in group.members:
            for partition in member.assignment.topic_partitions if member.assignment else []:
                told = (member.member_id, member.client_id, member.host.removeprefix("/"))
                readers[partition.topic, partition.partition] = told
        places = sorted({*committed, *readers})
        ends = read_ends(client, admin, places)
        rows = [
            _lag_row(place, committed.get(place), ends[place][1], readers.get(place))
            for place in places
        ]
        return cls(
            name,
            _word(group.state),
            _word(group.type),
            str(group.partition_assignor or ""),
            len(group.members),
            rows,
        )


def _lag_row(
    place: Place, committed: int | None, end: int, reader: tuple[str, str, str] | None
) -> list[Any]:
    lag = None if committed is None or end < 0 else max(0, end - committed)
    return [*place, committed, end, lag, *(reader or (None, None, None))]


def read_committed(client: KafkaClient, admin: "AdminClient", group: str) -> dict[Place, int]:
    """The offsets that a group has committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    [asked] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    found = client.result(asked, f"group {group}")
    return {
        (partition.topic, partition.partition): partition.offset
        for partition in found.topic_partitions
        if partition.error is None and partition.offset >= 0
    }


def print_group(group: GroupView, *, as_json: bool) -> None:
    """A table with the whole lag above it, or one JSON object."""
    from varve.cli.log_output import print_rows

    columns = ["topic", "partition", "committed", "end", "lag", "member", "client", "host"]
    lag = sum(row[4] or 0 for row in group.rows)
    if as_json:
        content = {
            "group": group.name,
            "state": group.state,
            "type": group.type,
            "assignor": group.assignor,
            "members": group.member_count,
            "lag": lag,
            "partitions": [dict(zip(columns, row, strict=True)) for row in group.rows],
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    members = f"{group.member_count} member{'' if group.member_count == 1 else 's'}"
    print(f"{group.name}  {group.state}, {members}, lag {lag:,}")
    if group.rows:
        print_rows(columns, group.rows, as_json=False)


class PlannedOffset(NamedTuple):
    """Where a group is in a partition, and where it shall be."""

    topic: str
    partition: int
    committed: int | None
    new: int


def parse_target(text: str) -> Start:
    """`earliest`, `latest`, an offset, `@` with milliseconds, or a date and time."""
    words = {"earliest": StartKind.BEGINNING, "latest": StartKind.END}
    if text in words:
        return Start(words[text])
    try:
        return parse_start(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, an offset, @milliseconds nor a time such as "
            "2026-03-01T12:00:00"
        ) from None


def plan_offsets(
    client: KafkaClient,
    admin: "AdminClient",
    group: str,
    target: Start,
    topics: Sequence[str],
) -> list[PlannedOffset]:
    """What a reset would commit; raises where there is nothing to move."""
    committed = read_committed(client, admin, group)
    places = _chosen_places(client, admin, topics) if topics else sorted(committed)
    if not places:
        raise InvalidRequest(
            f"group {group} has committed nothing yet; name what it shall read with --topic"
        )
    ends = read_ends(client, admin, places)
    by_time = {}
    if target.kind is StartKind.TIME:
        spec = admin_api().OffsetSpec.for_timestamp(target.number)
        by_time = read_offsets(client, admin, places, spec)
    return [
        PlannedOffset(
            *place, committed.get(place), _offset(target, ends[place], by_time.get(place, -1))
        )
        for place in places
    ]


def _offset(target: Start, ends: tuple[int, int], by_time: int) -> int:
    first, end = ends
    match target.kind:
        case StartKind.BEGINNING:
            return first
        case StartKind.END:
            return end
        case StartKind.OFFSET:
            return min(max(target.number, first), end)
        case StartKind.TIME:
            return end if by_time < 0 else by_time


def _chosen_places(client: KafkaClient, admin: "AdminClient", topics: Sequence[str]) -> list[Place]:
    from varve.cli.topic import describe_topic

    places: set[Place] = set()
    for text in topics:
        topic, partition = parse_wanted(text)
        assert topic is not None
        described = describe_topic(client, admin, topic)
        numbers = {partition_info.id for partition_info in described.partitions}
        if partition is not None and partition not in numbers:
            raise NotFound(f"topic {topic} has no partition {partition}; it has {len(numbers)}")
        chosen = numbers if partition is None else {partition}
        places |= {(topic, number) for number in chosen}
    return sorted(places)


def commit_offsets(
    client: KafkaClient, admin: "AdminClient", group: str, planned: Sequence[PlannedOffset]
) -> None:
    """Commits for a group without members."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [TopicPartition(offset.topic, offset.partition, offset.new) for offset in planned]
    request = [ConsumerGroupTopicPartitions(group, wanted)]
    [asked] = admin.alter_consumer_group_offsets(request).values()
    for partition in client.result(asked, f"group {group}").topic_partitions:
        if partition.error is not None:
            raise client.as_error(
                partition.error, f"group {group}, {partition.topic}-{partition.partition}"
            )
