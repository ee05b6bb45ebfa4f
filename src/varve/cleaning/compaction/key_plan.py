"""Finds the latest record of each key over consecutive segments, from their key indexes alone.

A key index is sorted by hash, so a range of hashes is one slice of each index. The ranges are
processed one after another in the same buffer: the buffer bounds the memory, and the number of keys
only determines the number of ranges.

Invariant  a record is kept if and only if no later record of its key is in these segments, and it
           is not a tombstone past its delete horizon. Every entry is counted once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import SegmentKeys
from varve.cleaning.work_budget import UNLIMITED, WorkBudget
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.kernels.key_merge import TALLY_COUNT, Tally, merge_latest

Bits = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

HashRange = tuple[int, int]
"""A half-open range of the first 64-bit words of key hashes."""

HASH_END: Final = 1 << 64
ALL_HASHES: Final[HashRange] = (0, HASH_END)
ENTRY_BYTES: Final = 32
BUFFER_BYTES_MIN: Final = 64 << 10
"""2,048 entries: with fewer, most of the time goes into seeking the ends of ranges."""


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The latest records: bitmaps over the records of all segments, and counts per segment.

    Record r of segment s is bit `bit_starts[s] + r`; each segment starts at a whole byte.
    """

    keep: Bits
    tombstones: Bits
    bit_starts: Integers
    tallies: Integers
    range_count: int
    buffer_utilisation: float

    def bits_of(self, segment: int, bits: Bits) -> Bits:
        """One segment's part of a bitmap."""
        start = int(self.bit_starts[segment]) // 8
        end = (
            int(self.bit_starts[segment + 1]) // 8
            if segment + 1 < len(self.bit_starts)
            else bits.size
        )
        return bits[start:end]

    def tally(self, segment: int, column: Tally) -> int:
        return int(self.tallies[segment, column])


def zero_bits(size: int) -> Bits:
    """A zeroed bitmap in memory."""
    return np.zeros(size, np.uint8)


def lay_out_bits(record_counts: Sequence[int]) -> tuple[Integers, int]:
    """The first bit of each segment, and the size of the bitmap in bytes."""
    sizes = [(count + 7) // 8 for count in record_counts]
    starts = np.cumsum([0, *sizes], dtype=np.int64)
    return starts[:-1] * 8, int(starts[-1])


def plan_keys(
    indexes: Sequence[SegmentKeys],
    *,
    buffer_bytes: int,
    expired: Bits | None = None,
    budget: WorkBudget = UNLIMITED,
    hashes: HashRange = ALL_HASHES,
    allocate_bits: Callable[[int], Bits] = zero_bits,
) -> KeyPlan:
    """Plans over segments, oldest first; `hashes` restricts the plan to a range of keys.

    `expired` marks the records of batches past their delete horizon, laid out as the plan's own
    bits. `budget` is charged for every read and may raise to stop. `allocate_bits` returns zeroed
    bytes for each of the two bitmaps of the plan.
    """
    if buffer_bytes < BUFFER_BYTES_MIN:
        raise InvalidRequest(
            f"log.cleaner.dedupe.buffer.size leaves {buffer_bytes} bytes to a cleaner thread; "
            f"give each at least {BUFFER_BYTES_MIN}"
        )
    planning = _Planning(indexes, buffer_bytes // ENTRY_BYTES, expired, budget, allocate_bits)
    planning.run(*hashes)
    return planning.plan()


class _Planning:
    """One pass over all ranges of hashes."""

    def __init__(
        self,
        indexes: Sequence[SegmentKeys],
        capacity: int,
        expired: Bits | None,
        budget: WorkBudget,
        allocate_bits: Callable[[int], Bits],
    ) -> None:
        self._indexes = indexes
        self._bit_starts, size = lay_out_bits([index.record_count for index in indexes])
        self._expired = zero_bits(size) if expired is None else expired
        self._budget = budget
        self._base_offsets = np.array([index.base_offset for index in indexes], np.int64)
        self._record_counts = np.array([index.record_count for index in indexes], np.int64)
        self._capacity = capacity
        self._entries = np.empty((0, 4), np.uint64)
        self._keep = allocate_bits(size)
        self._tombstones = allocate_bits(size)
        self._tallies = np.zeros((len(indexes), TALLY_COUNT), np.int64)
        self._range_count = 0
        self._entries_max = 0

    def plan(self) -> KeyPlan:
        return KeyPlan(
            self._keep,
            self._tombstones,
            self._bit_starts,
            self._tallies,
            self._range_count,
            self._entries_max / self._capacity,
        )

    def run(self, low: int, hash_end: int) -> None:
        cursors = self._find_ends([0] * len(self._indexes), low)
        total = sum(self._find_ends(cursors, hash_end)) - sum(cursors)
        if not total:
            return
        self._entries = np.empty((min(self._capacity, total), 4), np.uint64)
        # Hashes are uniform, so ranges of equal width hold about equally many entries. A sixteenth
        # of slack makes it rare that a range does not fit and is halved.
        width = -(-(hash_end - low) // (-(-total * 17 // (self._capacity * 16))))
        while low < hash_end:
            high = min(low + width, hash_end)
            ends = self._find_ends(cursors, high)
            while sum(ends) - sum(cursors) > self._capacity:
                if high - low <= 1:
                    raise Corrupt(self._describe_overflow(low))
                high = low + (high - low) // 2
                ends = self._find_ends(cursors, high)
            self._merge(cursors, ends, low, high)
            cursors, low = ends, high

    def _find_ends(self, cursors: list[int], high: int) -> list[int]:
        if high == 0:
            return cursors
        if high == HASH_END:
            return [index.entry_count for index in self._indexes]
        ends = []
        for keys, start in zip(self._indexes, cursors, strict=True):
            with keys.open() as index:
                ends.append(index.lower_bound(high, start=start))
        return ends

    def _merge(self, starts: list[int], ends: list[int], low: int, high: int) -> None:
        bounds = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(np.array(ends, np.int64) - np.array(starts, np.int64), out=bounds[1:])
        for number, keys in enumerate(self._indexes):
            start, end = starts[number], ends[number]
            if start < end:
                with keys.open() as index:
                    rows = self._entries[bounds[number] : bounds[number + 1]]
                    index.read_entries(start, end, rows)
                self._budget.spend((end - start) * ENTRY_BYTES)
        fault = merge_latest(
            self._entries,
            bounds,
            np.uint64(low),
            np.uint64(high - 1),
            self._base_offsets,
            self._record_counts,
            self._bit_starts,
            self._expired,
            self._keep,
            self._tombstones,
            self._tallies,
        )
        if fault >= 0:
            raise Corrupt(
                f"{self._indexes[fault].path}: an entry names a record beyond the "
                f"{self._record_counts[fault]} of its segment; remove the file, it is rebuilt"
            )
        self._range_count += 1
        self._entries_max = max(self._entries_max, int(bounds[-1]))

    def _describe_overflow(self, low: int) -> str:
        paths = ", ".join(index.path for index in self._indexes[:3])
        return (
            f"more than {self._capacity} entries share the hash {low:016x} in {paths}…; the key "
            "indexes are damaged, remove them and they are rebuilt"
        )
