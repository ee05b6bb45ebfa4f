"""What a round of copying did to a partition, and how its two tiers stand."""

from dataclasses import dataclass

from varve.commit_log import TopicPartition
from varve.tiering.cold_segment import ColdSegment


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """A copy under way: so many bytes of all that are to be copied of the partition."""

    partition: TopicPartition
    base_offset: int
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied of one partition.

    `copied_offset` is where the next copy begins. `resumed_count` of the segments had been uploaded
    before and were only finished. `removed_count` announced, replaced or unfinished ones have gone
    with their objects. `error` ended the round early; what was copied before it stays.
    """

    partition: TopicPartition
    copied_offset: int
    segments: tuple[ColdSegment, ...] = ()
    resumed_count: int = 0
    removed_count: int = 0
    error: str | None = None

    @property
    def log_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def stored_bytes(self) -> int:
        """All bytes that were put into the store, indexes included."""
        return sum(segment.stored_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """How the tiers of one partition stand.

    `lag_*` are closed segments that are not copied. `pending_*` are segments in the store that
    cannot be read: announced, or about to go.
    """

    partition: TopicPartition
    is_enabled: bool
    is_copying: bool
    copied_offset: int
    hot_bytes: int
    hot_segments: int
    cold_bytes: int
    cold_segments: int
    stored_bytes: int
    pending_segments: int
    lag_bytes: int
    lag_segments: int
    manifest_version: int
