"""When segments leave the local disk for the cold tier, and when they expire there.

Invariant  nothing changes. At each moment the rows due until then are what passes of local and
           total retention would have let go by then, if nothing more is appended and copying keeps
           up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from varve.cleaning.effective_time import retention_timestamp
from varve.cleaning.explanation import BlockingRule, SegmentLocation
from varve.cleaning.forecast import ColdRow, ForecastRow, forecast_facts
from varve.cleaning.log_facts import SegmentTimes, observe
from varve.cleaning.removals.removal import Reason
from varve.commit_log import Log, LogSettings, TopicPartition
from varve.commit_log.rolling import max_segment_ms
from varve.tiering.cold_segment import ColdSegment, SegmentState
from varve.tiering.copied_offset import find_closed
from varve.tiering.lineage import is_in_lineage
from varve.tiering.local_retention import name_local_rule, observe_local_limits
from varve.tiering.tier import Tier
from varve.tiering.tiered_partition import get_copied_offset

_LOCAL_RULES = {
    BlockingRule.RETENTION_TIME: BlockingRule.LOCAL_TIME,
    BlockingRule.RETENTION_SIZE: BlockingRule.LOCAL_SIZE,
}


@dataclass(frozen=True, slots=True)
class ColdLook:
    """What the cold tier has of a log at one moment: segments in any state, in their order."""

    segments: tuple[ColdSegment, ...]
    copied_offset: int
    cleaned_up_to: int
    grace_ms: int


def look_at(tier: Tier, partition: TopicPartition) -> ColdLook:
    """By the newest manifest, all of its pages; raises Unavailable when the store cannot tell."""
    tiered = tier.partitions.get(partition)
    manifest = tiered.load()
    segments = tuple(tiered.manifests.segments(manifest))
    grace_ms = tier.settings.varve_tier_grace_ms
    return ColdLook(segments, get_copied_offset(tiered), manifest.cleaned_up_to, grace_ms)


def forecast_tiers(
    log: Log, look: ColdLook, settings: LogSettings, now_ms: int
) -> tuple[tuple[ForecastRow, ...], tuple[ColdRow, ...]]:
    """The rows of the local disk, and those of the cold tier."""
    cold = forecast_cold(log, look, settings, now_ms, with_waiting=True)
    if not settings.copies_to_tier:
        return forecast_facts(observe(log, settings), now_ms), cold
    copied = max(look.copied_offset, log.last_stable_offset)
    rows = forecast_local(log, copied, settings, now_ms)
    return tuple(_earlier(row, covering_row(cold, row.next_offset)) for row in rows), cold


def forecast_local(
    log: Log, copied_offset: int, settings: LogSettings, now_ms: int
) -> tuple[ForecastRow, ...]:
    """When each local segment leaves the local disk by its local limits."""
    facts = observe_local_limits(log, copied_offset, settings)
    rows = forecast_facts(facts, now_ms)
    return tuple(_name_local(row, log, settings, copied_offset) for row in rows)


def _name_local(row: ForecastRow, log: Log, settings: LogSettings, copied: int) -> ForecastRow:
    if row.base_offset == log.view.active.base_offset:
        return _after_roll(row, log, settings)
    if row.blocked_by is BlockingRule.HIGH_WATERMARK:
        text = f"it waits for the copy to object storage, which has come to offset {copied}"
        return replace(row, rule=text, blocked_by=BlockingRule.COPY)
    blocked_by = _LOCAL_RULES.get(row.blocked_by, row.blocked_by) if row.blocked_by else None
    reason = None if row.reason is None else Reason.EVICTED
    return replace(row, reason=reason, rule=name_local_rule(row.rule), blocked_by=blocked_by)


def _after_roll(row: ForecastRow, log: Log, settings: LogSettings) -> ForecastRow:
    """The active segment is copied, and may go, once it has been rolled."""
    roll_ms = _find_roll(log, settings)
    if roll_ms is None:
        text = "the active segment is empty"
        return replace(
            row, when_ms=None, reason=None, rule=text, blocked_by=BlockingRule.ACTIVE_SEGMENT
        )
    is_later = row.when_ms is not None and row.when_ms > roll_ms
    if row.when_ms is None or is_later:
        blocked_by = _LOCAL_RULES.get(row.blocked_by, row.blocked_by) if row.blocked_by else None
        return replace(
            row,
            reason=Reason.EVICTED if is_later else None,
            rule=name_local_rule(row.rule),
            blocked_by=blocked_by,
        )
    return replace(
        row,
        when_ms=roll_ms,
        reason=Reason.EVICTED,
        rule=_ROLLS,
        blocked_by=BlockingRule.ACTIVE_SEGMENT,
    )


_ROLLS = "the active segment is copied once it has rolled, by segment.bytes or segment.ms"


def _find_roll(log: Log, settings: LogSettings) -> int | None:
    """When the active segment rolls if nothing more comes; None for an empty one."""
    active = log.view.active
    span = active.appended
    if span is None or not active.size:
        return None
    return span.first_ms + max_segment_ms(settings) - active.jitter_ms + 1


def covering_row(rows: Sequence[ColdRow], next_offset: int) -> ColdRow | None:
    """The row of the segment with which the records before an offset expire."""
    return next(
        (
            row
            for row in rows
            if row.base_offset < next_offset <= row.next_offset
            and row.place in (SegmentLocation.COLD, SegmentLocation.BOTH, SegmentLocation.LOCAL)
        ),
        None,
    )


def _earlier(row: ForecastRow, cover: ColdRow | None) -> ForecastRow:
    """A local segment goes when it is moved or when it expires, whichever is first."""
    if cover is None or cover.when_ms is None:
        return row
    if row.when_ms is not None and row.when_ms <= cover.when_ms:
        return row
    return replace(
        row,
        when_ms=cover.when_ms,
        reason=cover.reason,
        rule=cover.rule,
        blocked_by=cover.blocked_by,
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A segment that is to expire as one, in the cold tier or on its way there."""

    base_offset: int
    next_offset: int
    size: int
    stored_bytes: int
    place: SegmentLocation
    times: SegmentTimes
    is_ours: bool = True
    not_before_ms: int = 0
    """When it is rolled, of the active one."""


def forecast_cold(
    log: Log, look: ColdLook, settings: LogSettings, now_ms: int, *, with_waiting: bool
) -> tuple[ColdRow, ...]:
    """A row for each segment of the cold tier; `with_waiting` also for those to be copied."""
    pending = [_pending_row(one, now_ms) for one in look.segments if not one.is_readable]
    if not settings.remote_storage_enable:
        text = "a topic that leaves the tier has nothing in it"
        left = [one for one in look.segments if one.is_readable]
        gone = [_leaving_row(one, now_ms, text) for one in left]
        return tuple(_in_order([*gone, *pending]))
    units = list(_cold_units(log, look))
    if with_waiting and settings.copies_to_tier:
        units += _waiting_units(log, look, settings)
    # What lies behind the copied offset is of another history, and counts for no limit.
    cold = [one for one in units if one.place is not SegmentLocation.LOCAL]
    total = sum(one.size for one in cold if one.next_offset <= look.copied_offset)
    total += sum(one.size for one in log.view if one.base_offset >= look.copied_offset)
    rows = _walk(log, units, settings, total, now_ms, look.grace_ms)
    return tuple(_in_order([*rows, *pending]))


def _in_order(rows: Sequence[ColdRow]) -> list[ColdRow]:
    return sorted(rows, key=lambda row: (row.base_offset, row.next_offset))


def _cold_units(log: Log, look: ColdLook) -> Iterator[_Unit]:
    epochs, end_offset, local_start = log.epochs, log.end_offset, log.local_start_offset
    for one in look.segments:
        if one.is_readable:
            is_local = one.base_offset >= local_start
            yield _Unit(
                one.base_offset,
                one.end_offset + 1,
                one.size,
                one.stored_bytes,
                SegmentLocation.BOTH if is_local else SegmentLocation.COLD,
                SegmentTimes(one.max_timestamp, *one.append_ms),
                is_in_lineage(one, epochs, log_end_offset=end_offset),
            )


def _waiting_units(log: Log, look: ColdLook, settings: LogSettings) -> Iterator[_Unit]:
    for segment, next_offset in find_closed(log, look.copied_offset):
        times = SegmentTimes(segment.max_timestamp, *log.appended_ms(segment))
        size = segment.size
        yield _Unit(segment.base_offset, next_offset, size, size, SegmentLocation.LOCAL, times)
    active, roll_ms = log.view.active, _find_roll(log, settings)
    if roll_ms is not None:
        end_offset, size = active.extent
        times = SegmentTimes(active.max_timestamp, *log.appended_ms(active))
        yield _Unit(
            active.base_offset,
            end_offset,
            size,
            size,
            SegmentLocation.LOCAL,
            times,
            not_before_ms=roll_ms,
        )


def _walk(
    log: Log,
    units: Sequence[_Unit],
    settings: LogSettings,
    total: int,
    now_ms: int,
    grace_ms: int,
) -> Iterator[ColdRow]:
    left, before = total, None
    for unit in units:
        left -= unit.size
        if unit.next_offset <= log.log_start_offset:
            text = f"it ends at {unit.next_offset - 1}, and the log starts at "
            text += f"{log.log_start_offset}"
            yield _row(unit, (now_ms, Reason.BELOW_LOG_START, text, None), grace_ms)
            continue
        if not unit.is_ours:
            left += unit.size
            text = "it is of a history that the log does not share, and goes when the log starts "
            yield _row(unit, (None, None, f"{text}behind it", BlockingRule.COLD_TIER), grace_ms)
            continue
        before = _row(unit, _chain(_due(settings, unit, left, now_ms), before), grace_ms)
        yield before


_Due = tuple[int | None, Reason | None, str, BlockingRule | None]


def _due(settings: LogSettings, unit: _Unit, left: int, now_ms: int) -> _Due:
    """As `_due_by_rule`, of the active segment not before it has rolled."""
    due = _due_by_rule(settings, unit, left, now_ms)
    if due[0] is not None and due[0] < unit.not_before_ms:
        return unit.not_before_ms, due[1], _ROLLS, BlockingRule.ACTIVE_SEGMENT
    return due


def _due_by_rule(settings: LogSettings, unit: _Unit, left: int, now_ms: int) -> _Due:
    """When its own age or the size of the log lets it go; `left` is what is left without it."""
    if "delete" not in settings.cleanup_policy:
        policy = ",".join(settings.cleanup_policy)
        text = f"cleanup.policy={policy} deletes no segment by age or size"
        return None, None, text, BlockingRule.POLICY
    limit = settings.retention_bytes
    if 0 <= limit <= left:
        text = f"{left} bytes are left without it, and retention.bytes={limit}"
        return now_ms, Reason.EXPIRED_SIZE, text, None
    limit_ms = settings.retention_ms
    if limit_ms < 0:
        text = f"retention.ms={limit_ms} is unlimited"
        if limit >= 0:
            text += f", and both tiers may grow before retention.bytes={limit} lets it go"
        return None, None, text, BlockingRule.RETENTION_TIME
    since = retention_timestamp(unit.times, settings)
    note = f" ({since.note})" if since.note else ""
    text = f"retention.ms={limit_ms} after its {since.source} time {since.ms}{note}"
    when_ms = since.ms + limit_ms + 1
    blocked_by = None if when_ms <= now_ms else BlockingRule.RETENTION_TIME
    return max(when_ms, now_ms), Reason.EXPIRED_TIME, text, blocked_by


def _chain(due: _Due, before: ColdRow | None) -> _Due:
    """A segment goes once all before it have gone."""
    when_ms, reason, _, _ = due
    if before is None or when_ms is None:
        return due
    if before.when_ms is None:
        text = f"segment {before.base_offset} before it stays: {before.rule}"
        return None, None, text, BlockingRule.EARLIER_SEGMENT
    if before.when_ms > when_ms:
        text = f"waits for segment {before.base_offset} before it"
        return before.when_ms, reason, text, BlockingRule.EARLIER_SEGMENT
    return due


def _row(unit: _Unit, due: _Due, grace_ms: int) -> ColdRow:
    when_ms, reason, rule, blocked_by = due
    return ColdRow(
        when_ms=when_ms,
        gone_ms=None if when_ms is None else when_ms + grace_ms,
        base_offset=unit.base_offset,
        next_offset=unit.next_offset,
        size=unit.size,
        stored_bytes=unit.stored_bytes,
        place=unit.place,
        reason=reason,
        rule=rule,
        blocked_by=blocked_by,
    )


def _pending_row(one: ColdSegment, now_ms: int) -> ColdRow:
    if one.state is SegmentState.COPY_STARTED:
        text = "its copy was begun, and the next round finishes it or takes it back"
        return replace(
            _leaving_row(one, now_ms, text),
            place=SegmentLocation.COPYING,
            blocked_by=BlockingRule.COPY,
        )
    gone_ms = one.replaced_until_ms or now_ms
    text = "it is expired or replaced; its objects stay for readers of older manifests"
    return replace(_leaving_row(one, now_ms, text), gone_ms=gone_ms, blocked_by=BlockingRule.GRACE)


def _leaving_row(one: ColdSegment, now_ms: int, rule: str) -> ColdRow:
    return ColdRow(
        when_ms=now_ms,
        gone_ms=now_ms,
        base_offset=one.base_offset,
        next_offset=one.end_offset + 1,
        size=one.size,
        stored_bytes=one.stored_bytes,
        place=SegmentLocation.LEAVING,
        reason=None,
        rule=rule,
    )
