"""What an erasure did, or would do."""

from dataclasses import dataclass
from typing import Any

from varve.jobs.results import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """One partition on one tier, cold or hot: what was looked into, and what holds a match."""

    topic: str
    partition: int
    tier: str
    segments: int
    segments_matched: int
    matched_bytes: int
    records: int
    record_bytes: int
    unread_values: int
    bytes_read: int
    swept: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "tier": self.tier,
            "segments": self.segments,
            "segments_matched": self.segments_matched,
            "matched_bytes": self.matched_bytes,
            "records": self.records,
            "record_bytes": self.record_bytes,
            "unread_values": self.unread_values,
            "bytes_read": self.bytes_read,
            "swept": self.swept,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureCost:
    """What the object store is asked for by the rest of an erasure, at its list prices."""

    requests: int
    read_bytes: int
    cost: float
    currency: str
    prices: str

    def to_json(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "read_bytes": self.read_bytes,
            "cost": self.cost,
            "currency": self.currency,
            "prices": self.prices,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult(JobResult):
    """A whole erasure.

    `receipt` is None for a dry run, and while replaced objects stay for their grace time, which
    ends at `finish_ms`. `receipt_places` are where it was put.
    """

    id: str
    is_dry_run: bool
    partitions: tuple[PartitionErasure, ...]
    outputs: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    elapsed_ms: int
    cost: ErasureCost | None = None
    receipt: dict[str, Any] | None = None
    receipt_places: tuple[str, ...] = ()
    finish_ms: int | None = None

    @property
    def records(self) -> int:
        """Records found on any tier; one that both tiers held counts twice."""
        return sum(one.records for one in self.partitions)

    def to_json(self) -> dict[str, object]:
        return {
            "erasure": self.id,
            "is_dry_run": self.is_dry_run,
            "partitions": [one.to_json() for one in self.partitions],
            "outputs": list(self.outputs),
            "out_of_reach": list(self.out_of_reach),
            "elapsed_ms": self.elapsed_ms,
            "cost": None if self.cost is None else self.cost.to_json(),
            "receipt": self.receipt,
            "receipt_places": list(self.receipt_places),
            "finish_ms": self.finish_ms,
        }
