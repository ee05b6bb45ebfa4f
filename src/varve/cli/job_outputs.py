"""`varve job snapshot`, `table` and `dedup`: a topic as Parquet, as Iceberg, without duplicates.

Crash      a snapshot is complete or absent, a table is as its last commit left it; the next run
           continues and deletes leftovers. A deduplication continues with the same checkpoint.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.dedup import rule_options
from varve.cli.output import Grouped, Output
from varve.cli.spark_options import JobOptions
from varve.foundation.units import format_bytes, format_count

if TYPE_CHECKING:
    from varve.dedup.rules import RuleOptions
    from varve.jobs.snapshot.snapshot import SnapshotResult
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.table.sync import TableResult
    from varve.jobs.tier.location import TopicLocation
    from varve.spark.deduplication.functions import DedupBatch, DedupResult

_PARTITIONS_SHOWN = 20


# snapshot


@command(
    "varve job snapshot orders -d data --to /backup/orders",
    "varve job snapshot orders -d data --to /backup/orders --at 2026-03-01",
    "varve job snapshot orders --store s3://bucket/varve --to s3://bucket/orders --keep 7",
)
@options.topic
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="Where the snapshots of the topic are: a directory, or the URL of an object store.",
)
@click.option(
    "--at",
    type=options.POSITIONS,
    help='The state before this offset or time, or by partition: {"0": 5}; default the end.',
)
@click.option("--full", is_flag=True, help="Read the whole topic, not only what is new.")
@options.number(
    "--buckets",
    min=1,
    help="Files per partition; fixed by the first snapshot, by size unless given.",
)
@options.number("--keep", min=1, help="Delete all but the newest N snapshots.")
@spark_options.place_settings
@spark_options.location
@spark_options.spark
@options.output
def job_snapshot(
    topic: str,
    location: "TopicLocation",
    job_options: JobOptions,
    output: Output,
    place_settings: dict[str, str],
    **choices: Any,
) -> None:
    """Take a snapshot: the latest record of each key as Parquet.

    A consumer loads the rows and continues at the resume offset of each partition, without
    replaying the log. Deleted keys and aborted transactions are left out. Later snapshots read what
    is new and rewrite the files whose keys changed. With --dir local segments are read too.
    `varve snapshot` lists, verifies and prunes the snapshots of a place.
    """
    import varve.spark as vs

    interrupted = "no snapshot was taken, and a later run deletes leftovers"
    with job_options.open_job("snapshot", output, when_interrupted=interrupted) as job:
        result = job.run(
            lambda: vs.snapshot(
                None,
                location,
                topic,
                settings=place_settings,
                runner=job.runner([topic]),
                **choices,
            )
        )
        report = job.report(result.rows, result.to_json())
    _print_snapshot(result, output)
    job_options.print_report(report, output)


def _print_snapshot(result: "SnapshotResult", output: Output) -> None:
    if output.is_json:
        output.print_object("snapshot", result.to_json())
        return
    output.print_table(
        "partition",
        ("partition", "read from", "resume", "rows"),
        [
            (
                f"{result.document.topic}-{state.partition}",
                Grouped(state.read_from),
                Grouped(state.resume_offset),
                Grouped(state.rows),
            )
            for state in result.partitions
        ],
        details=[[("note", state.note)] if state.note else [] for state in result.partitions],
    )
    output.print_fields("snapshot", dict(_snapshot_fields(result)))


def _snapshot_fields(result: "SnapshotResult") -> Iterator[tuple[str, str]]:
    document = result.document
    files = format_count(len(document.files), "file")
    state = f"{format_count(document.rows, 'row')}, {files}, {format_bytes(document.size)}"
    origin = "" if document.previous is None else f", continues from {document.previous}"
    if result.is_new:
        yield "snapshot", f"{document.snapshot} in {result.place}{origin}: {state}"
        written = format_count(result.files_written, "file")
        yield "written", f"{written}, {format_bytes(result.bytes_written)}"
    else:
        yield "snapshot", f"{document.snapshot} in {result.place} existed already: {state}"
    if result.removed:
        yield "removed", f"{len(result.removed):,} older snapshots and files"
    if result.swept:
        yield "deleted", f"{format_count(len(result.swept), 'leftover')} of killed runs"


# table


@command(
    "varve job table orders --to shop.orders --format json -d data",
    "varve job table state --to shop.state --mode upsert -d data",
    "varve job table orders --to shop.orders --store s3://bucket/varve --catalog http://host",
)
@options.topic
@click.option("--to", required=True, metavar="NS.NAME", help="The table.")
@click.option(
    "--mode",
    type=click.Choice(["append", "upsert"]),
    help="A row per record, or per key; default append, then as the table is.",
)
@click.option(
    "--format",
    type=click.Choice(["raw", "json", "avro"]),
    help="The format of values; default raw, then as the table is.",
)
@click.option(
    "--schema",
    metavar="FILE",
    help='Columns of JSON values, as {"id": "long required"}, or the .avsc of Avro values.',
)
@click.option("--registry", metavar="URL", help="The schema registry of Avro values.")
@click.option("--add-columns", is_flag=True, help="Add columns for new fields.")
@options.number(
    "--buckets", min=1, help="Parts of an upserted table by key; fixed when it is created."
)
@options.size("--commit-bytes", help="About how much of the log one commit takes; default 1GiB.")
@click.option("--keep-expired", is_flag=True, help="Keep rows of records that retention deleted.")
@spark_options.catalog
@spark_options.location
@spark_options.spark
@options.output
def job_table(
    topic: str,
    location: "TopicLocation",
    catalog: "CatalogAddress",
    job_options: JobOptions,
    output: Output,
    **choices: Any,
) -> None:
    """Write a topic to an Iceberg table, or bring its table up to date.

    The first run reads from the log start, later ones what is new: the commit that adds rows also
    records the offsets. Runs may be killed or repeated; no record is lost or written twice. Values
    that do not fit go to the table NAME__bad. JSON without --schema has columns for the fields of
    the first records and the column _rest. `varve table expire` deletes old snapshots.
    """
    import varve.spark as vs
    from varve.spark.functions import find_catalog

    address = find_catalog(location, catalog)
    interrupted = "the table is as its last commit left it, and the next run continues there"
    with job_options.open_job("table", output, when_interrupted=interrupted) as job:
        runner = job.runner([topic])
        result = job.run(
            lambda: vs.table(None, location, topic, catalog=address, runner=runner, **choices)
        )
        report = job.report(result.records, result.to_json())
    if output.is_json:
        output.print_object("table", result.to_json())
    else:
        output.print_fields("table", dict(_table_fields(result, address.place)))
    job_options.print_report(report, output)


def _table_fields(result: "TableResult", place: str) -> Iterator[tuple[str, str]]:
    yield "table", f"{result.table} in {place}: {result.mode} of {result.topic}, {result.format}"
    if result.inferred:
        yield "inferred", "; ".join(result.inferred)
    if result.added_columns:
        yield "added", "; ".join(result.added_columns)
    deletions = f", with {format_count(result.deleted, 'deletion')}" if result.deleted else ""
    size = f"{format_count(result.files, 'file')}, {format_bytes(result.bytes)}"
    commits = format_count(result.commits, "commit")
    yield "read", f"{format_count(result.records, 'record')}{deletions}; {commits}, {size}"
    if result.bad:
        bad = format_count(result.bad, "record")
        yield "bad", f"{bad} went to {result.table}__bad, with the reason"
    if result.expired_rows:
        yield "expired", f"{format_count(result.expired_rows, 'row')} of deleted records"
    if result.missed:
        missed = format_count(result.missed, "offset")
        yield "missed", f"{missed} left the log before the table had them"
    if result.is_rebuilt:
        yield "rebuilt", "from the log: deletions may be missing from it, or records were erased"
    if result.swept:
        yield "deleted", f"{format_count(result.swept, 'file')} of a killed run"
    yield "offsets", _format_offsets(result.offsets)


def _format_offsets(offsets: Mapping[int, int]) -> str:
    shown = [f"{partition}:{offset:,}" for partition, offset in sorted(offsets.items())]
    others = len(shown) - _PARTITIONS_SHOWN
    more = f" and {others} more partitions" if others > 0 else ""
    return " ".join(shown[:_PARTITIONS_SHOWN]) + more


# dedup


@command(
    "varve job dedup orders --to orders-once --by key --window 10m --checkpoint ck -d data",
    "varve job dedup orders --to table:a.b --by key --window 7d --checkpoint ck -d data",
)
@options.topic
@click.option(
    "--to",
    required=True,
    metavar="TOPIC|table:NS.NAME",
    help="A topic or an Iceberg table; created if missing.",
)
@rule_options
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    help="A directory for offsets and state, of this run alone.",
)
@options.duration("--interval", help="Do not stop at the end of the topic: a batch every DURATION.")
@options.size("--batch-bytes", help="About how much a batch reads.")
@options.number(
    "--state-partitions",
    min=1,
    help="Parts of the state; fixed by the first run, default one per core.",
)
@click.option(
    "--format",
    type=click.Choice(["raw", "json"]),
    default="raw",
    help="The format of values, for a table.",
)
@spark_options.catalog
@spark_options.location
@spark_options.spark
@options.output
def job_dedup(
    topic: str,
    location: "TopicLocation",
    rule_options: "RuleOptions",
    catalog: "CatalogAddress",
    job_options: JobOptions,
    output: Output,
    interval: int | None,
    **choices: Any,
) -> None:
    """Copy a topic without its duplicates, to another topic or to a table.

    A record is a duplicate if a record with the same id was kept within the window around its event
    time. The state is in the checkpoint: a killed run continues, every batch is written once, and
    another window needs a new checkpoint.
    """
    from varve.spark.deduplication.functions import plan_dedup

    plan = plan_dedup(
        location,
        topic,
        rules=rule_options,
        interval=interval,
        catalog=catalog,
        **choices,
    )
    interrupted = "written batches stay, and the next run with this checkpoint continues"
    with job_options.open_job("dedup", output, when_interrupted=interrupted) as job:
        is_shown = output.is_json or interval is not None
        on_batch = partial(_print_batch, output) if is_shown else None
        result = job.run(lambda: plan.run(job.spark, on_batch=on_batch))
        report = job.report(result.counts.total, result.to_json())
    if output.is_json:
        output.print_object("dedup", result.to_json())
    else:
        _print_counts(result, output)
    job_options.print_report(report, output)


def _print_batch(output: Output, batch: "DedupBatch") -> None:
    counts = batch.counts
    output.print_result(
        f"batch {batch.batch_id}: {counts.total:,} records, {counts.kept:,} kept, "
        f"{counts.duplicates:,} duplicates, {counts.late:,} late, {counts.future:,} future, "
        f"{counts.no_id:,} without id",
        "batch",
        **batch.to_json(),
    )


def _print_counts(result: "DedupResult", output: Output) -> None:
    counts = result.counts
    output.print_table(
        "dedup",
        ("output", "batches", "records", "kept", "duplicates", "late", "future", "no id"),
        [
            (
                result.output,
                Grouped(result.batch_count),
                Grouped(counts.total),
                Grouped(counts.kept),
                Grouped(counts.duplicates),
                Grouped(counts.late),
                Grouped(counts.future),
                Grouped(counts.no_id),
            )
        ],
    )
