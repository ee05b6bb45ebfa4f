"""Which part of a compacted log may be cleaned, how dirty it is, and whether cleaning is due.

Readers read the remote log first and then the local one. So the remote log stays an exact prefix
of the history, and tombstones and markers that delete records in it stay in the local log.

Invariant  whole segments only: neither the active segment, nor one that an undecided transaction
           or a record younger than `min.compaction.lag.ms` touches, nor one of a tiered topic that
           is not copied yet, nor anything after those.
Threads    any; the decision is based on one consistent read of the log.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.cleaning.remote_tier import RemoteBounds
from varve.cleaning.retention.segments import (
    SegmentList,
    first_timestamp,
    lag_timestamp,
    list_segments,
    read_consistently,
)
from varve.commit_log import Log, TopicPartition
from varve.foundation.settings import LONG_MAX

WAITS_FOR_COPY: Final = "waits for the copy to object storage"
KEPT_FOR_REMOTE: Final = "kept for older records in the remote tier"


class CleaningBound(StrEnum):
    """The reason why the cleanable part of a log ends."""

    ACTIVE_SEGMENT = "active segment"
    LAST_STABLE_OFFSET = "last stable offset"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"
    COPY = "copy to object storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableLog:
    """The part of a log that may be cleaned, and how dirty it is.

    `is_corrected` says that the checkpoint lay outside the log and `first_dirty_offset` should
    replace it. `blocked_by` describes what ends the cleanable part at `first_uncleanable_offset`,
    `blocked_until_ms` is when time alone lifts it, None when it takes an event. `remote_bounds` are
    None for a topic that is not tiered.
    """

    partition: TopicPartition
    first_dirty_offset: int
    is_corrected: bool
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    min_ratio: float
    delay_ms: int
    blocker: CleaningBound
    blocked_by: str
    blocked_until_ms: int | None
    remote_bounds: RemoteBounds | None = None

    @property
    def must_clean_now(self) -> bool:
        """Whether a record has waited longer than `max.compaction.lag.ms`."""
        return self.delay_ms > 0

    @property
    def is_due(self) -> bool:
        if self.clean_bytes + self.cleanable_bytes == 0:
            return False
        return self.is_forced or self.ratio > self.min_ratio

    @property
    def is_forced(self) -> bool:
        return self.must_clean_now and self.cleanable_bytes > 0

    @property
    def priority(self) -> tuple[bool, int, float]:
        """Sort key of due logs, greatest first: exceeded max.compaction.lag.ms, then ratio."""
        return (self.is_forced, self.delay_ms if self.is_forced else 0, self.ratio)

    @property
    def next_first_dirty(self) -> int:
        """The cleaner checkpoint after a complete run.

        It does not go back when segments cleaned before now wait for their copy.
        """
        return max(self.first_dirty_offset, self.first_uncleanable_offset)


def find_cleanable(
    log: Log,
    first_dirty_offset: int | None,
    now_ms: int,
    *,
    remote_bounds: RemoteBounds | None = None,
) -> CleanableLog:
    """How dirty a log is; `first_dirty_offset` is its cleaner checkpoint, None without one."""
    return read_consistently(
        log,
        lambda: judge_cleanable(list_segments(log), first_dirty_offset, now_ms, remote_bounds),
    )


def judge_cleanable(
    log: SegmentList,
    checkpoint: int | None,
    now_ms: int,
    remote_bounds: RemoteBounds | None = None,
) -> CleanableLog:
    first_dirty_offset = log.log_start_offset if checkpoint is None else checkpoint
    is_outside = not log.log_start_offset <= first_dirty_offset <= log.end_offset
    if is_outside:
        first_dirty_offset = log.log_start_offset
    blocker, bound, until_ms = _uncleanable_bound(log, first_dirty_offset, now_ms, remote_bounds)
    first_uncleanable_offset = log.find_segment(max(bound, first_dirty_offset)).base_offset
    if remote_bounds is not None:
        first_uncopied = log.find_segment(remote_bounds.copied_offset).base_offset
        first_uncleanable_offset = min(first_uncleanable_offset, first_uncopied)
    clean_bytes = sum(
        segment.size for segment in log.segments if segment.base_offset < first_dirty_offset
    )
    first_counted = log.find_segment(min(first_dirty_offset, first_uncleanable_offset)).base_offset
    cleanable_bytes = sum(
        segment.size
        for segment in log.segments
        if first_counted <= segment.base_offset < first_uncleanable_offset
    )
    total = clean_bytes + cleanable_bytes
    return CleanableLog(
        partition=log.partition,
        first_dirty_offset=first_dirty_offset,
        is_corrected=is_outside,
        first_uncleanable_offset=first_uncleanable_offset,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=cleanable_bytes / total if total else 0.0,
        min_ratio=log.settings.min_cleanable_dirty_ratio,
        delay_ms=_compaction_delay_ms(log, first_dirty_offset, now_ms),
        blocker=blocker,
        blocked_by=_describe_blocker(log, blocker, bound, until_ms),
        blocked_until_ms=until_ms,
        remote_bounds=remote_bounds,
    )


def _uncleanable_bound(
    log: SegmentList, first_dirty_offset: int, now_ms: int, remote_bounds: RemoteBounds | None
) -> tuple[CleaningBound, int, int | None]:
    """What ends the cleanable part, at which offset, and until when if time alone lifts it."""
    blocker, bound, until_ms = CleaningBound.ACTIVE_SEGMENT, log.active.base_offset, None
    if log.last_stable_offset < bound:
        blocker, bound = CleaningBound.LAST_STABLE_OFFSET, log.last_stable_offset
    if remote_bounds is not None and remote_bounds.copied_offset < bound:
        blocker, bound = CleaningBound.COPY, remote_bounds.copied_offset
    lag_ms = log.settings.min_compaction_lag_ms
    if lag_ms <= 0:
        return blocker, bound, until_ms
    for segment in log.closed_from(first_dirty_offset):
        if segment.base_offset >= bound:
            break
        newest_ms = lag_timestamp(segment.times(), log.settings)
        if newest_ms > now_ms - lag_ms:
            return CleaningBound.MIN_COMPACTION_LAG, segment.base_offset, newest_ms + lag_ms
    return blocker, bound, until_ms


def _describe_blocker(
    log: SegmentList, blocker: CleaningBound, bound: int, until_ms: int | None
) -> str:
    match blocker:
        case CleaningBound.ACTIVE_SEGMENT:
            return f"the active segment {bound} is never cleaned"
        case CleaningBound.LAST_STABLE_OFFSET:
            if log.high_watermark <= bound:
                return f"records from the high watermark {bound} on are not replicated yet"
            return f"a transaction is undecided since offset {bound}, the last stable offset"
        case CleaningBound.COPY:
            return f"the log from offset {bound} on {WAITS_FOR_COPY}"
        case CleaningBound.MIN_COMPACTION_LAG:
            return (
                f"segment {bound} holds records younger than "
                f"min.compaction.lag.ms={log.settings.min_compaction_lag_ms} until {until_ms}"
            )


def _compaction_delay_ms(log: SegmentList, first_dirty_offset: int, now_ms: int) -> int:
    """By how much the oldest dirty closed segment exceeds `max.compaction.lag.ms`."""
    lag_ms = log.settings.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        return 0
    first_timestamps = (
        first_timestamp(segment, log.settings) for segment in log.closed_from(first_dirty_offset)
    )
    earliest_ms = min((ms for ms in first_timestamps if ms > 0), default=None)
    return 0 if earliest_ms is None else max(0, now_ms - lag_ms - earliest_ms)
