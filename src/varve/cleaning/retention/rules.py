"""The retention rule: when each segment of a list is removed, by which limit, or what keeps it.

One rule serves every list: a local log by `retention.*`, both tiers of a tiered log by
`retention.*`, and its local disk by `local.retention.*`. Retention removes what is due now, the
forecast shows when each segment is due, and explain shows why. docs/explanation/retention.md

Invariant  whole segments only, from the oldest on: a segment is due when it exceeds a limit itself
           and all before it are due. A local segment that reaches above the high watermark is not
           due, nor is an empty active segment. A segment that is due stays due. Without `delete` in
           the policy only segments below the log start offset are due.
Threads    any; the decision is made on values and changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Generic, TypeVar

from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.segments import (
    APPEND_TIME,
    EVENT_TIME,
    SegmentInfo,
    SegmentList,
    SegmentTimes,
)
from varve.commit_log import LogSettings
from varve.foundation.units import format_duration, format_time

S = TypeVar("S", bound=SegmentInfo)

UNBOUNDED: Final = 2**63 - 1


class BlockingRule(StrEnum):
    """What keeps a segment or a record."""

    POLICY = "cleanup.policy"
    RETENTION_TIME = "retention.ms"
    RETENTION_SIZE = "retention.bytes"
    EARLIER_SEGMENT = "earlier segment"
    HIGH_WATERMARK = "high watermark"
    ACTIVE_SEGMENT = "active segment"
    OPEN_TRANSACTION = "open transaction"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"
    DIRTY_RATIO = "min.cleanable.dirty.ratio"
    STALE_SHARE = "min.stale.ratio"
    NOTHING_STALE = "nothing stale"
    HELD = "held segment"
    NEWEST_VALUE = "newest value of its key"
    DELETE_HORIZON = "delete.retention.ms"
    MARKER = "transaction marker"
    COPY = "copy to object storage"
    REMOTE_TIER = "remote tier"
    LOCAL_TIME = "local.retention.ms"
    LOCAL_SIZE = "local.retention.bytes"
    GRACE = "varve.tier.grace.ms"
    UNKNOWN = "not looked up"


class TimestampSource(StrEnum):
    """Which clock the age of a segment counts by."""

    EVENT = "event"
    APPEND = "append"


@dataclass(frozen=True, slots=True)
class RetentionTimestamp:
    """The time a segment's age counts from.

    `note` says why the records' timestamp was rejected; empty when it was not.
    """

    ms: int
    source: TimestampSource
    note: str = ""

    @property
    def is_rejected(self) -> bool:
        return bool(self.note)


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits of one list of segments; a negative one is no limit.

    `prefix` stands before the settings' names in messages: "local." for those of the local disk.
    """

    settings: LogSettings
    time_ms: int
    size_bytes: int
    prefix: str = ""

    @classmethod
    def total(cls, settings: LogSettings) -> "RetentionLimits":
        """How long and how much of a log is kept at all."""
        return cls(settings, settings.retention_ms, settings.retention_bytes)

    @classmethod
    def local(cls, settings: LogSettings) -> "RetentionLimits":
        """How long and how much of a copied log is kept on the local disk, whatever the policy."""
        return cls(settings, settings.local_limit_ms, settings.local_limit_bytes, "local.")

    @property
    def is_local(self) -> bool:
        return bool(self.prefix)

    @property
    def removes(self) -> bool:
        """Whether age and size remove segments at all."""
        return self.is_local or "delete" in self.settings.cleanup_policy

    def timestamp(self, times: SegmentTimes) -> RetentionTimestamp:
        """From when the age of a segment counts, by the topic's `retention.time`.

        `event` is Kafka's rule: the largest record timestamp, however absurd. `append` uses our
        clock alone. `bounded`, the default, takes the records' timestamp as long as it is possible:
        one later than the append, or one that had outlived the limit before it was appended, is
        rejected for the time of the append.
        """
        event_ms, append_ms = times.max_timestamp, times.last_append_ms
        policy = self.settings.retention_time
        if policy == APPEND_TIME:
            return RetentionTimestamp(append_ms, TimestampSource.APPEND)
        if event_ms < 0:
            note = "its records carry no timestamp"
            return RetentionTimestamp(append_ms, TimestampSource.APPEND, note)
        if policy == EVENT_TIME:
            return RetentionTimestamp(event_ms, TimestampSource.EVENT)
        if event_ms > append_ms:
            note = (
                f"largest timestamp {format_time(event_ms)} lies "
                f"{format_duration(event_ms - append_ms)} after the last append"
            )
            return RetentionTimestamp(append_ms, TimestampSource.APPEND, note)
        if 0 <= self.time_ms < append_ms - event_ms:
            note = (
                f"largest timestamp {format_time(event_ms)} was "
                f"{format_duration(append_ms - event_ms)} old at the last append, beyond "
                f"{self.prefix}retention.ms={self.time_ms}"
            )
            return RetentionTimestamp(append_ms, TimestampSource.APPEND, note)
        return RetentionTimestamp(event_ms, TimestampSource.EVENT)


@dataclass(frozen=True, slots=True)
class RetentionScope:
    """A list of segments as the rule sees it, beside the segments themselves.

    `total_bytes` is the size of all segments. Closed local segments that end after
    `remote_end_offset` wait for their copy to object storage; None where nothing is copied.
    """

    limits: RetentionLimits
    total_bytes: int
    log_start_offset: int
    high_watermark: int = UNBOUNDED
    remote_end_offset: int | None = None

    @classmethod
    def of_log(cls, log: SegmentList, total_bytes: int | None = None) -> "RetentionScope":
        """A log by its `retention.*`.

        `total_bytes` counts each record of both tiers once; by default the local segments count.
        """
        limits = RetentionLimits.total(log.settings)
        size = log.size if total_bytes is None else total_bytes
        return cls(limits, size, log.log_start_offset, log.high_watermark)

    @classmethod
    def of_local_disk(cls, log: SegmentList, remote_end_offset: int) -> "RetentionScope":
        """The local disk of a tiered log by its `local.retention.*`.

        Segments below the log start offset are left to the retention of the log itself.
        """
        return cls(
            RetentionLimits.local(log.settings),
            log.size,
            log.segments[0].base_offset,
            log.high_watermark,
            remote_end_offset,
        )


@dataclass(frozen=True, slots=True)
class Due(Generic[S]):
    """When a segment is removed at the earliest, and by which rule.

    `when_ms` is None for a segment that stays as far as is known; `rule` then says why.
    `blocked_by` is None for a segment that is due. `age_from` is set when its age was checked.
    A forecast sets `deleted_ms`: when the objects of a remote segment are deleted.
    """

    segment: S
    when_ms: int | None
    reason: Reason | None
    rule: str
    blocked_by: BlockingRule | None = None
    age_from: RetentionTimestamp | None = None
    is_by_size: bool = False
    deleted_ms: int | None = None

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def next_offset(self) -> int:
        return self.segment.next_offset

    @property
    def size(self) -> int:
        return self.segment.size

    def is_due(self, now_ms: int) -> bool:
        return self.when_ms is not None and self.when_ms <= now_ms


def due(segments: Iterable[S], scope: RetentionScope, now_ms: int) -> Iterator[Due[S]]:
    """Every segment, oldest first, with the time and the rule of its removal.

    Lazy: a caller that stops at the first segment that stays reads nothing after it.
    """
    remaining_bytes, previous = scope.total_bytes, None
    for segment in segments:
        if not segment.is_active and segment.next_offset <= scope.log_start_offset:
            remaining_bytes -= segment.size
            yield _below_log_start(segment, scope, now_ms)
        elif not segment.is_in_lineage:
            yield Due(segment, None, None, _OTHER_HISTORY, BlockingRule.REMOTE_TIER)
        else:
            remaining_bytes -= segment.size
            previous = _delay_until_previous(
                previous, _due_alone(segment, scope, remaining_bytes, now_ms)
            )
            yield previous


_OTHER_HISTORY: Final = (
    "the log was truncated and does not share its records; it is removed when the log start offset "
    "has passed it"
)


def due_now(segments: Iterable[S], scope: RetentionScope, now_ms: int) -> Iterator[Due[S]]:
    """The segments that are due, oldest first; those of another history are skipped."""
    for decision in due(segments, scope, now_ms):
        if decision.is_due(now_ms):
            yield decision
        elif decision.segment.is_in_lineage:
            return


def _below_log_start(segment: S, scope: RetentionScope, now_ms: int) -> Due[S]:
    rule = f"it ends at {segment.next_offset}, and the log starts at {scope.log_start_offset}"
    return Due(segment, now_ms, Reason.BELOW_LOG_START, rule)


def _delay_until_previous(previous: Due[S] | None, own: Due[S]) -> Due[S]:
    """A segment's own decision, delayed until all segments before it are removed."""
    if previous is None or own.when_ms is None:
        return own
    base_offset = previous.segment.base_offset
    if previous.when_ms is None:
        rule = f"segment {base_offset} before it stays: {previous.rule}"
        return replace(
            own, when_ms=None, reason=None, rule=rule, blocked_by=BlockingRule.EARLIER_SEGMENT
        )
    if previous.when_ms > own.when_ms:
        rule = f"waits for segment {base_offset} before it"
        return replace(
            own, when_ms=previous.when_ms, rule=rule, blocked_by=BlockingRule.EARLIER_SEGMENT
        )
    return own


def _due_alone(segment: S, scope: RetentionScope, remaining_bytes: int, now_ms: int) -> Due[S]:
    """When a segment is due by itself; `remaining_bytes` is the size of the segments after it."""
    return (
        _kept_by_state(segment, scope)
        or _due_by_size(segment, scope.limits, remaining_bytes, now_ms)
        or _due_by_time(segment, scope, now_ms)
    )


def _kept_by_state(segment: S, scope: RetentionScope) -> Due[S] | None:
    limits = scope.limits
    if not limits.removes:
        policy = ",".join(limits.settings.cleanup_policy)
        rule = f"cleanup.policy={policy} deletes no segment by age or size"
        return Due(segment, None, None, rule, BlockingRule.POLICY)
    if segment.is_remote:
        return None
    if segment.is_active and segment.size == 0:
        rule = "an empty active segment stays"
        return Due(segment, None, None, rule, BlockingRule.ACTIVE_SEGMENT)
    copied = scope.remote_end_offset
    # The active segment is rolled when it is due, and then copied.
    if copied is not None and segment.next_offset > copied and not segment.is_active:
        rule = f"it waits for the copy to object storage, which has reached offset {copied}"
        return Due(segment, None, None, rule, BlockingRule.COPY)
    if scope.high_watermark < segment.next_offset:
        rule = f"the high watermark {scope.high_watermark} is below its end"
        return Due(segment, None, None, rule, BlockingRule.HIGH_WATERMARK)
    return None


def _due_by_size(
    segment: S, limits: RetentionLimits, remaining_bytes: int, now_ms: int
) -> Due[S] | None:
    if not 0 <= limits.size_bytes <= remaining_bytes:
        return None
    reason = Reason.EVICTED if limits.is_local else Reason.EXPIRED_SIZE
    name = f"{limits.prefix}retention.bytes"
    rule = (
        f"{name}={limits.size_bytes}: {remaining_bytes:,} bytes remain without segment "
        f"{segment.base_offset}"
    )
    return Due(segment, now_ms, reason, rule, is_by_size=True)


def _due_by_time(segment: S, scope: RetentionScope, now_ms: int) -> Due[S]:
    limits = scope.limits
    limit_ms, name = limits.time_ms, f"{limits.prefix}retention.ms"
    blocked_by = BlockingRule.LOCAL_TIME if limits.is_local else BlockingRule.RETENTION_TIME
    if limit_ms < 0:
        rule = f"{name}={limit_ms} is unlimited{_describe_size_limit(scope)}"
        return Due(segment, None, None, rule, blocked_by)
    since = limits.timestamp(segment.times())
    reason = Reason.EVICTED if limits.is_local else Reason.EXPIRED_TIME
    note = f" ({since.note})" if since.note else ""
    when_ms = since.ms + limit_ms + 1
    if when_ms <= now_ms:
        rule = (
            f"the segment is {format_duration(now_ms - since.ms)} old by {since.source} "
            f"time{note}, "
            f"and {name}={limit_ms}"
        )
        return Due(segment, now_ms, reason, rule, age_from=since)
    rule = f"{name}={limit_ms} after its {since.source} time{note}"
    return Due(segment, when_ms, reason, rule, blocked_by, since)


def _describe_size_limit(scope: RetentionScope) -> str:
    limit = scope.limits.size_bytes
    if limit < 0:
        return ""
    return (
        f", and the {scope.total_bytes} bytes may grow before {scope.limits.prefix}"
        f"retention.bytes={limit} removes it"
    )
