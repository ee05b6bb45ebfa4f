"""The explanations of segments and records, and the rules that keep stale records.

Invariant  read-only; `to_json` gives plain dictionaries, keys as text where they are UTF-8. All
           blockers of a segment are listed at once, except that a segment which cannot be cleaned
           yet is not judged by its ratios.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Self

from varve.cleaning.compaction.cleanable_log import WAITS_FOR_COPY, CleanableLog
from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.retention.rules import BlockingRule, RetentionTimestamp
from varve.cleaning.retention.segments import (
    SegmentInfo,
    SegmentList,
    SegmentLocation,
    first_timestamp,
    lag_timestamp,
)
from varve.commit_log import Isolation, Log, TopicPartition
from varve.foundation.settings import LONG_MAX
from varve.records import Batch

RETENTION: Final = "retention"
COMPACTION: Final = "compaction"
LOCAL_RETENTION: Final = "local retention"


class RecordState(StrEnum):
    """What a record is to compaction and to readers."""

    BELOW_LOG_START = "below the log start offset"
    REMOTE = "in object storage alone"
    REMOVED = "removed, or never there"
    NEWEST = "newest value of its key"
    TOMBSTONE = "tombstone, newest of its key"
    SUPERSEDED = "superseded"
    NO_KEY = "no key"
    ABORTED = "aborted transaction"
    UNDECIDED = "undecided transaction"
    CONTROL = "transaction marker"
    PLAIN = "record of a topic that is not compacted"
    UNKNOWN = "not looked up whether it is the newest of its key"


@dataclass(frozen=True, slots=True)
class Blocker:
    """A rule that blocks a removal; `until_ms` is when time alone lifts it, None for an event."""

    rule: BlockingRule
    text: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RemovalPath:
    """One way of removal: by retention or by compaction.

    `earliest_ms` is when the next pass could remove it, None when that is not known: the blockers
    without a time say what must happen first.
    """

    by: str
    earliest_ms: int | None
    blocks: tuple[Blocker, ...]

    @classmethod
    def behind(cls, by: str, blocks: Sequence[Blocker], now_ms: int) -> Self:
        """The path behind these blockers: removal is possible once the last of them is lifted."""
        times_ms = [block.until_ms for block in blocks if block.until_ms is not None]
        earliest_ms = max(now_ms, *times_ms) if times_ms else now_ms
        return cls(by, earliest_ms if len(times_ms) == len(blocks) else None, tuple(blocks))


def _earliest(*paths: RemovalPath | None) -> int | None:
    times_ms = [path.earliest_ms for path in paths if path is not None]
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentExplanation:
    """Why a segment, or its stale records, still exist.

    `age_from` is what `retention.ms` counts from. `compaction` is the path of its stale records,
    None on a topic that is not compacted. `dirty_ratio` is the log's. `local` is the path of its
    eviction from the local disk, None where nothing is evicted.
    """

    partition: TopicPartition
    now_ms: int
    base_offset: int
    next_offset: int
    size: int
    is_active: bool
    max_timestamp: int
    first_append_ms: int
    last_append_ms: int
    age_from: RetentionTimestamp
    retention: RemovalPath
    compaction: RemovalPath | None
    dirty_ratio: float | None
    stale_bytes: int | None
    location: SegmentLocation = SegmentLocation.LOCAL
    local: RemovalPath | None = None

    @property
    def earliest_ms(self) -> int | None:
        return _earliest(self.retention, self.compaction)

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "partition": str(self.partition),
            "earliest_ms": self.earliest_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordExplanation:
    """Why a record still exists, or that it does not.

    `compaction` is the path of this record alone; `segment.retention` removes it with its segment,
    which is None when no readable segment has the offset. `superseded_by` is the offset of a
    later record of its key.
    """

    partition: TopicPartition
    now_ms: int
    offset: int
    state: RecordState
    key: bytes | None = None
    timestamp: int | None = None
    is_tombstone: bool = False
    producer_id: int | None = None
    delete_horizon_ms: int | None = None
    superseded_by: int | None = None
    compaction: RemovalPath | None = None
    segment: SegmentExplanation | None = None

    @property
    def retention(self) -> RemovalPath | None:
        return self.segment.retention if self.segment else None

    @property
    def earliest_ms(self) -> int | None:
        return _earliest(self.retention, self.compaction)

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "partition": str(self.partition),
            "key": None if self.key is None else _text(self.key),
            "segment": self.segment.to_json() if self.segment else None,
            "earliest_ms": self.earliest_ms,
        }


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"


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
