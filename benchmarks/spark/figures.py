"""Figures of runs: the clock that was asked for, and the other one beside it."""

import time
from collections.abc import Callable
from statistics import median

from benchmarks.measure import Aim, Contest, Scale
from benchmarks.spark.runs import Taken

REPEAT_COUNT_MAX, FEW_REPEATS_MAX = 3, 2
"""A run on Spark takes seconds; the first pair is thrown away. A quick run takes one pair."""


def seconds(taken: Taken, scale: Scale) -> float:
    """By the wall, or of all processors with `--clock cpu`."""
    return taken.cpu_seconds if scale.ticker is time.thread_time else taken.wall_seconds


class TimedRuns:
    """Runs whose CPU seconds are told afterwards."""

    def __init__(self, run: Callable[[], Taken]) -> None:
        self._run = run
        self._cpu_seconds: list[float] = []

    def __call__(self) -> Taken:
        taken = self._run()
        self._cpu_seconds.append(taken.cpu_seconds)
        return taken

    def cpu_seconds(self) -> float:
        """The median of all runs but the first, which warms up."""
        return median(self._cpu_seconds[1:] or self._cpu_seconds)


def make_contests(
    name: str,
    ours: Callable[[], Taken],
    baseline: Callable[[], Taken],
    *,
    mib: float,
    scale: Scale,
    aim: Aim | None,
    note: str,
    within: str,
) -> list[Contest]:
    """The rate of ours beside the baseline's, and the CPU seconds of the same runs."""
    our_runs, other_runs = TimedRuns(ours), TimedRuns(baseline)
    return [
        Contest(
            name,
            "MiB/s",
            lambda: mib / seconds(our_runs(), scale),
            lambda: mib / seconds(other_runs(), scale),
            aim,
            note,
            within,
            repeat_count_max=1 if scale.is_quick else REPEAT_COUNT_MAX,
        ),
        Contest(
            f"{name}_cpu",
            "CPU s",
            our_runs.cpu_seconds,
            other_runs.cpu_seconds,
            None,
            "of driver, Java and Python workers in the runs above",
            within,
            repeat_count_max=1,
        ),
    ]
