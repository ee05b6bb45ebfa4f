"""Reports of cleaning: one run, its progress, and the health of a partition.

Invariant  values only; a report is made once and never changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.removals.removal import Reason
from varve.commit_log import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The health of cleaning for one partition.

    `error` is the last failure of a run, or of the object store whose bounds the run needs.
    `waits_for` is set while a part of the log waits for its copy to object storage, which is not an
    error.
    """

    partition: TopicPartition
    holds: tuple[HeldSegment, ...] = ()
    error: str | None = None
    failures: int = 0
    retry_ms: int | None = None
    waits_for: str = ""

    @property
    def is_healthy(self) -> bool:
        return not self.holds and self.error is None

    @property
    def bytes_held(self) -> int:
        return sum(hold.bytes_held for hold in self.holds)


@dataclass(frozen=True, slots=True)
class CleanProgress:
    """The progress of a run: `phase` is index, plan or copy."""

    partition: TopicPartition
    phase: str
    done_bytes: int
    total_bytes: int


Progress = Callable[[CleanProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """One run over one partition.

    `records` and `bytes` go by reason and count the rewritten segments only; what was not worth
    rewriting is in `left_stale_bytes`. `rewritten` has the base offsets of those segments. A dry
    run has planned figures and changed nothing.
    """

    partition: TopicPartition
    is_dry_run: bool
    first_dirty_offset: int
    end_offset: int
    segments_before: int
    segments_after: int
    segments_rewritten: int
    bytes_before: int
    bytes_after: int
    records: dict[Reason, int] = field(default_factory=dict)
    bytes: dict[Reason, int] = field(default_factory=dict)
    left_stale_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    buffer_utilisation: float = 0.0
    elapsed_ms: int = 0
    holds: tuple[HeldSegment, ...] = ()
    note: str = ""
    rewritten: tuple[int, ...] = ()
