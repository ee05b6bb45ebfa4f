"""What a policy will let go of a log, and when, if it grows no more or at a given rate.

Invariant  at each moment from now on the rows due until then are what a retention pass at that
           moment would have deleted. Nothing is touched.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from varve.cleaning.effective_time import retention_timestamp
from varve.cleaning.explanation import BlockingRule, SegmentLocation
from varve.cleaning.log_facts import LogFacts, SegmentFacts, observe, read_consistently
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention_rules import ExpiredSegment, may_go, review
from varve.commit_log import Log, LogSettings, TopicPartition
from varve.foundation.settings import GivenValue, parse_settings, to_kafka_names

DAY_MS: Final = 86_400_000

StaleBytes = Callable[[Log, LogSettings], int | None]
"""Bytes that compaction would free now; None where that is not known."""


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """One segment: when it goes at the earliest, or None and what keeps it.

    `blocked_by` is what it waits for, None for one that goes now.
    """

    when_ms: int | None
    base_offset: int
    next_offset: int
    size: int
    reason: Reason | None
    rule: str
    blocked_by: BlockingRule | None = None


@dataclass(frozen=True, slots=True)
class ColdRow:
    """One segment of the cold tier: when it expires at the earliest, and when its objects go.

    A local one is still to be copied, which is taken to happen in time.
    """

    when_ms: int | None
    gone_ms: int | None
    base_offset: int
    next_offset: int
    size: int
    stored_bytes: int
    place: SegmentLocation
    reason: Reason | None
    rule: str
    blocked_by: BlockingRule | None = None


@dataclass(frozen=True, slots=True)
class ColdPoint:
    """What is in the cold tier at a moment: to be read, and as objects that cost."""

    when_ms: int
    segments: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """What will have gone by a moment, and what is left."""

    when_ms: int
    segments: int
    freed_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The segments of a log in their order, with the time of each.

    Of a topic in the cold tier `rows` are those of the local disk, with the time when they leave
    it, and `cold` those of the cold tier; without one that is None. `stale_bytes` is what
    compaction would free now, None where the policy does not compact or no one knows; it counts
    bytes of segments that are listed too.
    """

    partition: TopicPartition
    now_ms: int
    settings: LogSettings
    rows: tuple[ForecastRow, ...]
    stale_bytes: int | None
    growth_bytes_per_day: float = 0
    cold: tuple[ColdRow, ...] | None = None

    @property
    def size(self) -> int:
        return sum(row.size for row in self.rows)

    @property
    def due_now_bytes(self) -> int:
        return self.at(self.now_ms).freed_bytes

    @property
    def kept_bytes(self) -> int:
        """What stays for good under this policy, as far as can be seen."""
        return sum(row.size for row in self.rows if row.when_ms is None)

    def at(self, when_ms: int) -> ForecastPoint:
        due = [row for row in self.rows if row.when_ms is not None and row.when_ms <= when_ms]
        freed = sum(row.size for row in due)
        return ForecastPoint(when_ms, len(due), freed, self.size - freed)

    def points(self, at_ms: Iterable[int] | None = None) -> list[ForecastPoint]:
        """The sums at the given moments, or at each at which something goes."""
        if at_ms is None:
            at_ms = sorted({row.when_ms for row in self.rows if row.when_ms is not None})
        return [self.at(when_ms) for when_ms in at_ms]

    def cold_at(self, when_ms: int) -> ColdPoint:
        rows = self.cold or ()
        held = [row for row in rows if row.when_ms is None or row.when_ms > when_ms]
        stored = [row for row in rows if row.gone_ms is None or row.gone_ms > when_ms]
        return ColdPoint(
            when_ms,
            len(held),
            sum(row.size for row in held),
            sum(row.stored_bytes for row in stored),
        )

    def cold_moments(self) -> list[int]:
        """When something expires in the cold tier, or leaves it."""
        rows = self.cold or ()
        times = [moment for row in rows for moment in (row.when_ms, row.gone_ms)]
        return sorted({max(moment, self.now_ms) for moment in times if moment is not None})

    def to_json(self) -> dict[str, object]:
        cold = self.cold and {
            "rows": [asdict(row) for row in self.cold],
            "points": [asdict(self.cold_at(moment)) for moment in self.cold_moments()],
        }
        return {
            "cold": cold,
            "partition": str(self.partition),
            "now_ms": self.now_ms,
            "settings": to_kafka_names(self.settings, only_changed=True),
            "rows": [asdict(row) for row in self.rows],
            "points": [asdict(point) for point in self.points()],
            "size": self.size,
            "due_now_bytes": self.due_now_bytes,
            "kept_bytes": self.kept_bytes,
            "stale_bytes": self.stale_bytes,
            "growth_bytes_per_day": self.growth_bytes_per_day,
        }


def forecast(
    log: Log,
    now_ms: int,
    *,
    overrides: Mapping[str, GivenValue] | None = None,
    stale_bytes: StaleBytes | None = None,
    growth_bytes_per_day: float = 0,
) -> Forecast:
    """What the topic's policy, or the same with some settings changed, lets go and when.

    `overrides` go by Kafka's names; raises InvalidSetting for a name or value that is not valid.
    With a growth, `retention.bytes` lets segments go as the log grows; `observed_growth` tells
    what it was so far.
    """
    where = f"the forecast of {log.topic_partition}"
    settings = parse_settings(LogSettings, overrides or {}, where, base=log.settings)
    rows = read_consistently(
        log, lambda: forecast_facts(observe(log, settings), now_ms, growth_bytes_per_day)
    )
    freed = stale_bytes(log, settings) if stale_bytes and settings.is_compacted else None
    return Forecast(log.topic_partition, now_ms, settings, rows, freed, growth_bytes_per_day)


def observed_growth(log: Log, now_ms: int) -> float:
    """Bytes per day that were appended since the oldest segment was begun, and are still here."""

    def look() -> float:
        facts = observe(log)
        since_ms = facts.segments[0].read_times().first_append_ms
        return facts.size * DAY_MS / (now_ms - since_ms) if now_ms > since_ms else 0.0

    return read_consistently(log, look)


def forecast_facts(
    facts: LogFacts, now_ms: int, growth_bytes_per_day: float = 0
) -> tuple[ForecastRow, ...]:
    """A row for each segment: those that go now, then those whose time will come."""
    expiry = review(facts, now_ms).expiry
    gone = expiry.segments if expiry else ()
    rows = [_due_row(segment, now_ms) for segment in gone]
    left = facts.size - sum(row.size for row in rows)
    before: ForecastRow | None = None
    for segment in facts.segments[len(gone) :]:
        left -= segment.size
        before = _later_row(facts, segment, before)
        if growth_bytes_per_day > 0:
            before = _with_growth(facts, segment, before, left, now_ms, growth_bytes_per_day)
        rows.append(before)
    return tuple(rows)


def _with_growth(
    facts: LogFacts,
    segment: SegmentFacts,
    row: ForecastRow,
    left: int,
    now_ms: int,
    growth_bytes_per_day: float,
) -> ForecastRow:
    """The row of a log that grows; `left` is what the log has now without this and those before."""
    if segment.is_active:
        text = "the active segment grows, and is young"
        return replace(
            row, when_ms=None, reason=None, rule=text, blocked_by=BlockingRule.ACTIVE_SEGMENT
        )
    limit = facts.settings.retention_bytes
    is_deleting = "delete" in facts.settings.cleanup_policy
    if limit < 0 or not is_deleting or not may_go(facts, segment):
        return row
    when_ms = now_ms + math.ceil((limit - left) * DAY_MS / growth_bytes_per_day)
    if row.when_ms is not None and row.when_ms <= when_ms:
        return row
    return replace(
        row,
        when_ms=when_ms,
        reason=Reason.EXPIRED_SIZE,
        rule=f"by then {limit} bytes are left without it, and retention.bytes={limit}",
        blocked_by=BlockingRule.RETENTION_SIZE,
    )


def _due_row(segment: ExpiredSegment, now_ms: int) -> ForecastRow:
    return ForecastRow(
        now_ms,
        segment.base_offset,
        segment.next_offset,
        segment.size,
        segment.reason,
        segment.rule,
    )


def _later_row(facts: LogFacts, segment: SegmentFacts, before: ForecastRow | None) -> ForecastRow:
    """A segment goes when its own time has come and all before it have gone."""
    when_ms, blocked_by, rule = _due_by_time(facts, segment)
    if before is not None and when_ms is not None:
        if before.when_ms is None:
            when_ms, blocked_by = None, BlockingRule.EARLIER_SEGMENT
            rule = f"segment {before.base_offset} before it stays: {before.rule}"
        elif before.when_ms > when_ms:
            when_ms, blocked_by = before.when_ms, BlockingRule.EARLIER_SEGMENT
            rule = f"waits for segment {before.base_offset} before it"
    reason = None if when_ms is None else Reason.EXPIRED_TIME
    return ForecastRow(
        when_ms,
        segment.base_offset,
        segment.next_offset,
        segment.size,
        reason,
        rule,
        blocked_by,
    )


def _due_by_time(facts: LogFacts, segment: SegmentFacts) -> tuple[int | None, BlockingRule, str]:
    """When its own age lets it go, and by which rule; None with what keeps it otherwise."""
    settings = facts.settings
    if "delete" not in settings.cleanup_policy:
        policy = ",".join(settings.cleanup_policy)
        return (
            None,
            BlockingRule.POLICY,
            f"cleanup.policy={policy} deletes no segment by age or size",
        )
    if not may_go(facts, segment):
        if segment.is_active and segment.size == 0:
            return None, BlockingRule.ACTIVE_SEGMENT, "an empty active segment stays"
        text = f"the high watermark {facts.high_watermark} lies before its end"
        return None, BlockingRule.HIGH_WATERMARK, text
    limit_ms = settings.retention_ms
    if limit_ms < 0:
        text = f"retention.ms={limit_ms} is unlimited{_size_text(facts)}"
        return None, BlockingRule.RETENTION_TIME, text
    since = retention_timestamp(segment.read_times(), settings)
    note = f" ({since.note})" if since.note else ""
    text = f"retention.ms={limit_ms} after its {since.source} time {since.ms}{note}"
    return since.ms + limit_ms + 1, BlockingRule.RETENTION_TIME, text


def _size_text(facts: LogFacts) -> str:
    limit = facts.settings.retention_bytes
    if limit < 0:
        return ""
    return f", and the log of {facts.size} bytes may grow before retention.bytes={limit} lets it go"
