"""Carries out the tasks of a job on Spark: one Spark task for each of them.

Invariant  a task travels as `executor` packs it, and its outcome comes back so; both are bytes to
           Spark. What the tasks asked of object stores stands in the session's ledger of steps.
Crash      Spark repeats a task whose executor was lost: tasks are made to be repeated.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from varve.jobs.running.distributor import Task, TaskFailure
from varve.jobs.running.executor import pack_task, run_packed, unpack_outcome
from varve.jobs.running.session_kind import is_connect, named_work
from varve.jobs.running.step_ledger import get_ledger

_SCHEMA: Final = StructType(
    [StructField("slot", IntegerType(), False), StructField("task", BinaryType(), False)]
)


class SparkDistributor:
    """Each task in a partition of its own; over Spark Connect too."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]:
        if not tasks:
            return []
        with get_ledger(self._spark).step(stage, len(tasks)) as step:
            found = [unpack_outcome(data) for data in self._carry_out(stage, tasks)]
            for outcome, count in found:
                step.note(count, has_failed=isinstance(outcome, TaskFailure))
        return [outcome for outcome, _ in found]

    def _carry_out(self, stage: str, tasks: Sequence[Task]) -> list[bytes]:
        packed = [pack_task(task) for task in tasks]
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
