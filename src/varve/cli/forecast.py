"""`varve forecast`: what retention will delete and when. Nothing is changed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Grouped, Output, draw_bar, make_console
from varve.cli.where import Where, find_topic
from varve.foundation.errors import Unavailable
from varve.foundation.units import format_bytes, format_count, format_due, format_moment

if TYPE_CHECKING:
    from varve.cleaning.retention.forecast import Forecast
    from varve.embedded import Store
    from varve.object_store import PriceTable

_STEPS: Final = 10
_BAR_WIDTH: Final = 40
_COLUMNS: Final = ("partition", "bytes", "due now", "later", "stays", "stale")
_REMOTE_COLUMNS: Final = ("in the remote tier at", "segments", "readable", "stored", "per month")


@command(
    examples=(
        "varve forecast visits -d data -s retention.ms=1d",
        "varve forecast -d data -s remote.storage.enable=true -s local.retention.ms=1h --json",
    )
)
@options.optional_topic_partition
@options.settings("Try a topic setting in place of the topics' own; nothing is changed.")
@options.directory
@options.output
def forecast(
    topic_partition: TopicPartitionName | None,
    where: Where,
    output: Output,
    settings: dict[str, str],
) -> None:
    """Show what retention will delete and when.

    It assumes that nothing more is appended. Whole segments expire, oldest first; for compaction it
    shows the bytes it would free now. For a topic with a remote tier the table shows the local
    disk, and below it when segments expire in the object store and what they cost until then at
    list prices, if copying keeps up. A partition whose object store does not respond is reported,
    and the exit status is 1.

    With --json a line per partition has `settings`, `size`, `due_now_bytes`, `kept_bytes` (never
    deleted), `stale_bytes`, `rows` (a segment each, with `when_ms`, null if it stays), `points`
    (totals at each deletion) and `remote`, the same for the remote tier. Missing key indexes are
    built.
    """
    topic, partition = topic_partition or (None, None)
    with where.open_store(maintain=False) as store:
        if topic is not None:
            find_topic(store, topic)
        forecasts, failures = _forecast(store, topic, partition, settings)
    if output.is_json:
        for forecast in forecasts:
            output.print_object("forecast", forecast.to_json())
    elif forecasts or not failures:
        _print(where, output, forecasts, settings)
    for name, failure in failures.items():
        output.print_partition_failure(name, failure)
    if failures:
        raise click.exceptions.Exit(1)


def _forecast(
    store: "Store", topic: str | None, partition: int | None, settings: Mapping[str, str]
) -> tuple[list["Forecast"], dict[str, str]]:
    """Forecasts, and the failures of partitions whose object store does not respond."""
    forecasts: list[Forecast] = []
    failures: dict[str, str] = {}
    for name in store.partitions(topic, partition):
        try:
            forecasts += store.forecast(name.topic, name.partition, settings=settings)
        except Unavailable as error:
            failures[str(name)] = str(error)
    return forecasts, failures


def _print(
    where: Where, output: Output, forecasts: "Sequence[Forecast]", settings: Mapping[str, str]
) -> None:
    from varve.object_store import default_prices

    if not forecasts:
        click.echo("there are no topics")
        return
    if settings:
        click.echo("with " + ", ".join(f"{name}={value}" for name, value in settings.items()))
    rows: list[list[object]] = []
    details = []
    for forecast in forecasts:
        due, kept = forecast.due_now_bytes, forecast.kept_bytes
        later = forecast.size - due - kept
        stale = None if forecast.stale_bytes is None else Grouped(forecast.stale_bytes)
        rows.append(
            [str(forecast.partition), *map(Grouped, (forecast.size, due, later, kept)), stale]
        )
        remote = [] if forecast.remote is None else [("remote tier", _describe_remote(forecast))]
        details.append([("next", _describe_next(forecast)), *remote])
    output.print_table("forecast", _COLUMNS, rows, details=details)
    _print_local_sizes(forecasts)
    location = where.tier_location()
    _print_remote_sizes(output, forecasts, default_prices(location.url if location else ""))


def _describe_next(forecast: "Forecast") -> str:
    """The first segment that expires or, without one, what keeps the first segment."""
    rows = [row for row in forecast.rows if row.segment.size]
    if not rows:
        return "empty"
    first = rows[0]
    if first.when_ms is None:
        return f"stays: {first.rule}"
    return f"{format_due(first.when_ms, forecast.now_ms)}: {first.rule}"


def _print_local_sizes(forecasts: "Sequence[Forecast]") -> None:
    """Bytes left on the local disk, from now to the last deletion, with bars."""
    now_ms = max(forecast.now_ms for forecast in forecasts)
    total = sum(forecast.size for forecast in forecasts)
    ends = [row.when_ms for forecast in forecasts for row in forecast.rows]
    end_ms = max((when_ms for when_ms in ends if when_ms is not None), default=None)
    if not total or end_ms is None:
        return
    times = _spread(now_ms, end_ms)
    sizes = [sum(forecast.at(time).left_bytes for forecast in forecasts) for time in times]
    rows = [
        (format_moment(time, now_ms), f"{size:,}") for time, size in zip(times, sizes, strict=True)
    ]
    headings = ("after retention at", "left")
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    bar_width = max(1, min(_BAR_WIDTH, make_console().width - sum(widths) - 4))
    bars = [draw_bar(size, total, bar_width) for size in sizes]
    click.echo()
    if len(set(bars[:-1])) <= 1:
        end = "" if len(rows) == 1 else f", {rows[-1][1]} at {rows[-1][0]}"
        click.echo(f"after retention {rows[0][1]} of {total:,} bytes are left now{end}")
        return
    click.secho(f"{headings[0]:{widths[0]}}  {headings[1]:>{widths[1]}}", bold=True)
    for (time_text, size_text), bar in zip(rows, bars, strict=True):
        click.echo(f"{time_text:{widths[0]}}  {size_text:>{widths[1]}}  {bar}")


def _spread(now_ms: int, end_ms: int) -> list[int]:
    """Times from now to the end, at equal distances."""
    if end_ms <= now_ms:
        return [now_ms]
    return [now_ms + (end_ms - now_ms) * step // _STEPS for step in range(_STEPS + 1)]


# Remote tier


def _describe_remote(forecast: "Forecast") -> str:
    """What the object store holds of a partition, and what expires first."""
    from varve.cleaning.retention.segments import SegmentLocation

    assert forecast.remote is not None
    held = [
        row
        for row in forecast.remote
        if row.segment.location in (SegmentLocation.REMOTE, SegmentLocation.BOTH)
    ]
    waiting = [row for row in forecast.remote if row.segment.location is SegmentLocation.LOCAL]
    deleting = [row for row in forecast.remote if not row.segment.location.is_readable]
    held_bytes = sum(row.segment.size for row in held)
    parts = [f"{format_count(len(held), 'segment')}, {held_bytes:,} bytes"]
    if waiting:
        waiting_bytes = sum(row.segment.size for row in waiting)
        parts.append(f"{len(waiting)} to be copied, {waiting_bytes:,} bytes")
    if deleting:
        last_ms = max(row.deleted_ms or forecast.now_ms for row in deleting)
        parts.append(f"{len(deleting)} deleted by {format_due(last_ms, forecast.now_ms)}")
    first = next(iter([*held, *waiting]), None)
    if first is not None and first.when_ms is None:
        parts.append(f"stays: {first.rule}")
    elif first is not None:
        parts.append(f"expires {format_due(first.when_ms, forecast.now_ms)}: {first.rule}")
    return "; ".join(parts)


def _print_remote_sizes(
    output: Output, forecasts: "Sequence[Forecast]", prices: "PriceTable"
) -> None:
    """What the object store holds of all partitions, from now to the last deletion."""
    tiered = [forecast for forecast in forecasts if forecast.remote is not None]
    if not tiered:
        return
    now_ms = max(forecast.now_ms for forecast in tiered)
    times = [time for forecast in tiered for time in forecast.remote_moments()]
    rows: list[list[object]] = []
    for time in _spread(now_ms, max(times, default=now_ms)):
        points = [forecast.remote_at(time) for forecast in tiered]
        stored = sum(point.stored_bytes for point in points)
        cells: list[object] = [
            sum(point.segments for point in points),
            format_bytes(sum(point.bytes for point in points)),
            format_bytes(stored),
            prices.format_monthly_cost(stored),
        ]
        if not rows or cells != rows[-1][1:]:
            rows.append([format_moment(time, now_ms), *cells])
    click.echo()
    output.print_table("remote_size", _REMOTE_COLUMNS, rows)
