"""Why segments and records are still in one tier or in both, and until when.

Invariant  nothing changes; an answer is true for the moment it was asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from varve.cleaning.effective_time import retention_timestamp
from varve.cleaning.explain import COMPACTION, RETENTION
from varve.cleaning.explanation import (
    Blocker,
    BlockingRule,
    RemovalPath,
    SegmentExplanation,
    SegmentLocation,
)
from varve.cleaning.forecast import ColdRow, ForecastRow
from varve.cleaning.log_facts import SegmentTimes
from varve.commit_log import Log
from varve.tiering.cold_forecast import ColdLook, covering_row, forecast_cold, forecast_local
from varve.tiering.cold_segment import ColdSegment

LOCAL_RETENTION = "local retention"


def explain_tiers(
    log: Log, local: Sequence[SegmentExplanation], look: ColdLook, now_ms: int
) -> list[SegmentExplanation]:
    """The segments of both tiers, oldest first; `local` are those of the local disk."""
    rows = forecast_cold(log, look, log.settings, now_ms, with_waiting=True)
    cold = list(_explain_cold(log, look, rows, now_ms))
    found = [*cold, *_with_tier(log, local, look, rows, now_ms)]
    return sorted(found, key=lambda one: (one.base_offset, one.next_offset))


def explain_unknown(local: Sequence[SegmentExplanation]) -> list[SegmentExplanation]:
    """The local segments alone, when the store cannot be asked."""
    text = "the cold tier cannot be asked now, `varve tier status` tells why"
    block = Blocker(BlockingRule.COLD_TIER, text)
    return [
        replace(
            one,
            retention=RemovalPath(RETENTION, None, (block,)),
            local=RemovalPath(LOCAL_RETENTION, None, (block,)),
        )
        for one in local
    ]


def _with_tier(
    log: Log,
    local: Sequence[SegmentExplanation],
    look: ColdLook,
    rows: Sequence[ColdRow],
    now_ms: int,
) -> Iterator[SegmentExplanation]:
    settings, copied = log.settings, look.copied_offset
    if not settings.copies_to_tier:
        yield from local
        return
    leaving = {row.base_offset: row for row in forecast_local(log, copied, settings, now_ms)}
    for one in local:
        row = leaving.get(one.base_offset)
        cover = covering_row(rows, one.next_offset)
        retention = None if cover is None else _way(RETENTION, cover)
        way = None if row is None else _way(LOCAL_RETENTION, row)
        if way is not None and any(block.rule is BlockingRule.COPY for block in way.blocks):
            # What is not copied cannot expire either.
            retention = RemovalPath(RETENTION, None, way.blocks)
        yield replace(
            one,
            place=SegmentLocation.LOCAL if one.next_offset > copied else SegmentLocation.BOTH,
            local=way,
            retention=retention or one.retention,
        )


def _way(by: str, row: ColdRow | ForecastRow) -> RemovalPath:
    blocks = () if row.blocked_by is None else (Blocker(row.blocked_by, row.rule, row.when_ms),)
    return RemovalPath(by, row.when_ms, blocks)


def _explain_cold(
    log: Log, look: ColdLook, rows: Sequence[ColdRow], now_ms: int
) -> Iterator[SegmentExplanation]:
    by_offsets = {(row.base_offset, row.next_offset, row.place): row for row in rows}
    for one in look.segments:
        for place in (SegmentLocation.COLD, SegmentLocation.LEAVING, SegmentLocation.COPYING):
            is_place = (place is SegmentLocation.COLD) == one.is_readable
            row = by_offsets.get((one.base_offset, one.end_offset + 1, place))
            if row is not None and is_place:
                yield _explain_segment(log, look, one, row, now_ms)
                break


def _explain_segment(
    log: Log, look: ColdLook, one: ColdSegment, row: ColdRow, now_ms: int
) -> SegmentExplanation:
    times = SegmentTimes(one.max_timestamp, *one.append_ms)
    retention = _way(RETENTION, row)
    if row.place is SegmentLocation.LEAVING:
        block = Blocker(BlockingRule.GRACE, row.rule, row.gone_ms)
        retention = RemovalPath(RETENTION, row.gone_ms, (block,))
    elif row.place is SegmentLocation.COPYING:
        retention = RemovalPath(RETENTION, None, (Blocker(BlockingRule.COPY, row.rule),))
    compaction = None
    if log.settings.is_compacted and one.is_readable:
        text = "the cleaner works on the local disk alone; the cold tier is clean up to offset "
        block = Blocker(BlockingRule.COLD_TIER, f"{text}{look.cleaned_up_to}")
        compaction = RemovalPath(COMPACTION, None, (block,))
    return SegmentExplanation(
        partition=log.topic_partition,
        now_ms=now_ms,
        base_offset=one.base_offset,
        next_offset=one.end_offset + 1,
        size=one.size,
        is_active=False,
        max_timestamp=one.max_timestamp,
        first_append_ms=times.first_append_ms,
        last_append_ms=times.last_append_ms,
        age_from=retention_timestamp(times, log.settings),
        retention=retention,
        compaction=compaction,
        dirty_ratio=None,
        stale_bytes=one.stale_bytes,
        place=row.place,
    )
