"""`varve job`: work over the cold tier on Spark, in this process or on a cluster.

Each command stands in a module of its own, as its function `command`.
"""

import importlib
from typing import Final

import typer

COMMANDS: Final[dict[str, str]] = {
    "query": "job_query",
    "demo": "job_demo",
    "compact": "job_compact",
    "erase": "job_erase",
    "outputs": "job_outputs",
    "verify": "job_verify",
    "snapshot": "job_snapshot",
    "table": "job_table",
    "dedup": "job_dedup",
    "due": "job_due",
    "report": "job_report",
    "ship": "job_ship",
}
"""Modules of this package by the names of the commands they hold."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Query and rework the cold tier on Spark, here or on a cluster.",
)


@app.callback()
def _job() -> None:
    """Query and rework the cold tier on Spark, here or on a cluster."""


for _name, _module in COMMANDS.items():
    app.command(_name)(importlib.import_module(f"varve.cli.{_module}").command)
