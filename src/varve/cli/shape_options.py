"""What the commands of `varve shape` have in common: where the server is, what a shape is of."""

from typing import Annotated, Final

import typer

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Url = Annotated[
    str,
    typer.Option("--url", "-u", envvar="VARVE_SHAPE_URL", metavar="URL", help="Where it listens."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="VARVE_SHAPE_TOKEN",
        metavar="TOKEN",
        help="What the server asks for, if it does; for list, show, compact and delete its admin "
        "token.",
        show_default=False,
        show_envvar=True,
    ),
]
Handle = Annotated[str, typer.Argument(metavar="HANDLE", help="The shape's handle.")]
Table = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that it is a view of.")]
Where = Annotated[
    str | None,
    typer.Option("--where", "-w", metavar="SQL", help="Which rows: a condition such as a > 5."),
]
Params = Annotated[
    list[str],
    typer.Option("--param", "-p", metavar="VALUE", help="The values of $1, $2 and so on in it."),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAMES", help="Which columns, joined by commas; else all."),
]
IsFull = Annotated[
    bool, typer.Option("--full", help="Updates have the whole row, and what it was before.")
]
IsChangesOnly = Annotated[
    bool, typer.Option("--changes-only", help="No rows at first, only the changes to come.")
]


def make_query(
    table: str,
    where: str | None,
    params: list[str],
    columns: str | None,
    *,
    is_full: bool,
    is_changes_only: bool,
) -> dict[str, str]:
    """The parameters that denote a shape."""
    query = {"table": table}
    if where is not None:
        query["where"] = where
    query.update({f"params[{number}]": value for number, value in enumerate(params, 1)})
    if columns is not None:
        query["columns"] = columns
    if is_full:
        query["replica"] = "full"
    if is_changes_only:
        query["log"] = "changes_only"
    return query
