"""Stages that were seen count as done when they leave; steps are logged."""

from types import SimpleNamespace

from varve.foundation.clock import ManualClock
from varve.jobs.tier.bucket import StoreCount
from varve.spark.stages import ProgressWatch, StageProgress, StepLog, step_name, without_skipped


def test_a_stage_that_left_counts_as_done() -> None:
    watch = ProgressWatch()
    assert watch.poll([]).stages_done == 0
    progress = watch.poll([StageProgress(0, "plan", 10, 4, 1)])
    assert (progress.running, progress.stages_done) == ((StageProgress(0, "plan", 10, 4, 1),), 0)
    progress = watch.poll([StageProgress(1, "rewrite", 5, 2)])
    assert (progress.running[0].name, progress.stages_done) == ("rewrite", 1)
    assert watch.poll([]).stages_done == 2


def test_stages_go_by_the_names_of_steps_else_of_actions() -> None:
    assert step_name("varve: plan, rewrite", "collect at spark_runner.py:1") == "plan, rewrite"
    assert step_name("varve compact orders: keys", "collect at x") == "keys"
    assert step_name(None, "collect at /a/b.py:7") == "collect"
    assert step_name("a user's own", "collect at x") == "a user's own"


def test_a_stage_that_was_skipped_is_left_out_when_a_later_one_moves() -> None:
    def stage_of(number: int, tasks: int, done: int) -> SimpleNamespace:
        return SimpleNamespace(stage_id=number, num_tasks=tasks, num_completed_tasks=done)

    stages = [stage_of(2, 3, 1), stage_of(0, 2, 2), stage_of(1, 2, 0), stage_of(3, 4, 0)]
    assert [one.stage_id for one in without_skipped(stages)] == [0, 2, 3]


def test_a_step_that_fails_stands_in_the_ledger_too() -> None:
    clock = ManualClock()
    ledger = StepLog(clock)
    with ledger.step("plan", 2) as step:
        assert ledger.running == "plan"
        step.store += StoreCount(1, 10, 0)
        step.store += StoreCount(2, 5, 7)
        step.failed_tasks += 1
        clock.advance(40)
    try:
        with ledger.step("rewrite", 1):
            raise RuntimeError("the cluster is gone")
    except RuntimeError:
        pass
    first, second = ledger.steps()
    assert (first.failed_tasks, first.duration_ms, first.store) == (1, 40, StoreCount(3, 15, 7))
    assert second.name == "rewrite"
    assert ledger.steps(after=1) == (second,)
