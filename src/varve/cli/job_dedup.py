"""`varve job dedup`: a topic without its duplicates, as another topic or as a table.

Crash      a run may be killed at any time; the next one with the same checkpoint continues.
"""

from typing import TYPE_CHECKING, Any

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.dedup_rules import rule_options
from varve.cli.output import Grouped, Output
from varve.cli.spark_options import JobOptions

if TYPE_CHECKING:
    from varve.dedup.rules import RuleOptions
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.tier.location import TopicLocation
    from varve.spark.deduplication.settings import DedupBatch, DedupResult


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
    help="A topic or an Iceberg table; created if missing.",
)
@rule_options
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    help="A directory for offsets and state, of this run alone.",
)
@click.option(
    "--interval",
    type=options.DURATION,
    help="Do not stop at the end of the topic: a batch every DURATION.",
)
@click.option("--batch-bytes", type=options.SIZE, help="About how much a batch reads.")
@click.option(
    "--state-partitions",
    type=options.Number(min=1),
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
def dedup(
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
        on_batch = _BatchPrinter(output).print if is_shown else None
        result = job.run(lambda: plan.run(job.spark, on_batch=on_batch))
        report = job.report(result.counts.total, result.to_json())
    if output.is_json:
        output.print_object("dedup", result.to_json())
    else:
        _print_counts(result, output)
    job_options.print_report(report, output)


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
