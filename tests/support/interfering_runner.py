"""A runner that lets something happen in the middle of a job."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from varve.foundation.errors import PowerLoss
from varve.jobs.tasks import LocalRunner, Task, TaskError

T = TypeVar("T")


def lose_power() -> None:
    raise PowerLoss


class InterferingRunner(LocalRunner):
    """Calls `act` once: after the tasks of a stage and before their commit, or before them.

    Without a stage, that is the first with tasks.
    """

    def __init__(
        self, act: Callable[[], object], *, stage: str | None = None, is_before: bool = False
    ) -> None:
        self._act = act
        self._stage = stage
        self._is_before = is_before
        self._is_done = False

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        if self._is_done or not tasks or self._stage not in (None, stage):
            return super().try_run(stage, tasks, shared)
        self._is_done = True
        if self._is_before:
            self._act()
            return super().try_run(stage, tasks, shared)
        outcomes = list(super().try_run(stage, tasks, shared))
        self._act()
        return iter(outcomes)
