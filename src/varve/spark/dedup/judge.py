"""What becomes of each record of a batch: the rules of a deduplication. docs/jobs/dedup.md

Invariant  records are looked at in the order of partition and offset. No look-up reaches behind
           what the state remembers: a record that would is late, and is not looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from varve.kernels.window_ids import NO_ID
from varve.spark.dedup.state import ChunkStore, FoldedIds, IdWindow, Reach

Numbers = npt.NDArray[np.int64]
Verdicts = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class Verdict(IntEnum):
    """What a record is."""

    KEPT = 0
    DUPLICATE = 1
    LATE = 2
    FUTURE = 3
    NO_ID = 4


@dataclass(frozen=True, slots=True)
class Moment:
    """What a batch takes for the time: all of it is fixed by Spark before the batch begins."""

    watermark_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The records of a batch in one bucket."""

    ids: FoldedIds
    partitions: Numbers
    offsets: Numbers

    @classmethod
    def join(cls, parts: Sequence["Arrivals"]) -> "Arrivals":
        return cls(
            FoldedIds.join([one.ids for one in parts]),
            np.concatenate([one.partitions for one in parts]),
            np.concatenate([one.offsets for one in parts]),
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules, as they go to executors."""

    reach: Reach
    max_future_ms: int

    def judge(
        self, arrivals: Arrivals, moment: Moment, window: IdWindow, store: ChunkStore
    ) -> Verdicts:
        """Tells of each record what it is, and saves what is to be remembered."""
        window.catch_up(store, floor_ms=moment.watermark_ms - self.reach.before_ms)
        ids = arrivals.ids
        verdicts = np.full(ids.count, Verdict.KEPT, np.uint8)
        verdicts[ids.times > moment.now_ms + self.max_future_ms] = Verdict.FUTURE
        verdicts[ids.times < moment.watermark_ms] = Verdict.LATE
        verdicts[ids.kinds == NO_ID] = Verdict.NO_ID
        chosen = np.flatnonzero(verdicts == Verdict.KEPT)
        order = np.lexsort((arrivals.offsets[chosen], arrivals.partitions[chosen]))
        looked = ids.take(chosen[order])
        is_duplicate, is_news = window.check(looked)
        verdicts[chosen[order]] = np.where(is_duplicate, Verdict.DUPLICATE, Verdict.KEPT)
        window.save(store, looked.take(is_news))
        return verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """Which records go on beside those that are kept, and whether late ones go aside."""

    late: bool
    no_id: bool
    late_aside: bool

    def choose(self, verdicts: Verdicts) -> Flags:
        """The records that go on."""
        chosen: Flags = verdicts == Verdict.KEPT
        if self.late:
            chosen |= _is_late(verdicts)
        if self.no_id:
            chosen |= verdicts == Verdict.NO_ID
        return chosen

    def choose_aside(self, verdicts: Verdicts) -> Flags:
        """The records that go to the side output."""
        return _is_late(verdicts) if self.late_aside else np.zeros(len(verdicts), np.bool_)


def _is_late(verdicts: Verdicts) -> Flags:
    found: Flags = (verdicts == Verdict.LATE) | (verdicts == Verdict.FUTURE)
    return found
