"""`varve shape create`: a shape, made before its first client comes."""

import json

import typer

from varve.cli.shape_options import (
    DEFAULT_URL,
    Columns,
    IsChangesOnly,
    IsFull,
    Params,
    Table,
    Token,
    Url,
    Where,
    make_query,
)
from varve.cli.store_access import AsJson


def command(
    table: Table,
    where: Where = None,
    params: Params = [],  # noqa: B006, typer reads it once
    columns: Columns = None,
    full: IsFull = False,
    changes_only: IsChangesOnly = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Make a shape, or find it, and print its handle.

    Clients make shapes by asking for them; this makes one ahead, so that the first client need not
    wait for the snapshot.

    \b
    Examples:
      varve shape create orders
      varve shape create orders --where "tenant = \\$1" --param acme --columns id,status
    """
    from varve.cli.shape_client import ShapeClient

    query = make_query(table, where, params, columns, is_full=full, is_changes_only=changes_only)
    with ShapeClient(url, token) as client:
        reply = client.check(client.ask("GET", "/v1/shape", {**query, "offset": "now"}))
    handle, offset = reply.headers["electric-handle"], reply.headers["electric-offset"]
    typer.echo(json.dumps({"handle": handle, "offset": offset}) if as_json else handle)
