"""What a compaction did, or would do and cost, by partition."""

from dataclasses import asdict, dataclass, field
from typing import Final

from varve.cleaning.compaction.key_plan import ENTRY_BYTES
from varve.cleaning.compaction.plan import CleaningPlan, sum_by_reason
from varve.cleaning.compaction.rewrite import CHUNK_BYTES, DamagedSegment
from varve.cleaning.compaction.segment_plan import SegmentFigures
from varve.cleaning.removals.removal import Reason
from varve.foundation.errors import Corrupt
from varve.jobs.compact.commit import CompactCommit
from varve.jobs.results import JobResult
from varve.jobs.tasks import TaskError
from varve.object_store.prices import PriceTable, RequestKind, default_prices
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath

_PARTS: Final = 7
"""Objects of a segment that is written; each is looked up afterwards."""
_READS_PER_INPUT: Final = 4
"""Besides the data: the tables of its key index, and what the group takes over from its last."""
_COMMIT_WRITES: Final = 2
_COMMIT_LISTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactEstimate:
    """About what a run will do; `groups` are the segments that will be written.

    `bytes_left` is the size of the partition's data afterwards.
    """

    groups: int
    segments: int
    bytes_left: int
    read_bytes: int
    written_bytes: int
    read_requests: int
    write_requests: int
    cost: float
    currency: str
    prices: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def estimate_plan(
    plan: CleaningPlan[SegmentFigures], *, log_bytes: int, prices: PriceTable
) -> CompactEstimate:
    """From the plan alone; `log_bytes` are those of the partition before."""
    inputs = [figures for group in plan.groups for figures in group]
    # Batches that go as a whole are not read, so this is an upper bound.
    read_bytes = sum(figures.size for figures in inputs)
    planned = sum(figures.planned_bytes for figures in inputs)
    kept = sum(figures.records.get(Reason.KEPT, 0) for figures in inputs)
    reads = sum(-(-figures.size // CHUNK_BYTES) + _READS_PER_INPUT for figures in inputs)
    reads += _PARTS * len(plan.groups)
    # An announcement for each group, then evidence and one manifest for all.
    writes = (_PARTS + _COMMIT_WRITES - 1) * len(plan.groups) + _COMMIT_WRITES
    lists = _COMMIT_LISTS * (len(plan.groups) + 1)
    counts = {RequestKind.READ: reads, RequestKind.WRITE: writes, RequestKind.LIST: lists}
    return CompactEstimate(
        groups=len(plan.groups),
        segments=len(inputs),
        bytes_left=log_bytes - read_bytes + planned,
        read_bytes=read_bytes,
        written_bytes=planned + kept * ENTRY_BYTES,
        read_requests=reads,
        write_requests=writes,
        cost=prices.requests_cost(counts) + prices.transfer_cost(read_bytes),
        currency=prices.currency,
        prices=prices.name,
    )


# Results


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of a run: how many tasks it had, and how long all of them took."""

    name: str
    tasks: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """One partition.

    `records` and `bytes` are those of the rewritten segments, by what became of them. `note` tells
    in words why nothing, or not everything, was compacted; `error` why it failed. `held` are base
    offsets of segments that are damaged and were left alone. After a dry run there is an
    `estimate`, and all figures tell what would be.
    """

    home: RemotePath
    segments_before: int = 0
    segments_after: int = 0
    segments_rewritten: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records: dict[Reason, int]
    bytes: dict[Reason, int]
    cleaned_up_to: int = 0
    swept: int = 0
    voided_groups: int = 0
    held: tuple[int, ...] = ()
    stages: tuple[StageTime, ...] = ()
    note: str = ""
    error: str | None = None
    estimate: CompactEstimate | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.home.topic,
            "partition": self.home.partition,
            "segments_before": self.segments_before,
            "segments_after": self.segments_after,
            "segments_rewritten": self.segments_rewritten,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "records": {reason.name.lower(): count for reason, count in self.records.items()},
            "bytes": {reason.name.lower(): count for reason, count in self.bytes.items()},
            "cleaned_up_to": self.cleaned_up_to,
            "swept": self.swept,
            "voided_groups": self.voided_groups,
            "held": list(self.held),
            "stages": [
                {
                    "name": stage_time.name,
                    "tasks": stage_time.tasks,
                    "elapsed_ms": stage_time.elapsed_ms,
                }
                for stage_time in self.stages
            ],
            "note": self.note,
            "error": self.error,
            "estimate": None if self.estimate is None else self.estimate.to_json(),
        }


@dataclass(frozen=True, slots=True)
class CompactionResult(JobResult):
    """A whole job."""

    job_id: str
    partitions: tuple[PartitionResult, ...]
    elapsed_ms: int

    @property
    def has_failed(self) -> bool:
        return any(result.error is not None for result in self.partitions)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(
            f"{result.home}: {result.error}"
            for result in self.partitions
            if result.error is not None
        )

    def to_json(self) -> dict[str, object]:
        return {
            "job": self.job_id,
            "elapsed_ms": self.elapsed_ms,
            "partitions": [result.to_json() for result in self.partitions],
        }


# Totals of a run


@dataclass(slots=True)
class Findings:
    """Of all passes together; `held` are the base offsets of segments found to be damaged."""

    home: RemotePath
    before: Manifest | None = None
    after: Manifest | None = None
    records_of: list[SegmentFigures] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    is_cut: bool = False
    """Whether the pass under way was cut short by damage."""
    notes: list[str] = field(default_factory=list)
    swept: int = 0
    voided: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    estimate: CompactEstimate | None = None

    def begin_pass(self, manifest: Manifest) -> None:
        self.is_cut = False
        self.before = self.before or manifest
        self.after = manifest

    def is_damage(self, outcome: object, base_offset: int | None = None) -> bool:
        """Whether a task found a segment damaged: that one is held, with a word on it."""
        if not isinstance(outcome, TaskError) or not isinstance(outcome.error, Corrupt):
            return False
        error = outcome.error
        if base_offset is None and isinstance(error, DamagedSegment):
            base_offset = error.base_offset
        if base_offset is None:
            return False
        self.held.append(base_offset)
        self.notes.append(str(error))
        return True

    def note_plan(self, plan: CleaningPlan[SegmentFigures], *, log_bytes: int, store: str) -> None:
        """Of a dry run: what the plan would take and leave."""
        self.records_of = [figures for group in plan.groups for figures in group]
        self.estimate = estimate_plan(plan, log_bytes=log_bytes, prices=default_prices(store))

    def note_commit(self, commit: CompactCommit) -> None:
        for group in commit.committed:
            self.records_of += group.plans
            self.bytes_read += group.written.bytes_read
            self.bytes_written += group.written.segment.size
        if commit.voided:
            self.voided += len(commit.voided)
            self.notes.append(
                f"{len(commit.voided)} groups were left as they are: their segments changed "
                "meanwhile; the next run takes them up"
            )

    def result(self, error: str | None) -> PartitionResult:
        before, after = self.before, self.after
        segments_after = 0 if after is None else after.readable_count
        bytes_after = 0 if after is None else after.log_bytes
        if self.estimate is not None:
            segments_after += self.estimate.groups - self.estimate.segments
            bytes_after = self.estimate.bytes_left
        return PartitionResult(
            home=self.home,
            segments_before=0 if before is None else before.readable_count,
            segments_after=segments_after,
            segments_rewritten=len(self.records_of),
            bytes_before=0 if before is None else before.log_bytes,
            bytes_after=bytes_after,
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            records=sum_by_reason([figures.records for figures in self.records_of]),
            bytes=sum_by_reason([figures.bytes for figures in self.records_of]),
            cleaned_up_to=0 if after is None else after.cleaned_up_to,
            swept=self.swept,
            voided_groups=self.voided,
            held=tuple(self.held),
            stages=tuple(self.stages),
            note="; ".join(self.notes),
            error=error,
            estimate=self.estimate,
        )
