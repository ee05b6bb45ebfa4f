"""Which records are the latest of their keys, planned by ranges of hashes and folded into one plan.

Invariant  the fold holds two bits per record, whatever the number of ranges: plans of ranges are
           packed, and each is merged when it comes. Beyond _MEMORY_BYTES the bits are in an
           unnamed file, so that a large log does not fill the memory of a driver.
"""

import tempfile
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from varve.cleaning.compaction.key_plan import HASH_END, HashRange, KeyPlan
from varve.jobs.tasks import TaskError, get_result

_LEVEL: Final = 1
"""Of compression: the bits of one range of hashes are mostly zeros."""
_MEMORY_BYTES: Final = 16 << 20


def cut_hashes(count: int) -> list[HashRange]:
    """All hashes in so many ranges, one at the least."""
    count = max(count, 1)
    bounds = [HASH_END * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """The plan of one range with its bitmaps compressed: they are as long as those of all ranges
    together, and few of their bits are set.
    """

    keep: bytes
    tombstones: bytes
    rest: KeyPlan

    @classmethod
    def of(cls, plan: KeyPlan) -> "PackedPlan":
        none = np.empty(0, np.uint8)
        keep, tombstones = (
            zlib.compress(bits.tobytes(), _LEVEL) for bits in (plan.keep, plan.tombstones)
        )
        return cls(keep, tombstones, replace(plan, keep=none, tombstones=none))


class KeyPlanFold:
    """Adds up the plans of ranges that make up all hashes."""

    def __init__(self) -> None:
        self._plan: KeyPlan | None = None
        self._error: TaskError | None = None

    def add(self, outcome: PackedPlan | TaskError) -> None:
        if isinstance(outcome, TaskError):
            self._error = self._error or outcome
        elif self._error is None:
            self._merge(outcome)

    def _merge(self, packed: PackedPlan) -> None:
        keep, tombstones = (
            np.frombuffer(zlib.decompress(data), np.uint8)
            for data in (packed.keep, packed.tombstones)
        )
        plan, rest = self._plan, packed.rest
        if plan is None:
            self._plan = replace(rest, keep=_store(keep), tombstones=_store(tombstones))
            return
        np.bitwise_or(plan.keep, keep, out=plan.keep)
        np.bitwise_or(plan.tombstones, tombstones, out=plan.tombstones)
        self._plan = replace(
            plan,
            # Digests are sums that wrap, so they add up like counts.
            tallies=plan.tallies + rest.tallies,
            range_count=plan.range_count + rest.range_count,
            buffer_utilisation=max(plan.buffer_utilisation, rest.buffer_utilisation),
        )

    def result(self) -> KeyPlan:
        """The plan of all ranges; raises the error of the first range that failed."""
        if self._error is not None:
            get_result(self._error)
        assert self._plan is not None, "a plan has one range at least"
        return self._plan


def _store(
    bits: "np.ndarray[tuple[int], np.dtype[np.uint8]]",
) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """A copy that can be written to, in memory or in a file that goes with it."""
    if bits.size <= _MEMORY_BYTES:
        return bits.copy()
    with tempfile.TemporaryFile() as file:
        stored = np.memmap(file, np.uint8, "w+", shape=bits.shape).view(np.ndarray)
    stored[:] = bits
    return stored
