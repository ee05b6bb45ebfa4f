"""The remote segments of a log as the values that retention, forecast and explain decide on.

Invariant  nothing changes; a value says what the newest manifest, or the given one, says.
"""

from collections.abc import Iterator

from varve.cleaning.retention.rules import RetentionLimits, RetentionScope
from varve.cleaning.retention.segments import (
    RemoteSegmentInfo,
    RemoteSegments,
    SegmentLocation,
    SegmentTimes,
)
from varve.commit_log import Log
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState, is_in_lineage
from varve.tiering.partition import TieredPartition, get_copied_offset


def read_remote_segments(tiered: TieredPartition, *, delete_delay_ms: int) -> RemoteSegments:
    """All segments of the newest manifest; raises Unavailable when the store does not answer."""
    manifest = tiered.load()
    segments = tiered.manifests.segments(manifest)
    return RemoteSegments(
        tuple(describe_segment(segment, tiered.log) for segment in segments),
        get_copied_offset(tiered),
        manifest.cleaned_up_to,
        delete_delay_ms,
    )


def readable_segments(tiered: TieredPartition, manifest: Manifest) -> Iterator[RemoteSegmentInfo]:
    """The readable segments of a manifest, by offset; pages are read as they are reached."""
    for segment in tiered.manifests.segments(manifest):
        if segment.is_readable:
            yield describe_segment(segment, tiered.log)


def total_retention_scope(tiered: TieredPartition, manifest: Manifest) -> RetentionScope:
    """Both tiers of a log by its `retention.*`: each record counts once."""
    log, copied = tiered.log, tiered.copied_offset or 0
    local_bytes = sum(one.size for one in log.view if one.base_offset >= copied)
    remote_bytes = manifest.log_bytes - _other_history_bytes(tiered, manifest, copied)
    limits = RetentionLimits.total(log.settings)
    return RetentionScope(limits, remote_bytes + local_bytes, log.log_start_offset)


def _other_history_bytes(tiered: TieredPartition, manifest: Manifest, copied_offset: int) -> int:
    """Bytes of readable segments behind the copied offset: the log was truncated before them.

    They count for no limit, as nothing else must be removed in their stead.
    """
    if manifest.highest_offset < copied_offset:
        return 0
    behind = tiered.manifests.segments(manifest, from_offset=copied_offset)
    return sum(one.size for one in behind if one.is_readable)


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
    return SegmentLocation.BOTH if is_local else SegmentLocation.COLD
