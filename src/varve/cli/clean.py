"""`varve clean`: compacts and expires what the topics' policies allow, now.

Invariant  an interrupt takes effect between two chunks, never during a swap. Swapped segments stay,
           a segment that was being written is discarded.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Output, interruptible_progress, note_interrupt
from varve.cli.where import Where, select_partitions
from varve.foundation.errors import StoreError
from varve.foundation.units import format_count

if TYPE_CHECKING:
    from varve.cleaning.metrics import CleanReport
    from varve.cleaning.retention.retention import ExpiredSegment, RetentionPlan
    from varve.commit_log import TopicPartition
    from varve.embedded import CleanResult, Store
    from varve.tiering.tier import TierPass

_INDENT: Final = " " * 4
_REPORT_FIELDS: Final = (
    "first_dirty_offset",
    "end_offset",
    "segments_before",
    "segments_after",
    "segments_rewritten",
    "bytes_before",
    "bytes_after",
    "left_stale_bytes",
    "bytes_read",
    "bytes_written",
    "elapsed_ms",
    "note",
)


@command("varve clean scores -d data --dry-run", "varve clean scores:0 -d data --roll --json")
@options.optional_topic_partition
@click.option(
    "--roll", is_flag=True, help="Close the active segments first; they are never cleaned."
)
@options.dry_run
@options.directory
@options.output
def clean(
    topic_partition: TopicPartitionName | None,
    where: Where,
    output: Output,
    roll: bool,
    dry_run: bool,
) -> None:
    """Compact topics and delete expired segments now.

    Compaction does not wait for min.cleanable.dirty.ratio. Copied segments of a topic with a remote
    tier leave the local disk after local.retention.*, and expire in both tiers. `varve audit` lists
    what was removed. Ctrl-C stops between two chunks; run it again to continue. A dry run builds
    missing key indexes.

    The exit status is 1 if a partition fails or has a damaged segment. With --json a line per
    partition has `error`, `compaction`, `expiry`, `undecided` (segments whose expiry a dry run
    cannot decide before compaction) and `tier`, which are null where they do not apply.
    """
    is_successful = True
    with (
        note_interrupt(output, "stopped; nothing is lost, run it again to continue"),
        where.open_store(maintain=False) as store,
    ):
        for name in select_partitions(store, topic_partition):
            is_successful &= _clean(store, name, output, roll=roll, dry_run=dry_run)
    if not is_successful:
        raise click.exceptions.Exit(1)


def _clean(
    store: "Store", partition: "TopicPartition", output: Output, *, roll: bool, dry_run: bool
) -> bool:
    """Clean and print one partition; False if it failed or has damaged segments."""
    failure: str | None = None
    cleaned: CleanResult | None = None
    with interruptible_progress(output) as show:
        try:
            (cleaned,) = store.clean(
                partition.topic,
                partition.partition,
                roll=roll,
                dry_run=dry_run,
                at_once=True,
                progress=lambda progress: show(
                    f"{partition} {progress.phase:5}", progress.done_bytes, progress.total_bytes
                ),
            )
        except StoreError as error:
            failure = str(error)
    if output.is_json:
        fields = {"partition": str(partition), "dry_run": dry_run, "error": failure}
        output.print_object("cleaning", {**fields, **_encode_cleaned(cleaned)})
    elif cleaned is not None:
        lines = list(_describe(cleaned, "would be " if dry_run else "")) or ["nothing to do"]
        click.secho(f"{partition}  ", bold=True, nl=False)
        click.echo(f"\n{_INDENT}".join(lines))
    if failure is not None:
        output.print_partition_failure(partition, failure)
    holds = cleaned.compaction.holds if cleaned and cleaned.compaction else ()
    for hold in holds:
        output.warn(
            f"{partition}: segment {hold.base_offset} with {hold.bytes_held:,} bytes is not "
            f"cleaned: {hold.reason}; `varve check` on the directory shows details"
        )
    return failure is None and not holds


# JSON


def _encode_cleaned(cleaned: "CleanResult | None") -> dict[str, Any]:
    if cleaned is None:
        return {"compaction": None, "expiry": None, "undecided": [], "tier": None}
    return {
        "compaction": cleaned.compaction and _encode_compaction(cleaned.compaction),
        "expiry": cleaned.expiry
        and {
            "before_offset": cleaned.expiry.end_offset,
            "segments": _encode_segments(cleaned.expiry.segments),
        },
        "undecided": _encode_segments(cleaned.undecided),
        "tier": cleaned.tier and _encode_tier(cleaned.tier),
    }


def _encode_compaction(report: "CleanReport") -> dict[str, Any]:
    return {
        **{name: getattr(report, name) for name in _REPORT_FIELDS},
        "records": {reason.value: count for reason, count in report.records.items()},
        "bytes": {reason.value: size for reason, size in report.bytes.items()},
        "holds": [
            {"base_offset": hold.base_offset, "bytes": hold.bytes_held, "reason": hold.reason}
            for hold in report.holds
        ],
    }


def _encode_segments(segments: "Sequence[ExpiredSegment]") -> list[dict[str, Any]]:
    return [_encode_segment(segment, str(segment.reason), segment.rule) for segment in segments]


def _encode_segment(segment: Any, reason: str, rule: str) -> dict[str, Any]:
    return {
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "size": segment.size,
        "reason": reason,
        "rule": rule,
    }


def _encode_tier(tier_pass: "TierPass") -> dict[str, Any]:
    return {
        "moved": _encode_segments(tier_pass.moved.segments),
        "expired": [
            _encode_segment(due.segment, str(due.reason), due.rule)
            for due in tier_pass.expiry.expired
        ],
        "removed_segments": tier_pass.expiry.removed_count,
    }


# Text


def _describe(cleaned: "CleanResult", would: str) -> Iterator[str]:
    if cleaned.compaction is not None:
        yield from _describe_compaction(cleaned.compaction, would)
    if cleaned.tier is not None:
        yield from _describe_tier(cleaned.tier, would)
    if cleaned.expiry is not None:
        yield from _describe_expiry(cleaned.expiry, would)
    if cleaned.undecided:
        yield (
            f"{format_count(len(cleaned.undecided), 'segment')} from offset "
            f"{cleaned.undecided[0].base_offset} on, past retention: decided after compaction"
        )


def _describe_compaction(report: "CleanReport", would: str) -> Iterator[str]:
    if not report.segments_rewritten:
        stale = f"; {report.left_stale_bytes:,} stale bytes are too few to rewrite a segment"
        yield f"nothing to compact{stale if report.left_stale_bytes else ''}"
    else:
        yield (
            f"{report.segments_rewritten} of {report.segments_before} segments {would}compacted: "
            f"{report.bytes_before:,} to {report.bytes_after:,} bytes, "
            f"{format_change(report.bytes_before, report.bytes_after)}"
        )
        yield f"in the rewritten segments {_describe_records(report)}"
    if report.note:
        yield report.note


def format_change(before: int, after: int) -> str:
    """The change in percent; less than 100 % unless nothing is left."""
    if before == after or not before:
        return "as before"
    share = 100 * abs(before - after) / before
    text = f"{share:.0f}"
    if 99 < share < 100 or share < 1:
        # Truncated, not rounded: 100 would mean that nothing is left.
        text = f"{max(1, int(share * 10)) / 10:.1f}"
    return f"{text} % {'less' if after < before else 'more'}"


def _describe_records(report: "CleanReport") -> str:
    from varve.cleaning.removals.removal import Reason

    removed = [
        f"{count:,} {reason.value}"
        for reason, count in report.records.items()
        if reason is not Reason.KEPT and count
    ]
    kept = format_count(report.records.get(Reason.KEPT, 0), "record")
    return ", ".join([f"{kept} kept", *removed])


def _describe_expiry(expiry: "RetentionPlan", would: str) -> Iterator[str]:
    yield (
        f"{format_count(len(expiry.segments), 'segment')} {would}deleted, {expiry.size:,} bytes; "
        f"the log begins at offset {expiry.end_offset}"
    )
    yield from _describe_rules([(segment.reason, segment.rule) for segment in expiry.segments])


def _describe_tier(tier_pass: "TierPass", would: str) -> Iterator[str]:
    moved, expiry = tier_pass.moved.segments, tier_pass.expiry
    if moved:
        yield (
            f"{format_count(len(moved), 'segment')} {would}removed from the local disk, "
            f"{tier_pass.moved.size:,} bytes that the remote tier has; local records begin at "
            f"offset {moved[-1].next_offset}"
        )
        yield f"local retention: {moved[-1].rule}"
    if expiry.expired:
        yield (
            f"{format_count(len(expiry.expired), 'segment')} of the remote tier {would}expired, "
            f"{expiry.size:,} bytes; the log begins at offset {expiry.end_offset}"
        )
        yield from _describe_rules([(due.reason, due.rule) for due in expiry.expired])
    if expiry.removed_count:
        count = format_count(expiry.removed_count, "segment")
        yield f"objects of {count} {would}removed from the object store"


def _describe_rules(rules: Sequence[tuple[object, str]]) -> Iterator[str]:
    """The rule of the newest segment for each reason."""
    for reason, rule in dict(rules).items():
        yield f"{reason}: {rule}"
