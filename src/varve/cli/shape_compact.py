"""`varve shape compact`: the log of a shape rewritten now."""

import json
from typing import Any

import typer

from varve.cli.shape_options import DEFAULT_URL, Handle, Token, Url
from varve.cli.store_access import AsJson


def command(
    handle: Handle, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> None:
    """Compact the log of a shape now, whatever its share of stale entries.

    The server compacts by itself in time. Clients notice nothing: handle and offsets stay. Where
    what stays is mostly of keys that are gone the shape is dropped, and clients begin anew.

    \b
    Examples:
      varve shape compact 48203311-1760000000000000
    """
    from varve.cli.shape_client import ShapeClient, shape_path

    with ShapeClient(url, token) as client:
        told = client.check(client.ask("POST", shape_path(handle, "compact"))).json()
    if as_json:
        typer.echo(json.dumps(told))
        return
    typer.echo(_tell(told))


def _tell(report: dict[str, Any]) -> str:
    """One line: what went, and what new clients are spared."""
    from varve.foundation.units import format_bytes
    from varve.shapes.compaction.report import CompactionOutcome

    balance = report["balance"]
    if report["outcome"] == CompactionOutcome.NOTHING:
        return f"nothing to compact: the log of {report['handle']} is empty, or compacted already"
    dropped = "; then it was dropped, for a new snapshot is smaller" if report["is_dropped"] else ""
    return (
        f"compacted {report['handle']} up to {report['boundary']}: of {balance['entries_in']:,} "
        f"entries {balance['entries_out']:,} stay, {format_bytes(balance['bytes_in'])} became "
        f"{format_bytes(balance['bytes_out'])}; {balance['merged']:,} went into later updates, "
        f"{balance['superseded']:,} were superseded"
        f"{dropped}"
    )
