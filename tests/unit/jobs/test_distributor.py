"""Who carries out which tasks, and how small ones are put together."""

from dataclasses import dataclass

from varve.foundation.errors import Unavailable
from varve.jobs.running.distributor import Task, TaskFailure, ThreadDistributor, bundle


@dataclass(frozen=True, slots=True)
class Sized:
    number: int
    read_bytes: int

    def run(self) -> int:
        if self.number < 0:
            raise Unavailable("the store is away")
        return self.number


@dataclass(frozen=True, slots=True)
class Unsized:
    number: int

    def run(self) -> int:
        return self.number


def test_small_tasks_travel_together_in_order() -> None:
    tasks = [Sized(number, 40) for number in range(5)]
    bundles = bundle(tasks, 100)
    assert [len(one.tasks) for one in bundles] == [2, 2, 1]
    assert [outcome for one in bundles for outcome in one.run()] == [0, 1, 2, 3, 4]


def test_a_large_task_and_one_of_unknown_size_are_alone() -> None:
    tasks: list[Task] = [Sized(0, 10), Sized(1, 500), Sized(2, 10), Unsized(3), Sized(4, 9)]
    outcomes = [one.run() for one in bundle([*tasks, Sized(5, 10)], 100)]
    assert outcomes == [[0], [1], [2], [3], [4, 5]]
    assert bundle([], 100) == []


def test_one_failure_of_a_bundle_is_its_own() -> None:
    tasks = [Sized(1, 1), Sized(-1, 1), Sized(2, 1)]
    failure = TaskFailure("the store is away", is_corrupt=False)
    assert bundle(tasks, 100)[0].run() == [1, failure, 2]
    assert ThreadDistributor().run("look", tasks) == [1, failure, 2]
