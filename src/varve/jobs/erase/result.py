"""Results of an erasure by partition and tier, and the estimated cost of a dry run."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from varve.disk import to_store_error
from varve.jobs.erase.scan import Integers, Scan
from varve.jobs.results import JSON_NAME, JobResult, JsonFields

OFFSETS_MAX: Final = 8 << 20
"""Offsets of matches that outputs are erased by at a time: 64 MiB."""
_SPOOL_BYTES: Final = 16 << 20
_OFFSET_BYTES: Final = 8


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


@dataclass(slots=True)
class TierFindings:
    """The search of a partition on one tier: its figures, and the segments with a match.

    `matched` are paths of data files or log objects; `log_bytes` and `log_requests` are the cost of
    reading all log objects once.
    """

    figures: PartitionErasure
    matched: list[str] = field(default_factory=list)
    log_bytes: int = 0
    log_requests: int = 0


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

    @property
    def has_no_match(self) -> bool:
        """Whether no record matched in this run, nor in earlier ones that its receipt covers."""
        return not self.records and not (self.receipt or {}).get("records")


class OffsetSpool:
    """The offsets of records that a field matches, by topic and partition, in a temporary file.

    Up to _SPOOL_BYTES stay in memory. They are read in windows of at most OFFSETS_MAX, so that
    neither the driver nor a task holds more at a time.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115  `close` closes it
        self._chunks: list[tuple[str, int, int]] = []

    def add(self, topic: str, partition: int, offsets: Integers) -> None:
        for start in range(0, offsets.size, OFFSETS_MAX):
            chunk = np.ascontiguousarray(offsets[start : start + OFFSETS_MAX], np.int64)
            try:
                self._file.write(chunk.data)
            except OSError as error:
                raise to_store_error(
                    error, "offsets of matches are kept here", path=tempfile.gettempdir()
                ) from error
            self._chunks.append((topic, partition, chunk.size))

    def close(self) -> None:
        self._file.close()

    def windows(self, topic: str) -> Iterator[dict[int, Integers]]:
        """Yields the sorted offsets of a topic by partition; one empty window if it has none."""
        window: dict[int, list[Integers]] = {}
        window_size = position = 0
        for owner, partition, count in self._chunks:
            if owner == topic:
                if window_size + count > OFFSETS_MAX:
                    yield _sort_offsets(window)
                    window, window_size = {}, 0
                window.setdefault(partition, []).append(self._read(position, count))
                window_size += count
            position += count
        yield _sort_offsets(window)

    def _read(self, position: int, count: int) -> Integers:
        end = self._file.tell()
        self._file.seek(position * _OFFSET_BYTES)
        data = self._file.read(count * _OFFSET_BYTES)
        self._file.seek(end)
        return np.frombuffer(data, np.int64)


def _sort_offsets(window: Mapping[int, Sequence[Integers]]) -> dict[int, Integers]:
    return {partition: np.unique(np.concatenate(parts)) for partition, parts in window.items()}


class ErasureFigures:
    """Sums the figures of all passes."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, int, str], PartitionErasure] = {}

    @property
    def partitions(self) -> tuple[PartitionErasure, ...]:
        return tuple(self._figures.values())

    @property
    def unread_values(self) -> int:
        """Values that could not be read as JSON, on all tiers."""
        return sum(figures.unread_values for figures in self._figures.values())

    def add(self, figures: PartitionErasure) -> None:
        tier = (figures.topic, figures.partition, figures.tier)
        if tier in self._figures:
            self._figures[tier].add_pass(figures)
        else:
            self._figures[tier] = figures
