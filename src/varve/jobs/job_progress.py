"""How far a running job is, by Spark's status tracker.

Invariant  tasks done never fall while the tracker knows the stages: a stage that left the list of
           running ones counts as done.
Threads    one at a time; the job runs in another.
"""

from dataclasses import dataclass
from typing import Protocol


class StageInfo(Protocol):
    """What the tracker tells of a running stage."""

    @property
    def name(self) -> str: ...
    @property
    def numTasks(self) -> int: ...  # noqa: N802 - Spark's name
    @property
    def numCompletedTasks(self) -> int: ...  # noqa: N802
    @property
    def numFailedTasks(self) -> int: ...  # noqa: N802


class Tracker(Protocol):
    """The part of pyspark's StatusTracker that is asked."""

    def getActiveStageIds(self) -> list[int]: ...  # noqa: N802
    def getStageInfo(self, stageId: int) -> StageInfo | None: ...  # noqa: N802, N803


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Tasks of all stages that were seen; those to come are not known."""

    stage: str
    stages_done: int
    tasks_done: int
    tasks: int
    failed_tasks: int


class ProgressWatch:
    """Adds up what the tracker tells each time it is asked."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._stages: dict[int, JobProgress] = {}

    def look(self) -> JobProgress:
        """How far it is now."""
        active = set(self._tracker.getActiveStageIds())
        for number in active:
            info = self._tracker.getStageInfo(number)
            if info is not None:
                self._stages[number] = JobProgress(
                    info.name, 0, info.numCompletedTasks, info.numTasks, info.numFailedTasks
                )
        seen = self._stages
        running = [seen[number].stage for number in sorted(active & seen.keys())]
        return JobProgress(
            stage=running[-1] if running else "",
            stages_done=len(seen.keys() - active),
            tasks_done=sum(
                one.tasks_done if number in active else one.tasks for number, one in seen.items()
            ),
            tasks=sum(one.tasks for one in seen.values()),
            failed_tasks=sum(one.failed_tasks for one in seen.values()),
        )
