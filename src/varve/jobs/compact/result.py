"""Results of a compaction by partition, and estimates of a dry run with their cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from varve.cleaning.compaction.key_plan import ENTRY_BYTES
from varve.cleaning.compaction.plan import CleaningPlan, sum_by_reason
from varve.cleaning.compaction.rewrite import CHUNK_BYTES, DamagedSegment
from varve.cleaning.compaction.segment_plan import SegmentFigures
from varve.cleaning.removals.removal import Reason
from varve.foundation.errors import Corrupt
from varve.jobs.compact.commit import CompactCommit
from varve.jobs.results import JSON_NAME, JobResult, JsonFields, encode_fields
from varve.jobs.tasks import TaskError
from varve.object_store.metering import PriceTable, RequestKind, default_prices
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath

_PARTS: Final = 7
"""Objects of a written segment; each upload is followed by a HEAD request."""
_READS_PER_INPUT: Final = 4
"""Besides the data: the key index, and the snapshot and epochs of the group's last segment."""
_COMMIT_WRITES: Final = 2
"""The evidence and the manifest; an announcement writes the manifest alone."""
_COMMIT_LISTS: Final = 2
"""Listings of a manifest commit, to find its newest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactEstimate(JsonFields):
    """The estimated work of a run; `groups` counts the segments that it will write.

    `bytes_left` is the size of the partition's data after the run.
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


def estimate_plan(
    plan: CleaningPlan[SegmentFigures], *, log_bytes: int, prices: PriceTable
) -> CompactEstimate:
    """Estimates a run from its plan; `log_bytes` is the size of the partition before it."""
    inputs = [figures for group in plan.groups for figures in group]
    # Batches that are removed as a whole are not read, so this is an upper bound.
    read_bytes = sum(figures.size for figures in inputs)
    planned = sum(figures.planned_bytes for figures in inputs)
    kept = sum(figures.records.get(Reason.KEPT, 0) for figures in inputs)
    reads = sum(-(-figures.size // CHUNK_BYTES) + _READS_PER_INPUT for figures in inputs)
    reads += _PARTS * len(plan.groups)
    # An announcement for each group, then removal records and one manifest for all.
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
    """One stage of a run: its task count and the elapsed time of all tasks together."""

    name: str
    tasks: int
    elapsed_ms: int


@dataclass(slots=True, kw_only=True)
class PartitionResult(JsonFields):
    """The result for one partition, summed over all passes of a run.

    `records` and `bytes` count the records of rewritten segments by the reason why they were kept
    or removed. `note` says why the partition was not compacted, or only in part; `error` says why
    the run failed. `held` are the base offsets of damaged segments, which are not rewritten. A dry
    run sets `estimate`, and all its figures are estimates.
    """

    path: RemotePath = field(metadata={JSON_NAME: None})
    segments_before: int = 0
    segments_after: int = 0
    segments_rewritten: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records: dict[Reason, int] = field(default_factory=dict)
    bytes: dict[Reason, int] = field(default_factory=dict)
    cleaned_up_to: int = 0
    swept: int = 0
    voided_groups: int = 0
    held: list[int] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    note: str = ""
    error: str | None = None
    estimate: CompactEstimate | None = None

    def add_note(self, note: str) -> None:
        self.note = f"{self.note}; {note}" if self.note else note

    def add_manifest(self, manifest: Manifest, *, is_first: bool = False) -> None:
        """Sets the figures after the run, and with `is_first` those before it."""
        self.segments_after, self.bytes_after = manifest.readable_count, manifest.log_bytes
        self.cleaned_up_to = manifest.cleaned_up_to
        if is_first:
            self.segments_before, self.bytes_before = self.segments_after, self.bytes_after

    def is_damage(self, outcome: object, base_offset: int | None = None) -> bool:
        """Whether a task failed on a damaged segment; if so, adds it to `held`, with a note."""
        if not isinstance(outcome, TaskError) or not isinstance(outcome.error, Corrupt):
            return False
        if base_offset is None and isinstance(outcome.error, DamagedSegment):
            base_offset = outcome.error.base_offset
        if base_offset is None:
            return False
        self.held.append(base_offset)
        self.add_note(str(outcome.error))
        return True

    def add_plan(self, plan: CleaningPlan[SegmentFigures], store: str) -> None:
        """Adds the plan of a dry run."""
        prices = default_prices(store)
        self.estimate = estimate_plan(plan, log_bytes=self.bytes_after, prices=prices)
        self.segments_after += self.estimate.groups - self.estimate.segments
        self.bytes_after = self.estimate.bytes_left
        self._add_rewritten([figures for group in plan.groups for figures in group])

    def add_commit(self, commit: CompactCommit) -> None:
        for group in commit.committed:
            self._add_rewritten(group.plans)
            self.bytes_read += group.output.bytes_read
            self.bytes_written += group.output.segment.size
        if commit.voided:
            self.voided_groups += len(commit.voided)
            self.add_note(
                f"{len(commit.voided)} groups were not committed: their segments changed during "
                "the run; the next run compacts them"
            )

    def _add_rewritten(self, segments: Sequence[SegmentFigures]) -> None:
        self.segments_rewritten += len(segments)
        self.records = sum_by_reason([self.records, *(figures.records for figures in segments)])
        self.bytes = sum_by_reason([self.bytes, *(figures.bytes for figures in segments)])

    def to_json(self) -> dict[str, Any]:
        names = {"topic": self.path.topic, "partition": self.path.partition}
        return {
            **names,
            **encode_fields(self),
            "records": {reason.name.lower(): count for reason, count in self.records.items()},
            "bytes": {reason.name.lower(): count for reason, count in self.bytes.items()},
        }


@dataclass(frozen=True, slots=True)
class CompactionResult(JobResult):
    """The result of a compaction job."""

    job_id: str = field(metadata={JSON_NAME: "job"})
    partitions: tuple[PartitionResult, ...]
    elapsed_ms: int

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(
            f"{result.path}: {result.error}"
            for result in self.partitions
            if result.error is not None
        )
