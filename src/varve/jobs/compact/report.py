"""What a compaction of the cold tier did, partition by partition."""

from dataclasses import dataclass

from varve.cleaning.removals.removal import Reason
from varve.jobs.compact.estimate import CompactEstimate
from varve.jobs.results import JobResult
from varve.tiering.manifest.paths import RemotePath


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
                {"name": one.name, "tasks": one.tasks, "elapsed_ms": one.elapsed_ms}
                for one in self.stages
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
        return any(one.error is not None for one in self.partitions)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(f"{one.home}: {one.error}" for one in self.partitions if one.error is not None)

    def to_json(self) -> dict[str, object]:
        return {
            "job": self.job_id,
            "elapsed_ms": self.elapsed_ms,
            "partitions": [one.to_json() for one in self.partitions],
        }
