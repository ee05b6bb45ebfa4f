"""`varve job dedup`: a topic without its duplicates, as another topic or as a table.

Crash      a run may be killed at any time; the next one with the same checkpoint continues.
"""

import os
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.dedup_rules import RuleOptions, rule_options
from varve.cli.job_printing import open_spark_job, print_report
from varve.cli.output import Grouped, Output
from varve.cli.spark_options import CatalogOptions, JobOptions, JobSource
from varve.foundation.errors import InvalidRequest

if TYPE_CHECKING:
    from varve.spark.dedup.job import DedupOutput
    from varve.spark.dedup.settings import DedupBatch, DedupResult

_TABLE: Final = "table:"


@command(
    examples=(
        "varve job dedup orders --to orders-once --by key --window 10m --checkpoint ck -d data",
        "varve job dedup orders --to table:a.b --by key --window 7d --checkpoint ck -d data",
    )
)
@options.topic
@click.option(
    "--to",
    required=True,
    metavar="TOPIC|table:NS.NAME",
    help="The topic or Iceberg table for the records; created if missing.",
)
@rule_options
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    help="The directory of offsets and state, one per deduplication.",
)
@click.option(
    "--interval",
    type=options.DURATION,
    metavar="DURATION",
    help="Continue, with a batch every DURATION; default stop at the end of the topic.",
)
@click.option(
    "--batch-bytes", type=options.SIZE, metavar="SIZE", help="About how much a batch reads."
)
@click.option(
    "--state-partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Parts of the state; fixed by the first run, default one per core.",
)
@click.option(
    "--format",
    type=click.Choice(["raw", "json"]),
    default="raw",
    show_default=True,
    help="The format of values, for a table.",
)
@spark_options.catalog
@spark_options.job_source
@spark_options.spark
@options.output
def dedup(
    topic: str,
    source: JobSource,
    rule_options: RuleOptions,
    catalog: CatalogOptions,
    job_options: JobOptions,
    output: Output,
    to: str,
    checkpoint: str,
    interval: int | None,
    batch_bytes: int | None,
    state_partitions: int | None,
    format: str,
) -> None:
    """Copy a topic without its duplicates, to another topic or to a table.

    A record is a duplicate if a record with the same id was kept within the window around its event
    time. The state is in the checkpoint: a killed run continues, every batch is written once, and
    another window needs a new checkpoint.
    """
    from varve.spark.dedup.settings import BATCH_BYTES, DedupSettings

    settings = DedupSettings.of_rules(
        rule_options.rules,
        side_topic=rule_options.side_topic,
        batch_bytes=batch_bytes or BATCH_BYTES,
        state_partitions=state_partitions,
    )
    bucket = source.find_bucket()
    target = _open_target(to, source.paths, catalog, format)
    interrupted = "written batches stay, and the next run with this checkpoint continues"
    with open_spark_job("dedup", job_options, output, when_interrupted=interrupted) as job:
        from varve.spark.dedup.job import DedupSource, dedup

        printer = _BatchPrinter(output)
        result = job.run(
            lambda: dedup(
                DedupSource(topic, bucket, source.paths),
                target,
                settings,
                spark=job.spark,
                checkpoint=_absolute(checkpoint),
                interval_ms=interval,
                on_batch=printer.print if output.is_json or interval is not None else None,
            )
        )
        report = job.report(result.counts.total, result.to_json())
    if output.is_json:
        output.print_object("dedup", result.to_json())
    else:
        _print_counts(result, output)
    print_report(report, job_options, output)


def _open_target(
    to: str, directories: tuple[str, ...], catalog: CatalogOptions, format: str
) -> "DedupOutput":
    from varve.spark.dedup.outputs import TableOutput, TopicOutput

    if not to.startswith(_TABLE):
        if not directories:
            raise InvalidRequest("--dir is missing: the log directory of the output topic")
        return TopicOutput(directories=directories, topic=to)
    from varve.jobs.table.definition import TableSettings, ValueFormat

    return TableOutput(
        catalog=catalog.address(directories),
        name=to.removeprefix(_TABLE),
        settings=TableSettings(format=ValueFormat(format)),
    )


class _BatchPrinter:
    """Prints each batch as an object or a line."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def print(self, batch: "DedupBatch") -> None:
        counts = batch.counts
        self._output.print_result(
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


def _absolute(path: str) -> str:
    """A path without a scheme is on this machine, wherever Spark runs."""
    return path if "://" in path else os.path.abspath(path)
