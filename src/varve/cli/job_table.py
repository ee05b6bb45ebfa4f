"""`varve job table`: a topic as an Iceberg table, kept up to it by each run.

Crash      the table is as it was or has a batch more; the next run goes on and sweeps what is left.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.job_options import (
    Conf,
    Master,
    ReadDirectories,
    ReportPath,
    find_tier,
    full_paths,
    spark_options,
)
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import AsJson, parse_setting
from varve.cli.tier_access import Cluster, StoreSettings, TierUrl
from varve.foundation.errors import NotFound
from varve.foundation.units import format_bytes, format_count

if TYPE_CHECKING:
    from varve.cli.job_options import SparkOptions
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.table.definition import TableSettings
    from varve.jobs.table.rewrite import ExpiryResult
    from varve.jobs.table.sync import TableResult
    from varve.jobs.tier.bucket import Bucket
    from varve.spark.stages import JobReport

_TABLES: Final = ".tables"
"""Behind the name of a log directory: where its tables are if nothing is said."""
_WHEN_INTERRUPTED: Final = (
    "stopped; the table is as its last commit left it, and the next run goes on from there"
)


class Mode(StrEnum):
    """What becomes a row."""

    APPEND = "append"
    UPSERT = "upsert"


class Format(StrEnum):
    """What values are."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


def command(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="The topic; left out, nothing is read and --expire-snapshots is all that is done.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="NAMESPACE.NAME", help="The table.")] = "",
    warehouse: Annotated[
        str | None,
        typer.Option(
            "--warehouse",
            metavar="URL",
            help="Where tables lie: a directory, or s3://bucket/prefix; with --dir at first "
            "DIRECTORY.tables, of several the first.",
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="URI",
            help="The catalog: http://host/... for REST, sqlite:////path or postgresql://..., or a "
            "name that pyiceberg is configured with; left out, SQLite in the warehouse.",
        ),
    ] = None,
    catalog_settings: Annotated[
        list[str],
        typer.Option(
            "--catalog-setting",
            metavar="NAME=VALUE",
            help="A setting of the catalog or its files, such as token=... or s3.endpoint=...; "
            "repeatable. VARVE_CATALOG_SETTINGS has several separated by spaces.",
            envvar="VARVE_CATALOG_SETTINGS",
        ),
    ] = [],  # noqa: B006 - typer copies it, and shows no default
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode",
            help="append: every record is a row; upsert: the latest one of each key. At first "
            "append, then what the table is.",
        ),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option("--format", help="What values are; at first raw, then what the table says."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help='Columns of JSON values, as {"id": "long required", "name": "string"}, or the '
            ".avsc of Avro values.",
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            help="The schema registry of Avro values that name their schema, as Confluent's.",
        ),
    ] = None,
    add_columns: Annotated[
        bool,
        typer.Option("--add-columns", help="Add columns for fields that the table does not have."),
    ] = False,
    buckets: Annotated[
        int | None,
        typer.Option(
            "--buckets",
            metavar="COUNT",
            min=1,
            help="Into how many parts an upserted table is cut by key; decided when it is made.",
        ),
    ] = None,
    commit_bytes: Annotated[
        int | None,
        typer.Option(
            "--commit-bytes",
            metavar="BYTES",
            min=1,
            help="About how much of the log one commit takes; at first 1 GiB.",
        ),
    ] = None,
    keep_expired: Annotated[
        bool,
        typer.Option(
            "--keep-expired", help="Keep rows whose records have left the log by retention."
        ),
    ] = False,
    expire_days: Annotated[
        float | None,
        typer.Option(
            "--expire-snapshots",
            metavar="DAYS",
            min=0,
            help="At the end let older snapshots of the table go, and their files.",
        ),
    ] = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006
    directories: ReadDirectories = [],  # noqa: B006
    cluster: Cluster = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """Make a topic an Iceberg table, or bring its table up to it.

    The first run reads from the log start, later ones what is new. How far it is stands in the
    table itself, in the commit that brings the rows: runs may be killed or repeated, no record is
    lost or there twice. Each row has _partition, _offset, _timestamp and _key.

    Values that do not fit go to the table NAME__bad with the reason. JSON without --schema has
    columns for the fields of the first records; other fields are kept as text in the column _rest.
    Rows whose records have left the log by retention leave the table too.

    With --json every line has `type`: table, expiry or report.

    \b
    Examples:
      varve job table orders --to shop.orders --format json --dir data
      varve job table state --to shop.state --mode upsert --dir data --expire-snapshots 7
      varve job table orders --to shop.orders --store s3://bucket/varve --catalog http://host:8181
      varve job table --to shop.orders --warehouse data.tables --expire-snapshots 7
    """
    if not to:
        raise typer.BadParameter("--to is missing: the table, as NAMESPACE.NAME")
    paths = full_paths(directories)
    place = _find_catalog(to, warehouse, catalog, catalog_settings, paths)
    if topic is None:
        if expire_days is None:
            raise typer.BadParameter("name the topic, or give --expire-snapshots")
        _tell_expiry(_expire(place, to, expire_days), as_json=as_json)
        return
    settings = _make_settings(
        mode=mode,
        format=format,
        schema=schema,
        registry=registry,
        buckets=buckets,
        commit_bytes=commit_bytes,
        add_columns=add_columns,
        keep_expired=keep_expired,
    )
    source = find_tier(store_url, store_settings, paths, cluster)
    result, done = _sync(topic, to, place, source, paths, settings, spark_options(master, conf))
    if report is not None:
        write_report(done, report)
    if as_json:
        typer.echo(json.dumps({"type": "table", **result.to_json()}))
    else:
        print_result(result, place.place)
    if expire_days is not None:
        _tell_expiry(_expire(place, to, expire_days), as_json=as_json)
    if as_json:
        typer.echo(json.dumps({"type": "report", **done.to_document()}))
    else:
        tell_report(done)


def _find_catalog(
    name: str,
    warehouse: str | None,
    catalog: str | None,
    settings: list[str],
    directories: Sequence[str],
) -> "CatalogAddress":
    """Where the table is; what is wrong with it is told before Spark starts."""
    from varve.jobs.table.catalog import CatalogAddress, split_name

    split_name(name)
    given = tuple(parse_setting(text) for text in settings)
    if warehouse is None and catalog is None and directories:
        warehouse = _find_warehouse(directories)
    address = CatalogAddress(warehouse, catalog, given)
    address.check()
    return address


def _find_warehouse(directories: Sequence[str]) -> str:
    """Beside the directory that has one already, or else the first: their order may change."""
    beside = [f"{directory}{_TABLES}" for directory in directories]
    return next((one for one in beside if os.path.isdir(one)), beside[0])


def _make_settings(
    *,
    mode: Mode | None,
    format: Format | None,
    schema: str | None,
    registry: str | None,
    buckets: int | None,
    commit_bytes: int | None,
    add_columns: bool,
    keep_expired: bool,
) -> "TableSettings":
    from varve.jobs.table.definition import COMMIT_BYTES, TableMode, TableSettings, ValueFormat

    return TableSettings(
        mode=None if mode is None else TableMode(mode),
        format=None if format is None else ValueFormat(format),
        schema=None if schema is None else _read_text(schema),
        schema_name=schema or registry or "the schema",
        registry=registry,
        buckets=buckets,
        commit_bytes=commit_bytes or COMMIT_BYTES,
        is_adding_columns=add_columns,
        is_keeping_expired=keep_expired,
    )


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"the schema {path} cannot be read: {error}") from error


def _sync(
    topic: str,
    name: str,
    place: "CatalogAddress",
    source: "Bucket | None",
    directories: Sequence[str],
    settings: "TableSettings",
    spark: "SparkOptions",
) -> "tuple[TableResult, JobReport]":
    from varve.jobs.table.sync import sync_table
    from varve.spark.runner import SparkRunner

    with open_job("table", spark, when_interrupted=_WHEN_INTERRUPTED) as job:
        runner = SparkRunner(job.spark, "table", [topic])
        result = job.run(
            lambda: sync_table(
                topic,
                name,
                catalog=place,
                address=source,
                directories=directories,
                settings=settings,
                runner=runner,
            )
        )
        return result, job.report(result.records, result.to_json())


def _expire(place: "CatalogAddress", name: str, days: float) -> "list[ExpiryResult]":
    from varve.foundation.clock import SystemClock
    from varve.jobs.table.rewrite import DAY_MS, expire_snapshots

    moment_ms = SystemClock().now_ms() - round(days * DAY_MS)
    return expire_snapshots(place, name, older_than_ms=moment_ms)


def _tell_expiry(results: "list[ExpiryResult]", *, as_json: bool) -> None:
    for result in results:
        if as_json:
            typer.echo(json.dumps({"type": "expiry", **result.to_json()}))
        else:
            typer.echo(
                f"{result.table}: {result.snapshots:,} snapshots expired, {result.kept:,} are "
                "left, "
                f"{len(result.removed):,} files removed"
            )


def print_result(result: "TableResult", place: str) -> None:
    """What the run did, and what the table is."""
    from varve.cli.screen import make_console, print_details

    print_details(make_console(), list(_details(result, place)), indent=0)


def _details(result: "TableResult", place: str) -> Iterator[tuple[str, Any]]:
    yield "table", f"{result.table} in {place}: {result.mode} of {result.topic}, {result.format}"
    if result.inferred:
        yield "inferred", "; ".join(result.inferred)
    if result.added_columns:
        yield "added", "; ".join(result.added_columns)
    deleted = f", {format_count(result.deleted, 'deletion')} among them" if result.deleted else ""
    size = f"{format_count(result.files, 'file')}, {format_bytes(result.bytes)}"
    commits = format_count(result.commits, "commit")
    yield "read", f"{format_count(result.records, 'record')}{deleted}; {commits}, {size}"
    if result.bad:
        bad = format_count(result.bad, "record")
        yield "bad", f"{bad} went to {result.table}__bad, with the reason"
    if result.expired_rows:
        yield (
            "expired",
            f"{format_count(result.expired_rows, 'row')} of records that have left the log",
        )
    if result.missed:
        missed = format_count(result.missed, "offset")
        yield "missed", f"{missed} left the log before the table had them"
    if result.is_rebuilt:
        yield "rebuilt", "from the log: deletions may have left it unseen, or records were erased"
    if result.swept:
        yield "swept", f"{format_count(result.swept, 'file')} of a run that was killed"
    yield "offsets", _show_offsets(result.offsets)


def _show_offsets(offsets: Mapping[int, int]) -> str:
    shown = [f"{number}:{offset:,}" for number, offset in sorted(offsets.items())]
    more = "" if len(shown) <= 20 else f" and {len(shown) - 20} more partitions"
    return " ".join(shown[:20]) + more
