"""`varve dedup`: topics without their duplicates, without Spark.

Each command stands in a module of its own, as its function `command`.
"""

import importlib
from typing import Final

import typer

COMMANDS: Final[dict[str, str]] = {
    "run": "dedup_run",
    "stats": "dedup_stats",
    "explain": "dedup_explain",
}
"""Modules of this package by the names of the commands they hold."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Copy topics without their duplicates, exactly once, and tell why a record was dropped.",
)


@app.callback()
def _dedup() -> None:
    """Copy topics without their duplicates, exactly once, and tell why a record was dropped."""


for _name, _module in COMMANDS.items():
    app.command(_name)(importlib.import_module(f"varve.cli.{_module}").command)
