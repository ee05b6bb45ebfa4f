"""`varve job erase`: the records of persons leave topics and all copies, with a receipt.

Crash      killed at any time, the same command with its --id completes it; there is no receipt
           before everything was read again.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.output import Grouped, Output, make_console, print_details
from varve.cli.spark_options import JobOptions
from varve.foundation.clock import SystemClock
from varve.foundation.units import format_bytes, format_moment

if TYPE_CHECKING:
    from varve.jobs.erase.result import ErasureResult, PartitionErasure
    from varve.jobs.tier.location import TopicLocation

_ACTION: Final = "erase the matching records"


@command(
    "varve job erase customers -d data --key 4711 --dry-run",
    "varve job erase customers orders -d data --keys-file keys.txt --deadline 30d --yes",
)
@options.topics
@click.option(
    "-k", "--key", "keys", multiple=True, metavar="KEY", help="A key: text, base64:... or hex:..."
)
@click.option("--keys-file", metavar="FILE", help="A file of keys, one per line.")
@click.option("--field", metavar="PATH", help="A field of JSON values and keys, as customer.email.")
@click.option("--value", "values", multiple=True, metavar="VALUE", help="A value of the field.")
@click.option("--values-file", metavar="FILE", help="A file of values, one per line.")
@click.option(
    "--format",
    type=click.Choice(["json", "debezium"]),
    default="json",
    help="The format of the values.",
)
@click.option("--sign-key", metavar="PEM", help="An Ed25519 key that signs the receipt.")
@click.option("--receipt", metavar="PATH", help="Write the receipt to PATH.json and PATH.html too.")
@click.option("--requested", metavar="TIME", help="When the erasure was requested; default now.")
@click.option(
    "--deadline", metavar="DURATION|TIME", help="A duration after --requested, or a time."
)
@options.duration(
    "--grace",
    default="0s",
    show_default=False,
    help="Keep replaced objects this long; then run again with --finish.",
)
@click.option("--id", metavar="ID", help="The erasure to continue; default a new one.")
@click.option("--finish", is_flag=True, help="Finish the erasure --id whose grace time is over.")
@click.option(
    "--rescan",
    type=click.Choice(["full", "keys"]),
    default="full",
    help="Read all data again, or verified key indexes.",
)
@click.option(
    "--digests/--no-digests",
    default=True,
    show_default=False,
    help="List salted digests of the keys in the receipt, or their number.",
)
@click.option(
    "--take-over", is_flag=True, help="Take the lease of a job that was killed elsewhere."
)
@spark_options.place_settings
@spark_options.catalog_settings
@spark_options.mirrored_location
@spark_options.spark
@options.dry_run
@options.yes
@options.output
def job_erase(
    topics: tuple[str, ...],
    location: "TopicLocation",
    job_options: JobOptions,
    output: Output,
    keys: tuple[str, ...],
    keys_file: str | None,
    field: str | None,
    values: tuple[str, ...],
    values_file: str | None,
    format: str,
    receipt: str | None,
    id: str | None,
    finish: bool,
    place_settings: dict[str, str],
    catalog_settings: dict[str, str],
    dry_run: bool,
    yes: bool,
    **choices: Any,
) -> None:
    """Erase records from topics and all their copies, and issue a receipt.

    Segments with a match are rewritten in log directories and object storage; offsets stay. Rows of
    snapshots and tables are erased too. Then everything is read again, and the receipt is written
    only if nothing is found. No key or value is in it. On a terminal the matches are shown first.
    """
    import varve.spark as vs
    from varve.jobs.erase import receipt as receipts
    from varve.jobs.erase.erasure import new_erasure_id
    from varve.jobs.erase.request import ValueFormat, collect_field, collect_keys

    if not (keys or keys_file or field or values or values_file):
        raise click.UsageError("give the keys to erase: --key, --keys-file, or --field and --value")
    if finish and id is None:
        raise click.UsageError("--finish needs --id, the erasure to finish")
    id_of_run = id or new_erasure_id()
    run = partial(
        vs.erase,
        None,
        location,
        topics,
        keys=collect_keys(keys, keys_file),
        field=collect_field(field, values, values_file, ValueFormat(format)),
        id=id_of_run,
        finish=finish,
        snapshot_settings=place_settings,
        table_settings=catalog_settings,
        **choices,
    )
    if receipt is not None and not dry_run:
        receipts.check_receipt_path(receipt)
    if not yes and not dry_run:
        output.check_terminal(_ACTION)
    interrupted = (
        "every partition is unchanged or erased, and no receipt was issued: run it again with "
        f"--id {id_of_run}"
    )
    with job_options.open_job("erase", output, when_interrupted=interrupted) as job:
        run = partial(run, runner=job.runner(topics))
        if not yes and not dry_run:
            print_erasure(job.run(partial(run, dry_run=True)), output)
            output.confirm(_ACTION, is_confirmed=False)
        result = job.run(partial(run, dry_run=dry_run))
        report = job.report(result.records, result.to_json())
    print_erasure(result, output)
    job_options.print_report(report, output)
    if receipt is not None and result.receipt is not None:
        receipts.write_receipt(receipt, result)  # last: the erasure is done even if it fails


# Output


def print_erasure(result: "ErasureResult", output: Output) -> None:
    """A line for each partition and tier, and the outcome below; or objects."""
    if output.is_json:
        document = result.to_json()
        document.pop("partitions")
        output.print_objects("partition", (part.to_json() for part in result.partitions))
        output.print_object("erasure", document)
        return
    columns = ("partition", "tier", "segments", "with a match", "records", "bytes", "read")
    output.print_table(
        "partition",
        columns,
        [_erasure_cells(part) for part in result.partitions],
        right=True,
        left=("partition", "tier"),
    )
    print_details(make_console(), list(_erasure_details(result)), indent=0)


def _erasure_cells(part: "PartitionErasure") -> tuple[object, ...]:
    return (
        f"{part.topic}-{part.partition}",
        part.tier,
        Grouped(part.segments),
        Grouped(part.segments_matched),
        Grouped(part.records),
        format_bytes(part.record_bytes),
        format_bytes(part.bytes_read),
    )


def _erasure_details(result: "ErasureResult") -> Iterator[tuple[str, str]]:
    yield "erasure", f"{result.id}{', a dry run: nothing was changed' * result.is_dry_run}"
    if result.has_no_match:
        yield "matched", "no record: check the topics, and the spelling of the keys or values"
    for derived in result.outputs:
        yield "output", derived
    if result.cost is not None:
        cost = result.cost
        yield (
            "estimate",
            f"about {cost.requests:,} requests and {format_bytes(cost.read_bytes)} to read, "
            f"{cost.currency} {cost.cost:,.2f} ({cost.prices})",
        )
    if result.finish_ms is not None:
        until = format_moment(result.finish_ms, SystemClock().now_ms())
        yield (
            "waits",
            f"replaced objects stay until {until}; then run it again with --id {result.id} "
            "--finish",
        )
    if result.receipt is not None:
        rescan, is_met = result.receipt["rescan"], result.receipt["deadline_met"]
        yield (
            "read again",
            f"{rescan['objects']:,} objects, {rescan['files']:,} files, {rescan['outputs']:,} "
            f"outputs, {format_bytes(rescan['bytes'])}: none found",
        )
        if is_met is not None:
            yield "deadline", "met" if is_met else "missed"
    for place in result.receipt_places:
        yield "receipt", place
    for text in result.out_of_reach:
        yield "out of reach", text
