"""Who carries out the tasks of a job: this process, one after another, or many.

Invariant  outcomes come in the order of their tasks; a task that failed on purpose (StoreError) is
           an outcome too, any other error ends the job.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from varve.cleaning.compaction.rewrite import DamagedSegment
from varve.foundation.errors import Corrupt, StoreError


class Task(Protocol):
    """Work that can travel to another process."""

    def run(self) -> object: ...


@runtime_checkable
class SizedTask(Task, Protocol):
    """A task that can tell how many bytes it reads, so that small ones are put together."""

    @property
    def read_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task failed; `damaged_offset` is the base offset of the segment that is to blame."""

    message: str
    is_corrupt: bool
    damaged_offset: int | None = None


_THREADS: Final = 8
"""Tasks at once in one process: they wait for a store, or are in kernels."""


class Distributor(Protocol):
    """Carries out tasks; the outcome of each is what it returned, or a TaskFailure."""

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]: ...


def run_task(task: Task) -> object:
    """A task's outcome, its failure among them."""
    try:
        return task.run()
    except DamagedSegment as error:
        return TaskFailure(str(error), True, error.base_offset)
    except StoreError as error:
        return TaskFailure(str(error), isinstance(error, Corrupt))


@dataclass(frozen=True, slots=True)
class Bundle:
    """Small tasks that travel as one; its outcome are theirs."""

    tasks: tuple[Task, ...]

    def run(self) -> list[object]:
        return [run_task(task) for task in self.tasks]


def bundle(tasks: Sequence[Task], read_bytes: int) -> list[Bundle]:
    """Tasks in order, as many together as read about so much; a task without a size is alone."""
    bundles: list[Bundle] = []
    gathered: list[Task] = []
    gathered_bytes = 0
    for task in tasks:
        size = task.read_bytes if isinstance(task, SizedTask) else read_bytes
        if gathered and gathered_bytes + size > read_bytes:
            bundles.append(Bundle(tuple(gathered)))
            gathered, gathered_bytes = [], 0
        gathered.append(task)
        gathered_bytes += size
    if gathered:
        bundles.append(Bundle(tuple(gathered)))
    return bundles


class LocalDistributor:
    """One task after another, in this thread."""

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]:
        return [run_task(task) for task in tasks]


class ThreadDistributor:
    """Some tasks at once in threads of this process."""

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]:
        if len(tasks) < 2:
            return [run_task(task) for task in tasks]
        with ThreadPoolExecutor(min(_THREADS, len(tasks)), f"varve-{stage}") as pool:
            return list(pool.map(run_task, tasks))
