"""The work of `varve topic`: what a broker tells of its topics, and changes of their settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from varve.cli.kafka_client import KafkaClient, admin_api
from varve.cli.kafka_errors import Denied

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._topic import TopicDescription


def topic_rows(
    client: KafkaClient, admin: "AdminClient", *, with_internal: bool
) -> list[list[object]]:
    """Name, number of partitions and of replicas, and whether it is the broker's own."""
    from confluent_kafka import KafkaException

    try:
        names = sorted(admin.list_topics(timeout=30).topics)
    except KafkaException as error:
        raise client.as_error(error.args[0], "the topics") from error
    descriptions = describe_topics(client, admin, names)
    return [
        [
            description.name,
            len(description.partitions),
            _replica_count(description),
            description.is_internal,
        ]
        for description in descriptions
        if with_internal or not description.is_internal
    ]


def describe_topics(
    client: KafkaClient, admin: "AdminClient", names: list[str]
) -> "list[TopicDescription]":
    """Topics in the order of their names; those deleted meanwhile are left out."""
    from confluent_kafka import TopicCollection

    from varve.foundation.errors import NotFound

    if not names:
        return []
    asked = admin.describe_topics(TopicCollection(names))
    descriptions: list[TopicDescription] = []
    for name in names:
        try:
            descriptions.append(client.result(asked[name], f"topic {name}"))
        except NotFound:
            continue
    return descriptions


def _replica_count(topic: "TopicDescription") -> int:
    return max((len(partition_info.replicas) for partition_info in topic.partitions), default=0)


@dataclass(frozen=True, slots=True)
class Description:
    """A topic: `partitions` as rows, `settings` by name with value and source.

    `refusal` tells why there are no settings, of whom asks without the right to see them.
    """

    name: str
    id: str
    is_internal: bool
    partitions: list[list[Any]]
    settings: dict[str, tuple[str | None, str]]
    refusal: Denied | None = None

    @classmethod
    def read(cls, client: KafkaClient, admin: "AdminClient", name: str) -> "Description":
        """As the broker tells it now; raises NotFound."""
        from varve.cli.topic import describe_topic

        topic = describe_topic(client, admin, name)
        offsets = read_ends(
            client, admin, [(name, partition_info.id) for partition_info in topic.partitions]
        )
        rows = []
        for partition_info in sorted(
            topic.partitions, key=lambda partition_info: partition_info.id
        ):
            start, end = offsets[name, partition_info.id]
            replicas = ",".join(str(node.id) for node in partition_info.replicas)
            in_sync = ",".join(str(node.id) for node in partition_info.isr)
            leader = partition_info.leader.id if partition_info.leader else -1
            rows.append([partition_info.id, leader, replicas, in_sync, start, end])
        id = str(topic.topic_id) if topic.topic_id is not None else ""
        found = partial(cls, topic.name, id, bool(topic.is_internal), rows)
        try:
            return found(_read_settings(client, admin, name))
        except Denied as error:
            return found({}, error)


def read_ends(
    client: KafkaClient, admin: "AdminClient", partitions: list[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Where the records of partitions begin and end; -1 where the broker does not tell."""
    specs = admin_api().OffsetSpec
    found: dict[tuple[str, int], list[int]] = {partition: [] for partition in partitions}
    for spec in (specs.earliest(), specs.latest()):
        for one, offset in read_offsets(client, admin, partitions, spec).items():
            found[one].append(offset)
    return {one: (start, end) for one, (start, end) in found.items()}


def read_offsets(
    client: KafkaClient,
    admin: "AdminClient",
    partitions: list[tuple[str, int]],
    spec: Any,
    **options: Any,
) -> dict[tuple[str, int], int]:
    """The offset that the specification means in each partition; -1 where there is none."""
    from confluent_kafka import TopicPartition

    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not wanted:
        return {}
    asked = admin.list_offsets(wanted, **options)
    return {
        (one.topic, one.partition): client.result(
            future, f"partition {one.topic}-{one.partition}"
        ).offset
        for one, future in asked.items()
    }


def _read_settings(
    client: KafkaClient, admin: "AdminClient", name: str
) -> dict[str, tuple[str | None, str]]:
    api = admin_api()
    resource = api.ConfigResource(api.ResourceType.TOPIC, name)
    [asked] = admin.describe_configs([resource]).values()
    entries = client.result(asked, f"settings of {name}")
    sources = {one.value: one.name for one in api.ConfigSource}
    return {
        key: (entry.value, _source_text(sources.get(entry.source, str(entry.source))))
        for key, entry in sorted(entries.items())
    }


def _source_text(source: str) -> str:
    """`topic`, `broker` or `default`."""
    if source == "DYNAMIC_TOPIC_CONFIG":
        return "topic"
    return "default" if source == "DEFAULT_CONFIG" else "broker"


def print_description(topic: Description, *, with_defaults: bool, as_json: bool) -> None:
    """A table of partitions and the settings, or one JSON object; then the refusal is raised."""
    columns = ["partition", "leader", "replicas", "in sync", "log start", "end"]
    chosen = {
        name: setting
        for name, setting in topic.settings.items()
        if with_defaults or setting[1] != "default"
    }
    if as_json:
        names = [column.replace(" ", "_") for column in columns]
        content = {
            "topic": topic.name,
            "id": topic.id,
            "internal": topic.is_internal,
            "partitions": [dict(zip(names, row, strict=True)) for row in topic.partitions],
            "settings": None
            if topic.refusal is not None
            else {
                name: {"value": value, "source": source} for name, (value, source) in chosen.items()
            },
        }
        print(json.dumps(content, ensure_ascii=False))
    else:
        _print_tables(topic, columns, chosen)
    if topic.refusal is not None:
        raise topic.refusal


def _print_tables(
    topic: Description, columns: list[str], settings: Mapping[str, tuple[str | None, str]]
) -> None:
    from varve.cli.log_output import print_rows

    print(f"{topic.name}{f'  id {topic.id}' if topic.id else ''}")
    print_rows(columns, topic.partitions, as_json=False)
    if settings:
        print()
        rows = [[name, value, source] for name, (value, source) in settings.items()]
        print_rows(["setting", "value", "from"], rows, as_json=False)


def alter_topic(
    client: KafkaClient,
    admin: "AdminClient",
    topic: str,
    changes: Mapping[str, str | None],
    *,
    dry_run: bool,
) -> None:
    """Changes settings one by one; None takes one back to the default."""
    api = admin_api()
    entries = [
        api.ConfigEntry(
            name,
            value,
            incremental_operation=(
                api.AlterConfigOpType.DELETE if value is None else api.AlterConfigOpType.SET
            ),
        )
        for name, value in changes.items()
    ]
    resource = api.ConfigResource(api.ResourceType.TOPIC, topic, incremental_configs=entries)
    [asked] = admin.incremental_alter_configs([resource], validate_only=dry_run).values()
    client.result(asked, f"topic {topic}")
