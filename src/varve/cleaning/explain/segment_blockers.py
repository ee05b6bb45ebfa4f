"""Finds the rules that keep compaction from removing the stale records of a segment.

Invariant  read-only. All blockers are listed at once, except that a segment which cannot be cleaned
           yet is not judged by its ratios.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from varve.cleaning.compaction.cleanable_log import WAITS_FOR_COPY, CleanableLog
from varve.cleaning.explain.explanation import Blocker
from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.retention.rules import BlockingRule
from varve.cleaning.retention.segments import (
    SegmentInfo,
    SegmentList,
    first_timestamp,
    lag_timestamp,
)
from varve.commit_log import Isolation, Log
from varve.foundation.settings import LONG_MAX
from varve.records import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBlockers:
    """Finds the blockers of one log's segments.

    `stale_bytes` has the stale bytes of segments, by base offset, where they are known.
    """

    log: Log
    segments: SegmentList
    cleanable: CleanableLog
    now_ms: int
    holds: Sequence[HeldSegment]
    stale_bytes: Mapping[int, int]

    def find(self, segment: SegmentInfo) -> list[Blocker]:
        """The rules that keep the stale records of a segment."""
        blocks = [
            block
            for block in (
                self._find_hold(segment),
                _find_active(self.segments, segment),
                self._find_undecided(segment),
                self._find_uncopied(segment),
                _find_young(self.segments, segment, self.cleanable.first_dirty_offset, self.now_ms),
            )
            if block is not None
        ]
        if segment.base_offset < self.cleanable.first_uncleanable_offset:
            blocks += self._find_ratio_blockers(segment)
        return blocks

    def _find_hold(self, segment: SegmentInfo) -> Blocker | None:
        for hold in self.holds:
            if hold.base_offset == segment.base_offset:
                times = f"{hold.attempts} attempt{'' if hold.attempts == 1 else 's'}"
                return Blocker(
                    BlockingRule.HELD,
                    f"held after {times}, it is damaged: {hold.reason}",
                    hold.retry_ms,
                )
        return None

    def _find_undecided(self, segment: SegmentInfo) -> Blocker | None:
        stable = self.segments.last_stable_offset
        if stable >= segment.next_offset:
            return None
        if self.segments.high_watermark <= stable:
            return Blocker(
                BlockingRule.HIGH_WATERMARK,
                f"records from the high watermark {stable} on may still be truncated",
            )
        batch = read_batch(self.log, stable)
        who = "a producer" if batch is None else f"producer {batch.header.producer_id}"
        return Blocker(
            BlockingRule.OPEN_TRANSACTION,
            f"the transaction of {who} is undecided since offset {stable}, the last stable offset",
        )

    def _find_uncopied(self, segment: SegmentInfo) -> Blocker | None:
        remote_bounds = self.cleanable.remote_bounds
        if (
            remote_bounds is None
            or segment.next_offset <= remote_bounds.copied_offset
            or segment.is_active
        ):
            return None
        return Blocker(
            BlockingRule.COPY,
            f"{WAITS_FOR_COPY}, which has reached offset {remote_bounds.copied_offset}",
        )

    def _find_ratio_blockers(self, segment: SegmentInfo) -> list[Blocker]:
        cleanable, blocks = self.cleanable, []
        if not cleanable.is_due:
            total_bytes = cleanable.clean_bytes + cleanable.cleanable_bytes
            blocks.append(
                Blocker(
                    BlockingRule.DIRTY_RATIO,
                    f"{cleanable.cleanable_bytes} of {total_bytes} bytes "
                    f"are dirty, a ratio of {cleanable.ratio:.3f}; cleaning begins above "
                    f"{cleanable.min_ratio}",
                    _forced_ms(self.segments, cleanable),
                )
            )
        stale = self.stale_bytes.get(segment.base_offset)
        if stale is None or segment.base_offset >= cleanable.first_dirty_offset:
            return blocks
        limit = self.segments.settings.min_stale_ratio
        if stale == 0:
            blocks.append(Blocker(BlockingRule.NOTHING_STALE, "none of its records is superseded"))
        elif stale < limit * segment.size:
            blocks.append(
                Blocker(
                    BlockingRule.STALE_SHARE,
                    f"it was cleaned already, and {stale} of its {segment.size} bytes are stale: "
                    f"it is rewritten from a share of {limit} on",
                )
            )
        return blocks


def _find_active(log: SegmentList, segment: SegmentInfo) -> Blocker | None:
    if not segment.is_active:
        return None
    roll_ms = log.settings.max_segment_ms
    until_ms = segment.times().first_append_ms + roll_ms if segment.size else None
    return Blocker(
        BlockingRule.ACTIVE_SEGMENT,
        "the active segment is not cleaned; it rolls at segment.bytes="
        f"{log.settings.segment_bytes}, or {roll_ms} ms after its first append",
        until_ms,
    )


def _find_young(
    log: SegmentList, segment: SegmentInfo, first_dirty_offset: int, now_ms: int
) -> Blocker | None:
    """The segment and the dirty ones before it must all have outlived `min.compaction.lag.ms`."""
    lag_ms = log.settings.min_compaction_lag_ms
    if lag_ms <= 0:
        return None
    until_ms, youngest = max(
        (
            (lag_timestamp(segment_info.times(), log.settings) + lag_ms, segment_info.base_offset)
            for segment_info in log.closed_from(first_dirty_offset)
            if segment_info.base_offset <= segment.base_offset
        ),
        default=(now_ms, 0),
    )
    if until_ms <= now_ms:
        return None
    text = f"segment {youngest} holds records younger than min.compaction.lag.ms={lag_ms}"
    return Blocker(BlockingRule.MIN_COMPACTION_LAG, text, until_ms)


def _forced_ms(log: SegmentList, cleanable: CleanableLog) -> int | None:
    """When `max.compaction.lag.ms` forces a cleaning whatever the ratio; None if it does not."""
    lag_ms = log.settings.max_compaction_lag_ms
    if lag_ms >= LONG_MAX or cleanable.cleanable_bytes == 0:
        return None
    first_timestamps = (
        first_timestamp(segment_info, log.settings)
        for segment_info in log.closed_from(cleanable.first_dirty_offset)
    )
    earliest_ms = min((ms for ms in first_timestamps if ms > 0), default=None)
    return None if earliest_ms is None else earliest_ms + lag_ms + 1


def read_batch(log: Log, offset: int) -> Batch | None:
    """The batch that spans an offset; None where compaction removed it."""
    fetched = log.read(start_offset=offset, max_bytes=1, isolation=Isolation.LOG_END)
    if not len(fetched.data):
        return None
    batch = Batch(fetched.data, where=f"{log.topic_partition} at offset {offset}")
    return batch if batch.header.base_offset <= offset else None
