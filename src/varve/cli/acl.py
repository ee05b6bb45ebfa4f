"""`varve acl`: who may do what at a broker."""

from typing import Annotated, Final

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
    help="Show, grant and withdraw rights at a broker, varve's or any Kafka.",
)

_COLUMNS: Final = ["principal", "permission", "operation", "resource", "name", "pattern", "host"]

Principal = Annotated[
    str | None, typer.Option(metavar="TYPE:NAME", help="Whose right, e.g. User:alice or User:*.")
]
Operations = Annotated[
    list[str],
    typer.Option(
        "--operation",
        "-o",
        help="read, write, create, delete, alter, describe, describe_configs, alter_configs, "
        "cluster_action, idempotent_write or all; may be repeated.",
    ),
]
Topic = Annotated[str | None, typer.Option(help="On this topic; * is every one.")]
Group = Annotated[str | None, typer.Option(help="On this group; * is every one.")]
TransactionalId = Annotated[str | None, typer.Option(help="On this transactional id.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="On the cluster itself.")]
Prefixed = Annotated[
    bool, typer.Option("--prefixed", help="The name is what names of resources begin with.")
]
Host = Annotated[str, typer.Option(help="From this address; * is any.")]
Deny = Annotated[bool, typer.Option("--deny", help="A denial, which wins over every grant.")]


@app.command("list")
def list_acls(
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    principal: Principal = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    as_json: AsJson = False,
) -> None:
    """List the rights, all or those of somebody or on something.

    \b
    Examples:
      varve acl list
      varve acl list --principal User:alice
      varve acl list --topic orders --json
    """
    from varve.cli.kafka_acls import acl_rows, choose_resource
    from varve.cli.log_output import print_rows

    resource = choose_resource(topic, group, transactional_id, cluster, is_needed=False)
    client = make_client(broker, settings, file)
    rows = acl_rows(client, client.admin(), principal, resource)
    print_rows(_COLUMNS, rows, as_json=as_json)


@app.command()
def add(
    principal: Annotated[
        str, typer.Option(metavar="TYPE:NAME", help="Who gets it, e.g. User:alice or User:*.")
    ],
    operations: Operations,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = "*",
    deny: Deny = False,
    as_json: AsJson = False,
) -> None:
    """Grant somebody a right, or deny it.

    \b
    Examples:
      varve acl add --principal User:alice --operation read --topic orders
      varve acl add --principal User:alice -o read --group audit-- --prefixed
      varve acl add --principal User:mallory -o all --topic '*' --deny
    """
    from varve.cli.kafka_acls import add_acls, choose_resource
    from varve.cli.log_output import print_rows

    resource = choose_resource(topic, group, transactional_id, cluster, is_needed=True)
    client = make_client(broker, settings, file)
    rows = add_acls(
        client,
        principal=principal,
        operations=operations,
        resource=resource,
        is_prefixed=prefixed,
        host=host,
        is_denial=deny,
    )
    print_rows(_COLUMNS, rows, as_json=as_json)


@app.command()
def remove(
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    principal: Principal = None,
    operations: Operations = [],  # noqa: B006, typer copies it
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Withdraw rights: every one that fits what is named, grants and denials.

    Shows them and asks on a terminal; elsewhere it wants --yes.

    \b
    Examples:
      varve acl remove --principal User:alice --topic orders
      varve acl remove --principal User:alice --operation write --topic orders --yes
    """
    from varve.cli.kafka_acls import choose_resource, find_acls, remove_acls
    from varve.cli.log_output import print_rows
    from varve.cli.topic import confirm

    resource = choose_resource(topic, group, transactional_id, cluster, is_needed=False)
    if principal is None and resource is None:
        raise typer.BadParameter("name somebody with --principal, or what the rights are on")
    client = make_client(broker, settings, file)
    admin = client.admin()
    acls = find_acls(client, admin, principal, resource, operations)
    print_rows(_COLUMNS, [acl.row for acl in acls], as_json=as_json)
    if acls:
        if not yes:
            confirm(f"withdraw {'this right' if len(acls) == 1 else f'these {len(acls)} rights'}")
        remove_acls(client, admin, acls)
    typer.echo(f"withdrew {len(acls)} right{'' if len(acls) == 1 else 's'}", err=True)
