"""Tasks of a job, and runners for them: this thread, threads, or Spark (`varve.spark.runner`).

A task is a picklable value. The inputs common to all tasks of a stage, such as a set of keys or a
list of segments, are `shared`: sent once per stage, not once per task.

Invariant  outcomes are in the order of their tasks. A StoreError that a task raises is its outcome;
           any other exception ends the job. A task may run twice.
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
"""Concurrent tasks in one process: they wait for a store, or run kernels without the GIL."""


class Task(Protocol[T_co]):
    """Work that can be pickled; `shared` are the common inputs of its stage."""

    def run(self, shared: Any) -> T_co: ...


@runtime_checkable
class SizedTask(Protocol):
    """A task that knows how many bytes it reads, so that small tasks run together."""

    @property
    def read_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TaskError:
    """The outcome of a failed task: its error, with its class and attributes.

    It is unpickled without calling the constructor of the error, which may take more arguments than
    the message.
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
    """Returns the result of a task; raises its error if it failed."""
    if isinstance(outcome, TaskError):
        raise outcome.error
    return outcome


class TaskRunner(ABC):
    """Runs the tasks of a stage; the Spark UI and thread names show the name of the stage."""

    @abstractmethod
    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        """Yields the outcomes in the order of the tasks; runs tasks only as it is iterated."""

    def run(self, stage: str, tasks: Sequence[Task[T]], shared: object = None) -> list[T]:
        """Returns the results of all tasks; raises the error of the first failed task."""
        outcomes = list(self.try_run(stage, tasks, shared))
        return [get_result(outcome) for outcome in outcomes]


class LocalRunner(TaskRunner):
    """Runs one task after another in this thread."""

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        return (run_task(task, shared) for task in tasks)


class ThreadRunner(TaskRunner):
    """Runs tasks in threads of this process; at most two per thread are submitted ahead."""

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
            pending = [pool.submit(run_task, task, shared) for task in tasks[:window]]
            pending.reverse()
            for task in tasks[window:]:
                yield pending.pop().result()
                pending.insert(0, pool.submit(run_task, task, shared))
            while pending:
                yield pending.pop().result()


def pack_by_size(
    items: Iterable[T],
    size: Callable[[T], int],
    *,
    target_bytes: int,
    max_items: int | None = None,
) -> Iterator[list[T]]:
    """Packs consecutive items into lists of at most `target_bytes`, or of one larger item."""
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
    """Consumes the outcomes of a stage as they arrive, so that memory does not hold them all."""

    def add(self, outcome: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """Tasks that may run concurrently; a `fold` consumes their outcomes instead of the run."""

    name: str
    tasks: Sequence[Task[T]]
    shared: object = None
    fold: OutcomeFold | None = None


Stages = Generator[Stage[Any], list[Any], R]
"""A run over one partition: a generator that yields stages and receives their outcomes."""


def try_stage(stage: Stage[T]) -> Stages[list[T | TaskError]]:
    """Runs a stage from within a run; returns its outcomes."""
    return (yield stage)


def run_stage(stage: Stage[T]) -> Stages[list[T]]:
    """Runs a stage from within a run; raises the error of the first failed task."""
    outcomes = yield from try_stage(stage)
    return [get_result(outcome) for outcome in outcomes]


def run_together(runs: Sequence[Stages[R]], runner: TaskRunner) -> list[R]:
    """Advances all runs stage by stage; the tasks of the current stages run together.

    Runs are independent: a run that ends early does not stop the others. If the runner fails, all
    runs are closed, so that they release their leases and files.
    """
    results: dict[int, R] = {}
    outcomes: dict[int, list[Any] | None] = dict.fromkeys(range(len(runs)))
    with ExitStack() as closing:
        for run in runs:
            closing.callback(run.close)
        while outcomes:
            stages: dict[int, Stage[Any]] = {}
            for number, stage_outcomes in outcomes.items():
                run = runs[number]
                try:
                    stages[number] = (
                        next(run) if stage_outcomes is None else run.send(stage_outcomes)
                    )
                except StopIteration as end:
                    results[number] = end.value
            outcomes = {**_run_stages(stages, runner)}
    return [results[number] for number in range(len(runs))]


@dataclass(frozen=True, slots=True)
class _SlotTask(Generic[T]):
    """A task whose shared inputs are one slot of those of all partitions."""

    task: Task[T]
    slot: int

    @property
    def read_bytes(self) -> int:
        """Raises AttributeError if the task is not a SizedTask, as the task itself does."""
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
        arriving = runner.try_run(name, tasks, shared[0])
    else:
        slots = {id(value): slot for slot, value in enumerate(shared)}
        wrapped = [
            _SlotTask(task, slots[id(stage.shared)])
            for stage in stages.values()
            for task in stage.tasks
        ]
        arriving = runner.try_run(name, wrapped, shared)
    for owner, outcome in zip(owners, arriving, strict=True):
        fold = stages[owner].fold
        if fold is None:
            outcomes[owner].append(outcome)
        else:
            fold.add(outcome)
    return outcomes
