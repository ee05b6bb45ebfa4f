"""Runners that let something happen in the middle of a job, or measure what travels."""

import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from varve.foundation.errors import PowerLoss
from varve.jobs.tasks import LocalRunner, Task, TaskError
from varve.object_store import MemoryObjectStore

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


class TravellingRunner(LocalRunner):
    """Sends tasks and what they share through pickle, as Spark does, and measures what travels."""

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()
        self.shared: list[object] = []
        self.task_bytes = 0
        """Of the largest task."""
        self.outcome_bytes = 0
        """Of the largest outcome."""
        self.bytes = 0
        """Of all tasks, of what they shared, and of all outcomes."""

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        self.tasks[stage] += len(tasks)
        self.shared.append(shared)
        self.task_bytes = max([self.task_bytes, *(len(_pack(task)[0]) for task in tasks)])
        data, stores = _pack((tasks, shared))
        self.bytes += len(data)
        for outcome in super().try_run(stage, *_unpack(data, stores)):
            size = len(_pack(outcome)[0])
            self.outcome_bytes = max(self.outcome_bytes, size)
            self.bytes += size
            yield outcome


def _pack(value: object) -> tuple[bytes, dict[str, MemoryObjectStore]]:
    """A pickle of a value, and the open stores of this process, which it only names."""
    stores: dict[str, MemoryObjectStore] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: object) -> str | None:
            if not isinstance(part, MemoryObjectStore):
                return None
            stores[str(id(part))] = part
            return str(id(part))

    out = io.BytesIO()
    Pickler(out).dump(value)
    return out.getvalue(), stores


def _unpack(data: bytes, stores: dict[str, MemoryObjectStore]) -> tuple[Sequence[Task[T]], object]:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, name: str) -> MemoryObjectStore:
            return stores[name]

    tasks, shared = Unpickler(io.BytesIO(data)).load()
    return tasks, shared
