"""`varve forecast`: what policies will delete and free, and when, without touching anything."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.cleaning.retention.forecast import Forecast
from varve.cli.forecast_remote import find_prices, print_remote, remote_text
from varve.cli.moments import show_due, show_moment
from varve.cli.screen import WIDE, make_console, print_rows_with_details
from varve.cli.segment_picture import draw_bar
from varve.cli.store_access import (
    Directory,
    Wanted,
    find_topic,
    open_existing,
    parse_setting,
    parse_wanted,
    tell_failure,
)
from varve.cli.tier_access import StoreSettings, tier_settings
from varve.foundation.errors import Unavailable
from varve.object_store import PriceTable

if TYPE_CHECKING:
    from varve.embedded import Store

_STEPS: Final = 10
_BAR_WIDTH: Final = 40
_FIGURES: Final = ("partition", "bytes", "due now", "later", "stays", "stale")
_NEXT: Final = "next, by"
_REMOTE: Final = "cold tier"


def command(
    directory: Directory,
    wanted: Wanted = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            help="Try a topic setting in place of the topics' own; may be repeated.",
        ),
    ] = [],  # noqa: B006, typer copies it
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per partition.")] = False,
) -> None:
    """Show what retention will delete and when, if nothing more is appended.

    A segment goes as a whole, once all before it have gone; compaction is told as the bytes it
    would free now. With --set the answer is for other settings, and nothing is changed.

    Of a topic in the cold tier the figures are those of the local disk, from where segments go to
    the cold tier; when they expire there, and what that costs until then by the declared list
    prices of the store, stands beside them. Copying is taken to keep up. `--set
    remote.storage.enable=true` shows what the cold tier would do for a topic that is not in it. A
    partition whose object store is down is told, and the exit status is 1.

    With --json every line has `partition`, `now_ms`, `settings` (those that are not the default),
    `size`, `due_now_bytes`, `kept_bytes` (what stays for good), `stale_bytes` (null where nothing
    is compacted), `rows` (a segment each, with `when_ms`, null for those that stay, and the rule)
    and `points` (the sums at each moment something goes), and `cold` (null, or the same of the cold
    tier, where `gone_ms` is when the objects go). Key indexes are built where they are missing.

    \b
    Examples:
      varve forecast data
      varve forecast data visits --set retention.ms=86400000
      varve forecast data --set retention.bytes=1000000000 --json
      varve forecast data visits --set remote.storage.enable=true --set local.retention.ms=3600000
    """
    topic, partition = parse_wanted(wanted)
    tried = dict(parse_setting(text) for text in settings)
    given = tier_settings("", store_settings)
    failures: dict[str, str] = {}
    with open_existing([directory], maintain=False, settings=given) as store:
        if topic is not None:
            find_topic(store, topic)
        try:
            found = store.forecast(topic, partition, settings=tried)
        except Unavailable:
            found, failures = _forecast_each(store, topic, partition, tried)
    if as_json:
        for forecast in found:
            sys.stdout.write(json.dumps(forecast.to_json()) + "\n")
    elif found or not failures:
        _print(found, tried, find_prices(directory))
    for name, failure in failures.items():
        tell_failure(name, failure)
    if failures:
        raise typer.Exit(1)


def _forecast_each(
    store: "Store", topic: str | None, partition: int | None, tried: Mapping[str, str]
) -> tuple[list[Forecast], dict[str, str]]:
    """The partitions that can be told, and what kept the others."""
    found: list[Forecast] = []
    failures: dict[str, str] = {}
    for topic_partition in store.partitions(topic, partition):
        try:
            found += store.forecast(
                topic_partition.topic, topic_partition.partition, settings=tried
            )
        except Unavailable as error:
            failures[str(topic_partition)] = str(error)
    return found, failures


def _print(forecasts: Sequence[Forecast], tried: Mapping[str, str], prices: PriceTable) -> None:
    if not forecasts:
        typer.echo("there are no topics")
        return
    console = make_console()
    if tried:
        console.print("with " + ", ".join(f"{name}={value}" for name, value in tried.items()))
    _print_partitions(console, forecasts)
    _draw_time(forecasts, console)
    print_remote(console, forecasts, prices)


def _print_partitions(console: Console, forecasts: Sequence[Forecast]) -> None:
    rows = [_figures(forecast) for forecast in forecasts]
    if console.width < WIDE:
        details = [
            [(_NEXT, _next_text(forecast)), *_remote_detail(forecast)] for forecast in forecasts
        ]
        print_rows_with_details(console, _FIGURES, rows, details, left=["partition"])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _FIGURES:
        is_number = column != "partition"
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    table.add_column(_NEXT, overflow="fold")
    has_remote = any(forecast.remote is not None for forecast in forecasts)
    if has_remote:
        table.add_column(_REMOTE, overflow="fold")
    for row, forecast in zip(rows, forecasts, strict=True):
        table.add_row(*row, _next_text(forecast), *([remote_text(forecast)] if has_remote else []))
    console.print(table)


def _remote_detail(forecast: Forecast) -> list[tuple[str, str]]:
    return [] if forecast.remote is None else [(_REMOTE, remote_text(forecast))]


def _figures(forecast: Forecast) -> list[str]:
    later = forecast.size - forecast.due_now_bytes - forecast.kept_bytes
    return [
        str(forecast.partition),
        f"{forecast.size:,}",
        f"{forecast.due_now_bytes:,}",
        f"{later:,}",
        f"{forecast.kept_bytes:,}",
        "-" if forecast.stale_bytes is None else f"{forecast.stale_bytes:,}",
    ]


def _next_text(forecast: Forecast) -> str:
    """The first segment that goes or, without one, what keeps the first that there is."""
    rows = [row for row in forecast.rows if row.segment.size]
    if not rows:
        return "empty"
    first = rows[0]
    if first.when_ms is None:
        return f"stays: {first.rule}"
    return f"{show_due(first.when_ms, forecast.now_ms)}: {first.rule}"


def _draw_time(forecasts: Sequence[Forecast], console: Console) -> None:
    """What is left on the local disk of all partitions, from now to when the last segment goes."""
    now_ms = forecasts[0].now_ms
    total = sum(forecast.size for forecast in forecasts)
    times = [
        row.when_ms for forecast in forecasts for row in forecast.rows if row.when_ms is not None
    ]
    end_ms = max(times, default=now_ms)
    if not total or not times:
        return
    moments = [now_ms]
    if end_ms > now_ms:
        moments += [now_ms + (end_ms - now_ms) * step // _STEPS for step in range(1, _STEPS + 1)]
    left = [sum(forecast.at(moment).left_bytes for forecast in forecasts) for moment in moments]
    rows = [
        (show_moment(moment, now_ms), f"{size:,}")
        for moment, size in zip(moments, left, strict=True)
    ]
    used = sum(
        max(map(len, cells)) + 2
        for cells in zip(("after retention at", "left"), *rows, strict=True)
    )
    width = max(1, min(_BAR_WIDTH, console.width - used))
    bars = [draw_bar(size, total, width) for size in left]
    console.print()
    if len(set(bars[:-1])) <= 1:
        then = "" if len(rows) == 1 else f", {rows[-1][1]} at {rows[-1][0]}"
        console.print(f"after retention {rows[0][1]} of {total:,} bytes are left now{then}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("after retention at", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row, bar in zip(rows, bars, strict=True):
        table.add_row(*row, Text(bar, style="blue"))
    console.print(table)
