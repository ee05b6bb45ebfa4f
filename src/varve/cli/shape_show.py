"""`varve shape show`: one shape."""

import json

import typer

from varve.cli.shape_options import DEFAULT_URL, Handle, Token, Url
from varve.cli.store_access import AsJson


def command(
    handle: Handle, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> None:
    """Show what a shape is of and how far it is.

    \b
    Examples:
      varve shape show 48203311-1760000000000000
    """
    from varve.cli.screen import make_console, print_details
    from varve.cli.shape_client import ShapeClient, shape_path

    with ShapeClient(url, token) as client:
        shape = client.get(shape_path(handle))
    if as_json:
        typer.echo(json.dumps(shape))
        return
    pairs = [(name, _text(value)) for name, value in shape.items() if value is not None]
    print_details(make_console(), pairs, indent=0)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
