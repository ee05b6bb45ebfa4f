"""`varve job query`: a topic as rows, filtered and joined by Spark's SQL."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.job_options import (
    Conf,
    LogDirectory,
    Master,
    ReportPath,
    find_address,
    spark_options,
)
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import parse_setting, parse_wanted
from varve.cli.tier_access import Cluster, StoreSettings, TierUrl
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.jobs.source.options import SourceOptions
    from varve.spark.rows import RowTable

TABLE_ROWS: Final = 40
"""Rows of a table without --limit."""


class RowFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def command(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="The topic, or one of its partitions."),
    ],
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    directory: LogDirectory = None,
    cluster: Cluster = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET", help="Begin at this offset of each partition."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="OFFSET", help="End before this offset of each partition."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Begin at this time; UTC if it says nothing."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End before this time.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Only records of this key.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Only rows for which this is true."),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option("--select", metavar="SQL", help="These columns, in place of all."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="SQL",
            help="A whole statement over the table `records`, in place of --select and --where.",
        ),
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Only the last record of each key, without deleted.")
    ] = False,
    only_estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Read nothing: tell what requests and bytes it would take, and their cost.",
        ),
    ] = False,
    read_options: Annotated[
        list[str],
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="Any option of the data source, such as columns=producerId; repeatable.",
        ),
    ] = [],  # noqa: B006
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="COUNT",
            min=1,
            help=f"At most so many rows; for a table {TABLE_ROWS}, else all.",
        ),
    ] = None,
    format: Annotated[
        RowFormat | None, typer.Option("--format", help="How rows are given out; first a table.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A directory that executors write JSON, CSV or Parquet files to.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per row, as --format json.")
    ] = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """Show a topic as rows: the records in the cold tier, filtered and joined by SQL.

    Executors read object storage straight, and only what the filters on partition, offset,
    timestamp and key leave. With --dir they read the files of that log directory too, beside a
    store that has it open; without, what was not copied yet is not seen.

    Columns: topic, partition, offset, timestamp, timestampType, key, value, headers. Key and value
    are bytes; `CAST(value AS STRING)` makes text of them, and
    `get_json_object(CAST(value AS STRING), '$.field')` looks inside. They are shown as UTF-8, else
    as base64 behind `base64:`; Parquet keeps the bytes. In --sql write the column offset as
    `records.offset`: OFFSET is a word of SQL as well.

    \b
    Examples:
      varve job query orders --dir data --since 2026-03-01 --where "key = 'customer-17'"
      varve job query orders:0 --store s3://bucket/varve --from 1000 --to 2000 --json
      varve job query orders --dir data --latest --format parquet --output /tmp/orders
      varve job query orders --dir data --sql "SELECT partition, count(*) FROM records GROUP BY 1"
    """
    name, partition = parse_wanted(topic)
    chosen = _choose_format(format, as_json=as_json, output=output)
    if sql is not None and (where is not None or select is not None):
        raise typer.BadParameter("--sql is a whole statement: leave --where and --select out")
    options = {
        "topic": name,
        **_place(store_url, store_settings, directory, cluster),
        "startingOffset": start,
        "endingOffset": end,
        "startingTimestamp": since,
        "endingTimestamp": until,
        "mode": "latest" if latest else None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    given |= dict(parse_setting(text) for text in read_options)
    source = parse_source(given)
    if only_estimate:
        print_estimate(source, partition, key, as_json=as_json)
        return
    from varve.foundation.clock import SystemClock
    from varve.jobs.derived_outputs import register_files
    from varve.spark import rows

    query = partial(
        rows.query_topic,
        options=given,
        partition=partition,
        key=None if key is None else key.encode(),
        where=where,
        select=select or "*",
        sql=sql,
    )
    with open_job("query", spark_options(master, conf)) as job:
        if chosen is RowFormat.TABLE:
            table = job.run(lambda: rows.collect_table(query(job.spark), limit or TABLE_ROWS))
            print_table(table)
            done = job.report(len(table.rows))
        else:

            def give_out() -> int:
                frame = query(job.spark) if limit is None else query(job.spark).limit(limit)
                if output is not None:
                    return rows.write_files(frame, chosen.value, output)
                lines = rows.csv_lines if chosen is RowFormat.CSV else rows.json_lines
                count = _print_lines(lines(frame))
                return count - 1 if chosen is RowFormat.CSV else count

            # A bar and rows on one terminal would overwrite each other.
            is_shown = output is not None or not sys.stdout.isatty()
            if output is not None:
                register_files(source, output, format=chosen.value, clock=SystemClock())
            done = job.report(job.run(give_out, is_shown=is_shown))
    if report is not None:
        write_report(done, report)
    tell_report(done)


def _choose_format(format: RowFormat | None, *, as_json: bool, output: str | None) -> RowFormat:
    if as_json and format not in (None, RowFormat.JSON):
        raise typer.BadParameter(f"--json and --format {format} are two formats: give one")
    chosen = RowFormat.JSON if as_json else format or RowFormat.TABLE
    if chosen is RowFormat.PARQUET and output is None:
        raise typer.BadParameter("--format parquet needs --output, the directory to write")
    if chosen is RowFormat.TABLE and output is not None:
        raise typer.BadParameter("--output needs --format json, csv or parquet")
    return chosen


def _place(
    url: str, settings: list[str], directory: str | None, cluster: str | None
) -> dict[str, str | None]:
    """Where the source finds the topic: a cold tier, a log directory, or both."""
    place: dict[str, str | None] = {}
    if directory is not None:
        place["directory"] = os.path.abspath(directory)
    if directory is not None and not url and not _is_tiered(directory):
        return place
    address = find_address(url, settings, directory, cluster)
    place |= {"url": address.url, "cluster": address.cluster}
    return place | {f"store.{name}": str(value) for name, value in address.settings}


def _is_tiered(directory: str) -> bool:
    from varve.disk import RealFileSystem
    from varve.embedded.tier_location import read_location

    return read_location(RealFileSystem(), directory) is not None


def parse_source(given: dict[str, str]) -> "SourceOptions":
    """What the source is asked, refused before Spark is started where it is wrong."""
    from varve.jobs.source.options import parse_options

    return parse_options(given)


def print_estimate(
    source: "SourceOptions", partition: int | None, key: str | None, *, as_json: bool
) -> None:
    """What the read would take at most; SQL is not looked at."""
    from varve.cli.screen import make_console, print_details
    from varve.jobs.source.options import SourceFilters
    from varve.jobs.source.plan import estimate

    read_estimate = estimate(
        source,
        SourceFilters(
            partitions=None if partition is None else frozenset([partition]),
            keys=None if key is None else frozenset([key.encode()]),
        ),
    )
    if as_json:
        typer.echo(json.dumps(asdict(read_estimate)))
        return
    cost = f"{read_estimate.currency} {read_estimate.cost:.4f}".strip()
    details = [
        ("partitions", f"{read_estimate.partitions:,}"),
        ("segments", f"{read_estimate.segments:,}, {read_estimate.records:,} records"),
        ("tasks", f"{read_estimate.tasks:,}"),
        ("requests", f"{read_estimate.requests:,}"),
        ("from the object store", format_bytes(read_estimate.cold_bytes)),
        ("from local files", format_bytes(read_estimate.hot_bytes)),
        ("cost", f"{cost} (prices: {read_estimate.prices})"),
    ]
    print_details(make_console(), details, indent=0)


def print_table(table: "RowTable") -> None:
    """The rows below their names, and whether there are more."""
    from rich.table import Table
    from rich.text import Text

    from varve.cli.screen import make_console

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in table.columns:
        is_number = kind not in ("string", "timestamp")
        grid.add_column(
            Text(name),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number or name in ("topic", "timestamp"),
        )
    for row in table.rows:
        grid.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    console = make_console()
    console.print(grid)
    if table.has_more:
        console.print(f"... and more rows than the {len(table.rows)} that --limit allows")


def _print_lines(lines: Iterable[str]) -> int:
    """Prints lines as they come; returns how many there were."""
    count = 0
    for line in lines:
        sys.stdout.write(f"{line}\n")
        count += 1
    sys.stdout.flush()
    return count
