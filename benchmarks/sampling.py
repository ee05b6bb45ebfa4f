"""Interleaved repeats within a time budget, and the statistics of what they gave.

Ours and the baseline alternate (A B A B …), so that a slow spell of the machine falls on both.
The first pair warms caches and is thrown away.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.measure import Contest, Ticker


@dataclass(frozen=True, slots=True)
class Figures:
    """Median, and the distance from least to most as a share of it."""

    median: float
    spread: float


def summarize(values: Sequence[float]) -> Figures:
    median = statistics.median(values)
    spread = (max(values) - min(values)) / median if median else 0.0
    return Figures(median, spread)


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """Repeats until `repeat_count_max` or until the time is spent, never below the minimum."""

    repeat_count_min: int
    repeat_count_max: int


FULL_POLICY = RepeatPolicy(repeat_count_min=5, repeat_count_max=15)
QUICK_POLICY = RepeatPolicy(repeat_count_min=3, repeat_count_max=11)
FULL_SECONDS_PER_CASE = 12.0
QUICK_SECONDS = 34.0
_SETTLING_BYTES = 31 << 20  # glibc learns from blocks of up to 32 MiB


class Budget:
    """Shares the remaining seconds evenly over the remaining cases.

    What a case leaves unused goes to those after it. A budget without a total gives every case
    the same fixed share.
    """

    def __init__(self, case_count: int, ticker: Ticker, *, total_seconds: float | None) -> None:
        self._remaining_count = case_count
        self._ticker = ticker
        self._end = None if total_seconds is None else ticker() + total_seconds

    def begin_case(self) -> float:
        """The moment by which the next case should end."""
        now = self._ticker()
        if self._end is None:
            return now + FULL_SECONDS_PER_CASE
        share = (self._end - now) / max(1, self._remaining_count)
        self._remaining_count -= 1
        return now + max(0.0, share)

    @property
    def is_spent(self) -> bool:
        return self._end is not None and self._ticker() >= self._end


def sample(
    contest: Contest,
    policy: RepeatPolicy,
    *,
    ticker: Ticker,
    deadline: float,
    is_spent: Callable[[], bool] = lambda: False,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Runs the contest and gives the figures of ours and of the baseline.

    After `deadline` only the minimum count is completed; once `is_spent` a single pair is enough.
    """
    limit = min(policy.repeat_count_max, contest.repeat_count_max or policy.repeat_count_max)
    ours: list[float] = []
    baseline: list[float] = []
    _settle_allocator()
    # Collections between the figures need not walk what was there before, numba above all.
    gc.freeze()
    try:
        if limit > 1:
            _take_pair(contest, [], [])
        while len(ours) < limit:
            enough = 1 if is_spent() else min(limit, policy.repeat_count_min)
            if len(ours) >= enough and ticker() >= deadline:
                break
            _take_pair(contest, ours, baseline)
    finally:
        gc.unfreeze()
    return tuple(ours), tuple(baseline)


def _settle_allocator() -> None:
    """Brings malloc to the state of a process that has run for a while.

    glibc serves blocks from 128 KiB on by mmap, page faults and all, until it has seen a larger one
    freed. What came before would otherwise decide whether a side pays for that.
    """
    block = bytes(_SETTLING_BYTES)
    del block


def _take_pair(contest: Contest, ours: list[float], baseline: list[float]) -> None:
    ours.append(_without_collector(contest.ours))
    if contest.baseline is not None:
        baseline.append(_without_collector(contest.baseline))


def _without_collector(call: Callable[[], float]) -> float:
    # A cyclic collection in the middle would charge one side for the other's objects.
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return call()
    finally:
        if was_enabled:
            gc.enable()
