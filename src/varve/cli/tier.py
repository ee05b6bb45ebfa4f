"""`varve tier`: segments in object storage, copied out and accounted for.

Each command stands in a module of its own, as its function `command`.
"""

import importlib
from typing import Final

import typer

COMMANDS: Final[dict[str, str]] = {
    "copy": "tier_copy",
    "status": "tier_status",
    "restore": "tier_restore",
    "fsck": "tier_fsck",
    "mirror": "tier_mirror",
}
"""Modules of this package by the names of the commands they hold."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Copy segments to object storage, and account for what is there.",
)


@app.callback()
def _tier() -> None:
    """Copy segments to object storage, and account for what is there."""


for _name, _module in COMMANDS.items():
    app.command(_name)(importlib.import_module(f"varve.cli.{_module}").command)
