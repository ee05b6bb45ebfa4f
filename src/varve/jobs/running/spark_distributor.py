"""Carries out the tasks of a job on Spark: one Spark task for each of them, or for some small ones.

A stage that reads little is carried out by the driver: a stage of Spark takes a tenth of a second
before its first byte is read, and each of its tasks some hundredths.

Invariant  a task travels as `executor` packs it, and its outcome comes back so; both are bytes to
           Spark. What the tasks asked of object stores stands in the session's ledger of steps,
           wherever they ran.
Crash      Spark repeats a task whose executor was lost: tasks are made to be repeated.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from varve.foundation.errors import InvalidSetting
from varve.jobs.running.distributor import (
    Bundle,
    SizedTask,
    Task,
    TaskFailure,
    ThreadDistributor,
    bundle,
)
from varve.jobs.running.executor import pack_task, run_packed, unpack_outcome
from varve.jobs.running.session_kind import is_connect, named_work
from varve.jobs.running.step_ledger import RunningStep, get_ledger
from varve.jobs.tier.address import count_requests

HERE_BYTES: Final = 16 << 20
"""A stage that reads no more is carried out by the driver."""
HERE_SETTING: Final = "spark.varve.hereBytes"
"""The name by which a session has another limit."""
_HERE_TASKS: Final = 64
"""With more tasks than these it is not: each waits for a store or two."""
_BUNDLE_BYTES: Final = 8 << 20
"""About what a Spark task reads at least."""

_SCHEMA: Final = StructType(
    [StructField("slot", IntegerType(), False), StructField("task", BinaryType(), False)]
)


class SparkDistributor:
    """Each bundle of tasks in a partition of its own; over Spark Connect too.

    With `here_bytes` of 0 the driver carries out nothing itself; None stands for what the session's
    `spark.varve.hereBytes` says.
    """

    def __init__(self, spark: SparkSession, *, here_bytes: int | None = None) -> None:
        self._spark = spark
        self._here_bytes = _find_limit(spark) if here_bytes is None else here_bytes

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]:
        if not tasks:
            return []
        with get_ledger(self._spark).step(stage, len(tasks)) as step:
            if self._is_little(tasks):
                outcomes = _run_here(stage, tasks, step)
            else:
                outcomes = self._run_there(stage, bundle(tasks, _BUNDLE_BYTES), step)
            step.failed_tasks += sum(isinstance(one, TaskFailure) for one in outcomes)
        return outcomes

    def _is_little(self, tasks: Sequence[Task]) -> bool:
        if len(tasks) > _HERE_TASKS:
            return False
        sizes = [task.read_bytes for task in tasks if isinstance(task, SizedTask)]
        return len(sizes) == len(tasks) and sum(sizes) < self._here_bytes

    def _run_there(self, stage: str, bundles: Sequence[Bundle], step: RunningStep) -> list[object]:
        packed = [pack_task(one) for one in bundles]
        outcomes: list[object] = []
        for data in self._carry_out(stage, packed):
            found, count = unpack_outcome(data)
            assert isinstance(found, list)
            outcomes += found
            step.store += count
            step.sent_bytes += len(data)
        step.sent_bytes += sum(map(len, packed))
        return outcomes

    def _carry_out(self, stage: str, packed: Sequence[bytes]) -> list[bytes]:
        with named_work(self._spark, stage):
            if is_connect(self._spark):
                return self._run_as_rows(packed)
            # Rows cost Java a second for each stage: a plan, generated code and a shuffle.
            context = self._spark.sparkContext
            return context.parallelize(packed, len(packed)).map(run_packed).collect()

    def _run_as_rows(self, packed: Sequence[bytes]) -> list[bytes]:
        """As Spark Connect has it, which knows rows alone."""
        rows = [(slot, bytearray(data)) for slot, data in enumerate(packed)]
        # Without Arrow, which would gather rows and asks for pandas; a partition has one row.
        carry_out = udf(run_packed, BinaryType(), useArrow=False).asNondeterministic()
        found = (
            self._spark.createDataFrame(rows, _SCHEMA)
            .repartitionById(len(rows), "slot")
            .select("slot", carry_out("task").alias("outcome"))
            .collect()
        )
        outcomes = {row["slot"]: row["outcome"] for row in found}
        return [outcomes[slot] for slot in range(len(rows))]


def _find_limit(spark: SparkSession) -> int:
    text = spark.conf.get(HERE_SETTING, str(HERE_BYTES)) or ""
    if not text.isdigit():
        raise InvalidSetting(f"{HERE_SETTING}={text}: give a number of bytes, 0 for never")
    return int(text)


def _run_here(stage: str, tasks: Sequence[Task], step: RunningStep) -> list[object]:
    before = count_requests()
    outcomes = ThreadDistributor().run(stage, tasks)
    step.store += count_requests() - before
    return outcomes
