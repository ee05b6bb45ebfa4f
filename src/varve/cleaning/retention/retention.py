"""Retention: records the segments that are due in the removal log, then drops them.

Invariant  only closed segments are counted and dropped, so appends meanwhile do not change the
           counts. An entry of the removal log is marked done when exactly its segments were
           dropped. An eviction removes no record: object storage holds them, and the log start
           offset stays.
Crash      before the entry is durable nothing is dropped. After it the entry may name segments that
           still exist; the next pass drops them with another entry. Only on a disk too full for a
           line may a crash lose the entry of segments that were dropped.
Threads    any; the removal log lets one removal happen at a time.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from varve.cleaning.metrics import CleanerMetrics
from varve.cleaning.removals.removal import (
    MeasuredSegment,
    Reason,
    Removal,
    RemovalKind,
    measure_segment,
)
from varve.cleaning.removals.removal_log import RemovalLog, RemovalLogs
from varve.cleaning.retention.rules import Due, RetentionScope, RetentionTimestamp, due
from varve.cleaning.retention.segments import (
    SegmentInfo,
    SegmentList,
    list_segments,
    read_consistently,
)
from varve.commit_log import Log, LogManager, LogSettings, TopicPartition
from varve.foundation.errors import DiskFull, InvalidRequest, StoreError

logger = logging.getLogger(__name__)


ExpiredSegment = Due[SegmentInfo]
"""A segment that is removed, with the reason and the rule."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The segments of one log that a pass removes, oldest first; perhaps none.

    With `rolls_active` the active segment is due as well, and the log rolls. `rejected` has the
    rejected timestamps of the segments whose age was checked, by base offset.
    """

    partition: TopicPartition
    segments: tuple[ExpiredSegment, ...] = ()
    rolls_active: bool = False
    rejected: dict[int, RetentionTimestamp] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def end_offset(self) -> int | None:
        """Where the log, or its local part, begins afterwards; None when nothing is removed."""
        return self.segments[-1].next_offset if self.segments else None


def plan_retention(log: SegmentList, now_ms: int) -> RetentionPlan:
    """Plans what retention removes from a log now.

    The age and size limits of a log that is copied apply to both tiers. Locally it loses only
    segments below its log start offset, which the expiry of its remote segments raises.
    """
    scope = RetentionScope.of_log(log)
    if not log.settings.copies_to_tier:
        return _plan(log, due(log.segments, scope, now_ms), now_ms)
    below = (
        segment for segment in log.segments[:-1] if segment.next_offset <= log.log_start_offset
    )
    return _plan(log, due(below, scope, now_ms), now_ms)


def plan_eviction(log: SegmentList, remote_end_offset: int, now_ms: int) -> RetentionPlan:
    """Plans which local segments of a tiered log `local.retention.*` evicts now.

    The active segment is never among them: it is rolled when it is due, so that it can be copied
    and then evicted or expired (Kafka: UnifiedLog.deletableSegments).
    """
    scope = RetentionScope.of_local_disk(log, remote_end_offset)
    plan = _plan(log, due(log.segments, scope, now_ms), now_ms)
    if not plan.rolls_active:
        return plan
    return replace(plan, segments=plan.segments[:-1])


def _plan(log: SegmentList, segments: Iterable[Due[SegmentInfo]], now_ms: int) -> RetentionPlan:
    expired: list[ExpiredSegment] = []
    rejected: dict[int, RetentionTimestamp] = {}
    rolls_active = False
    for decision in segments:
        if decision.age_from is not None and decision.age_from.is_rejected:
            rejected[decision.base_offset] = decision.age_from
        if not decision.is_due(now_ms) or decision.reason is None:
            break
        rolls_active = decision.segment.is_active
        expired.append(decision)
    return RetentionPlan(log.partition, tuple(expired), rolls_active, rejected)


class LogRetention:
    """Retention of one log."""

    def __init__(self, log: Log, removals: RemovalLog) -> None:
        self._log = log
        self._removals = removals

    def plan(self, now_ms: int, settings: LogSettings | None = None) -> RetentionPlan:
        """What `expire` would remove now, under the topic's settings or others."""
        log = self._log
        return read_consistently(log, lambda: plan_retention(list_segments(log, settings), now_ms))

    def expire(self, now_ms: int) -> RetentionPlan:
        """Removes the segments that are due; returns what was removed.

        Raises OSError, and removes nothing, when the removal cannot be recorded. On a full disk,
        where expiry makes the room, segments are removed first and recorded later.
        """
        with self._removals.removal_lock:
            self._log.health.check_usable()
            plan = self.plan(now_ms)
            if plan.rolls_active:
                self.roll()
                plan = self.plan(now_ms)
            dropped = self._remove(plan.segments, RemovalKind.EXPIRY, now_ms)
        return replace(plan, segments=tuple(dropped), rolls_active=False)

    def plan_eviction(self, remote_end_offset: int, now_ms: int) -> RetentionPlan:
        """What `evict` would drop now, and whether the active segment is due."""
        log = self._log
        return read_consistently(
            log, lambda: plan_eviction(list_segments(log), remote_end_offset, now_ms)
        )

    def evict(self, segments: Sequence[ExpiredSegment], now_ms: int) -> list[ExpiredSegment]:
        """Drops the oldest local segments, all copied to object storage; returns those dropped.

        Raises as `expire`.
        """
        with self._removals.removal_lock:
            self._log.health.check_usable()
            return self._remove(segments, RemovalKind.EVICTION, now_ms)

    def roll(self) -> None:
        """Closes the active segment, which is due, unless the disk has no room for another."""
        with contextlib.suppress(DiskFull):
            self._log.roll()

    def _remove(
        self, expired: Sequence[ExpiredSegment], kind: RemovalKind, now_ms: int
    ) -> list[ExpiredSegment]:
        """Records and drops closed segments.

        On a full disk it drops them first: waiting for room that only the drop makes would never
        end.
        """
        self._removals.write_deferred()
        counted = read_consistently(self._log, lambda: self._count(expired))
        if not counted:
            return []
        removal = self._removal(counted, kind, now_ms)
        is_recorded = self._removals.try_append(removal)
        bases = self._drop(removal.end_offset, kind, now_ms)
        dropped = [pair for pair in counted if pair[0].base_offset in bases]
        if len(dropped) < len(counted):
            logger.warning(
                "segments were replaced while they were removed",
                extra={"partition": str(self._log.topic_partition), "removal": removal.id},
            )
            if not dropped:
                return []
            removal = self._removal(dropped, kind, now_ms)
            is_recorded = self._removals.try_append(removal)
        if is_recorded:
            self._removals.mark_done(removal.id)
        else:
            self._removals.defer(removal)
        logger.info(
            _REMOVED[kind],
            extra={
                "partition": str(self._log.topic_partition),
                "segments": len(dropped),
                "bytes": sum(removal.bytes.values()),
                "before_offset": removal.end_offset,
                "rule": removal.rule,
            },
        )
        return [segment for segment, _ in dropped]

    def _count(self, expired: Sequence[ExpiredSegment]) -> list["_Counted"]:
        closed = {segment.base_offset: segment for segment in self._log.view.closed}
        counted = []
        for segment in expired:
            if (local := closed.get(segment.base_offset)) is not None:
                measured = measure_segment(
                    local.file(), base_offset=local.base_offset, size=local.size, verify_crc=False
                )
                counted.append((segment, measured))
        return counted

    def _drop(self, before_offset: int, kind: RemovalKind, now_ms: int) -> set[int]:
        """Drops the segments before an offset; returns the base offsets of those dropped."""
        log = self._log
        is_eviction = kind is RemovalKind.EVICTION
        drop = log.drop_local_segments_before if is_eviction else log.drop_segments_before
        try:
            return {segment.base_offset for segment in drop(before_offset, now_ms=now_ms)}
        except InvalidRequest:  # no segment begins there: the log was truncated, or merged segments
            return set()

    def _removal(self, counted: Sequence["_Counted"], kind: RemovalKind, now_ms: int) -> Removal:
        records: Counter[Reason] = Counter()
        sizes: Counter[Reason] = Counter()
        last: dict[Reason, ExpiredSegment] = {}
        segments: Counter[Reason] = Counter()
        for segment, measured in counted:
            assert segment.reason is not None
            records[segment.reason] += measured.summary.records
            sizes[segment.reason] += segment.size
            segments[segment.reason] += 1
            last[segment.reason] = segment
        # For each reason the rule of its last segment, which was the closest to the limit.
        rules = [
            f"{segments[reason]} {reason.value}: segment {segment.base_offset}, {segment.rule}"
            for reason, segment in last.items()
        ]
        rules += [
            f"segment {segment.base_offset} is damaged at {measured.damage}, records after that "
            "are not counted"
            for segment, measured in counted
            if measured.damage
        ]
        return Removal(
            id=self._removals.next_id(),
            partition=self._log.topic_partition,
            kind=kind,
            at_ms=now_ms,
            inputs=tuple(measured.summary for _, measured in counted),
            outputs=(),
            records=dict(records),
            bytes=dict(sizes),
            rule="; ".join(rules),
            end_offset=counted[-1][0].next_offset,
        )


_Counted = tuple[ExpiredSegment, MeasuredSegment]
"""A segment about to be dropped, and the count of its records."""
_REMOVED: Final = {
    RemovalKind.EXPIRY: "segments expired",
    RemovalKind.EVICTION: "segments evicted from the local disk",
}


class Retention:
    """Retention of all logs of a store that are not compacted; the cleaner calls it for the others.

    A log that fails is listed in `failures` and tried again at the next pass; the others continue.
    `rejected` has, by base offset, the timestamps that the last pass over a log rejected.
    """

    def __init__(
        self, store: LogManager, removals: RemovalLogs, metrics: CleanerMetrics | None = None
    ) -> None:
        self._store = store
        self._removals = removals
        self._metrics = metrics
        self.failures: dict[TopicPartition, str] = {}
        self.rejected: dict[TopicPartition, dict[int, RetentionTimestamp]] = {}

    def run_once(self, now_ms: int) -> list[RetentionPlan]:
        """One pass over every log that is not compacted; returns what was removed."""
        self._forget_vanished()
        logs = [
            log
            for directory in self._store.directories
            if directory.failure is None
            for log in list(directory.logs.values())
            if not log.settings.is_compacted
        ]
        removed = [plan for log in logs if (plan := self.expire(log, now_ms)).segments]
        if self._metrics is not None:
            self._metrics.set_rejected(
                {partition: len(times) for partition, times in self.rejected.items()}
            )
        return removed

    def expire(self, log: Log, now_ms: int) -> RetentionPlan:
        """Retention of one log, whatever its policy; a failure is listed, not raised."""
        partition = log.topic_partition
        try:
            removed = LogRetention(log, self._removals.get(log)).expire(now_ms)
        except (StoreError, OSError) as error:
            self.failures[partition] = str(error)
            logger.warning(
                "%(partition)s: retention failed and will be tried again: %(error)s",
                {"partition": str(partition), "error": str(error)},
            )
            return RetentionPlan(partition)
        self.failures.pop(partition, None)
        self.rejected[partition] = removed.rejected
        if self._metrics is not None:
            for segment in removed.segments:
                assert segment.reason is not None
                self._metrics.observe_expiry(segment.reason, segment.size)
        return removed

    def _forget_vanished(self) -> None:
        served = {
            partition for directory in self._store.directories for partition in list(directory.logs)
        }
        self._removals.forget_others(served)
        for notes in (self.failures, self.rejected):
            for partition in set(notes) - served:
                notes.pop(partition, None)
