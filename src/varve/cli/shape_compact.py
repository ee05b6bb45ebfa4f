"""`varve shape compact`: the log of a shape rewritten now."""

import json

import typer

from varve.cli.shape_options import DEFAULT_URL, Handle, Token, Url
from varve.cli.store_access import AsJson


def command(
    handle: Handle, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> None:
    """Compact the log of a shape now, whatever its share of stale entries.

    The server compacts by itself in time. Clients notice nothing: handle and offsets stay.

    \b
    Examples:
      varve shape compact 48203311-1760000000000000
    """
    from varve.cli.screen import make_console, print_details
    from varve.cli.shape_client import ShapeClient, shape_path

    with ShapeClient(url, token) as client:
        told = client.check(client.ask("POST", shape_path(handle, "compact"))).json()
    if as_json:
        typer.echo(json.dumps(told))
        return
    pairs = [(name.replace("_", " "), str(value)) for name, value in told.items()]
    print_details(make_console(), pairs, indent=0)
