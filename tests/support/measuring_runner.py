"""A runner that measures what tasks send to the driver."""

import pickle
from collections.abc import Iterator, Sequence
from typing import TypeVar

from varve.jobs.tasks import LocalRunner, Task, TaskError

T = TypeVar("T")


class MeasuringRunner(LocalRunner):
    """Notes how large what a task sends back is."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        for outcome in super().try_run(stage, tasks, shared):
            self.sent.append(len(pickle.dumps(outcome)))
            yield outcome
