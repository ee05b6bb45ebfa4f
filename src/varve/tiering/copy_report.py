"""What a round of copying did to a partition, and how far one has come."""

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

    `copied_offset` is where the next copy begins, None where an error kept that from being known.
    `resumed_count` of the segments had been uploaded
    before and were only finished. `removed_count` announced, replaced or unfinished ones have gone
    with their objects. `error` ended the round early; what was copied before it stays.
    """

    partition: TopicPartition
    copied_offset: int | None
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
