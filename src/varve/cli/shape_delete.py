"""`varve shape delete`: a shape dropped; its clients begin anew."""

import json

import typer

from varve.cli.shape_options import DEFAULT_URL, Handle, Token, Url
from varve.cli.store_access import AsJson


def command(
    handle: Handle, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> None:
    """Delete a shape and its files; the topic stays as it is.

    Clients that follow it are told to begin anew, and then make it again under another handle.

    \b
    Examples:
      varve shape delete 48203311-1760000000000000
    """
    from varve.cli.shape_client import ShapeClient

    with ShapeClient(url, token) as client:
        client.check(client.ask("DELETE", "/v1/shape", {"handle": handle}))
    typer.echo(json.dumps({"deleted": handle}) if as_json else f"deleted {handle}")
