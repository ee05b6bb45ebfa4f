"""`varve job outputs`: the notes of what jobs made of a topic, which erasures go by."""

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from varve.cli.erase_input import find_where
from varve.cli.job_options import LogDirectories
from varve.cli.moments import show_moment
from varve.cli.store_access import AsJson
from varve.cli.tier_access import Cluster, MirrorUrl, StoreSettings, TierUrl
from varve.foundation.clock import SystemClock

if TYPE_CHECKING:
    from varve.jobs.derived_outputs import DerivedOutput


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    mirror_url: MirrorUrl = "",
    directories: LogDirectories = [],  # noqa: B006
    cluster: Cluster = None,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget",
            metavar="ID",
            help="Forget this one, which is gone for good: no erasure looks for it any more.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what jobs made of a topic: snapshots, tables, topics and files that erasures go to.

    An erasure ends with an error where one of them cannot be reached. One that was removed on
    purpose is forgotten with --forget. Records in one that is forgotten and still there, or in a
    backup of it, are reached by no erasure.

    It needs no Spark. With --json there is a line for each.

    \b
    Examples:
      varve job outputs customers --dir data
      varve job outputs customers --dir data --forget snapshot-2b1f0c86d1e5a3b7c4f2096e8d7a5b31
    """
    from varve.jobs.erase.erasure import open_targets
    from varve.jobs.erase.targets import forget_output, list_outputs

    where = find_where(store_url, store_settings, mirror_url, list(map(str, directories)), cluster)
    with ExitStack() as stack:
        places = open_targets(stack, address=where.address, directories=where.directories)
        if forget is None:
            _print(list_outputs(places, topic), as_json=as_json)
            return
        gone = forget_output(places, topic, forget)
    if as_json:
        typer.echo(json.dumps({"forgotten": True, **_document(gone)}))
        return
    typer.echo(f"forgotten: {gone.kind} {gone.name} at {gone.place}; no erasure looks there now")


def _document(output: "DerivedOutput") -> dict[str, object]:
    return {
        "id": output.id,
        "kind": str(output.kind),
        "name": output.name,
        "place": output.place,
        "noted_ms": output.noted_ms,
    }


def _print(outputs: "list[DerivedOutput]", *, as_json: bool) -> None:
    from varve.cli.screen import make_console, print_rows_with_details

    if as_json:
        for output in outputs:
            typer.echo(json.dumps(_document(output)))
        return
    if not outputs:
        typer.echo("nothing is noted that was made of this topic")
        return
    now_ms = SystemClock().now_ms()
    columns = ("id", "kind", "name", "place", "noted")
    rows = [
        (
            output.id,
            str(output.kind),
            output.name,
            output.place,
            show_moment(output.noted_ms, now_ms),
        )
        for output in outputs
    ]
    print_rows_with_details(make_console(), columns, rows, [() for _ in rows], left=columns)
