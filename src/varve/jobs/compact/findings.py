"""What the run over one partition has found out and done, gathered for its result."""

from dataclasses import dataclass, field

from varve.cleaning.compaction.plan import CleaningPlan, sum_by_reason
from varve.cleaning.compaction.rewrite import DamagedSegment
from varve.cleaning.compaction.segment_plan import SegmentFigures
from varve.foundation.errors import Corrupt
from varve.jobs.compact.commit import CompactCommit
from varve.jobs.compact.estimate import CompactEstimate, estimate_plan
from varve.jobs.compact.report import PartitionResult, StageTime
from varve.jobs.tasks import TaskError
from varve.object_store.prices import default_prices
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath


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
        self.records_of = [one for group in plan.groups for one in group]
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
            records=sum_by_reason([one.records for one in self.records_of]),
            bytes=sum_by_reason([one.bytes for one in self.records_of]),
            cleaned_up_to=0 if after is None else after.cleaned_up_to,
            swept=self.swept,
            voided_groups=self.voided,
            held=tuple(self.held),
            stages=tuple(self.stages),
            note="; ".join(self.notes),
            error=error,
            estimate=self.estimate,
        )
