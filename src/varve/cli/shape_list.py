"""`varve shape list`: the shapes of a server."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.shape_options import DEFAULT_URL, Token, Url
from varve.cli.store_access import AsJson

if TYPE_CHECKING:
    from varve.cli.shape_client import ShapeClient

_COLUMNS: Final = ("handle", "topic", "snapshot", "replica", "log", "columns", "where")


def command(
    table: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only those of one topic.")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the shapes of a server.

    \b
    Examples:
      varve shape list
      varve shape list orders --json
    """
    from varve.cli.shape_client import ShapeClient

    with ShapeClient(url, token) as client:
        shapes = list(_pages(client, table))
    if as_json:
        for shape in shapes:
            typer.echo(json.dumps(shape))
        return
    if not shapes:
        typer.echo("no shapes", err=True)
        return
    _print(shapes)


def _pages(client: "ShapeClient", table: str | None) -> Iterator[dict[str, Any]]:
    query = {} if table is None else {"table": table}
    while True:
        page = client.get("/v1/shapes", query)
        yield from page["shapes"]
        if "after" not in page:
            return
        query["after"] = page["after"]


def _print(shapes: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from varve.cli.screen import make_console, print_rows_with_details

    rows = [_cells(shape) for shape in shapes]
    console = make_console()
    if not sys.stdout.isatty():
        print_rows_with_details(console, _COLUMNS, rows, [()] * len(rows), left=_COLUMNS)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name == "handle")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    console.print(table)


def _cells(shape: dict[str, Any]) -> list[str]:
    columns = "all" if shape["columns"] is None else ", ".join(shape["columns"])
    told = [shape[name] for name in ("table", "snapshot", "replica", "log")]
    return [shape["handle"], *told, columns, shape["where"] or ""]
