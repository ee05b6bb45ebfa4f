"""`varve shape`: filtered views of topics for apps, over HTTP.

Each command stands in a module of its own, as its function `command`.
"""

import importlib
from typing import Final

import typer

COMMANDS: Final[dict[str, str]] = {
    "serve": "shape_serve",
    "create": "shape_create",
    "list": "shape_list",
    "show": "shape_show",
    "tail": "shape_tail",
    "compact": "shape_compact",
    "delete": "shape_delete",
}
"""Modules of this package by the names of the commands they hold."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Serve filtered views of topics to apps over HTTP, and look after them.",
)


@app.callback()
def _shape() -> None:
    """Serve filtered views of topics to apps over HTTP, and look after them."""


for _name, _module in COMMANDS.items():
    app.command(_name)(importlib.import_module(f"varve.cli.{_module}").command)
