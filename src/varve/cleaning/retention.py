"""Lets go of what retention found: the balance on record first, then the segments.

Invariant  only closed segments are counted and dropped, so what goes is what was counted, whatever
           is appended meanwhile. An entry is marked done when exactly its segments went.
Crash      before the entry is durable nothing went; after it the entry tells of segments that may
           still be there, which the next pass takes with an entry of their own. Only on a disk too
           full for a line may a crash take the entry of what went.
Threads    any; `Retention` lets one thread at a time expire a log.
"""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from varve.cleaning.effective_time import RetentionTimestamp
from varve.cleaning.log_facts import observe, read_consistently
from varve.cleaning.metrics import CleanerMetrics
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    count_segment,
)
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.retention_rules import ExpiredSegment, Expiry, Review, review
from varve.commit_log import Log, LogSettings, LogStore, TopicPartition
from varve.commit_log.log_state import NO_ROOM
from varve.commit_log.segment import Segment
from varve.foundation.errors import DiskFull, InvalidRequest, StoreError

__all__ = ["ExpiredSegment", "Expiry", "Retention", "expire", "find_expired"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A segment about to go: why, its figure, and where the reading stopped if it is damaged."""

    segment: ExpiredSegment
    figure: SegmentSummary
    damage: str


def find_expired(log: Log, now_ms: int, settings: LogSettings | None = None) -> Expiry | None:
    """What a retention pass would delete now, under the topic's settings or others."""
    return read_consistently(log, lambda: review(observe(log, settings), now_ms).expiry)


def expire(log: Log, now_ms: int, evidence: RemovalLog) -> Expiry | None:
    """Deletes what retention lets go of a log now; gives what went, None without any.

    Raises OSError, and nothing went, when the evidence cannot be written.
    """
    with evidence.removal:
        return _expire(log, now_ms, evidence, None).expiry


def _expire(log: Log, now_ms: int, evidence: RemovalLog, owed: list[Removal] | None) -> Review:
    found = read_consistently(log, lambda: review(observe(log), now_ms))
    if found.expiry is None:
        return found
    if found.expiry.takes_active:
        # A disk too full for a new segment is freed of the closed ones.
        with contextlib.suppress(DiskFull):
            log.roll()
    found, counted = read_consistently(log, lambda: _count_closed(log, now_ms))
    gone = _let_go(log, now_ms, counted, evidence, owed) if counted else []
    if not gone:
        return replace(found, expiry=None)
    expiry = _expiry_of(log.topic_partition, gone)
    logger.info(
        "segments expired",
        extra={
            "partition": str(log.topic_partition),
            "segments": len(expiry.segments),
            "bytes": expiry.size,
            "log_start_offset": expiry.before_offset,
            "rule": _rule_text(gone),
        },
    )
    return replace(found, expiry=expiry)


def _count_closed(log: Log, now_ms: int) -> tuple[Review, list[_Counted]]:
    """What may go of the closed segments, each with its records counted."""
    found = review(observe(log), now_ms)
    closed = {segment.base_offset: segment for segment in log.view.closed}
    expired = found.expiry.segments if found.expiry else ()
    return found, [
        _count(closed[one.base_offset], one) for one in expired if one.base_offset in closed
    ]


def _count(segment: Segment, expired: ExpiredSegment) -> _Counted:
    found = count_segment(segment)
    counted = replace(expired, records=found.figure.records)
    return _Counted(counted, found.figure, found.damage)


def _let_go(
    log: Log,
    now_ms: int,
    counted: Sequence[_Counted],
    evidence: RemovalLog,
    owed: list[Removal] | None,
) -> list[_Counted]:
    """Drops the segments, their balance on record; gives those that went.

    On a disk too full for the line the segments go first, and the balance is put to what is
    `owed`: waiting for room that only this makes would never end.
    """
    balance = _balance(log, now_ms, counted, evidence.next_id())
    is_recorded = _record(evidence, balance, may_owe=owed is not None)
    gone = _drop(log, now_ms, counted)
    if len(gone) < len(counted):
        logger.warning(
            "segments were replaced while they expired",
            extra={"partition": str(log.topic_partition), "evidence": balance.id},
        )
        if not gone:
            return []
        balance = _balance(log, now_ms, gone, evidence.next_id())
        is_recorded = _record(evidence, balance, may_owe=owed is not None)
    if is_recorded:
        evidence.mark_done(balance.id)
    elif owed is not None:
        owed.append(balance)
    return gone


def _record(evidence: RemovalLog, balance: Removal, *, may_owe: bool) -> bool:
    try:
        evidence.append(balance)
    except OSError as error:
        if error.errno not in NO_ROOM or not may_owe:
            raise
        return False
    return True


def _drop(log: Log, now_ms: int, counted: Sequence[_Counted]) -> list[_Counted]:
    try:
        dropped = log.drop_segments_before(counted[-1].segment.next_offset, now_ms=now_ms)
    except InvalidRequest:
        # The segment behind them is no longer there: truncated or merged with one of them.
        return []
    bases = {segment.base_offset for segment in dropped}
    return [one for one in counted if one.segment.base_offset in bases]


def _balance(log: Log, now_ms: int, counted: Sequence[_Counted], id: int) -> Removal:
    records: Counter[Reason] = Counter()
    sizes: Counter[Reason] = Counter()
    for one in counted:
        records[one.segment.reason] += one.figure.records
        sizes[one.segment.reason] += one.segment.size
    return Removal(
        id=id,
        partition=log.topic_partition,
        kind=RemovalKind.EXPIRY,
        at_ms=now_ms,
        inputs=tuple(one.figure for one in counted),
        outputs=(),
        records=dict(records),
        bytes=dict(sizes),
        rule=_rule_text(counted),
        end_offset=counted[-1].segment.next_offset,
    )


def _rule_text(counted: Sequence[_Counted]) -> str:
    """For each reason the words of its last segment, which was the closest to the limit."""
    by_reason: dict[Reason, list[ExpiredSegment]] = {}
    for one in counted:
        by_reason.setdefault(one.segment.reason, []).append(one.segment)
    parts = [
        f"{len(segments)} {reason.value}: segment {segments[-1].base_offset}, {segments[-1].rule}"
        for reason, segments in by_reason.items()
    ]
    return "; ".join([*parts, *(one.damage for one in counted if one.damage)])


def _expiry_of(partition: TopicPartition, gone: Sequence[_Counted]) -> Expiry:
    segments = tuple(one.segment for one in gone)
    return Expiry(partition, segments[-1].next_offset, segments, takes_active=False)


class Retention:
    """Retention of all logs that are not compacted; those that are belong to the cleaner.

    `evidence` gives the evidence file of a log; `metrics` may be left out. A log that fails is
    noted in `failures` and tried again at the next pass; the others go on. `overruled` tells whose
    timestamps were not believed, by base offset, of the segments that the last pass looked at.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        evidence: Callable[[Log], RemovalLog],
        metrics: CleanerMetrics | None = None,
    ) -> None:
        self._store = store
        self._evidence = evidence
        self._metrics = metrics
        self._lock = threading.Lock()
        self._owed: dict[TopicPartition, list[Removal]] = {}  # guarded by _lock
        self.failures: dict[TopicPartition, str] = {}
        self.overruled: dict[TopicPartition, dict[int, RetentionTimestamp]] = {}

    def run_once(self, now_ms: int) -> list[Expiry]:
        """One pass over every log that is due here; gives what went."""
        logs = [
            log
            for directory in self._store.directories
            if directory.failure is None
            for log in list(directory.logs.values())
            if not log.settings.is_compacted
        ]
        self._forget_vanished()
        return [expiry for log in logs if (expiry := self.expire(log, now_ms)) is not None]

    def expire(self, log: Log, now_ms: int) -> Expiry | None:
        """Retention of one log, whatever its policy; a failure is noted, not raised."""
        partition = log.topic_partition
        with self._lock:
            owed = self._owed.setdefault(partition, [])
        try:
            evidence = self._evidence(log)
            with evidence.removal:
                _write_owed(owed, evidence)
                found = _expire(log, now_ms, evidence, owed)
        except (StoreError, OSError) as error:
            self.failures[partition] = str(error)
            logger.warning(
                "retention failed, will be tried again",
                extra={"partition": str(partition), "error": str(error)},
            )
            return None
        self.failures.pop(partition, None)
        self.overruled[partition] = found.overruled
        self._measure(found.expiry)
        return found.expiry

    def _forget_vanished(self) -> None:
        served = {partition for one in self._store.directories for partition in list(one.logs)}
        with self._lock:
            for notes in (self.failures, self.overruled, self._owed):
                for partition in [one for one in list(notes) if one not in served]:
                    notes.pop(partition, None)

    def _measure(self, expiry: Expiry | None) -> None:
        if self._metrics is None:
            return
        overruled = list(self.overruled.items())
        self._metrics.set_overruled({partition: len(found) for partition, found in overruled})
        for segment in expiry.segments if expiry else ():
            self._metrics.observe_expiry(reason=segment.reason, segments=1, bytes=segment.size)


def _write_owed(owed: list[Removal], evidence: RemovalLog) -> None:
    """Records what went while the disk had no room for a line, as far as there is room now."""
    while owed:
        rule = f"{owed[0].rule}; recorded after it, because the disk was full"
        balance = replace(owed[0], id=evidence.next_id(), rule=rule)
        if not _record(evidence, balance, may_owe=True):
            return
        del owed[0]
        evidence.mark_done(balance.id)
