"""The topics of a broker: list, describe, create, alter, delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from varve.brokers.client import BrokerClient, admin_api
from varve.brokers.errors import LIST_TOPICS, Denied
from varve.foundation.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

_URL_SAFE: Final = str.maketrans("+/", "-_")


class TopicSummary(NamedTuple):
    name: str
    partition_count: int
    replica_count: int
    is_internal: bool


class PartitionDescription(NamedTuple):
    """Offsets are -1 where the broker does not answer.

    `time_offset` is None if it was not requested, or no record is that new.
    """

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    log_start: int
    end: int
    time_offset: int | None


class TopicSetting(NamedTuple):
    """`source` is topic, broker or default."""

    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic; `refusal` says why the settings are missing."""

    name: str
    id: str
    is_internal: bool
    partitions: list[PartitionDescription]
    settings: dict[str, TopicSetting]
    refusal: Denied | None = None


def list_topics(client: BrokerClient, *, with_internal: bool = False) -> list[TopicSummary]:
    """The topics in the order of their names."""
    return [
        TopicSummary(
            topic.name,
            len(topic.partitions),
            max((len(partition.replicas) for partition in topic.partitions), default=0),
            bool(topic.is_internal),
        )
        for topic in describe_topics(client, list_names(client))
        if with_internal or not topic.is_internal
    ]


def list_names(client: BrokerClient) -> list[str]:
    admin = client.admin()
    return sorted(client.call("the topics", lambda: admin.list_topics(timeout=30)).topics)


def describe_topics(client: BrokerClient, names: Sequence[str]) -> "list[TopicDescription]":
    """Topics in this order, without those that were deleted meanwhile."""
    from confluent_kafka import TopicCollection

    if not names:
        return []
    futures = client.admin().describe_topics(TopicCollection(list(names)))
    descriptions: list[TopicDescription] = []
    for name in names:
        try:
            descriptions.append(client.result(futures[name], f"topic {name}"))
        except NotFound:
            continue
    return descriptions


def find_topic(client: BrokerClient, topic: str) -> "TopicDescription":
    """The topic as the broker describes it; raises NotFound, which says what to do."""
    from confluent_kafka import TopicCollection

    futures = client.admin().describe_topics(TopicCollection([topic]))
    try:
        description: TopicDescription = client.result(futures[topic], f"topic {topic}")
    except NotFound:
        from varve.wire.messages.state_records import INTERNAL_TOPICS

        remedy = LIST_TOPICS
        if topic in INTERNAL_TOPICS:
            remedy = "the broker creates it when it is first needed"
        raise NotFound(f"there is no topic {topic!r:.260} at {client.address}; {remedy}") from None
    return description


def describe_topic(
    client: BrokerClient, name: str, *, time_ms: int | None = None
) -> DescribedTopic:
    """Partitions with their offsets, and all settings; with a time also the offset at it."""
    topic = find_topic(client, name)
    partitions = [(name, partition.id) for partition in topic.partitions]
    ends = read_ends(client, partitions)
    at_time: dict[tuple[str, int], int] = {}
    if time_ms is not None:
        spec = admin_api().OffsetSpec.for_timestamp(time_ms)
        offsets = read_offsets(client, partitions, spec)
        at_time = {partition: offset for partition, offset in offsets.items() if offset >= 0}
    described = [
        PartitionDescription(
            partition.id,
            partition.leader.id if partition.leader else -1,
            tuple(node.id for node in partition.replicas),
            tuple(node.id for node in partition.isr),
            *ends[name, partition.id],
            at_time.get((name, partition.id)),
        )
        for partition in sorted(topic.partitions, key=lambda partition: partition.id)
    ]
    # Kafka's tools write ids in URL-safe base64; librdkafka does not.
    id = "" if topic.topic_id is None else str(topic.topic_id).translate(_URL_SAFE)
    build = partial(DescribedTopic, topic.name, id, bool(topic.is_internal), described)
    try:
        return build(_read_settings(client, name))
    except Denied as error:
        return build({}, error)


def read_ends(
    client: BrokerClient, partitions: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Log start and end offset of each partition; -1 where the broker does not answer."""
    specs = admin_api().OffsetSpec
    starts = read_offsets(client, partitions, specs.earliest())
    ends = read_offsets(client, partitions, specs.latest())
    return {partition: (starts[partition], ends[partition]) for partition in partitions}


def read_offsets(
    client: BrokerClient, partitions: Sequence[tuple[str, int]], spec: Any, **options: Any
) -> dict[tuple[str, int], int]:
    """The offset that the specification selects in each partition; -1 where there is none."""
    from confluent_kafka import TopicPartition

    requests = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not requests:
        return {}
    futures = client.admin().list_offsets(requests, **options)
    return {
        (partition.topic, partition.partition): client.result(
            future, f"partition {partition.topic}-{partition.partition}"
        ).offset
        for partition, future in futures.items()
    }


def _read_settings(client: BrokerClient, name: str) -> dict[str, TopicSetting]:
    api = admin_api()
    resource = api.ConfigResource(api.ResourceType.TOPIC, name)
    [future] = client.admin().describe_configs([resource]).values()
    entries = client.result(future, f"settings of {name}")
    sources = {source.value: source.name for source in api.ConfigSource}
    return {
        key: TopicSetting(entry.value, _source_text(sources.get(entry.source, "")))
        for key, entry in sorted(entries.items())
    }


def _source_text(source: str) -> str:
    if source == "DYNAMIC_TOPIC_CONFIG":
        return "topic"
    return "default" if source == "DEFAULT_CONFIG" else "broker"


def create_topic(
    client: BrokerClient,
    name: str,
    *,
    partitions: int | None = None,
    replicas: int | None = None,
    settings: Mapping[str, str] | None = None,
    is_dry_run: bool = False,
) -> None:
    """Create a topic; counts left out are the broker's defaults."""
    new_topic = admin_api().NewTopic(
        name,
        num_partitions=partitions or -1,
        replication_factor=replicas or -1,
        config=dict(settings or {}),
    )
    try:
        [future] = client.admin().create_topics([new_topic], validate_only=is_dry_run).values()
    except ValueError as error:  # a limit of the library's own, before any request
        raise InvalidRequest(f"topic {name}: {error}; ask for fewer") from error
    client.result(future, f"topic {name}")


def add_partitions(
    client: BrokerClient, name: str, *, total: int, is_dry_run: bool = False
) -> None:
    request = [admin_api().NewPartitions(name, total)]
    try:
        [future] = client.admin().create_partitions(request, validate_only=is_dry_run).values()
    except ValueError as error:  # a limit of the library's own, before any request
        raise InvalidRequest(f"topic {name}: {error}; ask for fewer") from error
    client.result(future, f"topic {name}")


def alter_topic(
    client: BrokerClient,
    name: str,
    changes: Mapping[str, str | None],
    *,
    is_dry_run: bool = False,
) -> None:
    """Change these settings and leave the others; None restores a default."""
    api = admin_api()
    entries = [
        api.ConfigEntry(
            setting,
            value,
            incremental_operation=(
                api.AlterConfigOpType.DELETE if value is None else api.AlterConfigOpType.SET
            ),
        )
        for setting, value in changes.items()
    ]
    resource = api.ConfigResource(api.ResourceType.TOPIC, name, incremental_configs=entries)
    [future] = (
        client.admin().incremental_alter_configs([resource], validate_only=is_dry_run).values()
    )
    client.result(future, f"topic {name}")


def delete_topic(client: BrokerClient, name: str) -> None:
    client.result(client.admin().delete_topics([name])[name], f"topic {name}")


def delete_records(client: BrokerClient, name: str, *, partition: int, before: int) -> int:
    """Delete the records before an offset, -1 for all; returns the new log start offset."""
    from confluent_kafka import TopicPartition

    count = len(find_topic(client, name).partitions)
    if partition >= count:
        raise NotFound(f"topic {name} has no partition {partition}; it has 0 to {count - 1}")
    request = TopicPartition(name, partition, before)
    [future] = client.admin().delete_records([request]).values()
    return int(client.result(future, f"partition {name}-{partition}").low_watermark)
