"""Why the segments of a tiered log are still in one tier or in both, and until when.

Invariant  nothing changes; an answer is true for the moment it was asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from varve.cleaning.explain.explanation import (
    COMPACTION,
    LOCAL_RETENTION,
    RETENTION,
    Blocker,
    RemovalPath,
    SegmentExplanation,
)
from varve.cleaning.retention.forecast import (
    ForecastRow,
    RemoteForecastRow,
    covering_row,
    forecast_evictions,
    forecast_remote,
)
from varve.cleaning.retention.rules import BlockingRule, RetentionLimits
from varve.cleaning.retention.segments import (
    RemoteSegmentInfo,
    RemoteSegments,
    SegmentList,
    SegmentLocation,
)


def explain_both_tiers(
    log: SegmentList,
    local: Sequence[SegmentExplanation],
    remote: RemoteSegments,
    now_ms: int,
) -> list[SegmentExplanation]:
    """The segments of both tiers, oldest first; `local` are those of the local disk."""
    rows = forecast_remote(log, remote, now_ms)
    both = [
        *_explain_remote(log, remote, rows, now_ms),
        *_with_remote(log, local, remote, rows, now_ms),
    ]
    return sorted(both, key=lambda explanation: (explanation.base_offset, explanation.next_offset))


def without_remote(local: Sequence[SegmentExplanation]) -> list[SegmentExplanation]:
    """The local segments alone, while object storage does not answer."""
    text = "object storage does not answer, `varve tier status` says why"
    blocker = Blocker(BlockingRule.REMOTE_TIER, text)
    return [
        replace(
            explanation,
            retention=RemovalPath(RETENTION, None, (blocker,)),
            local=RemovalPath(LOCAL_RETENTION, None, (blocker,)),
        )
        for explanation in local
    ]


def removal_path(by: str, row: RemoteForecastRow | ForecastRow) -> RemovalPath:
    if row.blocked_by is None:
        return RemovalPath(by, row.when_ms, ())
    return RemovalPath(by, row.when_ms, (Blocker(row.blocked_by, row.rule, row.when_ms),))


def _with_remote(
    log: SegmentList,
    local: Sequence[SegmentExplanation],
    remote: RemoteSegments,
    rows: Sequence[RemoteForecastRow],
    now_ms: int,
) -> Iterator[SegmentExplanation]:
    if not log.settings.copies_to_tier:
        yield from local
        return
    copied = remote.end_offset
    evictions = {row.base_offset: row for row in forecast_evictions(log, copied, now_ms)}
    for explanation in local:
        row = evictions.get(explanation.base_offset)
        cover = covering_row(rows, explanation.next_offset)
        retention = explanation.retention if cover is None else removal_path(RETENTION, cover)
        eviction = None if row is None else removal_path(LOCAL_RETENTION, row)
        if row is not None and eviction is not None and row.blocked_by is BlockingRule.COPY:
            # A segment that is not copied cannot expire either.
            retention = RemovalPath(RETENTION, None, eviction.blocks)
        is_copied = explanation.next_offset <= copied
        location = SegmentLocation.BOTH if is_copied else SegmentLocation.LOCAL
        yield replace(explanation, place=location, local=eviction, retention=retention)


def _explain_remote(
    log: SegmentList, remote: RemoteSegments, rows: Sequence[RemoteForecastRow], now_ms: int
) -> Iterator[SegmentExplanation]:
    """Those that are in object storage alone; the local part explains the others."""
    by_offsets = {(row.base_offset, row.next_offset, row.place): row for row in rows}
    for segment_info in remote.segments:
        row = by_offsets.get(
            (segment_info.base_offset, segment_info.next_offset, segment_info.location)
        )
        if row is not None and segment_info.location is not SegmentLocation.BOTH:
            yield _explain_segment(log, remote, segment_info, row, now_ms)


def _explain_segment(
    log: SegmentList,
    remote: RemoteSegments,
    segment_info: RemoteSegmentInfo,
    row: RemoteForecastRow,
    now_ms: int,
) -> SegmentExplanation:
    times = segment_info.times()
    return SegmentExplanation(
        partition=log.partition,
        now_ms=now_ms,
        base_offset=segment_info.base_offset,
        next_offset=segment_info.next_offset,
        size=segment_info.size,
        is_active=False,
        max_timestamp=times.max_timestamp,
        first_append_ms=times.first_append_ms,
        last_append_ms=times.last_append_ms,
        age_from=RetentionLimits.total(log.settings).timestamp(times),
        retention=_remote_retention(row),
        compaction=_remote_compaction(log, remote, segment_info),
        dirty_ratio=None,
        stale_bytes=segment_info.stale_bytes,
        place=row.place,
    )


def _remote_retention(row: RemoteForecastRow) -> RemovalPath:
    if row.place is SegmentLocation.LEAVING:
        blocker = Blocker(BlockingRule.GRACE, row.rule, row.gone_ms)
        return RemovalPath(RETENTION, row.gone_ms, (blocker,))
    if row.place is SegmentLocation.COPYING:
        return RemovalPath(RETENTION, None, (Blocker(BlockingRule.COPY, row.rule),))
    return removal_path(RETENTION, row)


def _remote_compaction(
    log: SegmentList, remote: RemoteSegments, segment_info: RemoteSegmentInfo
) -> RemovalPath | None:
    if not log.settings.is_compacted or not segment_info.location.is_readable:
        return None
    text = (
        "the cleaner works on the local disk alone; the remote log is compacted up to offset "
        f"{remote.clean_offset}"
    )
    return RemovalPath(COMPACTION, None, (Blocker(BlockingRule.REMOTE_TIER, text),))
