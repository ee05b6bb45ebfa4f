"""`varve group`: the consumer groups of a broker."""

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Output
from varve.cli.where import Where
from varve.foundation.position import ReadPosition


@command(examples=("varve group list", "varve group list -b kafka:9092 --json"))
@options.broker
@options.output
def list_groups(where: Where, output: Output) -> None:
    """List consumer groups with their state."""
    from varve.brokers.groups import list_groups

    output.print_table(
        "group", ["group", "state", "protocol", "members"], list_groups(where.client())
    )


@command(examples=("varve group describe audit", "varve group describe audit -b kafka:9092 --json"))
@options.group
@options.broker
@options.output
def describe(group: str, where: Where, output: Output) -> None:
    """Show a group's members, committed offsets and lag.

    The lag is the number of offsets between the committed offset and the end of the partition.
    """
    from varve.brokers.groups import describe_group

    described = describe_group(where.client(), group)
    columns = ["topic", "partition", "committed", "end", "lag", "member", "client", "host"]
    if output.is_json:
        fields = {
            "group": described.name,
            "state": described.state,
            "assignor": described.assignor,
            "protocol": described.type,
            "members": described.member_count,
            "lag": described.lag,
            "partitions": [partition._asdict() for partition in described.partitions],
        }
        output.print_object("group", fields)
        return
    members = f"{described.member_count} member{'' if described.member_count == 1 else 's'}"
    click.echo(f"{described.name}  {described.state}, {members}, lag {described.lag:,}")
    if described.partitions:
        output.print_table("partition", columns, described.partitions)


@command(
    examples=(
        "varve group reset-offsets audit --to 2026-03-01T12:00:00 --topic orders --dry-run",
        "varve group reset-offsets audit --to beginning --yes -b kafka:9092",
    )
)
@options.group
@click.option(
    "--to",
    type=options.POSITION,
    required=True,
    help="beginning, end, an offset, @milliseconds, a time (UTC), or -10m for ten minutes ago.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    type=options.TOPIC_PARTITION,
    help="Only these; default wherever the group has committed.",
)
@options.dry_run
@options.yes
@options.broker
@options.output
def reset_offsets(
    group: str,
    where: Where,
    output: Output,
    to: ReadPosition,
    topics: tuple[TopicPartitionName, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Move a group's committed offsets; its members must be stopped.

    A time becomes the first record at or after it, or the end. An offset outside a partition
    becomes the nearest one.
    """
    from varve.brokers.groups import commit_offsets, plan_offsets

    client = where.client()
    planned = plan_offsets(client, group, to, topics)
    output.print_table("offset", ["topic", "partition", "committed", "new"], planned)
    if dry_run:
        output.note("nothing was changed (--dry-run)")
        return
    output.confirm(f"move the offsets of {group} as shown", is_confirmed=yes)
    commit_offsets(client, group, planned)


@command(examples=("varve group delete audit", "varve group delete audit billing --yes"))
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True)
@options.yes
@options.broker
@options.output
def delete(groups: tuple[str, ...], where: Where, output: Output, yes: bool) -> None:
    """Delete groups with their committed offsets; their members must be stopped."""
    from varve.brokers.groups import delete_group

    client = where.client()
    output.confirm(f"delete {', '.join(groups)} with all committed offsets", is_confirmed=yes)
    for group in groups:
        delete_group(client, group)
        output.print_result(f"deleted {group}", "group", group=group)
