"""`varve topic`: the topics of a broker."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varve.cli.kafka_client import (
    BrokerAddress,
    ClientFile,
    ClientSettings,
    KafkaClient,
    admin_api,
    make_client,
)
from varve.cli.store_access import AsJson, TopicName, parse_setting
from varve.foundation.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._topic import TopicDescription

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Make, show and change the topics of a broker, varve's or any Kafka; `varve log` works on "
    "directories.",
)

Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="A setting, e.g. retention.ms=86400000; may be repeated.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_topics(
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Those of the broker's own too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics of a broker with their partitions.

    \b
    Examples:
      varve topic list
      varve topic list --broker kafka.example.com:9092 --internal --json
    """
    from varve.cli.kafka_topics import topic_rows
    from varve.cli.log_output import print_rows

    client = make_client(broker, settings, file)
    rows = topic_rows(client, client.admin(), with_internal=internal)
    print_rows(["topic", "partitions", "replicas", "internal"], rows, as_json=as_json)


@app.command()
def describe(
    topic: TopicName,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    with_settings: Annotated[
        bool, typer.Option("--settings", help="All settings, not those alone that were given.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a topic: its partitions, where their records begin and end, and its settings.

    \b
    Examples:
      varve topic describe orders
      varve topic describe orders --settings --json
    """
    from varve.cli.kafka_topics import Description, print_description

    client = make_client(broker, settings, file)
    description = Description.read(client, client.admin(), topic)
    print_description(description, with_defaults=with_settings, as_json=as_json)


@app.command()
def create(
    topic: TopicName,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many partitions; else as the broker is set.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="How many replicas; else as the broker is set.")
    ] = None,
    given: Settings = [],  # noqa: B006, typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask if it would do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a topic.

    \b
    Examples:
      varve topic create orders --partitions 3
      varve topic create balances --set cleanup.policy=compact --set retention.ms=-1
    """
    client = make_client(broker, settings, file)
    wanted = admin_api().NewTopic(
        topic,
        num_partitions=partitions or -1,
        replication_factor=replicas or -1,
        config=dict(parse_setting(one) for one in given),
    )
    admin = client.admin()
    with _unasked(topic):
        [asked] = admin.create_topics([wanted], validate_only=dry_run).values()
    client.result(asked, f"topic {topic}")
    _tell(f"{'would create' if dry_run else 'created'} {topic}", {"topic": topic}, as_json)


@app.command()
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics' names.")],
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records; this cannot be undone.

    On a terminal it asks first, elsewhere it wants --yes.

    \b
    Examples:
      varve topic delete orders
      varve topic delete orders balances --yes
    """
    client = make_client(broker, settings, file)
    admin = client.admin()
    check_topics_exist(client, admin, topics)
    if not yes:
        confirm(f"delete {', '.join(topics)} with all records")
    asked = admin.delete_topics(topics)
    for topic in topics:
        client.result(asked[topic], f"topic {topic}")
        _tell(f"deleted {topic}", {"topic": topic}, as_json)


@app.command()
def alter(
    topic: TopicName,
    annotated: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings to change.")
    ] = [],  # noqa: B006, typer copies it
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    reset: Annotated[
        list[str],
        typer.Option("--reset", "-r", metavar="NAME", help="Take one back to the default."),
    ] = [],  # noqa: B006, typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask if it would do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic; those not named stay.

    \b
    Examples:
      varve topic alter orders retention.ms=604800000 cleanup.policy=compact,delete
      varve topic alter orders --reset retention.ms
    """
    from varve.cli.kafka_topics import alter_topic

    changes: dict[str, str | None] = dict(parse_setting(one) for one in annotated)
    if both := sorted(changes.keys() & set(reset)):
        raise typer.BadParameter(f"{', '.join(both)}: given a value and --reset, choose one")
    changes |= dict.fromkeys(reset)
    if not changes:
        raise typer.BadParameter(
            "nothing to change; give NAME=VALUE or --reset NAME (`varve topic describe` shows "
            "the settings)"
        )
    client = make_client(broker, settings, file)
    alter_topic(client, client.admin(), topic, changes, dry_run=dry_run)
    for name, value in changes.items():
        verb = "would be" if dry_run else "is"
        text = f"{name} {verb} {'the default again' if value is None else value}"
        _tell(f"{topic}: {text}", {"topic": topic, "setting": name, "value": value}, as_json)


@app.command("add-partitions")
def add_partitions(
    topic: TopicName,
    total: Annotated[
        int, typer.Argument(metavar="COUNT", min=1, help="How many it has afterwards.")
    ],
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask if it would do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a topic more partitions; records stay where they are.

    Of records to come a key may go to another partition than before: what must stay in order by
    key is better written to a new topic.

    \b
    Examples:
      varve topic add-partitions orders 6
    """
    client = make_client(broker, settings, file)
    admin = client.admin()
    wanted = [admin_api().NewPartitions(topic, total)]
    with _unasked(topic):
        [asked] = admin.create_partitions(wanted, validate_only=dry_run).values()
    client.result(asked, f"topic {topic}")
    text = f"{topic} {'would have' if dry_run else 'has'} {total} partitions"
    _tell(text, {"topic": topic, "partitions": total}, as_json)


def check_topics_exist(client: KafkaClient, admin: "AdminClient", topics: list[str]) -> None:
    """Raises NotFound before anything is done."""
    for topic in topics:
        describe_topic(client, admin, topic)


def describe_topic(client: KafkaClient, admin: "AdminClient", topic: str) -> "TopicDescription":
    """A topic as the broker tells it; the error says how to make one."""
    from confluent_kafka import TopicCollection

    from varve.broker.topics import INTERNAL_TOPICS

    asked = admin.describe_topics(TopicCollection([topic]))
    try:
        description: TopicDescription = client.result(asked[topic], f"topic {topic}")
    except NotFound:
        remedy = f"make it with `varve topic create {topic:.260}` (`varve topic list` shows those "
        remedy += "there are)"
        if topic in INTERNAL_TOPICS:
            remedy = "the broker makes it when it is first needed"
        raise NotFound(f"there is no topic {topic!r:.260} at {client.address}; {remedy}") from None
    return description


def confirm(deed: str) -> None:
    """Asks on a terminal; raises where there is none."""
    if not sys.stdin.isatty():
        raise InvalidRequest(f"to {deed}, and for good, say --yes: there is no terminal to ask on")
    typer.confirm(f"{deed[0].upper()}{deed[1:]}, for good?", abort=True)


@contextlib.contextmanager
def _unasked(topic: str) -> Iterator[None]:
    """The library has limits of its own, beyond which it does not ask."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(f"topic {topic}: {error}; ask for fewer") from error


def _tell(text: str, row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        text = json.dumps(row)
    typer.echo(text)
