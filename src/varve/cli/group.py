"""`varve group`: the consumer groups of a broker, and where they are."""

from typing import Annotated

import typer

from varve.cli.kafka_client import (
    BrokerAddress,
    ClientFile,
    ClientSettings,
    make_client,
)
from varve.cli.store_access import AsJson

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show and move the consumer groups of a broker, varve's or any Kafka.",
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


@app.command("list")
def list_groups(
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    as_json: AsJson = False,
) -> None:
    """List the groups of a broker with their state.

    \b
    Examples:
      varve group list
      varve group list --broker kafka.example.com:9092 --json
    """
    from varve.cli.kafka_groups import group_rows
    from varve.cli.log_output import print_rows

    client = make_client(broker, settings, file)
    rows = group_rows(client, client.admin())
    print_rows(["group", "state", "type", "members"], rows, as_json=as_json)


@app.command()
def describe(
    group: GroupName,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a group has come in each partition, how much is left, and who reads it.

    The lag is what lies between the committed offset and the end.

    \b
    Examples:
      varve group describe audit
      varve group describe audit --json
    """
    from varve.cli.kafka_groups import GroupView, print_group

    client = make_client(broker, settings, file)
    print_group(GroupView.read(client, client.admin(), group), as_json=as_json)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, an offset, @milliseconds, or a time such as "
            "2026-03-01T12:00:00.",
        ),
    ],
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION]",
            help="Only in these; else wherever the group has committed. May be repeated.",
        ),
    ] = [],  # noqa: B006, typer copies it
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this it only shows.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a group read on from elsewhere; its members must have stopped.

    Without --execute nothing is changed and what would be is shown. A time means the first record
    not older than it, or the end. An offset that a partition does not have becomes the nearest.

    \b
    Examples:
      varve group reset-offsets audit --to earliest
      varve group reset-offsets audit --to 2026-03-01T12:00:00 --topic orders --execute
      varve group reset-offsets audit --to 1000 --topic orders:2 --execute
    """
    from varve.cli.kafka_groups import commit_offsets, parse_target, plan_offsets
    from varve.cli.log_output import print_rows

    target = parse_target(to)
    client = make_client(broker, settings, file)
    admin = client.admin()
    rows = plan_offsets(client, admin, group, target, topics)
    if execute:
        commit_offsets(client, admin, group, rows)
    columns = ["topic", "partition", "committed", "new"]
    print_rows(columns, [list(row) for row in rows], as_json=as_json)
    if not execute:
        typer.echo("nothing is changed; --execute does it", err=True)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups' names.")],
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete groups with their committed offsets; their members must have stopped.

    On a terminal it asks first, elsewhere it wants --yes.

    \b
    Examples:
      varve group delete audit --yes
    """
    import json

    from varve.cli.topic import confirm

    client = make_client(broker, settings, file)
    admin = client.admin()
    if not yes:
        confirm(f"delete {', '.join(groups)} with all committed offsets")
    asked = admin.delete_consumer_groups(groups)
    for group in groups:
        client.result(asked[group], f"group {group}")
        typer.echo(json.dumps({"group": group}) if as_json else f"deleted {group}")
