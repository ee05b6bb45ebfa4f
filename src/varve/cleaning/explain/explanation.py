"""The values that explain returns: segments, records, and the rules that keep them.

Invariant  values only; `to_json` gives plain dictionaries, keys as text where they are UTF-8.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Self

from varve.cleaning.retention.rules import BlockingRule, RetentionTimestamp
from varve.cleaning.retention.segments import SegmentLocation
from varve.commit_log import TopicPartition

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
    place: SegmentLocation = SegmentLocation.LOCAL
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
