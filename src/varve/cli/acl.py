"""`varve acl`: the ACLs of a broker."""

from collections.abc import Callable
from typing import Any, Final

import click

from varve.brokers.acls import CLUSTER_NAME, OPERATIONS, AclResource, AclRow
from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.where import Where

_COLUMNS: Final = AclRow._fields


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


@command(examples=("varve acl list --principal User:alice", "varve acl list --topic orders --json"))
@_principal
@_resource
@options.broker
@options.output
def list_acls(
    where: Where, output: Output, principal: str | None, resource: AclResource | None
) -> None:
    """List ACLs: all, or those of a principal or on a resource."""
    from varve.brokers.acls import find_acls

    acls = find_acls(where.client(), principal=principal, resource=resource)
    output.print_table("acl", _COLUMNS, [acl.row for acl in acls])


@command(
    examples=(
        "varve acl add --principal User:alice --operation read --topic orders",
        "varve acl add --principal User:mallory --operation all --topic '*' --deny",
    )
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
def add(
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
    from varve.brokers.acls import add_acls

    if resource is None:
        raise click.UsageError(
            "name the resource: --topic, --group, --transactional-id or --cluster"
        )
    if ":" not in principal:
        raise click.BadParameter(
            f"{principal!r:.80} has no type; write User:{principal:.80}",
            param_hint="'--principal'",
        )
    rows = add_acls(
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
    examples=(
        "varve acl delete --principal User:alice --topic orders",
        "varve acl delete --principal User:alice --operation write --topic orders --yes",
    )
)
@_principal
@_operations(required=False)
@_resource
@options.yes
@options.broker
@options.output
def delete(
    where: Where,
    output: Output,
    principal: str | None,
    operations: tuple[str, ...],
    resource: AclResource | None,
    yes: bool,
) -> None:
    """Delete the ACLs that match, permissions and denials alike."""
    from varve.brokers.acls import delete_acls, find_acls

    if principal is None and resource is None:
        raise click.UsageError("name a --principal or a resource")
    client = where.client()
    acls = find_acls(client, principal=principal, resource=resource, operations=operations)
    output.print_table("acl", _COLUMNS, [acl.row for acl in acls])
    count = f"{len(acls)} ACL{'' if len(acls) == 1 else 's'}"
    if acls:
        output.confirm(f"delete {count}", is_confirmed=yes)
        delete_acls(client, acls)
    output.note(f"deleted {count}")
