"""`varve tier fsck`: every object of a cluster accounted for, in bytes and money.

Invariant  reads only without `--sweep`, beside running stores as well.
"""

import contextlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.cli.byte_progress import phase_progress
from varve.cli.interrupts import interrupts_between, told_when_interrupted
from varve.cli.store_access import AsJson
from varve.cli.tier_access import (
    Cluster,
    StoreSettings,
    TierUrl,
    find_url,
    open_tier,
    wait_ms,
)
from varve.foundation.clock import SystemClock
from varve.foundation.units import format_bytes
from varve.tiering.fsck import FsckOptions, Progress, fsck
from varve.tiering.fsck_report import FsckReport, Listed, ObjectClass
from varve.tiering.manifest.paths import choose_cluster

_PLAIN_WIDTH = 200
_DAY_MS = 86_400_000


def command(
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    directory: Annotated[
        str | None,
        typer.Option("--dir", "-d", metavar="PATH", help="The store that this log directory uses."),
    ] = None,
    cluster: Cluster = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all live objects and compare their checksums.")
    ] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Remove orphans, and what is overdue; asks nothing.")
    ] = False,
    keep_days: Annotated[
        float | None,
        typer.Option(
            "--keep-versions",
            metavar="DAYS",
            min=0,
            help="Let a sweep remove manifest versions that were replaced so long ago.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Account for every object of a cluster: live, pending, retained, orphan or foreign.

    Live objects are those the newest manifests name. Pending ones belong to a copy that was
    announced. Retained ones are named by older versions of manifests, or wait for their removal.
    Orphans were left by a crash: nothing names them. Foreign ones have no name of varve's and are
    never touched.

    It may run beside stores that copy; a sweep asks the newest manifest again before each removal,
    and removes nothing of a partition whose manifest cannot be read. The exit status is 1 when
    there are orphans (left after a sweep), foreign objects or damage. With --json every line has
    `type`: class, object, damage, swept or summary.

    \b
    Examples:
      varve tier fsck --dir data
      varve tier fsck --store s3://bucket/varve --deep --json
      varve tier fsck --store file:/backup/tier --sweep --keep-versions 7
    """
    if keep_days is not None and not sweep:
        raise typer.BadParameter("--keep-versions has a meaning with --sweep only")
    objects = open_tier(find_url(store_url, directory), store_settings)
    options = FsckOptions(
        deep=deep,
        sweep=sweep,
        retention_ms=None if keep_days is None else int(keep_days * _DAY_MS),
    )
    cluster = choose_cluster(objects, cluster)
    sentence = "stopped; nothing was changed but what a sweep had removed, run it again"
    with (
        told_when_interrupted(sentence),
        _progress() as show,
        interrupts_between(show) as progress,
    ):
        report = fsck(
            objects,
            cluster,
            now_ms=SystemClock().now_ms(),
            options=options,
            random=random.Random(),
            wait=wait_ms,
            progress=progress,
        )
    if as_json:
        for document in _documents(report):
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    else:
        _print(report, deep=deep)
    if not report.is_clean:
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    with phase_progress() as show:
        yield lambda home, done_bytes, total_bytes: show(str(home), done_bytes, total_bytes)


def _documents(report: FsckReport) -> Iterator[dict[str, Any]]:
    total = report.total
    for kind in ObjectClass:
        yield {
            "type": "class",
            "class": str(kind),
            "objects": total.objects[kind],
            "bytes": total.bytes[kind],
            "cost_per_month": report.cost_per_month(kind),
            "currency": report.prices.currency,
        }
    for name, key, size, reason in _lines(report):
        yield {"type": "object", "class": name, "key": key, "bytes": size, "reason": reason}
    for damage in report.damage:
        yield {"type": "damage", "key": damage.key, "message": damage.message}
    for listed in report.swept:
        yield {"type": "swept", "key": listed.key, "bytes": listed.size, "reason": listed.reason}
    yield {
        "type": "summary",
        "store": report.store,
        "cluster": report.cluster,
        "partitions": len(report.partitions),
        "prices": report.prices.name,
        "prices_as_of": report.prices.as_of,
        "verified_bytes": report.verified_bytes,
        "is_clean": report.is_clean,
    }


def _lines(report: FsckReport) -> Iterator[tuple[str, str, int, str]]:
    """The objects that deserve a line: foreign ones, and orphans that are still there."""
    foreign: list[Listed] = [
        listed
        for partition in report.partitions
        for listed in partition.listed
        if listed.kind is ObjectClass.FOREIGN
    ]
    for listed in [*report.orphans, *foreign]:
        yield str(listed.kind), listed.key, listed.size, listed.reason
    for entry in report.foreign:
        yield str(ObjectClass.FOREIGN), entry.key, entry.size, "not a name of varve's"


def _print(report: FsckReport, *, deep: bool) -> None:
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(_table(report))
    for kind, key, size, reason in _lines(report):
        console.print(Text(f"{kind:8} {key} ({format_bytes(size)}): {reason}"), soft_wrap=True)
    for damage in report.damage:
        console.print(Text(f"damaged  {damage.key}: {damage.message}", style="red"), soft_wrap=True)
    for listed in report.swept:
        text = f"removed  {listed.key} ({format_bytes(listed.size)}): {listed.reason}"
        console.print(Text(text), soft_wrap=True)
    read = f", {format_bytes(report.verified_bytes)} read and verified" if deep else ""
    state = "nothing wrong" if report.is_clean else f"{len(report.damage)} damaged"
    prices = f"prices: {report.prices.name}, {report.prices.as_of}"
    summary = f"{report.store}, {report.cluster}: {len(report.partitions)} partitions, {state}"
    console.print(Text(f"{summary}{read}; {prices}"), soft_wrap=True)


def _table(report: FsckReport) -> Table:
    total = report.total
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("Class", no_wrap=True)
    for name in ("Objects", "Bytes", f"{report.prices.currency} per month"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind in ObjectClass:
        cost = f"{report.cost_per_month(kind):.4f}"
        size = format_bytes(total.bytes[kind])
        table.add_row(Text(kind), str(total.objects[kind]), size, cost)
    return table
