"""Who runs which tasks, how small ones are put together, and how partitions share a stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from varve.foundation.errors import StoreDenied, Unavailable
from varve.jobs.tasks import (
    LocalRunner,
    SizedTask,
    Stage,
    Stages,
    Task,
    TaskError,
    TaskRunner,
    ThreadRunner,
    pack_by_size,
    run_stage,
    run_together,
    try_stage,
)


@dataclass(frozen=True, slots=True)
class Add:
    """Adds what is shared to its number; a negative one fails."""

    number: int
    read_bytes: int = 10

    def run(self, shared: int) -> int:
        if self.number < 0:
            raise StoreDenied("the store said no")
        return self.number + shared


def test_items_are_packed_in_order_up_to_the_target() -> None:
    def pack(sizes: Sequence[int], **more: int) -> list[list[int]]:
        return list(pack_by_size(sizes, lambda size: size, target_bytes=100, **more))

    assert pack([40, 40, 40, 40, 40]) == [[40, 40], [40, 40], [40]]
    assert pack([10, 500, 10, 100, 9]) == [[10], [500], [10], [100], [9]]
    assert pack([1, 1, 1, 1, 1], max_items=2) == [[1, 1], [1, 1], [1]]
    assert pack([]) == []


@pytest.mark.parametrize("runner", [LocalRunner(), ThreadRunner()])
def test_outcomes_come_in_order_and_a_failure_keeps_its_class(runner: TaskRunner) -> None:
    tasks = [Add(number) for number in (*range(40), -1, 41)]
    outcomes = list(runner.try_run("add", tasks, 100))
    assert outcomes[:40] == list(range(100, 140))
    assert outcomes[41] == 141
    failed = outcomes[40]
    assert isinstance(failed, TaskError)
    assert type(failed.error) is StoreDenied
    with pytest.raises(StoreDenied, match="said no"):
        runner.run("add", tasks, 100)


class Counting(LocalRunner):
    """Keeps the names and the numbers of tasks of stages."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []

    def try_run(self, stage: str, tasks: Any, shared: object = None) -> Any:
        assert all(isinstance(task, SizedTask) and task.read_bytes == 10 for task in tasks)
        self.stages.append((stage, len(tasks)))
        return super().try_run(stage, tasks, shared)


def two_stages(start: int, shared: int) -> Stages[int]:
    first: list[Task[int]] = [Add(start), Add(start + 1)]
    results = yield from run_stage(Stage("first", first, shared))
    outcomes = yield from try_stage(Stage("second", [Add(sum(results))], shared))
    assert not isinstance(outcomes[0], TaskError)
    return outcomes[0]


def test_partitions_run_their_stages_together_each_with_what_it_shares() -> None:
    runner = Counting()
    assert run_together([two_stages(1, 100), two_stages(5, 1000)], runner) == [303, 3011]
    assert runner.stages == [("first", 4), ("second", 2)]


def fails(is_caught: bool) -> Stages[str]:
    try:
        yield from run_stage(Stage("first", [Add(-1)], 0))
    except StoreDenied:
        if not is_caught:
            raise Unavailable("and ends") from None
    return "done"


def test_a_run_that_ends_early_does_not_stop_the_others() -> None:
    found = run_together([fails(True), two_stages_as_text(), fails(True)], LocalRunner())
    assert found == ["done", "303", "done"]
    with pytest.raises(Unavailable):
        run_together([fails(False)], LocalRunner())


def two_stages_as_text() -> Stages[str]:
    return str((yield from two_stages(1, 100)))
