"""`varve group`, `acl` and `user`: what only a broker has."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from varve.brokers import security
from varve.brokers.security import CLUSTER_NAME, OPERATIONS, AclResource, AclRow
from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Output
from varve.cli.where import Where
from varve.foundation.errors import InvalidRequest
from varve.foundation.position import ReadPosition

# group


@command("varve group list", "varve group list -b kafka:9092 --json")
@options.broker
@options.output
def group_list(where: Where, output: Output) -> None:
    """List consumer groups with their state."""
    from varve.brokers.groups import list_groups

    output.print_table(
        "group", ["group", "state", "protocol", "members"], list_groups(where.client())
    )


@command("varve group describe audit", "varve group describe audit -b kafka:9092 --json")
@options.group
@options.broker
@options.output
def group_describe(group: str, where: Where, output: Output) -> None:
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
    "varve group reset-offsets audit --to 2026-03-01T12:00:00 --topic orders --dry-run",
    "varve group reset-offsets audit --to beginning --yes -b kafka:9092",
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
def group_reset_offsets(
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


@command("varve group delete audit", "varve group delete audit billing --yes")
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True)
@options.yes
@options.broker
@options.output
def group_delete(groups: tuple[str, ...], where: Where, output: Output, yes: bool) -> None:
    """Delete groups with their committed offsets; their members must be stopped."""
    from varve.brokers.groups import delete_group

    client = where.client()
    output.confirm(f"delete {', '.join(groups)} with all committed offsets", is_confirmed=yes)
    for group in groups:
        delete_group(client, group)
        output.print_result(f"deleted {group}", "group", group=group)


_COLUMNS: Final = AclRow._fields
PASSWORD_VARIABLE: Final = "VARVE_USER_PASSWORD"
_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


# acl


def _build_resource(
    topic: str | None, acl_group: str | None, transactional_id: str | None, cluster: bool
) -> AclResource | None:
    resources = [
        AclResource(type, name)
        for type, name in (
            ("TOPIC", topic),
            ("GROUP", acl_group),
            ("TRANSACTIONAL_ID", transactional_id),
            ("BROKER", CLUSTER_NAME if cluster else None),
        )
        if name is not None
    ]
    if len(resources) > 1:
        raise click.UsageError("name one of --topic, --group, --transactional-id and --cluster")
    return resources[0] if resources else None


_resource = options.bundle(
    "resource",
    _build_resource,
    click.option("--topic", metavar="NAME", help="On this topic; * is every topic."),
    click.option("--group", "acl_group", metavar="NAME", help="On this group; * is every group."),
    click.option("--transactional-id", metavar="ID", help="On this transactional id."),
    click.option("--cluster", is_flag=True, help="On the cluster."),
)


def _operations(*, required: bool) -> Callable[[Any], Any]:
    return click.option(
        "--operation",
        "operations",
        multiple=True,
        required=required,
        type=click.Choice(OPERATIONS, case_sensitive=False),
        metavar="OPERATION",
        help=f"{', '.join(OPERATIONS)}.",
    )


_principal = click.option(
    "--principal", metavar="TYPE:NAME", help="Of this principal, such as User:alice or User:*."
)


@command("varve acl list --principal User:alice", "varve acl list --topic orders --json")
@_principal
@_resource
@options.broker
@options.output
def acl_list(
    where: Where, output: Output, principal: str | None, resource: AclResource | None
) -> None:
    """List ACLs: all, or those of a principal or on a resource."""
    acls = security.find_acls(where.client(), principal=principal, resource=resource)
    output.print_table("acl", _COLUMNS, [acl.row for acl in acls])


@command(
    "varve acl add --principal User:alice --operation read --topic orders",
    "varve acl add --principal User:mallory --operation all --topic '*' --deny",
)
@click.option(
    "--principal",
    required=True,
    metavar="TYPE:NAME",
    help="Who is allowed, such as User:alice or User:*.",
)
@_operations(required=True)
@_resource
@click.option(
    "--prefixed", is_flag=True, help="On every resource whose name starts with the given one."
)
@click.option("--host", default="*", metavar="ADDRESS", help="From this address.")
@click.option("--deny", is_flag=True, help="Deny; a denial beats every permission.")
@options.broker
@options.output
def acl_add(
    where: Where,
    output: Output,
    principal: str,
    operations: tuple[str, ...],
    resource: AclResource | None,
    prefixed: bool,
    host: str,
    deny: bool,
) -> None:
    """Allow or deny operations on a resource."""
    if resource is None:
        raise click.UsageError(
            "name the resource: --topic, --group, --transactional-id or --cluster"
        )
    if ":" not in principal:
        raise click.BadParameter(
            f"{principal!r:.80} has no type; write User:{principal:.80}",
            param_hint="'--principal'",
        )
    rows = security.add_acls(
        where.client(),
        resource,
        principal=principal,
        operations=operations,
        is_prefixed=prefixed,
        host=host,
        is_denial=deny,
    )
    output.print_table("acl", _COLUMNS, rows)


@command(
    "varve acl delete --principal User:alice --topic orders",
    "varve acl delete --principal User:alice --operation write --topic orders --yes",
)
@_principal
@_operations(required=False)
@_resource
@options.yes
@options.broker
@options.output
def acl_delete(
    where: Where,
    output: Output,
    principal: str | None,
    operations: tuple[str, ...],
    resource: AclResource | None,
    yes: bool,
) -> None:
    """Delete the ACLs that match, permissions and denials alike."""
    if principal is None and resource is None:
        raise click.UsageError("name a --principal or a resource")
    client = where.client()
    acls = security.find_acls(client, principal=principal, resource=resource, operations=operations)
    output.print_table("acl", _COLUMNS, [acl.row for acl in acls])
    count = f"{len(acls)} ACL{'' if len(acls) == 1 else 's'}"
    if acls:
        output.confirm(f"delete {count}", is_confirmed=yes)
        security.delete_acls(client, acls)
    output.note(f"deleted {count}")


# user


_user = click.argument("user", metavar="USER")
_mechanism = click.option(
    "--mechanism",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    default=_MECHANISMS[1],
    help="The SASL mechanism of the login.",
)


@command("varve user list", "varve user list -b kafka:9092 --json")
@options.broker
@options.output
def user_list(where: Where, output: Output) -> None:
    """List SCRAM users with their mechanisms."""
    output.print_table(
        "user", ["user", "mechanism", "iterations"], security.list_users(where.client())
    )


@command(
    "varve user add alice --mechanism SCRAM-SHA-256 < password.txt", "varve user add admin -d data"
)
@_user
@_mechanism
@options.number(
    "--iterations",
    min=4096,
    max=16_384,
    default=8192,
    help="SCRAM iterations; more make guessing the password slower.",
)
@options.where
@options.output
def user_add(user: str, where: Where, output: Output, mechanism: str, iterations: int) -> None:
    """Add a user, or replace its password.

    The password is read from the terminal, else from the first line of standard input or from
    VARVE_USER_PASSWORD. Add the first user of a broker that requires a login with --dir, while the
    broker is stopped.
    """
    if where.is_broker:
        security.add_user(
            where.client(),
            user,
            password=_read_password(user),
            mechanism=mechanism,
            iterations=iterations,
        )
    else:
        _add_to_directories(where.directories, output, user, mechanism, iterations)
    output.print_result(
        f"{user} logs in with {mechanism}",
        "user",
        user=user,
        mechanism=mechanism,
        iterations=iterations,
    )


def _add_to_directories(
    directories: tuple[Path, ...], output: Output, user: str, mechanism: str, iterations: int
) -> None:
    from varve.broker.security.credentials import add_credential
    from varve.disk import RealFileSystem
    from varve.foundation.scram import BY_SASL_NAME

    missing = [path for path in directories if not path.exists()]
    add_credential(
        [str(path) for path in directories],
        fs=RealFileSystem(),
        user=user,
        password=_read_password(user),
        mechanism=BY_SASL_NAME[mechanism],
        iterations=iterations,
    )
    for path in missing:
        output.note(f"created {path}, which did not exist")


def _read_password(user: str) -> str:
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None and sys.stdin.isatty():
        password = click.prompt(
            f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True
        )
    elif password is None:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidRequest(
            f"no password for {user}: write it on standard input or set {PASSWORD_VARIABLE}"
        )
    return str(password)


@command("varve user delete alice", "varve user delete alice --mechanism SCRAM-SHA-256 --yes")
@_user
@_mechanism
@options.yes
@options.broker
@options.output
def user_delete(user: str, where: Where, output: Output, mechanism: str, yes: bool) -> None:
    """Delete a user's login with one mechanism; open connections stay."""
    client = where.client()
    output.confirm(f"delete the {mechanism} login of {user}", is_confirmed=yes)
    security.delete_user(client, user, mechanism=mechanism)
    output.print_result(
        f"{user} no longer logs in with {mechanism}", "user", user=user, mechanism=mechanism
    )
