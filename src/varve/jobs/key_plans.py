"""Plans which record is the latest of each key, in parallel by ranges of key hashes.

A task plans one range over all segments of a partition and returns counts for each segment to the
driver. Two bits per record tell the tasks that read or rewrite the segments which records are kept
and which are tombstones. They are stored in a work area of an object store or, for small plans, in
the driver's memory.

Layout     the object of one range: for each segment the position and size of its bits (unsigned 64
           bits, little-endian) and the CRC-32 of both; then the bits of each segment, compressed:
           the bits of records to keep, then those of tombstones. A segment whose bits are all zero
           has no bytes.
Invariant  the driver's memory does not grow with the number of records: it holds counts, and at
           most INLINE_BYTES of bits for all plans of a job together (`plan_area`). Ranges do not
           overlap, so bits are combined by OR and counts are added up.
Crash      a killed job leaves its work area: the next compaction of the partition, or a later
           snapshot run, removes it. A read of the data source cannot tell when its tasks have
           ended: a later read or compaction removes its plan once it is older than READ_PLAN_MS.
"""

import struct
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
    zero_bits,
)
from varve.disk import to_store_error
from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.jobs.tasks import TaskError, get_result
from varve.object_store import ObjectInfo, ObjectStore

INLINE_BYTES: Final = 4 << 20
"""Bytes of bits that may pass through the driver, for all plans of a job: 16 million records."""

READ_PLAN_MS: Final = 24 * 3_600_000
"""Retention of the plan of a read: tasks may start late, and Spark may retry them."""
_READ_PLANS: Final = "read/"

_LEVEL: Final = 1
"""zlib level 1, the fastest: the bits of one range of hashes are mostly zeros."""
_FILE_BYTES: Final = 16 << 20
"""Larger bitmaps of a driver are kept in a temporary file."""
_THREADS: Final = 8
"""Concurrent requests of a task that fetches its bits from many ranges."""
_ENTRY: Final = struct.Struct("<QQI")


def cut_hashes(count: int) -> list[HashRange]:
    """Splits all hashes into `count` ranges, at least one."""
    count = max(count, 1)
    bounds = [HASH_END * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


# The bits of segments


def file_bits(size: int) -> Bits:
    """A zeroed bitmap; a large one lies in a temporary file, which is deleted with the array.

    The pages of a file can be written out, so they do not use up the memory of a driver.
    """
    if size <= _FILE_BYTES:
        return zero_bits(size)
    try:
        with tempfile.TemporaryFile() as file:
            for start in range(0, size, _FILE_BYTES):  # a full disk is found here, not by SIGBUS
                file.write(bytes(min(_FILE_BYTES, size - start)))
            file.flush()
            return np.memmap(file, np.uint8, "r+", shape=(size,)).view(np.ndarray)
    except OSError as error:
        raise to_store_error(
            error, f"a plan needs {size} bytes of temporary file", path=tempfile.gettempdir()
        ) from error


class SegmentBits(NamedTuple):
    """Which records of a segment are kept, and which of those are tombstones."""

    keep: Bits
    tombstones: Bits


class LatestBits(Protocol):
    """Access to the bits of one plan; pickled with its tasks."""

    def read(self, first: int, record_counts: Sequence[int]) -> list[SegmentBits]:
        """Reads the bits of consecutive segments from number `first` on."""


@dataclass(frozen=True, slots=True)
class WorkArea:
    """The folder of an object store for the ranges of one plan; `folder` ends with a slash."""

    open_store: Callable[[], ObjectStore]
    folder: str

    def key(self, number: int) -> str:
        return f"{self.folder}{number:06}"

    def remove(self, objects: ObjectStore) -> None:
        remove_folder(objects, self.folder)


def read_plan_area(open_store: Callable[[], ObjectStore], work_folder: str) -> WorkArea:
    """Returns a new area for the plan of a read, below the work folder of a partition."""
    return WorkArea(open_store, f"{work_folder}{_READ_PLANS}{uuid4()}/")


def remove_folder(objects: ObjectStore, folder: str) -> int:
    """Deletes all objects below a folder; returns their number."""
    return _delete(objects, objects.list(folder))


def remove_left_work(objects: ObjectStore, work_folder: str, *, now_ms: int) -> int:
    """Deletes leftover objects in a partition's work folder; the caller holds its lease."""
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
    """Deletes plans of reads that are older than READ_PLAN_MS."""
    entries = objects.list(f"{work_folder}{_READ_PLANS}")
    old = (entry for entry in entries if entry.modified_ms < now_ms - READ_PLAN_MS)
    return _delete(objects, old)


def _delete(objects: ObjectStore, entries: Iterable[ObjectInfo]) -> int:
    keys = [entry.key for entry in entries]
    objects.delete(keys)
    return len(keys)


def plan_area(area: WorkArea, *, record_count: int, inline_bytes: int) -> WorkArea | None:
    """Chooses where the bits of a plan are stored; None for the driver's memory."""
    return None if record_count // 4 < inline_bytes else area


@dataclass(frozen=True, slots=True)
class InlineBits:
    """The bits of a plan in the memory of this process."""

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
        segment_bits = [np.zeros(2 * size, np.uint8) for size in sizes]
        objects = self.area.open_store()
        with ThreadPoolExecutor(min(_THREADS, self.range_count), "varve-bits") as pool:
            ranges = pool.map(
                lambda number: self._fetch(objects, number, first, len(sizes)),
                range(self.range_count),
            )
            for slices in ranges:
                for bits, data in zip(segment_bits, slices, strict=True):
                    if data:
                        _merge_bits(bits, data, self.area.folder)
        return [
            SegmentBits(bits[:size], bits[size:])
            for bits, size in zip(segment_bits, sizes, strict=True)
        ]

    def _fetch(self, objects: ObjectStore, number: int, first: int, count: int) -> list[memoryview]:
        """Fetches the compressed bits of `count` segments in one range."""
        key = self.area.key(number)
        start = first * _ENTRY.size
        try:
            header = objects.get_range(key, start, start + count * _ENTRY.size)
            spans = _decode_entries(header, count)
            begin, end = spans[0][0], spans[-1][1]
            data = objects.get_range(key, begin, end)
            if len(data) != end - begin:
                raise ValueError(f"it ends {end - begin - len(data)} bytes early")
        except ObjectNotFound as error:
            raise Unavailable(
                f"{error}; another job has removed the work area of this job: run it again"
            ) from error
        except ValueError as error:
            raise Corrupt(
                f"{objects.name}: {key!r} is damaged, {error}: run the job again"
            ) from error
        return [data[start - begin : end - begin] for start, end in spans]


def _decode_entries(header: memoryview, count: int) -> list[tuple[int, int]]:
    """Where the bits of segments begin and end; raises ValueError for damaged entries."""
    if len(header) != count * _ENTRY.size:
        raise ValueError(f"{len(header)} bytes of entries for {count} segments")
    spans = []
    for position, size, crc in _ENTRY.iter_unpack(header):
        if crc != _entry_crc(position, size):
            raise ValueError(f"an entry of bytes {position} to {position + size} is wrong")
        spans.append((position, position + size))
    return spans


def _entry_crc(position: int, size: int) -> int:
    return zlib.crc32(struct.pack("<QQ", position, size))


def _merge_bits(bits: Bits, data: memoryview, where: str) -> None:
    try:
        range_bits = np.frombuffer(zlib.decompress(data), np.uint8)
    except zlib.error as error:
        raise Corrupt(
            f"{where}: the bits of a range cannot be decompressed ({error}): run the job again"
        ) from error
    if range_bits.size != bits.size:
        raise Corrupt(
            f"{where}: a range has {range_bits.size} bytes of bits, expected {bits.size}: run the "
            "job again"
        )
    np.bitwise_or(bits, range_bits, out=bits)


def encode_range(plan: KeyPlan) -> list[bytes]:
    """Encodes the object of one range, in parts."""
    slices = []
    for number in range(len(plan.bit_starts)):
        bits = [plan.bits_of(number, bitmap) for bitmap in (plan.keep, plan.tombstones)]
        is_empty = not (bits[0].any() or bits[1].any())
        slices.append(b"" if is_empty else zlib.compress(b"".join(bits), _LEVEL))
    entries = []
    position = len(slices) * _ENTRY.size
    for data in slices:
        entries.append(_ENTRY.pack(position, len(data), _entry_crc(position, len(data))))
        position += len(data)
    return [b"".join(entries), *slices]


# Ranges


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """The result of planning one range: a row of counts for each segment.

    `keep` and `tombstones` are the compressed bits of all segments, empty if a work area has them.
    """

    tallies: Integers
    range_count: int
    buffer_utilisation: float
    keep: bytes = b""
    tombstones: bytes = b""

    @classmethod
    def store(cls, plan: KeyPlan, area: WorkArea | None, number: int) -> "RangeOutcome":
        """Stores the bits of a range in the area; without an area the outcome contains them."""
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
    """The plan of all ranges: a row of counts for each segment, and access to the bits."""

    tallies: Integers
    bits: LatestBits
    range_count: int
    buffer_utilisation: float


class RangeFold:
    """Combines the outcomes of all ranges of one plan as they arrive."""

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
                self._add_bits(outcome)

    def _add_counts(self, outcome: RangeOutcome) -> None:
        sums = self._sums
        if sums is None:
            self._sums = replace(outcome, keep=b"", tombstones=b"")
            return
        self._sums = RangeOutcome(
            # Digests are wrapping sums, so they add up like counts.
            sums.tallies + outcome.tallies,
            sums.range_count + outcome.range_count,
            max(sums.buffer_utilisation, outcome.buffer_utilisation),
        )

    def _add_bits(self, outcome: RangeOutcome) -> None:
        if self._bits is None:
            self._bits = zero_bits(self._size), zero_bits(self._size)
        for bits, data in zip(self._bits, (outcome.keep, outcome.tombstones), strict=True):
            _merge_bits(bits, memoryview(data), "the plan")

    def result(self) -> LatestRecords:
        """Returns the plan of all ranges; raises the error of the first failed task."""
        if self._error is not None:
            get_result(self._error)
        sums = self._sums
        assert sums is not None, "a plan has at least one range"
        bits: LatestBits
        if self._area is None:
            assert self._bits is not None, "outcomes without an area have their bits"
            bits = InlineBits(*self._bits, self._bit_starts)
        else:
            bits = StoredBits(self._area, self._task_count)
        return LatestRecords(sums.tallies, bits, sums.range_count, sums.buffer_utilisation)
