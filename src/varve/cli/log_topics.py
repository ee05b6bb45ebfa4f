"""`varve log create`, `topics`, `configure` and `delete`: the topics themselves."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

import varve
from varve.cli.store_access import (
    DEFAULT_DIRECTORY,
    AsJson,
    Directories,
    TopicName,
    find_topic,
    open_existing,
    parse_setting,
    tell_deleting,
    tell_recovery,
)
from varve.cli.tier_access import StoreSettings, tier_settings
from varve.foundation.errors import InvalidRequest, StoreError, TopicExists

if TYPE_CHECKING:
    from varve.embedded import Store, Topic


def create(
    topic: TopicName,
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions it has.")] = 1,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            help="A setting, e.g. segment.bytes=1000000; may be repeated.",
        ),
    ] = [],  # noqa: B006, typer copies it
) -> None:
    """Make a topic, and the store if there is none.

    docs/configuration.md lists the settings.

    \b
    Examples:
      varve log create orders
      varve log create orders --partitions 3 --set segment.bytes=1000000 --set flush=ack
    """

    given = dict(parse_setting(text) for text in settings)
    with varve.open(directories, maintain=False) as store:
        tell_recovery(store)
        try:
            store.create_topic(topic, partitions=partitions, settings=given)
        except TopicExists:
            raise TopicExists(
                f"topic {topic} exists already; append to it, change its settings with `varve log "
                "configure`, or choose another name"
            ) from None
    typer.echo(f"created {topic} with {partitions} partition{'s' if partitions > 1 else ''}")


def topics(
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    as_json: AsJson = False,
) -> None:
    """List the topics with their partitions, offsets in use, bytes and settings.

    Bytes are those on the local disk. A topic that is half deleted has neither offsets nor bytes,
    and is told of.

    \b
    Examples:
      varve log topics
      varve log topics --dir /srv/kafka/data --json
    """
    from varve.cli.log_output import print_rows
    from varve.foundation.settings import to_kafka_names

    rows: list[list[object]] = []
    with open_existing(directories, maintain=False) as store:
        for topic in store.topics():
            logs = [partition.log for partition in topic.partitions]
            used = sum(log.end_offset - log.log_start_offset for log in logs)
            size = sum(log.size for log in logs)
            changed = to_kafka_names(topic.settings, only_changed=True)
            rows.append([topic.name, topic.partition_count, used, size, changed])
        rows += [[name, None, None, None, {}] for name in tell_deleting(store)]
    print_rows(["topic", "partitions", "offsets", "bytes", "settings"], rows, as_json=as_json)


def configure(
    topic: TopicName,
    settings: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE", help="Settings to change; none: show them all."),
    ] = [],  # noqa: B006, typer copies it
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    reset: Annotated[
        list[str],
        typer.Option("--reset", "-r", metavar="NAME", help="Take one back to the default."),
    ] = [],  # noqa: B006, typer copies it
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings, or show them.

    They hold at once and stay with the topic. docs/configuration.md lists them. With --json every
    line has `setting`, `value` and `default`.

    \b
    Examples:
      varve log configure orders
      varve log configure orders retention.ms=604800000 cleanup.policy=compact,delete
      varve log configure orders --reset retention.ms
    """
    from varve.cli.log_output import print_rows

    changes: dict[str, str | None] = dict(parse_setting(text) for text in settings)
    if both := sorted(changes.keys() & set(reset)):
        raise typer.BadParameter(f"{', '.join(both)}: given a value and --reset, choose one")
    changes |= dict.fromkeys(reset)
    given = tier_settings("", store_settings)
    with open_existing(directories, maintain=False, settings=given) as store:
        found = find_topic(store, topic)
        if changes:
            was_compacted = found.settings.is_compacted
            store.alter_topic(topic, changes)
            if found.settings.is_compacted and not was_compacted:
                _warn_of_compaction(found)
        rows = _settings_rows(found, only=set(changes))
    print_rows(["setting", "value", "default"], rows, as_json=as_json)


def _warn_of_compaction(topic: "Topic") -> None:
    if any(partition.log.size for partition in topic.partitions):
        typer.secho(
            f"{topic.name} holds records from before: compaction removes those without a key, and "
            "`varve clean --dry-run` counts them",
            fg="yellow",
            err=True,
        )


def _settings_rows(topic: "Topic", only: set[str]) -> list[list[object]]:
    """All settings, or those that were changed."""
    from varve.foundation.settings import declared, to_kafka_names

    values = to_kafka_names(topic.settings)
    return [
        [declaration.kafka_name, values[declaration.kafka_name], declaration.default_text]
        for declaration in declared(topic.settings)
        if not only or declaration.kafka_name in only
    ]


def delete(
    topic: TopicName,
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
) -> None:
    """Delete a topic with all its records, also in the cold tier; this cannot be undone.

    On a terminal it asks first, elsewhere it wants --yes. The files go at once, without waiting
    for file.delete.delay.ms: nobody reads them now. The object store of a topic in the cold tier is
    asked before anything changes; a deletion that stops later is gone on with by this command.

    \b
    Examples:
      varve log delete orders
      varve log delete orders --yes
    """
    given = tier_settings("", store_settings)
    with open_existing(directories, maintain=False, settings=given) as store:
        held = "what was left of it"
        if topic not in store.deleting():
            held = _show_held(store, find_topic(store, topic))
        if not yes:
            _confirm(f"delete {topic} with {held}")
        store.delete_topic(topic, at_once=True)
    typer.echo(f"deleted {topic} with {held}")


def _show_held(store: "Store", topic: "Topic") -> str:
    """What goes with a topic, in both tiers; what is in both counts in both."""
    size = sum(partition.log.size for partition in topic.partitions)
    if not topic.settings.remote_storage_enable:
        return f"{size:,} bytes of records"
    local = f"{size:,} bytes of records on the local disk"
    try:
        known = [
            store.tier.partitions.get(topic_partition)
            for topic_partition in store.partitions(topic.name)
        ]
        remote = sum(tiered_partition.manifests.load().log_bytes for tiered_partition in known)
    except StoreError:
        return f"{local} and all that is in the cold tier, which cannot be asked now"
    return f"{local} and {remote:,} in the cold tier"


def _confirm(deed: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidRequest(f"to {deed}, and for good, say --yes: there is no terminal to ask on")
    typer.confirm(f"{deed[0].upper()}{deed[1:]}, for good?", abort=True)
