"""What `varve job erase` shows of an erasure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from varve.cli.moments import show_moment
from varve.cli.screen import make_console, print_details, print_rows_with_details
from varve.foundation.clock import SystemClock
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.jobs.erase.result import ErasureResult, PartitionErasure


def print_result(result: "ErasureResult") -> None:
    """A line for each partition and tier, and below what there is to say."""
    console = make_console()
    columns = ("partition", "tier", "segments", "with a match", "records", "bytes", "read")
    print_rows_with_details(
        console,
        columns,
        [_cells(erasure) for erasure in result.partitions],
        [() for _ in result.partitions],
        left=("partition", "tier"),
    )
    print_details(console, list(_details(result)), indent=0)


def _cells(erasure: "PartitionErasure") -> tuple[str, ...]:
    return (
        f"{erasure.topic}-{erasure.partition}",
        erasure.tier,
        f"{erasure.segments:,}",
        f"{erasure.segments_matched:,}",
        f"{erasure.records:,}",
        format_bytes(erasure.record_bytes),
        format_bytes(erasure.bytes_read),
    )


def _details(result: "ErasureResult") -> Iterator[tuple[str, str]]:
    yield "erasure", f"{result.id}{', a dry run: nothing was changed' * result.is_dry_run}"
    for output in result.outputs:
        yield "output", output
    if result.cost is not None:
        cost = result.cost
        yield (
            "to come",
            f"about {cost.requests:,} requests and {format_bytes(cost.read_bytes)} to read, "
            f"{cost.currency} {cost.cost:,.2f} ({cost.prices})",
        )
    if result.finish_ms is not None:
        when = show_moment(result.finish_ms, SystemClock().now_ms())
        yield "waits", f"replaced objects stay until {when}; then run --finish {result.id}"
    if result.receipt is not None:
        rescan, met = result.receipt["rescan"], result.receipt["deadline_met"]
        yield (
            "read again",
            f"{rescan['objects']:,} objects, {rescan['files']:,} files, {rescan['outputs']:,} "
            f"outputs, {format_bytes(rescan['bytes'])}: none found",
        )
        if met is not None:
            yield "deadline", "met" if met else "missed"
    for place in result.receipt_places:
        yield "receipt", place
    for text in result.out_of_reach:
        yield "out of reach", text
