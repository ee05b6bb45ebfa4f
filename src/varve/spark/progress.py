"""How far a running job is, stage by stage.

Invariant  tasks done never fall while the stages are known: a stage that left the list of running
           ones counts as done.
Threads    one at a time; the job runs in another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage that runs, under the name of varve's step where it belongs to one."""

    stage: int
    name: str
    tasks: int
    tasks_done: int = 0
    failed_tasks: int = 0
    read_bytes: int = 0
    """As far as Spark counts them: what tasks fetch themselves is known when they are done."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The stages that run, and the tasks of all that were seen; those to come are not known."""

    running: tuple[StageProgress, ...]
    stages_done: int
    tasks_done: int
    tasks: int
    failed_tasks: int


class ProgressWatch:
    """Adds up what is told of the running stages each time it is asked."""

    def __init__(self, find_running: Callable[[], Sequence[StageProgress]]) -> None:
        self._find_running = find_running
        self._seen: dict[int, StageProgress] = {}

    def look(self) -> JobProgress:
        """How far it is now."""
        running = sorted(self._find_running(), key=lambda one: one.stage)
        self._seen.update((one.stage, one) for one in running)
        active = {one.stage for one in running}
        seen = self._seen.values()
        return JobProgress(
            running=tuple(running),
            stages_done=len(self._seen) - len(active),
            tasks_done=sum(one.tasks_done if one.stage in active else one.tasks for one in seen),
            tasks=sum(one.tasks for one in seen),
            failed_tasks=sum(one.failed_tasks for one in seen),
        )
