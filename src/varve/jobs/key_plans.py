"""Finds the latest record of each key, by ranges of key hashes that are planned in parallel.

A task plans one range over all segments of a partition. The driver gets counts for each segment.
The bits of records are stored for the tasks that read or rewrite the segments: in a work area of
an object store, or, for few records, in the driver's memory.

Layout     the object of one range: for each segment the position where its bits begin, and the end
           of the last (unsigned 64 bits, little-endian); then the bits of each segment, compressed:
           those of records to keep, then those of tombstones. A segment without a bit has no bytes.
Invariant  what the driver holds of a plan does not grow with the number of records: it is counts,
           or bits of at most INLINE_BYTES for all plans of a job together. `plan_area` decides.
           Ranges do not overlap, so bits are joined and counts added up.
Crash      a job that is killed leaves its work area, which the owner of the area removes. A read
           of the data source does not know when its tasks have ended: a later read or compaction
           removes its plan once it is older than a day.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple, Protocol
from uuid import uuid4

import numpy as np

from varve.cleaning.compaction.key_plan import (
    HASH_END,
    Bits,
    HashRange,
    Integers,
    KeyPlan,
    lay_out_bits,
)
from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.jobs.tasks import TaskError, get_result
from varve.object_store import ObjectInfo, ObjectStore

INLINE_BYTES: Final = 4 << 20
"""Bits that may pass through the driver, of all plans of a job: those of 16 million records."""

READ_PLAN_MS: Final = 24 * 3_600_000
"""How long the plan of a read is kept: its tasks may run late, and Spark may run them again."""
_READ_PLANS: Final = "read/"

_LEVEL: Final = 1
"""Compression level: the bits of one range of hashes are mostly zeros."""
_FILE_BYTES: Final = 16 << 20
"""Larger bitmaps are in an unlinked temporary file when one process joins a plan."""
_THREADS: Final = 8
"""Concurrent requests of a task that fetches its bits of many ranges."""
_POSITION: Final = np.dtype("<u8")


def cut_hashes(count: int) -> list[HashRange]:
    """All hashes in `count` ranges, at least one."""
    count = max(count, 1)
    bounds = [HASH_END * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


# The bits of segments


class SegmentBits(NamedTuple):
    """Which records of a segment are kept, and which of those are tombstones."""

    keep: Bits
    tombstones: Bits


class LatestBits(Protocol):
    """The bits of one plan, pickled with its tasks."""

    def read(self, first: int, record_counts: Sequence[int]) -> list[SegmentBits]:
        """The bits of consecutive segments from number `first` on, with these record counts."""


@dataclass(frozen=True, slots=True)
class WorkArea:
    """A folder of an object store, for the ranges of one plan; it ends with a slash."""

    open_store: Callable[[], ObjectStore]
    folder: str

    def key(self, number: int) -> str:
        return f"{self.folder}{number:06}"

    def remove(self, objects: ObjectStore) -> None:
        remove_folder(objects, self.folder)


def read_plan_area(open_store: Callable[[], ObjectStore], work_folder: str) -> WorkArea:
    """A new area for the plan of a read, below the work folder of a partition."""
    return WorkArea(open_store, f"{work_folder}{_READ_PLANS}{uuid4()}/")


def remove_folder(objects: ObjectStore, folder: str) -> int:
    """Deletes all objects below a folder; their number."""
    return _delete(objects, objects.list(folder))


def remove_left_work(objects: ObjectStore, work_folder: str, *, now_ms: int) -> int:
    """Deletes the remains of jobs in a partition's work folder; no job may be running on it."""
    entries = objects.list(work_folder)
    return _delete(
        objects,
        (
            entry
            for entry in entries
            if not entry.key.startswith(f"{work_folder}{_READ_PLANS}")
            or entry.modified_ms < now_ms - READ_PLAN_MS
        ),
    )


def remove_old_read_plans(objects: ObjectStore, work_folder: str, *, now_ms: int) -> int:
    """Deletes plans of reads that are too old to be used."""
    entries = objects.list(f"{work_folder}{_READ_PLANS}")
    old = (entry for entry in entries if entry.modified_ms < now_ms - READ_PLAN_MS)
    return _delete(objects, old)


def _delete(objects: ObjectStore, entries: Iterable[ObjectInfo]) -> int:
    keys = [entry.key for entry in entries]
    if keys:
        objects.delete(keys)
    return len(keys)


def plan_area(area: WorkArea, *, record_count: int, inline_bytes: int) -> WorkArea | None:
    """Where the bits of a plan over `record_count` records go; None for the driver's memory."""
    return None if record_count // 4 < inline_bytes else area


@dataclass(frozen=True, slots=True)
class InlineBits:
    """The bits of a small plan, or of one that a single process makes and uses."""

    keep: Bits
    tombstones: Bits
    bit_starts: Integers

    def read(self, first: int, record_counts: Sequence[int]) -> list[SegmentBits]:
        segments = []
        for number, count in enumerate(record_counts, first):
            start = int(self.bit_starts[number]) // 8
            end = start + (count + 7) // 8
            segments.append(SegmentBits(self.keep[start:end], self.tombstones[start:end]))
        return segments


@dataclass(frozen=True, slots=True)
class StoredBits:
    """The bits of a plan whose ranges are in a work area."""

    area: WorkArea
    range_count: int

    def read(self, first: int, record_counts: Sequence[int]) -> list[SegmentBits]:
        sizes = [(count + 7) // 8 for count in record_counts]
        joined = [np.zeros(2 * size, np.uint8) for size in sizes]
        objects = self.area.open_store()
        with ThreadPoolExecutor(min(_THREADS, self.range_count), "varve-bits") as pool:
            ranges = pool.map(
                lambda number: self._fetch(objects, number, first, len(sizes)),
                range(self.range_count),
            )
            for slices in ranges:
                for bits, data in zip(joined, slices, strict=True):
                    if data:
                        _join(bits, data, self.area.folder)
        return [
            SegmentBits(bits[:size], bits[size:]) for bits, size in zip(joined, sizes, strict=True)
        ]

    def _fetch(self, objects: ObjectStore, number: int, first: int, count: int) -> list[memoryview]:
        """The compressed bits of `count` segments in one range."""
        key, width = self.area.key(number), _POSITION.itemsize
        try:
            header = objects.get_range(key, first * width, (first + count + 1) * width)
            if len(header) != (count + 1) * width:
                raise Corrupt(f"{objects.name}: {key!r} ends within its positions: run again")
            positions = np.frombuffer(header, _POSITION).tolist()
            data = objects.get_range(key, positions[0], positions[-1])
        except ObjectNotFound as error:
            raise Unavailable(
                f"{error}; another job has removed the work area of this one: run it again"
            ) from error
        bounds = (position - positions[0] for position in positions)
        return [data[start:end] for start, end in pairwise(bounds)]


def _join(bits: Bits, data: memoryview, where: str) -> None:
    try:
        range_bits = np.frombuffer(zlib.decompress(data), np.uint8)
    except zlib.error as error:
        raise Corrupt(f"{where}: the bits of a range cannot be read: {error}; run again") from error
    if range_bits.size != bits.size:
        raise Corrupt(f"{where}: {range_bits.size} bytes of bits, expected {bits.size}: run again")
    np.bitwise_or(bits, range_bits, out=bits)


def encode_range(plan: KeyPlan) -> list[bytes]:
    """The object of one range, in parts."""
    slices = []
    for number in range(len(plan.bit_starts)):
        bits = [plan.bits_of(number, each) for each in (plan.keep, plan.tombstones)]
        is_empty = not (bits[0].any() or bits[1].any())
        slices.append(b"" if is_empty else zlib.compress(b"".join(bits), _LEVEL))
    header_bytes = (len(slices) + 1) * _POSITION.itemsize
    positions = np.cumsum([header_bytes, *map(len, slices)]).astype(_POSITION)
    return [positions.tobytes(), *slices]


# Ranges


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """What a task returns of its range: counts for each segment.

    `keep` and `tombstones` are the compressed bits of all segments, where they are not stored.
    """

    tallies: Integers
    range_count: int
    buffer_utilisation: float
    keep: bytes = b""
    tombstones: bytes = b""

    @classmethod
    def store(cls, plan: KeyPlan, area: WorkArea | None, number: int) -> "RangeOutcome":
        """Stores the bits of a range in the area; without one they are part of the outcome."""
        outcome = cls(plan.tallies, plan.range_count, plan.buffer_utilisation)
        if area is None:
            keep, tombstones = (
                zlib.compress(bits.tobytes(), _LEVEL) for bits in (plan.keep, plan.tombstones)
            )
            return replace(outcome, keep=keep, tombstones=tombstones)
        parts = encode_range(plan)
        area.open_store().put_parts(area.key(number), parts, size=sum(map(len, parts)))
        return outcome


@dataclass(frozen=True, slots=True)
class LatestRecords:
    """A plan of all ranges: a row of counts for each segment, and where the bits are."""

    tallies: Integers
    bits: LatestBits
    range_count: int
    buffer_utilisation: float


class RangeFold:
    """Adds up the outcomes of all ranges of one plan as they arrive."""

    def __init__(self, record_counts: Sequence[int], area: WorkArea | None) -> None:
        self._bit_starts, self._size = lay_out_bits(record_counts)
        self._area = area
        self._task_count = 0
        self._sums: RangeOutcome | None = None
        self._bits: tuple[Bits, Bits] | None = None
        self._error: TaskError | None = None

    def add(self, outcome: RangeOutcome | TaskError) -> None:
        self._task_count += 1
        if isinstance(outcome, TaskError):
            self._error = self._error or outcome
        elif self._error is None:
            self._add_counts(outcome)
            if self._area is None:
                self._join_bits(outcome)

    def _add_counts(self, outcome: RangeOutcome) -> None:
        sums = self._sums
        if sums is None:
            self._sums = replace(outcome, keep=b"", tombstones=b"")
            return
        self._sums = RangeOutcome(
            # Digests are sums that wrap, so they add up like counts.
            sums.tallies + outcome.tallies,
            sums.range_count + outcome.range_count,
            max(sums.buffer_utilisation, outcome.buffer_utilisation),
        )

    def _join_bits(self, outcome: RangeOutcome) -> None:
        if self._bits is None:
            self._bits = _make_bits(self._size), _make_bits(self._size)
        for bits, data in zip(self._bits, (outcome.keep, outcome.tombstones), strict=True):
            _join(bits, memoryview(data), "a range of the plan")

    def result(self) -> LatestRecords:
        """The plan of all ranges; raises the error of the first that failed."""
        if self._error is not None:
            get_result(self._error)
        sums = self._sums
        assert sums is not None, "a plan has one range at least"
        bits: LatestBits
        if self._area is None:
            assert self._bits is not None, "outcomes without an area have their bits"
            bits = InlineBits(*self._bits, self._bit_starts)
        else:
            bits = StoredBits(self._area, self._task_count)
        return LatestRecords(sums.tallies, bits, sums.range_count, sums.buffer_utilisation)


def _make_bits(size: int) -> Bits:
    """Zeros, in memory or in a temporary file that is deleted with the array."""
    if size <= _FILE_BYTES:
        return np.zeros(size, np.uint8)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=(size,)).view(np.ndarray)
