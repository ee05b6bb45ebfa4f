"""Carries out the tasks of a job on Spark: one Spark task for each of them.

Invariant  a task travels pickled and its outcome comes back so; both are bytes to Spark. Whoever
           may send to the executors may run code there, as everywhere on Spark.
Crash      Spark repeats a task whose executor was lost: tasks are made to be repeated.
"""

import pickle
import zlib
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from varve.jobs.distributor import Task, run_task

_LEVEL: Final = 1
"""Of compression: bitmaps of one range of hashes are mostly zeros."""
_SCHEMA: Final = StructType(
    [StructField("slot", IntegerType(), False), StructField("task", BinaryType(), False)]
)


class SparkDistributor:
    """Tasks as rows, each in a partition of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, stage: str, tasks: Sequence[Task]) -> list[object]:
        if not tasks:
            return []
        rows = [(slot, bytearray(_pack(task))) for slot, task in enumerate(tasks)]
        # Without Arrow, which would gather rows and asks for pandas; a partition has one row.
        carry_out = udf(_run_packed, BinaryType(), useArrow=False).asNondeterministic()
        context = self._spark.sparkContext
        context.setJobDescription(f"varve: {stage}")
        try:
            found = (
                self._spark.createDataFrame(rows, _SCHEMA)
                .repartitionById(len(rows), "slot")
                .select("slot", carry_out("task").alias("outcome"))
                .collect()
            )
        finally:
            context.setJobDescription("")
        outcomes = {row["slot"]: row["outcome"] for row in found}
        return [_unpack(outcomes[slot]) for slot in range(len(rows))]


def _run_packed(data: bytes) -> bytes:
    """On an executor: the outcome of a task."""
    return _pack(run_task(_unpack(data)))


def _pack(value: object) -> bytes:
    return zlib.compress(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), _LEVEL)


def _unpack(data: bytes) -> Any:
    return pickle.loads(zlib.decompress(data))
