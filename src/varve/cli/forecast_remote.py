"""What `varve forecast` tells of the cold tier: when segments expire there, and what they cost."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from varve.cleaning.retention.forecast import Forecast
from varve.cleaning.retention.segments import SegmentLocation
from varve.cli.moments import show_due, show_moment
from varve.cli.tier_access import show_cost
from varve.disk import RealFileSystem
from varve.embedded.tier_location import read_location
from varve.foundation.units import format_bytes
from varve.object_store import PriceTable, default_prices

_STEPS: Final = 10


def find_prices(directory: Path) -> PriceTable:
    """The declared prices of the store that a log directory uses."""
    place = read_location(RealFileSystem(), os.fspath(directory))
    return default_prices("" if place is None else place.url)


def remote_text(forecast: Forecast) -> str:
    """What the cold tier has of a partition, and what of it expires first."""
    if forecast.remote is None:
        return "-"
    held = [
        row
        for row in forecast.remote
        if row.segment.location in (SegmentLocation.REMOTE, SegmentLocation.BOTH)
    ]
    waiting = [row for row in forecast.remote if row.segment.location is SegmentLocation.LOCAL]
    leaving = [row for row in forecast.remote if not row.segment.location.is_readable]
    parts = [f"{len(held)} segments, {sum(row.segment.size for row in held):,} bytes"]
    if waiting:
        parts.append(
            f"{len(waiting)} to be copied, {sum(row.segment.size for row in waiting):,} bytes"
        )
    if leaving:
        last_ms = max(row.deleted_ms or forecast.now_ms for row in leaving)
        parts.append(f"{len(leaving)} leave it by {show_due(last_ms, forecast.now_ms)}")
    first = next(iter([*held, *waiting]), None)
    if first is not None and first.when_ms is None:
        parts.append(f"stays: {first.rule}")
    elif first is not None:
        parts.append(f"expires {show_due(first.when_ms, forecast.now_ms)}: {first.rule}")
    return "; ".join(parts)


def print_remote(console: Console, forecasts: Sequence[Forecast], prices: PriceTable) -> None:
    """What is in the cold tier of all partitions together, from now until nothing more goes."""
    tiered = [forecast for forecast in forecasts if forecast.remote is not None]
    if not tiered:
        return
    now_ms = max(forecast.now_ms for forecast in tiered)
    end_ms = max(
        (moment for forecast in tiered for moment in forecast.remote_moments()), default=now_ms
    )
    moments = [now_ms + (end_ms - now_ms) * step // _STEPS for step in range(_STEPS + 1)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("in the cold tier at", no_wrap=True)
    for column in ("segments", "to read", "stored", "per month"):
        table.add_column(column, justify="right", no_wrap=True)
    shown: list[str] = []
    for moment in moments:
        points = [forecast.remote_at(moment) for forecast in tiered]
        stored = sum(point.stored_bytes for point in points)
        cells = [
            f"{sum(point.segments for point in points):,}",
            format_bytes(sum(point.bytes for point in points)),
            format_bytes(stored),
            show_cost(stored, prices),
        ]
        if cells != shown:
            table.add_row(show_moment(moment, now_ms), *cells)
            shown = cells
    console.print()
    console.print(table)
