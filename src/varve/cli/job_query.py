"""`varve job query`: a topic as rows, filtered and joined by Spark's SQL."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Output, make_console
from varve.cli.spark_options import JobOptions
from varve.foundation.position import ReadPosition
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.jobs.tier.location import TopicLocation
    from varve.spark.console import SparkJob
    from varve.spark.rows import RowTable
    from varve.spark.topic_query import TopicQuery

TABLE_ROWS: Final = 40
"""Rows of a table without --limit."""

_Position = ReadPosition | Mapping[int, int] | None


@command(
    "varve job query orders -d data --from 2026-03-01 --where \"key = 'customer-17'\"",
    "varve job query orders:0 --store s3://bucket/varve --from 1000 --to 2000 --json",
    "varve job query orders -d data --latest --format parquet -o /tmp/orders",
    'varve job query orders -d data --sql "SELECT partition, count(*) FROM records GROUP BY 1"',
)
@options.topic_partition
@click.option("--from", "start", type=options.POSITIONS, help="Start at this position.")
@click.option("--to", "end", type=options.POSITIONS, help="Stop before this position.")
@click.option("-k", "--key", metavar="KEY", help="Only records of this key.")
@click.option("--where", "condition", metavar="SQL", help="Only rows for which this is true.")
@click.option("--select", metavar="SQL", help="These columns instead of all.")
@click.option("--sql", metavar="SQL", help="A statement over `records`, not --select and --where.")
@click.option("--latest", is_flag=True, help="Only the latest record of each key, no tombstones.")
@click.option(
    "--estimate", is_flag=True, help="Read nothing: show requests, bytes and cost of the read."
)
@click.option(
    "--option",
    "read_options",
    **options.PAIRS,
    help="An option of the data source, such as columns=producerId.",
)
@options.number(
    "-n", "--limit", min=1, help=f"At most N rows; default {TABLE_ROWS} for a table, else all."
)
@click.option(
    "--format",
    type=click.Choice(["table", "json", "csv", "parquet"]),
    help="The form of the rows; default table.",
)
@click.option(
    "-o",
    "--output",
    "path",
    metavar="PATH",
    help="A new directory for JSON, CSV or Parquet files of the executors.",
)
@spark_options.location
@spark_options.spark
@options.output
def job_query(
    topic_partition: TopicPartitionName,
    location: "TopicLocation",
    job_options: JobOptions,
    output: Output,
    start: _Position,
    end: _Position,
    key: str | None,
    condition: str | None,
    select: str | None,
    sql: str | None,
    latest: bool,
    estimate: bool,
    read_options: dict[str, str],
    limit: int | None,
    format: str | None,
    path: str | None,
) -> None:
    """Show a topic as rows: its records, filtered and joined by SQL.

    Executors read only what filters on partition, offset, timestamp and key leave. With --dir they
    also read local segments, even while a server has the directory open; without, segments that
    were not copied are missing. POS: beginning, an offset, a time, -10m, or {"0": 5} by partition.

    Columns: topic, partition, offset, timestamp, timestampType, key, value, headers. Key and value
    are bytes: write CAST(value AS STRING). In --sql write records.offset for the column offset.
    """
    form = _choose_format(format, is_json=output.is_json, path=path)
    if sql is not None and (condition is not None or select is not None):
        raise click.UsageError("--sql is a whole statement: leave --where and --select out")
    topic, partition = topic_partition
    from varve.spark.topic_query import plan_query

    planned = plan_query(
        location,
        topic,
        start=start,
        end=end,
        latest=latest,
        partition=partition,
        key=key,
        options=read_options,
    )
    if estimate:
        _print_estimate(planned, output)
        return
    planned.check()
    selected = _Rows(planned, condition, select or "*", sql)
    with job_options.open_job("query", output) as job:
        if path is not None:
            rows = _write_files(job, selected, form, path, limit)
        elif form == "table":
            rows = _print_rows(job, selected, limit or TABLE_ROWS)
        else:
            rows = _print_lines(job, selected, form, limit, is_typed=output.is_json)
        report = job.report(rows)
    job_options.print_report(report, output)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a topic, and what SQL makes of them."""

    query: "TopicQuery"
    where: str | None
    select: str
    sql: str | None

    def open(self, job: "SparkJob", limit: int | None) -> Any:
        from varve.spark.rows import select_rows

        # A statement may use the view several times: Spark would mix up the filters of the uses.
        frame = self.query.open(job.spark, pushes=self.sql is None)
        frame = select_rows(frame, where=self.where, select=self.select, sql=self.sql)
        return frame if limit is None else frame.limit(limit)


def _choose_format(format: str | None, *, is_json: bool, path: str | None) -> str:
    if is_json and format not in (None, "json"):
        raise click.UsageError(f"--json and --format {format} are two formats: give one")
    form = "json" if is_json else format or "table"
    if form == "parquet" and path is None:
        raise click.UsageError("--format parquet needs --output, the directory to write")
    if form == "table" and path is not None:
        raise click.UsageError("--output needs --format json, csv or parquet")
    return form


def _print_estimate(query: "TopicQuery", output: Output) -> None:
    """What the read would take at most; SQL is not considered."""
    total = query.estimate()
    if output.is_json:
        output.print_object("estimate", asdict(total))
        return
    cost = f"{total.currency} {total.cost:.4f}".strip()
    output.print_fields(
        "estimate",
        {
            "partitions": f"{total.partitions:,}",
            "segments": f"{total.segments:,}, {total.records:,} records",
            "tasks": f"{total.tasks:,}",
            "requests": f"{total.requests:,}",
            "from the object store": format_bytes(total.cold_bytes),
            "from local files": format_bytes(total.hot_bytes),
            "cost": f"{cost} (prices: {total.prices})",
        },
    )


def _write_files(job: "SparkJob", rows: _Rows, form: str, path: str, limit: int | None) -> int:
    """Registers the files, for erasures, before executors write them."""
    from varve.foundation.clock import SystemClock
    from varve.jobs.derived_outputs import register_files
    from varve.spark.rows import write_files

    register_files(rows.query.source, path, format=form, clock=SystemClock())
    return job.run(lambda: write_files(rows.open(job, limit), form, path))


def _print_rows(job: "SparkJob", rows: _Rows, limit: int) -> int:
    from varve.spark.rows import collect_table

    table = job.run(lambda: collect_table(rows.open(job, None), limit))
    print_row_table(table)
    return len(table.rows)


def _print_lines(
    job: "SparkJob", rows: _Rows, form: str, limit: int | None, *, is_typed: bool
) -> int:
    from varve.spark.rows import csv_lines, json_lines

    lines = csv_lines if form == "csv" else json_lines
    # A bar and rows on one terminal would overwrite each other.
    count = job.run(
        lambda: _echo_lines(lines(rows.open(job, limit)), is_typed),
        is_shown=not sys.stdout.isatty(),
    )
    return count - 1 if form == "csv" else count


def _echo_lines(lines: Iterable[str], is_typed: bool) -> int:
    """Prints lines as they arrive, objects with their type; returns their number."""
    count = 0
    for line in lines:
        text = f'{{"type":"row",{line[1:]}' if is_typed and line != "{}" else line
        sys.stdout.write(f"{text}\n")
        count += 1
    sys.stdout.flush()
    return count


def print_row_table(table: "RowTable") -> None:
    """The rows below their column names, and whether there are more."""
    from rich.table import Table
    from rich.text import Text

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
