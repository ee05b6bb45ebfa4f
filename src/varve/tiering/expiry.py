"""Expires the remote segments of a partition, deletes their objects later, and records why.

Invariant  the reason is recorded first, then the log start offset is raised on the local disk, then
           the manifest takes the segment out of reading, and its objects are deleted last, when no
           retained manifest version names it: every step can be repeated after a failure.
Crash      a removal record whose segments are still readable belongs to an interrupted removal.
Threads    one per partition at a time.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
)
from varve.cleaning.retention.rules import Due, RetentionLimits, RetentionScope, due_now
from varve.cleaning.retention.segments import (
    RemoteSegmentInfo,
    RemoteSegments,
    SegmentLocation,
    SegmentTimes,
)
from varve.commit_log import Log
from varve.tiering.evidence import archive_expiries, put_expiry
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState, is_in_lineage
from varve.tiering.partition import TieredPartition

logger = logging.getLogger(__name__)

_SEGMENTS_MAX: Final = 256
"""Segments expired in one commit: those of long histories are in pages, which it rewrites."""


@dataclass(frozen=True, slots=True)
class RemoteExpiry:
    """The segments that a pass expired, and the number of segments whose objects it deleted."""

    expired: tuple[Due[RemoteSegmentInfo], ...] = ()
    removed_count: int = 0

    @property
    def size(self) -> int:
        return sum(due.segment.size for due in self.expired)

    @property
    def end_offset(self) -> int | None:
        """Where the log begins afterwards; None when nothing expired."""
        return self.expired[-1].segment.next_offset if self.expired else None


def expire_segments(tiered: TieredPartition, now_ms: int) -> RemoteExpiry:
    """One pass over one partition; raises StoreError, and the next pass continues."""
    recent = tiered.recent(now_ms)
    is_any_due = next(_find_due(tiered, recent, now_ms), None) is not None
    if not is_any_due and not any(_find_removable(tiered, recent, now_ms)):
        tiered.retire_versions(now_ms)
        return RemoteExpiry()
    manifest = tiered.load()
    expired: list[Due[RemoteSegmentInfo]] = []
    while True:
        dues = _take_batch(_find_due(tiered, manifest, now_ms))
        if not dues:
            break
        manifest = _expire_batch(tiered, dues, now_ms)
        expired += dues
    removed = _remove_due(tiered, manifest, now_ms)
    if expired:
        archive_expiries(tiered.objects, tiered.path)
    tiered.retire_versions(now_ms)
    return RemoteExpiry(tuple(expired), removed)


def preview_expiry(tiered: TieredPartition, now_ms: int) -> RemoteExpiry:
    """What a pass would expire and delete now; nothing changes."""
    manifest = tiered.load()
    expired = tuple(_find_due(tiered, manifest, now_ms))
    return RemoteExpiry(expired, sum(1 for _ in _find_removable(tiered, manifest, now_ms)))


def _expire_batch(
    tiered: TieredPartition, dues: Sequence[Due[RemoteSegmentInfo]], now_ms: int
) -> Manifest:
    segments = [due.segment for due in dues]
    start, end = segments[0].base_offset, segments[-1].next_offset
    log = tiered.log
    # Record first: once the log start is raised, the record is the only trace of the reason.
    _record(tiered, dues, now_ms)
    if dues[0].reason is not Reason.BELOW_LOG_START:
        log.raise_log_start(end)
    ids = {segment.id for segment in segments}

    def change(manifest: Manifest) -> Manifest:
        inlined = tiered.manifests.unfold(manifest, start_offset=start, end_offset=end)
        listed = [segment.id for segment in inlined.segments if segment.id in ids]
        changed = inlined.start_delete(
            listed, at_ms=now_ms, replaced_until_ms=now_ms + tiered.replaced_retention_ms
        )
        return changed.raise_log_start(log.log_start_offset)

    manifest = tiered.commit(change, now_ms)
    logger.info(
        "remote segments expired",
        extra={
            "partition": str(log.topic_partition),
            "segments": len(segments),
            "bytes": sum(segment.size for segment in segments),
            "log_start_offset": log.log_start_offset,
            "rule": dues[-1].rule,
        },
    )
    return manifest


def _record(tiered: TieredPartition, dues: Sequence[Due[RemoteSegmentInfo]], now_ms: int) -> None:
    """Writes the balance of the removal beside the segments, before anything else changes.

    A pass that repeats a failed one finds the first record, which has the original reason.
    """
    balance = _balance(tiered.log, dues, now_ms)
    name = f"{balance.end_offset:020}-{dues[0].segment.id}"
    put_expiry(tiered.objects, tiered.path, name, balance)


def _remove_due(tiered: TieredPartition, manifest: Manifest, now_ms: int) -> int:
    """Deletes the objects of segments whose grace period has ended."""
    removable = iter(list(_find_removable(tiered, manifest, now_ms)))
    removed = 0
    while chunk := list(islice(removable, _SEGMENTS_MAX)):
        removed += len(tiered.remove(chunk, now_ms))
    return removed


def _find_removable(
    tiered: TieredPartition, manifest: Manifest, now_ms: int
) -> Iterator[RemoteSegment]:
    """Segments past their grace period; if the topic is no longer copied, also abandoned copies."""
    for segment in tiered.manifests.pending(manifest):
        if segment.state is not SegmentState.COPY_STARTED:
            is_removable = segment.may_be_deleted(now_ms)
        else:
            is_copied = tiered.log.settings.copies_to_tier
            is_removable = not is_copied and tiered.is_abandoned(segment, now_ms)
        if is_removable:
            yield segment


def _find_due(
    tiered: TieredPartition, manifest: Manifest, now_ms: int
) -> Iterator[Due[RemoteSegmentInfo]]:
    """The remote segments that are due by the limits of both tiers, oldest first."""
    scope = total_retention_scope(tiered, manifest)
    readable = tiered.manifests.readable(manifest)
    segments = (describe_segment(segment, tiered.log) for segment in readable)
    return due_now(segments, scope, now_ms)


def _take_batch(expired: Iterator[Due[RemoteSegmentInfo]]) -> list[Due[RemoteSegmentInfo]]:
    """The segments of one commit; segments below the log start get a commit of their own.

    So a pass that was interrupted after its record repeats the same segments.
    """
    batch = list(islice(expired, _SEGMENTS_MAX))
    is_below = bool(batch) and batch[0].reason is Reason.BELOW_LOG_START
    return list(takewhile(lambda due: (due.reason is Reason.BELOW_LOG_START) is is_below, batch))


def _balance(log: Log, dues: Sequence[Due[RemoteSegmentInfo]], now_ms: int) -> Removal:
    records: Counter[Reason] = Counter()
    sizes: Counter[Reason] = Counter()
    for due in dues:
        assert due.reason is not None
        records[due.reason] += due.segment.record_count
        sizes[due.reason] += due.segment.size
    last = dues[-1]
    return Removal(
        id=1,
        partition=log.topic_partition,
        kind=RemovalKind.EXPIRY,
        at_ms=now_ms,
        inputs=tuple(
            SegmentSummary(
                due.segment.base_offset,
                due.segment.next_offset,
                due.segment.size,
                due.segment.record_count,
            )
            for due in dues
        ),
        outputs=(),
        records=dict(records),
        bytes=dict(sizes),
        rule=f"segment {last.segment.base_offset} of the remote tier, {last.rule}",
        end_offset=last.segment.next_offset,
    )


def read_remote_segments(tiered: TieredPartition, *, delete_delay_ms: int) -> RemoteSegments:
    """All segments of the newest manifest; raises Unavailable when the store does not answer."""
    manifest = tiered.load()
    segments = tiered.manifests.segments(manifest)
    return RemoteSegments(
        tuple(describe_segment(segment, tiered.log) for segment in segments),
        tiered.next_copy_offset,
        manifest.cleaned_up_to,
        delete_delay_ms,
    )


def total_retention_scope(tiered: TieredPartition, manifest: Manifest) -> RetentionScope:
    """The retention scope of both tiers by `retention.*`: each record counts once.

    Readable segments after the copied offset count for no limit: the log was truncated before
    them, and no other segment must be removed because of them.
    """
    log, copied = tiered.log, tiered.copied_offset or 0
    size = sum(segment.size for segment in log.view if segment.base_offset >= copied)
    size += manifest.log_bytes
    if manifest.highest_offset >= copied:
        diverged = tiered.manifests.readable(manifest, from_offset=copied)
        size -= sum(segment.size for segment in diverged)
    return RetentionScope(RetentionLimits.total(log.settings), size, log.log_start_offset)


def describe_segment(segment: RemoteSegment, log: Log) -> RemoteSegmentInfo:
    return RemoteSegmentInfo(
        id=segment.id,
        base_offset=segment.base_offset,
        next_offset=segment.end_offset + 1,
        size=segment.size,
        is_in_lineage=is_in_lineage(segment, log.epochs, log_end_offset=log.end_offset),
        known_times=SegmentTimes(segment.max_timestamp, *segment.append_ms),
        record_count=segment.record_count,
        stored_bytes=segment.stored_bytes,
        location=_location(segment, log),
        delete_after_ms=segment.replaced_until_ms,
        stale_bytes=segment.stale_bytes,
    )


def _location(segment: RemoteSegment, log: Log) -> SegmentLocation:
    if segment.state is SegmentState.COPY_STARTED:
        return SegmentLocation.COPYING
    if segment.state is SegmentState.DELETE_STARTED:
        return SegmentLocation.LEAVING
    is_local = segment.base_offset >= log.local_start_offset
    return SegmentLocation.BOTH if is_local else SegmentLocation.REMOTE
