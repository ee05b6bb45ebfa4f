"""What a deduplication did: counts of each batch and of a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

BATCHES_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupCounts:
    """Every record is in exactly one of them."""

    kept: int = 0
    duplicates: int = 0
    late: int = 0
    future: int = 0
    no_id: int = 0

    @property
    def records(self) -> int:
        return self.kept + self.duplicates + self.late + self.future + self.no_id

    def __add__(self, other: "DedupCounts") -> "DedupCounts":
        return DedupCounts(
            kept=self.kept + other.kept,
            duplicates=self.duplicates + other.duplicates,
            late=self.late + other.late,
            future=self.future + other.future,
            no_id=self.no_id + other.no_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupBatch:
    """One batch; `watermark_ms` is the one by which records of it were late."""

    batch_id: int
    counts: DedupCounts
    watermark_ms: int
    duration_ms: int

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_id": self.batch_id,
            "records": self.counts.records,
            **asdict(self.counts),
            "watermark_ms": self.watermark_ms,
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupResult:
    """One run. `batches` holds the last ones, `batch_count` counts all."""

    topic: str
    output: str
    counts: DedupCounts = DedupCounts()
    batch_count: int = 0
    batches: tuple[DedupBatch, ...] = ()
    state_partitions: int = 0
    duration_ms: int = 0

    def add(self, batch: DedupBatch) -> "DedupResult":
        return replace(
            self,
            counts=self.counts + batch.counts,
            batch_count=self.batch_count + 1,
            batches=(*self.batches, batch)[-BATCHES_SHOWN:],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "output": self.output,
            "records": self.counts.records,
            **asdict(self.counts),
            "batch_count": self.batch_count,
            "batches": [one.to_json() for one in self.batches],
            "state_partitions": self.state_partitions,
            "duration_ms": self.duration_ms,
        }


def read_counts(observed: Mapping[str, int | None]) -> DedupCounts:
    """The counts as Spark observed them: null where a batch had no records."""
    return DedupCounts(**{name: count or 0 for name, count in observed.items()})
