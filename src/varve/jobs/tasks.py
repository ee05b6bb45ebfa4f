"""Tasks of a job, and who runs them: this process, its threads, or Spark (`varve.spark.runner`).

A task is a value that travels to another process. What all tasks of a stage need, such as a set of
keys or a list of segments, is `shared`: it is sent once per stage, not once per task.

Invariant  outcomes come in the order of their tasks. A task that raises a StoreError has that error
           as its outcome; any other exception ends the job. Tasks may be run twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from varve.foundation.errors import StoreError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

_THREADS: Final = 8
"""Tasks at once in one process: they wait for a store, or are in kernels."""


class Task(Protocol[T_co]):
    """Work that can travel to another process; `shared` is what the stage was started with."""

    def run(self, shared: Any) -> T_co: ...


@runtime_checkable
class SizedTask(Protocol):
    """A task that knows how many bytes it reads, so that small ones run together."""

    @property
    def read_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TaskError:
    """The outcome of a task that failed: its own error, of its own class.

    It travels without a call of the error's constructor, which may ask for more than a message.
    """

    error: StoreError

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_error, (type(self.error), self.error.args, self.error.__dict__)


def _restore_error(
    kind: type[StoreError], args: tuple[Any, ...], state: dict[str, Any]
) -> TaskError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return TaskError(error)


def run_task(task: Task[T], shared: object) -> T | TaskError:
    try:
        return task.run(shared)
    except StoreError as error:
        return TaskError(error)


def get_result(outcome: T | TaskError) -> T:
    """What a task returned; raises its error if it failed."""
    if isinstance(outcome, TaskError):
        raise outcome.error
    return outcome


class TaskRunner(ABC):
    """Runs the tasks of a stage; the name of the stage is what people see while it runs."""

    @abstractmethod
    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        """The outcomes in the order of the tasks, as they come: nothing runs before it is asked."""

    def run(self, stage: str, tasks: Sequence[Task[T]], shared: object = None) -> list[T]:
        """The results of all tasks; raises the error of the first that failed."""
        outcomes = list(self.try_run(stage, tasks, shared))
        return [get_result(outcome) for outcome in outcomes]


class LocalRunner(TaskRunner):
    """One task after another, in this thread."""

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        return (run_task(task, shared) for task in tasks)


class ThreadRunner(TaskRunner):
    """Some tasks at once in threads of this process; at most twice as many outcomes wait."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._threads = threads

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        if min(self._threads, len(tasks)) < 2:
            yield from LocalRunner().try_run(stage, tasks, shared)
            return
        with ThreadPoolExecutor(min(self._threads, len(tasks)), f"varve-{stage}") as pool:
            window = 2 * self._threads
            waiting = [pool.submit(run_task, task, shared) for task in tasks[:window]]
            waiting.reverse()
            for task in tasks[window:]:
                yield waiting.pop().result()
                waiting.insert(0, pool.submit(run_task, task, shared))
            while waiting:
                yield waiting.pop().result()


def pack_by_size(
    items: Iterable[T],
    size: Callable[[T], int],
    *,
    target_bytes: int,
    max_items: int | None = None,
) -> Iterator[list[T]]:
    """Items that follow each other, together as long as they are within the target."""
    packed: list[T] = []
    packed_bytes = 0
    for item in items:
        item_bytes = size(item)
        is_full = packed_bytes + item_bytes > target_bytes or len(packed) == max_items
        if packed and is_full:
            yield packed
            packed, packed_bytes = [], 0
        packed.append(item)
        packed_bytes += item_bytes
    if packed:
        yield packed


# Stages of many partitions


class OutcomeFold(Protocol):
    """Takes the outcomes of a stage as they come, so that they need not be held together."""

    def add(self, outcome: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """Tasks that may run at the same time; with a `fold` their outcomes are given to that alone."""

    name: str
    tasks: Sequence[Task[T]]
    shared: object = None
    fold: OutcomeFold | None = None


Stages = Generator[Stage[Any], list[Any], R]
"""A run over one partition: gives its next stage for the outcomes of the last one."""


def try_stage(stage: Stage[T]) -> Stages[list[T | TaskError]]:
    """Inside of a run: the outcomes of a stage."""
    return (yield stage)


def run_stage(stage: Stage[T]) -> Stages[list[T]]:
    """Inside of a run: the results of a stage; raises the error of the first task that failed."""
    outcomes = yield from try_stage(stage)
    return [get_result(outcome) for outcome in outcomes]


def run_together(runs: Sequence[Stages[R]], runner: TaskRunner) -> list[R]:
    """Takes all runs from stage to stage; the tasks of one stage of all of them run at once.

    Runs are independent: one that ends early does not stop the others. Where the runner fails all
    runs are closed, so that they release what they hold.
    """
    results: dict[int, R] = {}
    outcomes: dict[int, list[Any] | None] = dict.fromkeys(range(len(runs)))
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        while outcomes:
            stages: dict[int, Stage[Any]] = {}
            for number, known in outcomes.items():
                run = runs[number]
                try:
                    stages[number] = next(run) if known is None else run.send(known)
                except StopIteration as end:
                    results[number] = end.value
            outcomes = {**_run_stages(stages, runner)}
    return [results[number] for number in range(len(runs))]


@dataclass(frozen=True, slots=True)
class _SlotTask(Generic[T]):
    """A task of a stage whose partitions share different things."""

    task: Task[T]
    slot: int

    @property
    def read_bytes(self) -> int:
        """Raises AttributeError, as the task itself does, where it does not know."""
        size: int = self.task.read_bytes  # type: ignore[attr-defined]  # a SizedTask, or not
        return size

    def run(self, shared: Sequence[object]) -> T:
        return self.task.run(shared[self.slot])


def _run_stages(stages: dict[int, Stage[Any]], runner: TaskRunner) -> dict[int, list[Any]]:
    name = ", ".join(dict.fromkeys(stage.name for stage in stages.values()))
    owners = [number for number, stage in stages.items() for _ in stage.tasks]
    outcomes: dict[int, list[Any]] = {number: [] for number in stages}
    if not owners:
        return outcomes
    shared = list({id(stage.shared): stage.shared for stage in stages.values()}.values())
    if len(shared) < 2:
        tasks = [task for stage in stages.values() for task in stage.tasks]
        found = runner.try_run(name, tasks, shared[0])
    else:
        slots = {id(value): slot for slot, value in enumerate(shared)}
        wrapped = [
            _SlotTask(task, slots[id(stage.shared)])
            for stage in stages.values()
            for task in stage.tasks
        ]
        found = runner.try_run(name, wrapped, shared)
    for owner, outcome in zip(owners, found, strict=True):
        fold = stages[owner].fold
        if fold is None:
            outcomes[owner].append(outcome)
        else:
            fold.add(outcome)
    return outcomes
