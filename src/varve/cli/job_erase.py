"""`varve job erase`: the records of persons leave topics and all copies, with a receipt.

Crash      killed at any time, the same command with its --id completes it; there is no receipt
           before everything was read again.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.job_printing import open_spark_job, print_objects, print_report
from varve.cli.output import Grouped, Output, make_console, print_details
from varve.cli.spark_options import JobOptions, JobSource
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import format_bytes, format_moment, parse_duration, parse_time

if TYPE_CHECKING:
    from varve.jobs.erase.request import ErasureRequest
    from varve.jobs.erase.result import ErasureResult, PartitionErasure
    from varve.jobs.tasks import TaskRunner
    from varve.spark.console import SparkJob

_ACTION: Final = "erase the matching records"


@command(
    examples=(
        "varve job erase customers -d data --key 4711 --dry-run",
        "varve job erase customers orders -d data --keys-file keys.txt --deadline 30d --yes",
        "varve job erase cdc --store s3://bucket/varve --field email --value ann@example.org",
    )
)
@options.topics
@click.option(
    "-k", "--key", "keys", multiple=True, metavar="KEY", help="A key: text, base64:... or hex:..."
)
@click.option("--keys-file", metavar="FILE", help="A file of keys, one per line.")
@click.option(
    "--field",
    metavar="PATH",
    help="A field of JSON values and keys, as customer.email.",
)
@click.option("--value", "values", multiple=True, metavar="VALUE", help="A value of the field.")
@click.option("--values-file", metavar="FILE", help="A file of values, one per line.")
@click.option(
    "--format",
    type=click.Choice(["json", "debezium"]),
    default="json",
    show_default=True,
    help="The format of the values.",
)
@click.option(
    "--sign-key",
    metavar="PEM",
    help="An Ed25519 key that signs the receipt.",
)
@click.option("--receipt", metavar="PATH", help="Write the receipt to PATH.json and PATH.html too.")
@click.option("--requested", metavar="TIME", help="When the erasure was requested; default now.")
@click.option(
    "--deadline", metavar="DURATION|TIME", help="A duration after --requested, or a time."
)
@click.option(
    "--grace",
    type=options.DURATION,
    default="0s",
    metavar="DURATION",
    help="Keep replaced objects this long; then run again with --finish.",
)
@click.option("--id", metavar="ID", help="The erasure to continue; default a new one.")
@click.option("--finish", is_flag=True, help="Finish the erasure --id whose grace time is over.")
@click.option(
    "--rescan",
    type=click.Choice(["full", "keys"]),
    default="full",
    show_default=True,
    help="Read all data again, or verified key indexes.",
)
@click.option(
    "--digests/--no-digests",
    default=True,
    help="List salted digests of the keys in the receipt, or their number.",
)
@click.option(
    "--take-over", is_flag=True, help="Take the lease of a job that was killed elsewhere."
)
@spark_options.place_settings
@spark_options.catalog_settings
@spark_options.mirrored_job_source
@spark_options.spark
@options.dry_run
@options.yes
@options.output
def erase(
    topics: tuple[str, ...],
    source: JobSource,
    job_options: JobOptions,
    output: Output,
    keys: tuple[str, ...],
    keys_file: str | None,
    field: str | None,
    values: tuple[str, ...],
    values_file: str | None,
    format: str,
    sign_key: str | None,
    receipt: str | None,
    requested: str | None,
    deadline: str | None,
    grace: int,
    id: str | None,
    finish: bool,
    rescan: str,
    digests: bool,
    take_over: bool,
    place_settings: tuple[tuple[str, str], ...],
    catalog_settings: tuple[tuple[str, str], ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Erase records from topics and all their copies, and issue a receipt.

    Segments with a match are rewritten in log directories and object storage; offsets stay. Rows of
    snapshots and tables are erased too. Then everything is read again, and the receipt is written
    only if nothing is found. No key or value is in it. On a terminal the matches are shown first.
    """
    from varve.jobs.erase import receipt_files
    from varve.jobs.erase.erasure import erase, new_erasure_id
    from varve.jobs.erase.request import (
        ErasureRequest,
        RescanMode,
        ValueFormat,
        collect_field,
        collect_keys,
    )
    from varve.jobs.erase.targets import check_tier_location

    if finish and id is None:
        raise click.UsageError("--finish needs --id, the erasure to finish")
    requested_ms = parse_requested(requested, SystemClock().now_ms())
    request = ErasureRequest(
        topics=topics,
        id=id or new_erasure_id(),
        keys=collect_keys(keys, keys_file),
        field=collect_field(field, values, values_file, ValueFormat(format)),
        asked_ms=requested_ms,
        deadline_ms=parse_deadline(deadline, requested_ms),
        grace_ms=grace,
        rescan=RescanMode(rescan),
        lists_digests=digests,
        takes_over=take_over,
    )
    bucket = source.find_bucket()
    if bucket is None:
        check_tier_location(source.paths, topics)
    signing_key = None if sign_key is None else receipt_files.read_signing_key(sign_key)
    if receipt is not None and not dry_run:
        receipt_files.check_receipt_path(receipt)
    if not yes and not dry_run:
        output.check_terminal(_ACTION)
    run = partial(
        erase,
        request,
        address=bucket,
        directories=source.paths,
        snapshot_settings=dict(place_settings),
        table_settings=dict(catalog_settings),
        signing_key=signing_key,
        is_finish=finish,
    )
    confirmed = ConfirmedErasure(run, output, is_dry_run=dry_run, is_confirmed=yes)
    result = (
        _erase_here(confirmed, job_options)
        if bucket is None
        else _erase_on_spark(confirmed, job_options, request)
    )
    if receipt is not None and result.receipt is not None:
        receipt_files.write_receipt(receipt, result)


class ConfirmedErasure:
    """An erasure that shows what it would erase and asks, unless --yes confirms it."""

    def __init__(
        self,
        run: "Callable[..., ErasureResult]",
        output: Output,
        *,
        is_dry_run: bool,
        is_confirmed: bool,
    ) -> None:
        self._run = run
        self.output = output
        self._is_dry_run = is_dry_run
        self._is_confirmed = is_confirmed

    def erase(self, runner: "TaskRunner", job: "SparkJob | None" = None) -> "ErasureResult":
        """Runs in the job, if there is one; the question is asked outside of it."""
        dry = partial(self._run, runner=runner, is_dry_run=True)
        final = partial(self._run, runner=runner, is_dry_run=self._is_dry_run)
        if not self._is_dry_run and not self._is_confirmed:
            print_erasure(dry() if job is None else job.run(dry), self.output)
            self.output.confirm(_ACTION, is_confirmed=False)
        return final() if job is None else job.run(final)


def _erase_here(confirmed: ConfirmedErasure, job_options: JobOptions) -> "ErasureResult":
    """Topics that are only on local disks need no Spark."""
    from varve.jobs.tasks import LocalRunner

    if job_options.report is not None:
        raise InvalidRequest(
            "--report describes a Spark job, and topics without an object store are erased without "
            "Spark: leave it out, or name the object store with --store"
        )
    result = confirmed.erase(LocalRunner())
    print_erasure(result, confirmed.output)
    return result


def _erase_on_spark(
    confirmed: ConfirmedErasure, job_options: JobOptions, request: "ErasureRequest"
) -> "ErasureResult":
    output = confirmed.output
    interrupted = (
        "every partition is unchanged or erased, and no receipt was issued: run it again with "
        f"--id {request.id}"
    )
    with open_spark_job("erase", job_options, output, when_interrupted=interrupted) as job:
        from varve.spark.runner import SparkRunner

        runner = SparkRunner(job.spark, "erase", request.topics)
        result = confirmed.erase(runner, job)
        report = job.report(result.records, result.to_json())
    print_erasure(result, output)
    print_report(report, job_options, output)
    return result


def parse_requested(text: str | None, now_ms: int) -> int:
    """When the erasure was requested, by default now; raises InvalidRequest for the future."""
    requested_ms = now_ms if text is None else parse_time(text, name="--requested")
    if requested_ms > now_ms:
        raise InvalidRequest(f"--requested {text!r:.40} is in the future")
    return requested_ms


def parse_deadline(text: str | None, requested_ms: int) -> int | None:
    """A duration after the request, or a time."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        raise InvalidRequest(
            f"--deadline {text:.40} has no unit: write {text:.40}d for days, or a time"
        )
    try:
        return requested_ms + parse_duration(text, name="--deadline")
    except InvalidRequest:
        return parse_time(text, name="--deadline")


# Output


def print_erasure(result: "ErasureResult", output: Output) -> None:
    """A line for each partition and tier, and the outcome below; or objects."""
    if output.is_json:
        document = result.to_json()
        document.pop("partitions")
        print_objects(output, "partition", (part.to_json() for part in result.partitions))
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
