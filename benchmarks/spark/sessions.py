"""Spark sessions for the measures, each in a process of its own and kept for the next case.

Sessions of one core and of two are so open at the same time, and their runs alternate.

Invariant  a process ends when its pipe is closed, which the end of this one does at the latest.
"""

import multiprocessing
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.measure import Contest, MeasureSkipped, Scale
from benchmarks.spark.runs import Run, Taken
from varve.foundation.errors import Unavailable
from varve.spark.java import get_java

DRIVER_MEMORY = "2g"


class Sessions:
    """Opened when first asked for, by the number of cores."""

    def __init__(self) -> None:
        self._pipes: dict[int, Any] = {}
        self._warm: set[str] = set()

    def run(self, run: Run, *, cores: int = 2) -> Taken:
        """Raises MeasureSkipped without Java, AssertionError when the run failed."""
        if cores not in self._pipes:
            self._pipes[cores] = _start(cores)
        pipe = self._pipes[cores]
        pipe.send(run)
        answer = pipe.recv()
        if not isinstance(answer, Taken):
            raise AssertionError(f"{run} failed in its session:\n{answer}")
        return answer

    def warm_up(self, contests: Sequence[Contest], scale: Scale) -> None:
        """Runs contests of a name once where figures are too few to throw the first away."""
        for contest in contests:
            if scale.is_quick and contest.measure not in self._warm:
                self._warm.add(contest.measure)
                contest.ours()
                if contest.baseline is not None:
                    contest.baseline()

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes.clear()


def _start(cores: int) -> Any:
    try:
        get_java()
    except Unavailable as missing:
        raise MeasureSkipped(str(missing)) from missing
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    spawn.Process(target=serve, args=(theirs, cores), daemon=True).start()
    theirs.close()
    return ours


def serve(pipe: "Connection[Any, Any]", cores: int) -> None:
    """In a process of its own: carries out runs until the pipe is closed."""
    from varve.spark.session import get_session

    spark = get_session(
        master=f"local[{cores}]", conf={"spark.driver.memory": DRIVER_MEMORY}, app="benchmarks"
    )
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send(run.run(spark))
        except Exception:
            pipe.send(traceback.format_exc())
    spark.stop()
