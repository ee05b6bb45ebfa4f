"""Progress adds up over the stages that were seen."""

from dataclasses import dataclass, field

from varve.jobs.job_progress import ProgressWatch


@dataclass
class Stage:
    numTasks: int  # noqa: N815 - Spark's names
    numCompletedTasks: int = 0  # noqa: N815
    numFailedTasks: int = 0  # noqa: N815
    name: str = "collect"


@dataclass
class FakeTracker:
    running: dict[int, Stage | None] = field(default_factory=dict)

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self.running)

    def getStageInfo(self, stageId: int) -> Stage | None:  # noqa: N802, N803
        return self.running[stageId]


def test_a_stage_that_left_counts_as_done() -> None:
    tracker = FakeTracker()
    watch = ProgressWatch(tracker)
    assert (watch.look().tasks_done, watch.look().tasks) == (0, 0)
    tracker.running[0] = Stage(10, 4, 1)
    found = watch.look()
    assert (found.stage, found.tasks_done, found.tasks, found.failed_tasks) == ("collect", 4, 10, 1)
    tracker.running = {1: Stage(5, 2, name="save")}
    found = watch.look()
    assert (found.stage, found.stages_done) == ("save", 1)
    assert (found.tasks_done, found.tasks) == (12, 15)
    tracker.running = {}
    found = watch.look()
    assert (found.tasks_done, found.tasks, found.stages_done) == (15, 15, 2)


def test_a_stage_that_ended_between_two_questions_is_no_error() -> None:
    watch = ProgressWatch(FakeTracker({3: None}))
    assert watch.look().tasks == 0
