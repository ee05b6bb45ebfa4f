"""Work on many partitions, stage by stage: the tasks of one stage of all of them run together.

Invariant  runs are independent: one that ends early does not stop the others.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from varve.foundation.errors import Corrupt, Unavailable
from varve.jobs.running.distributor import Distributor, Task, TaskFailure

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Stage:
    """Tasks that may run at the same time."""

    name: str
    tasks: Sequence[Task]


def run_together(
    runs: Sequence[Generator[Stage, list[object], R]], distributor: Distributor
) -> list[R]:
    """Takes all runs from stage to stage; the tasks of a stage go to the distributor at once.

    A run gives its next stage for the outcomes of the last one, and ends with its result. Where the
    distributor fails all runs are closed, so that they let go of what they hold.
    """
    results: dict[int, R] = {}
    outcomes: dict[int, list[object] | None] = dict.fromkeys(range(len(runs)))
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        while outcomes:
            stages: dict[int, Stage] = {}
            for number, given in outcomes.items():
                run = runs[number]
                try:
                    stages[number] = next(run) if given is None else run.send(given)
                except StopIteration as end:
                    results[number] = end.value
            outcomes = _carry_out(stages, distributor)
    return [results[number] for number in range(len(runs))]


def _carry_out(
    stages: dict[int, Stage], distributor: Distributor
) -> dict[int, list[object] | None]:
    names = list(dict.fromkeys(stage.name for stage in stages.values()))
    tasks = [task for stage in stages.values() for task in stage.tasks]
    found = distributor.run(", ".join(names), tasks) if tasks else []
    outcomes: dict[int, list[object] | None] = {}
    start = 0
    for number, stage in stages.items():
        outcomes[number] = found[start : start + len(stage.tasks)]
        start += len(stage.tasks)
    return outcomes


def expect(outcome: object, kind: type[T]) -> T:
    """The outcome of a task; raises what it failed for."""
    if isinstance(outcome, TaskFailure):
        raise (Corrupt if outcome.is_corrupt else Unavailable)(outcome.message)
    assert isinstance(outcome, kind), f"a task gave {type(outcome).__name__}, not {kind.__name__}"
    return outcome
