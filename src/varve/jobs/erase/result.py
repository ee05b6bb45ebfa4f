"""Results of an erasure by partition and tier, and the estimated cost of a dry run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from varve.jobs.erase.scan import Integers, Scan
from varve.jobs.results import JSON_NAME, JobResult, JsonFields


@dataclass(slots=True, kw_only=True)
class PartitionErasure(JsonFields):
    """The figures of one partition on one tier, `cold` or `hot`."""

    topic: str
    partition: int
    tier: str
    segments: int = 0
    segments_matched: int = 0
    matched_bytes: int = 0
    records: int = 0
    record_bytes: int = 0
    unread_values: int = 0
    bytes_read: int = 0
    swept: int = 0

    def add_scan(self, size: int, scan: Scan, *, is_live: bool = True) -> None:
        """Adds a segment of `size` bytes; only live segments count towards records and values."""
        self.segments += 1
        self.bytes_read += scan.read_bytes
        if scan.match_count:
            self.segments_matched += 1
            self.matched_bytes += size
        if is_live:
            self.unread_values += scan.unread_count
            self.records += scan.match_count
            self.record_bytes += scan.match_bytes

    def add_pass(self, later: "PartitionErasure") -> None:
        """Adds the matches of a later pass; the passes read the same segments."""
        self.segments = max(self.segments, later.segments)
        self.unread_values = max(self.unread_values, later.unread_values)
        for name in (
            "segments_matched",
            "matched_bytes",
            "records",
            "record_bytes",
            "bytes_read",
            "swept",
        ):
            setattr(self, name, getattr(self, name) + getattr(later, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureCost(JsonFields):
    """The estimated requests of an erasure to the object store, at list prices."""

    requests: int
    read_bytes: int
    cost: float
    currency: str
    prices: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult(JobResult):
    """The result of an erasure.

    `receipt` is None for a dry run, and while replaced objects are retained for their grace time,
    which ends at `finish_ms`. `receipt_places` are the objects and files with the receipt.
    """

    id: str = field(metadata={JSON_NAME: "erasure"})
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
        """Matching records on all tiers; a record on both tiers counts twice."""
        return sum(partition.records for partition in self.partitions)


class ErasureFigures:
    """Sums the figures of all passes, and collects the offsets of records matched by a field."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, int, str], PartitionErasure] = {}
        self._offsets: dict[str, dict[int, Integers]] = {}

    @property
    def partitions(self) -> tuple[PartitionErasure, ...]:
        return tuple(self._figures.values())

    @property
    def unread_values(self) -> int:
        """Values that could not be read as JSON, on all tiers."""
        return sum(figures.unread_values for figures in self._figures.values())

    def offsets(self, topic: str) -> Mapping[int, Integers]:
        """Returns the sorted offsets of records matched by a field, by partition."""
        return self._offsets.get(topic, {})

    def add(self, figures: PartitionErasure, offsets: Sequence[Integers] = ()) -> None:
        by_partition = self._offsets.setdefault(figures.topic, {})
        before = by_partition.get(figures.partition, np.empty(0, np.int64))
        by_partition[figures.partition] = np.unique(np.concatenate([before, *offsets]))
        tier = (figures.topic, figures.partition, figures.tier)
        if tier in self._figures:
            self._figures[tier].add_pass(figures)
        else:
            self._figures[tier] = figures
