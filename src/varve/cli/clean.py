"""`varve clean`: compacts and expires now what the topics' policies let go.

Invariant  an interrupt is taken between two chunks, so that it never meets a swap; what was swapped
           before stays, what was being written goes.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.removals.removal import Reason
from varve.cleaning.report import CleanProgress, CleanReport
from varve.cleaning.retention.retention import ExpiredSegment, RetentionPlan
from varve.cli.byte_progress import phase_progress
from varve.cli.clean_tier import tier_document, tier_lines
from varve.cli.interrupts import interrupts_between, told_when_interrupted
from varve.cli.store_access import (
    Directory,
    Wanted,
    find_topic,
    open_existing,
    parse_wanted,
    tell_failure,
)
from varve.cli.tier_access import StoreSettings, tier_settings
from varve.foundation.errors import StoreError
from varve.foundation.settings import GivenValue

if TYPE_CHECKING:
    from varve.embedded import Cleaned

Show = Callable[[CleanProgress], None]


def command(
    directory: Directory,
    wanted: Wanted = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Tell what would go, and leave it.")
    ] = False,
    roll: Annotated[
        bool,
        typer.Option(
            "--roll", help="Close the active segments first: cleaning leaves active ones alone."
        ),
    ] = False,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per partition.")] = False,
) -> None:
    """Compact and expire now what the policies of topics let go.

    Compacted topics lose records that a later one of their key supersedes, without waiting for
    min.cleanable.dirty.ratio; topics with delete in their policy lose segments past retention.ms
    and retention.bytes. Of topics in the cold tier copied segments past local.retention.* leave the
    local disk, and what is past its retention expires in both tiers. Every removal is put on
    record, see `varve audit`. Ctrl-C stops it between two chunks: nothing is lost, and the next run
    goes on. A dry run builds missing key indexes.

    The exit status is 1 when a partition fails or has a damaged segment, which is held.
    With --json every line has `partition`, `dry_run`, `error` (null or a sentence), `compaction`
    (null, or segments, bytes, records and bytes by reason, what was left, holds and a note) and
    `expiry` (null, or its segments with offsets, size, reason and rule) and `undecided` (of a dry
    run: the segments that compaction comes before retention to, so that nobody can tell yet), and
    `tier` (null, or the segments that left the local disk as `moved`, those that `expired` in the
    cold tier, and `removed_segments`, whose objects went).

    \b
    Examples:
      varve clean data
      varve clean data scores --dry-run
      varve clean data scores:0 --roll --json
    """
    settings = tier_settings("", store_settings)
    with told_when_interrupted("stopped; nothing is lost, run it again to go on"):
        _clean(directory, wanted, settings, dry_run=dry_run, roll=roll, as_json=as_json)


def _clean(
    directory: Path,
    wanted: str | None,
    settings: dict[str, GivenValue],
    *,
    dry_run: bool,
    roll: bool,
    as_json: bool,
) -> None:
    topic, partition = parse_wanted(wanted)
    is_well = True
    with open_existing([directory], maintain=False, settings=settings) as store:
        if topic is not None:
            find_topic(store, topic)
        for topic_partition in store.partitions(topic, partition):
            failure = ""
            with _progress() as show, interrupts_between(show) as progress:
                try:
                    (cleaned,) = store.clean(
                        topic_partition.topic,
                        topic_partition.partition,
                        roll=roll,
                        dry_run=dry_run,
                        at_once=True,
                        progress=progress,
                    )
                except StoreError as error:
                    failure = str(error)
            if failure:
                is_well = False
                _tell_failure(str(topic_partition), failure, dry_run=dry_run, as_json=as_json)
                continue
            is_well = is_well and not (cleaned.compaction and cleaned.compaction.holds)
            if as_json:
                sys.stdout.write(json.dumps(_document(cleaned, dry_run=dry_run)) + "\n")
            else:
                _print(cleaned, dry_run=dry_run)
            for hold in cleaned.compaction.holds if cleaned.compaction else ():
                _warn(cleaned, hold)
    if not is_well:
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress() -> Iterator[Show]:
    with phase_progress() as show:
        yield lambda progress: show(
            f"{progress.partition} {progress.phase:5}", progress.done_bytes, progress.total_bytes
        )


def _tell_failure(partition: str, failure: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        document = {
            "partition": partition,
            "dry_run": dry_run,
            "error": failure,
            "compaction": None,
            "expiry": None,
            "undecided": [],
            "tier": None,
        }
        sys.stdout.write(json.dumps(document) + "\n")
    tell_failure(partition, failure)


def _document(cleaned: "Cleaned", *, dry_run: bool) -> dict[str, Any]:
    return {
        "partition": str(cleaned.partition),
        "dry_run": dry_run,
        "error": None,
        "compaction": cleaned.compaction and _compaction_document(cleaned.compaction),
        "expiry": cleaned.expiry and _expiry_document(cleaned.expiry),
        "undecided": [_segment_document(segment) for segment in cleaned.undecided],
        "tier": cleaned.tier and tier_document(cleaned.tier),
    }


def _compaction_document(report: CleanReport) -> dict[str, Any]:
    figures = (
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
    return {
        **{name: getattr(report, name) for name in figures},
        "records": {reason.value: count for reason, count in report.records.items()},
        "bytes": {reason.value: size for reason, size in report.bytes.items()},
        "holds": [
            {"base_offset": hold.base_offset, "bytes": hold.bytes_held, "reason": hold.reason}
            for hold in report.holds
        ],
    }


def _expiry_document(expiry: RetentionPlan) -> dict[str, Any]:
    return {
        "before_offset": expiry.end_offset,
        "segments": [_segment_document(segment) for segment in expiry.segments],
    }


def _segment_document(segment: ExpiredSegment) -> dict[str, Any]:
    return {
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "size": segment.size,
        "reason": str(segment.reason),
        "rule": segment.rule,
    }


def _print(cleaned: "Cleaned", *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    lines: list[str] = []
    if cleaned.compaction is not None:
        lines += _compaction_lines(cleaned.compaction, would)
    if cleaned.tier is not None:
        lines += tier_lines(cleaned.tier, would)
    if cleaned.expiry is not None:
        lines += _expiry_lines(cleaned.expiry, would)
    if cleaned.undecided:
        lines.append(_undecided_line(cleaned.undecided))
    if not lines:
        lines = ["nothing to do"]
    typer.secho(f"{cleaned.partition}  ", bold=True, nl=False)
    typer.echo(f"\n{' ' * 4}".join(lines))


def _compaction_lines(report: CleanReport, would: str) -> Iterator[str]:
    if not report.segments_rewritten:
        left = f"; {report.left_stale_bytes:,} stale bytes are not worth it yet"
        yield f"nothing to compact{left if report.left_stale_bytes else ''}"
    else:
        yield (
            f"{report.segments_rewritten} of {report.segments_before} segments {would}compacted: "
            f"{report.bytes_before:,} to {report.bytes_after:,} bytes, "
            f"{show_change(report.bytes_before, report.bytes_after)}"
        )
        yield f"in the rewritten segments {_counts(report)}"
    if report.note:
        yield report.note


def show_change(before: int, after: int) -> str:
    """By how much it is less or more; never all of it while something is left."""
    if before == after or not before:
        return "as before"
    share = 100 * abs(before - after) / before
    text = f"{share:.0f}"
    if 99 < share < 100 or share < 1:
        # Cut, not rounded: 100 would say that nothing is left.
        text = f"{max(1, int(share * 10)) / 10:.1f}"
    return f"{text} % {'less' if after < before else 'more'}"


def _counts(report: CleanReport) -> str:
    gone = [
        f"{count:,} {reason.value}"
        for reason, count in report.records.items()
        if reason is not Reason.KEPT and count
    ]
    kept = report.records.get(Reason.KEPT, 0)
    return ", ".join([f"{kept:,} record{'' if kept == 1 else 's'} kept", *gone])


def _expiry_lines(expiry: RetentionPlan, would: str) -> Iterator[str]:
    count = len(expiry.segments)
    yield (
        f"{count} segment{'s' if count > 1 else ''} {would}deleted, {expiry.size:,} bytes; the log "
        f"begins at offset {expiry.end_offset}"
    )
    for reason in dict.fromkeys(segment.reason for segment in expiry.segments):
        last = [segment for segment in expiry.segments if segment.reason is reason][-1]
        yield f"{reason}: {last.rule}"


def _undecided_line(segments: Sequence[ExpiredSegment]) -> str:
    count = len(segments)
    return (
        f"{count} segment{'s' if count > 1 else ''} from offset {segments[0].base_offset} on, past "
        "retention by now: decided after compaction"
    )


def _warn(cleaned: "Cleaned", hold: HeldSegment) -> None:
    typer.secho(
        f"{cleaned.partition}: segment {hold.base_offset} with {hold.bytes_held:,} bytes is left "
        f"alone: {hold.reason}; `varve check` on the directory tells more",
        fg="yellow",
        err=True,
    )
