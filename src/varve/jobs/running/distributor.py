"""Who carries out the tasks of a job: this process, one after another, or many.

Invariant  outcomes come in the order of their tasks; a task that failed on purpose (StoreError) is
           an outcome too, any other error ends the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from varve.cleaning.rewrite import DamagedSegment
from varve.foundation.errors import Corrupt, StoreError


class Task(Protocol):
    """Work that can travel to another process."""

    def run(self) -> object: ...


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task failed; `damaged_offset` is the base offset of the segment that is to blame."""

    message: str
    is_corrupt: bool
    damaged_offset: int | None = None


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


class LocalDistributor:
    """One task after another, in this thread."""

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]:
        return [run_task(task) for task in tasks]
