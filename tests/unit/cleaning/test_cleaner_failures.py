"""A failure stays with its partition: it is noted, tried again later, and forgotten once healed."""

import pytest

from tests.support.cleaning_bench import PARTITION, TOPIC_ID, CleaningBench, compacted
from varve.cleaning.cleaner import Cleaner
from varve.cleaning.partition_run import PartitionRun
from varve.cleaning.plan import CleaningPlan
from varve.commit_log import TopicPartition
from varve.records import Record, build_batch

OTHER = TopicPartition("orders", 1)


def _fill(bench: CleaningBench, partition: TopicPartition, rounds: int) -> None:
    log = bench.store.get(partition)
    for number in range(rounds):
        log.append(build_batch([Record(b"k", b"%d" % number), Record(b"%d" % number, b"")]))
        log.roll()


@pytest.mark.parametrize("error", [AssertionError("a bug"), MemoryError(), KeyError(5)])
def test_an_unexpected_error_starves_no_other_partition(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    bench.store.create(OTHER, TOPIC_ID)
    for partition in (PARTITION, OTHER):
        _fill(bench, partition, 3)
    plan = PartitionRun.plan

    def plan_or_fail(self: PartitionRun) -> CleaningPlan:
        if self._log.topic_partition == PARTITION:
            raise error
        return plan(self)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionRun, "plan", plan_or_fail)
        (report,) = bench.cleaner.run_once(bench.now_ms)
    assert report.partition == OTHER
    by_name = {health.partition: health for health in bench.cleaner.health()}
    assert type(error).__name__ in str(by_name[PARTITION].error)
    assert by_name[OTHER].is_healthy
    bench.advance(59_999)
    assert bench.cleaner.run_once(bench.now_ms) == []
    bench.advance(1)
    (report,) = bench.cleaner.run_once(bench.now_ms)
    assert report.partition == PARTITION


def test_a_full_disk_is_tried_again_soon_however_often_it_was_full() -> None:
    """Indexing is not tried before its time either, so that it does not push the time away."""
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench, PARTITION, 3)
    bench.faulty.full_at(bench.faulty.used_bytes() + 10)
    for _ in range(8):
        bench.cleaner.run_once(bench.now_ms)
        bench.advance(15_000)
    (health,) = bench.cleaner.health()
    assert health.failures == 2
    bench.faulty.full_at(None)
    assert health.retry_ms is not None
    bench.clock.advance(health.retry_ms - bench.now_ms)
    assert len(bench.cleaner.run_once(bench.now_ms)) == 1


def test_a_failure_is_forgotten_when_nothing_is_left_to_do() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=1.0))
    _fill(bench, PARTITION, 3)
    bench.faulty.full_at(bench.faulty.used_bytes() + 10)
    bench.cleaner.run_once(bench.now_ms)
    assert not bench.cleaner.health()[0].is_healthy
    bench.faulty.full_at(None)
    bench.advance(60_000)
    assert bench.cleaner.run_once(bench.now_ms) == []
    assert bench.cleaner.health()[0].is_healthy


def test_a_thread_that_comes_late_looks_again_what_may_be_cleaned() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench, PARTITION, 3)
    late = Cleaner(bench.store, clock=bench.clock)
    picked = late._pick(bench.now_ms, set())
    assert picked is not None
    _fill(bench, PARTITION, 3)
    report = late._run(picked, bench.now_ms)
    assert report is not None
    assert report.end_offset == 12
