"""`varve topic`: the topics of log directories or of a broker."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.where import (
    Where,
    check_no_files,
    find_topic,
    note_unnamed_tier,
    warn_of_deletions,
    warn_of_recovery,
)
from varve.foundation.errors import InvalidRequest, StoreError, TopicExists

if TYPE_CHECKING:
    from varve.embedded import Store, Topic


@command("varve topic list -d data", "varve topic list -b kafka:9092 --internal --json")
@click.option("--internal", is_flag=True, help="Include Kafka's internal topics.")
@options.where
@options.output
def topic_list(where: Where, output: Output, internal: bool) -> None:
    """List topics with their partitions.

    In a directory also the offsets in use, the bytes on the local disk and the topic's settings. A
    topic whose deletion is not finished has none of them.
    """
    columns = ["topic", "partitions", "replicas", "internal"]
    if where.is_broker:
        from varve.brokers.topics import list_topics

        rows: list[Sequence[object]] = list(list_topics(where.client(), with_internal=internal))
    else:
        from varve.wire.messages.state_records import INTERNAL_TOPICS

        columns += ["offsets", "bytes", "settings"]
        with where.open_store(maintain=False) as store:
            rows = [
                _store_row(store, topic)
                for topic in store.topics()
                if internal or topic.name not in INTERNAL_TOPICS
            ]
            rows += [[name, *[None] * 6] for name in warn_of_deletions(store)]
    output.print_table("topic", columns, rows)


def _store_row(store: "Store", topic: "Topic") -> list[object]:
    from varve.wire.messages.state_records import INTERNAL_TOPICS

    logs = [partition.log for partition in topic.partitions]
    return [
        topic.name,
        topic.partition_count,
        1,
        topic.name in INTERNAL_TOPICS,
        sum(log.end_offset - log.log_start_offset for log in logs),
        sum(log.size for log in logs),
        dict(store.given_settings(topic.name)),
    ]


@command(
    "varve topic describe orders -d data --all-settings",
    "varve topic describe orders -b kafka:9092 --at 2026-03-01T12:00:00",
)
@options.topic
@click.option("--all-settings", is_flag=True, help="Show settings that have their default too.")
@click.option(
    "--at",
    type=options.POINT_IN_TIME,
    help="Also show the first offset at or after this time.",
)
@options.where
@options.output
def topic_describe(
    topic: str, where: Where, output: Output, all_settings: bool, at: int | None
) -> None:
    """Show a topic's partitions and settings.

    Records before the local start offset are in the object store only.
    """
    if where.is_broker:
        _describe_on_broker(where, output, topic, at, all_settings=all_settings)
    else:
        _describe_in_store(where, output, topic, at, all_settings=all_settings)


def _describe_on_broker(
    where: Where, output: Output, name: str, time_ms: int | None, *, all_settings: bool
) -> None:
    from varve.brokers.topics import describe_topic

    topic = describe_topic(where.client(), name, time_ms=time_ms)
    columns = ["partition", "leader", "replicas", "in sync", "log start", "end"]
    rows: list[list[object]] = [
        [
            partition.partition,
            partition.leader,
            ",".join(map(str, partition.replicas)),
            ",".join(map(str, partition.in_sync_replicas)),
            partition.log_start,
            partition.end,
            *([] if time_ms is None else [partition.time_offset]),
        ]
        for partition in topic.partitions
    ]
    settings = None
    if topic.refusal is None:
        settings = {
            setting: (value, source)
            for setting, (value, source) in topic.settings.items()
            if all_settings or source != "default"
        }
    _print_topic(output, topic.name, topic.id, columns, rows, settings, time_ms)
    if topic.refusal is not None:
        raise topic.refusal


def _describe_in_store(
    where: Where, output: Output, name: str, time_ms: int | None, *, all_settings: bool
) -> None:
    from varve.commit_log.directory_files import encode_topic_id
    from varve.foundation.settings import declared, to_kafka_names

    columns = ["partition", "log start", "local start", "last stable", "high watermark", "end"]
    rows: list[list[object]] = []
    with where.open_store(maintain=False) as store:
        topic = find_topic(store, name)
        for partition in topic.partitions:
            offsets = partition.offsets()
            ends = [offsets.last_stable, offsets.high_watermark, offsets.end]
            at_time = [] if time_ms is None else [partition.offset_for_time(time_ms)]
            rows.append([partition.number, offsets.log_start, offsets.local_start, *ends, *at_time])
        changed = store.given_settings(name)
        values = to_kafka_names(topic.settings)
        settings = {
            declaration.kafka_name: (
                str(values[declaration.kafka_name]),
                "topic" if declaration.kafka_name in changed else "default",
            )
            for declaration in declared(topic.settings)
            if all_settings or declaration.kafka_name in changed
        }
        id = "" if topic.id is None else encode_topic_id(topic.id)
        _print_topic(output, topic.name, id, columns, rows, settings, time_ms)


def _print_topic(
    output: Output,
    name: str,
    id: str,
    columns: list[str],
    rows: Sequence[Sequence[object]],
    settings: Mapping[str, tuple[str | None, str]] | None,
    time_ms: int | None,
) -> None:
    """Partitions and settings; None for settings that the broker refuses to show."""
    if time_ms is not None:
        columns = [*columns, "at time"]
    if output.is_json:
        names = [column.replace(" ", "_") for column in columns]
        fields = {
            "topic": name,
            "id": id,
            "partitions": [dict(zip(names, row, strict=True)) for row in rows],
            "settings": None
            if settings is None
            else {
                setting: {"value": value, "source": source}
                for setting, (value, source) in settings.items()
            },
        }
        output.print_object("topic", fields)
        return
    click.echo(f"{name}{f'  id {id}' if id else ''}")
    output.print_table("partition", columns, rows)
    if settings:
        click.echo()
        setting_rows = [[setting, *pair] for setting, pair in settings.items()]
        output.print_table("setting", ["setting", "value", "from"], setting_rows)


@command(
    "varve topic create orders -d data --partitions 3",
    "varve topic create balances -b kafka:9092 -s cleanup.policy=compact -s retention.ms=7d",
)
@options.topic
@options.number("--partitions", min=1, help="Partitions; default 1 or the broker's.")
@options.number("--replicas", min=1, help="Replicas; default the broker's.")
@options.settings("A setting of the topic; docs/reference/configuration.md lists them.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists.")
@options.dry_run
@options.where
@options.output
def topic_create(
    topic: str,
    where: Where,
    output: Output,
    partitions: int | None,
    replicas: int | None,
    settings: dict[str, str],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create a topic.

    A directory that does not exist is created too.
    """
    try:
        if where.is_broker:
            from varve.brokers.topics import create_topic

            create_topic(
                where.client(),
                topic,
                partitions=partitions,
                replicas=replicas,
                settings=settings,
                is_dry_run=dry_run,
            )
        else:
            _create_in_store(
                where, output, topic, partitions or 1, replicas, settings, is_dry_run=dry_run
            )
    except TopicExists as error:
        if not if_not_exists:
            raise TopicExists(
                f"topic {topic} exists; change its settings with `varve topic alter {topic}`, or "
                "choose another name"
            ) from error
        output.print_result(f"{topic} exists", "topic", topic=topic, created=False)
        return
    verb = "would create" if dry_run else "created"
    output.print_result(f"{verb} {topic}", "topic", topic=topic, created=not dry_run)


def _create_in_store(
    where: Where,
    output: Output,
    topic: str,
    partitions: int,
    replicas: int | None,
    settings: dict[str, str],
    *,
    is_dry_run: bool,
) -> None:
    import varve

    if replicas not in (None, 1):
        raise InvalidRequest("--replicas: a directory keeps one copy; leave it out")
    _check_one_replica(settings)
    if is_dry_run:
        raise InvalidRequest("--dry-run asks a broker; a directory has no such check")
    check_no_files(where.directories)
    with varve.open(where.directories, maintain=False) as store:
        warn_of_recovery(store)
        created = store.create_topic(topic, partitions=partitions, settings=settings)
        note_unnamed_tier(output, where, created)


def _check_one_replica(names: Collection[str]) -> None:
    """Raises InvalidRequest for settings of replication, which only a broker answers."""
    for name in ("min.insync.replicas", "unclean.leader.election.enable"):
        if name in names:
            raise InvalidRequest(f"{name}: a directory keeps one replica; leave it out")


@command(
    "varve topic alter orders -d data -s retention.ms=7d -s cleanup.policy=compact,delete",
    "varve topic alter orders -b kafka:9092 --unset retention.ms --partitions 6",
)
@options.topic
@options.settings("A setting to change; the others stay.")
@click.option("--unset", multiple=True, metavar="NAME", help="A setting to restore to its default.")
@options.number(
    "--partitions",
    min=1,
    help="Partitions afterwards. Keys may move to another partition: records stay where they are.",
)
@options.dry_run
@options.where
@options.output
def topic_alter(
    topic: str,
    where: Where,
    output: Output,
    settings: dict[str, str],
    unset: tuple[str, ...],
    partitions: int | None,
    dry_run: bool,
) -> None:
    """Change settings of a topic, or add partitions.

    Changes take effect at once.
    """
    if both := sorted(settings.keys() & set(unset)):
        raise click.UsageError(f"{', '.join(both)}: has a value and --unset; choose one")
    changes: dict[str, str | None] = {**settings, **dict.fromkeys(unset)}
    if not changes and partitions is None:
        raise click.UsageError(
            "nothing to change; give --set NAME=VALUE, --unset NAME or --partitions N "
            "(`varve topic describe TOPIC --all-settings` shows the settings)"
        )
    if where.is_broker:
        from varve.brokers.topics import add_partitions, alter_topic

        client = where.client()
        if changes:
            alter_topic(client, topic, changes, is_dry_run=dry_run)
        if partitions is not None:
            add_partitions(client, topic, total=partitions, is_dry_run=dry_run)
    elif dry_run:
        raise InvalidRequest("--dry-run asks a broker; `varve forecast` previews a directory")
    else:
        _alter_in_store(where, output, topic, changes, partitions)
    verb = "would be" if dry_run else "is"
    for name, value in changes.items():
        text = f"{topic}: {name} {verb} {'the default' if value is None else value}"
        output.print_result(text, "setting", topic=topic, setting=name, value=value)
    if partitions is not None:
        verb = "would have" if dry_run else "has"
        text = f"{topic} {verb} {partitions} partitions"
        output.print_result(text, "partitions", topic=topic, partitions=partitions)


def _alter_in_store(
    where: Where,
    output: Output,
    name: str,
    changes: Mapping[str, str | None],
    partitions: int | None,
) -> None:
    _check_one_replica(changes)
    with where.open_store(maintain=False) as store:
        topic = find_topic(store, name)
        was_compacted = topic.settings.is_compacted
        if changes:
            store.alter_topic(name, changes)
            if changes.get("remote.storage.enable"):
                note_unnamed_tier(output, where, topic)
        if partitions is not None:
            store.add_partitions(name, partitions)
        has_records = any(partition.log.size for partition in topic.partitions)
        if topic.settings.is_compacted and not was_compacted and has_records:
            output.warn(
                f"{name} has records already: compaction removes those without a key; "
                f"`varve clean {name} --dry-run` counts those in closed segments"
            )


@command("varve topic delete orders -d data", "varve topic delete orders balances --yes")
@options.topics
@options.yes
@options.where
@options.output
def topic_delete(topics: tuple[str, ...], where: Where, output: Output, yes: bool) -> None:
    """Delete topics with all their records.

    Records in object storage are deleted too. It asks first; without a terminal it needs --yes. A
    deletion that was interrupted is finished by the same command.
    """
    if where.is_broker:
        from varve.brokers.topics import delete_topic, find_topic

        client = where.client()
        for topic in topics:
            find_topic(client, topic)
        output.confirm(f"delete {', '.join(topics)} with all records", is_confirmed=yes)
        for topic in topics:
            delete_topic(client, topic)
            output.print_result(f"deleted {topic}", "topic", topic=topic)
        return
    with where.open_store(maintain=False) as store:
        held = {topic: _describe_held(store, topic) for topic in topics}
        action = ", ".join(f"{topic} with {size}" for topic, size in held.items())
        output.confirm(f"delete {action}", is_confirmed=yes)
        for topic, size in held.items():
            store.delete_topic(topic, at_once=True)
            output.print_result(f"deleted {topic} with {size}", "topic", topic=topic)


def _describe_held(store: "Store", name: str) -> str:
    """What is deleted with a topic, in both tiers."""
    if name in store.deleting():
        return "the rest of its records"
    topic = find_topic(store, name)
    size = sum(partition.log.size for partition in topic.partitions)
    if not topic.settings.remote_storage_enable:
        return f"{size:,} bytes of records"
    local = f"{size:,} bytes of records on the local disk"
    try:
        partitions = [store.tier.partitions.get(key) for key in store.partitions(name)]
        remote = sum(partition.manifests.load().log_bytes for partition in partitions)
    except StoreError:
        return f"{local} and its records in the object store, which does not respond now"
    return f"{local} and {remote:,} bytes in the object store"


@command(
    "varve topic delete-records orders -d data -p 0 --before 1000",
    "varve topic delete-records orders -b kafka:9092 -p 0 --before 1000 --yes",
)
@options.topic
@options.number("-p", "--partition", required=True, help="The partition.")
@options.number(
    "--before",
    min=-1,
    required=True,
    metavar="OFFSET",
    help="The first offset to keep; -1 deletes all records.",
)
@options.yes
@options.where
@options.output
def topic_delete_records(
    topic: str, where: Where, output: Output, partition: int, before: int, yes: bool
) -> None:
    """Delete the records of a partition before an offset."""
    limit = "all its records" if before == -1 else f"its records before offset {before}"
    action = f"delete from {topic}-{partition} {limit}"
    if where.is_broker:
        from varve.brokers import topics

        client = where.client()
        topics.find_topic(client, topic)
        output.confirm(action, is_confirmed=yes)
        start = topics.delete_records(client, topic, partition=partition, before=before)
    else:
        with where.open_store(maintain=False) as store:
            log = find_topic(store, topic).partition(partition)
            output.confirm(action, is_confirmed=yes)
            start = log.delete_records(before)
    output.print_result(
        f"{topic}-{partition} now starts at offset {start}",
        "log_start",
        topic=topic,
        partition=partition,
        log_start=start,
    )
