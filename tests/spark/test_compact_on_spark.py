"""Compaction by Spark tasks leaves what it leaves in one process; failures come back as words."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.support.remote_compaction import RemoteCompaction
from tests.support.spark_session import spark as spark
from tests.support.tier_bench import TierBench, tiered
from varve.foundation.errors import StoreUnavailable
from varve.jobs.compact.job import compact
from varve.jobs.tasks import TaskError
from varve.jobs.tier.bucket import Bucket
from varve.object_store import open_object_store
from varve.spark import runner as spark_runner
from varve.spark.executor import pack_shared
from varve.spark.runner import SparkRunner
from varve.spark.stages import get_step_log

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def make() -> RemoteCompaction:
    """Segments that make two groups, with a tombstone and an aborted transaction."""
    remote = RemoteCompaction(TierBench(tiered(segment_bytes=300)), range_bytes=32 * 6)
    remote.bench.fill(5, 6)
    remote.hot.put("key-1", None)
    remote.hot.put("key-2", "void", producer_id=7, transactional=True)
    remote.hot.end_transaction(7, committed=False)
    remote.hot.roll()
    remote.bench.fill(3)
    remote.copy()
    return remote


def test_spark_leaves_what_one_process_leaves(spark: SparkSession, tmp_path: Path) -> None:
    remote = make()
    address = Bucket(f"file:{tmp_path}/bucket")
    with closing(open_object_store(address.url)) as bucket:
        for entry in remote.bench.bucket.list(""):
            bucket.put(entry.key, remote.bench.bucket.get(entry.key))
    alone = remote.compact()
    result = compact(
        address,
        ["orders"],
        settings=remote.settings(),
        runner=SparkRunner(spark, here_bytes=0),
        clock=remote.hot.clock,
    )
    (partition,) = result.partitions
    assert partition.error is None
    assert {one.name: one.tasks for one in partition.stages} == {
        one.name: one.tasks for one in alone.stages
    }
    assert {one.name: one.tasks for one in partition.stages}["plan"] > 1
    assert (partition.records, partition.bytes) == (alone.records, alone.bytes)
    assert partition.cleaned_up_to == alone.cleaned_up_to
    found = {one.key: address.objects().get(one.key) for one in address.objects().list("")}
    expected = remote.batches()
    remote.bench.bucket.delete([one.key for one in remote.bench.bucket.list("")])
    for key, data in found.items():
        remote.bench.bucket.put(key, data)
    assert [one.data for one in remote.batches()] == [one.data for one in expected]
    remote.check()


@dataclass(frozen=True)
class Where:
    """Tells where it runs and, every third time, fails."""

    number: int

    def run(self, shared: None) -> object:
        if self.number % 3 == 2:
            raise StoreUnavailable(f"task {self.number} found the store down")
        context = TaskContext.get()
        assert context is not None
        return self.number, context.partitionId()


def test_outcomes_come_in_order_and_failures_as_words(spark: SparkSession) -> None:
    runner = SparkRunner(spark, here_bytes=0)
    outcomes = list(runner.try_run("test", [Where(number) for number in range(7)]))
    failed = [one.error for one in outcomes if isinstance(one, TaskError)]
    assert [(type(error), str(error)) for error in failed] == [
        (StoreUnavailable, f"task {number} found the store down") for number in (2, 5)
    ]
    done = [one for one in outcomes if isinstance(one, tuple)]
    assert done == [(number, number) for number in (0, 1, 3, 4, 6)], "each is a task of its own"


@dataclass(frozen=True)
class Sum:
    """Adds up what all tasks share; `padding` makes it large to send."""

    number: int
    padding: bytes = b""

    def run(self, shared: Sequence[int]) -> int:
        return self.number + sum(shared)


def test_what_tasks_share_is_sent_once_and_waves_bound_what_the_driver_holds(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_runner, "_WAVE_TASKS", 4)
    runner = SparkRunner(spark, here_bytes=0)
    shared = list(range(100_000))
    assert runner.run("sum", [Sum(number) for number in range(10)], shared) == [
        number + sum(shared) for number in range(10)
    ]
    step = get_step_log(spark).steps()[-1]
    assert (step.name, step.tasks) == ("sum", 10)
    assert step.sent_bytes < 2 * len(pack_shared(shared))


def test_the_description_of_the_users_jobs_stays(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobDescription("mine")
    topics = ["orders", "payments", "refunds", "carts", "visits"]
    SparkRunner(spark, "compact", topics, here_bytes=0).run("sum", [Sum(1)], [1])
    assert context.getLocalProperty("spark.job.description") == "mine"
    context.setJobDescription("")
    jvm: Any = context._jvm
    jobs = context._jsc.sc().statusStore().jobsList(jvm.java.util.ArrayList())
    descriptions = [jobs.apply(index).description() for index in range(jobs.size())]
    names = {description.get() for description in descriptions if description.isDefined()}
    assert "varve compact orders payments refunds and 2 more: sum" in names
