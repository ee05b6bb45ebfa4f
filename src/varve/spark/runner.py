"""Runs the tasks of a job on Spark: one Spark task for each, or for several small ones.

The driver runs a stage that reads little: a stage of Spark takes about 100 ms before it reads its
first byte, and each of its tasks some 10 ms more.

Invariant  `executor` packs tasks, the value they share and their outcomes; all are bytes to Spark.
           The shared value goes to each executor once. The driver holds the
           packed tasks and outcomes of one wave at a time.
Crash      Spark repeats a task whose executor was lost: tasks are repeatable.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from varve.foundation.errors import InvalidSetting
from varve.jobs.tasks import SizedTask, Task, TaskError, TaskRunner, ThreadRunner, pack_by_size
from varve.jobs.tier.bucket import count_requests
from varve.spark.errors import SPARK_ERRORS, explain_failure
from varve.spark.executor import (
    pack_bundle,
    pack_shared,
    run_bundle,
    unpack_outcomes,
)
from varve.spark.session import is_connect, named_work
from varve.spark.stages import StepReport, get_step_log

T = TypeVar("T")

HERE_BYTES: Final = 16 << 20
"""The driver itself runs a stage that reads fewer bytes."""
HERE_SETTING: Final = "spark.varve.hereBytes"
"""The setting of a session that replaces HERE_BYTES."""
_HERE_TASKS_MAX: Final = 64
"""The driver itself runs no stage with more tasks: each waits for one or two store requests."""
_NAMED_TOPICS_MAX: Final = 3
_BUNDLE_BYTES: Final = 8 << 20
"""Small tasks are bundled until a Spark task reads about this much."""
_WAVE_TASKS: Final = 128
"""Spark tasks of one Spark job: the outcomes of a wave fit `spark.driver.maxResultSize`, since the
largest outcome, a plan of 64 MiB of key index entries, has about 4 MiB."""
_WAVE_BYTES: Final = 128 << 20
"""Packed tasks of one Spark job, beyond the first."""

_SCHEMA: Final = StructType(
    [StructField("slot", IntegerType(), False), StructField("task", BinaryType(), False)]
)


class SparkRunner(TaskRunner):
    """Runs each bundle of tasks in a Spark partition, also over Spark Connect.

    `job` and `topics` name the work in the Spark UI. With `here_bytes=0` the driver runs no task
    itself; None takes the limit from the session's `spark.varve.hereBytes`.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str = "",
        topics: Sequence[str] = (),
        *,
        here_bytes: int | None = None,
    ) -> None:
        self._spark = spark
        omitted = (
            [f"and {len(topics) - _NAMED_TOPICS_MAX} more"]
            if len(topics) > _NAMED_TOPICS_MAX
            else []
        )
        self._job = " ".join([job, *topics[:_NAMED_TOPICS_MAX], *omitted]).strip()
        self._here_bytes = _get_here_bytes(spark) if here_bytes is None else here_bytes

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        if not tasks:
            return
        with get_step_log(self._spark).step(stage, len(tasks)) as step:
            is_small = self._is_small(tasks)
            run = self._run_on_driver if is_small else self._run_on_executors
            try:
                for outcome in run(stage, tasks, shared, step):
                    step.failed_tasks += isinstance(outcome, TaskError)
                    yield outcome
            except SPARK_ERRORS as error:
                raise explain_failure(error) from error

    def _is_small(self, tasks: Sequence[Task[T]]) -> bool:
        if len(tasks) > _HERE_TASKS_MAX:
            return False
        sizes = [task.read_bytes for task in tasks if isinstance(task, SizedTask)]
        return len(sizes) == len(tasks) and sum(sizes) < self._here_bytes

    def _run_on_driver(
        self, stage: str, tasks: Sequence[Task[T]], shared: object, step: StepReport
    ) -> Iterator[T | TaskError]:
        before = count_requests()
        yield from ThreadRunner().try_run(stage, tasks, shared)
        step.store += count_requests() - before

    def _run_on_executors(
        self, stage: str, tasks: Sequence[Task[T]], shared: object, step: StepReport
    ) -> Iterator[T | TaskError]:
        bundles = pack_by_size(tasks, _read_bytes, target_bytes=_BUNDLE_BYTES)
        packed = (pack_bundle(bundle) for bundle in bundles)
        packed_shared = None if shared is None else pack_shared(shared)
        step.sent_bytes += 0 if packed_shared is None else len(packed_shared)
        waves = pack_by_size(packed, len, target_bytes=_WAVE_BYTES, max_items=_WAVE_TASKS)
        with named_work(self._spark, self._job, stage), self._sender(packed_shared) as sender:
            for wave in waves:
                step.sent_bytes += sum(map(len, wave))
                for data in sender.run(wave):
                    outcomes, count = unpack_outcomes(data)
                    step.store += count
                    step.sent_bytes += len(data)
                    yield from outcomes

    def _sender(self, shared: bytes | None) -> "_ContextSender | _ConnectSender":
        sender = _ConnectSender if is_connect(self._spark) else _ContextSender
        return sender(self._spark, shared)


class _ContextSender:
    """Sends bundles through the SparkContext: a DataFrame costs a second for each stage."""

    def __init__(self, spark: SparkSession, shared: bytes | None) -> None:
        self._context = spark.sparkContext
        self._shared = None if shared is None else self._context.broadcast(shared)

    def __enter__(self) -> "_ContextSender":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared is not None:
            self._shared.destroy()

    def run(self, packed: Sequence[bytes]) -> list[bytes]:
        shared = self._shared

        def run_packed(data: bytes) -> bytes:
            return run_bundle(data, None if shared is None else shared.value)

        return self._context.parallelize(packed, len(packed)).map(run_packed).collect()


class _ConnectSender:
    """Sends bundles as rows: Spark Connect has no SparkContext."""

    def __init__(self, spark: SparkSession, shared: bytes | None) -> None:
        self._spark = spark
        self._shared = shared

    def __enter__(self) -> "_ConnectSender":
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, packed: Sequence[bytes]) -> list[bytes]:
        rows = [(slot, bytearray(data)) for slot, data in enumerate(packed)]
        frame = self._spark.createDataFrame(rows, _SCHEMA).repartitionById(len(rows), "slot")
        shared = F.lit(None).cast("binary")
        if self._shared is not None:
            shared_row = self._spark.createDataFrame([(bytearray(self._shared),)], "shared binary")
            frame = frame.crossJoin(F.broadcast(shared_row))
            shared = F.col("shared")
        # Without Arrow, which would batch rows and needs pandas: a partition has one row.
        run_row = F.udf(run_bundle, BinaryType(), useArrow=False).asNondeterministic()
        results = frame.select("slot", run_row("task", shared).alias("outcome")).collect()
        outcomes = {row["slot"]: row["outcome"] for row in results}
        return [outcomes[slot] for slot in range(len(rows))]


def _read_bytes(task: Task[T]) -> int:
    """The bytes a task reads; a task of unknown size gets a Spark task to itself."""
    return task.read_bytes if isinstance(task, SizedTask) else _BUNDLE_BYTES


def _get_here_bytes(spark: SparkSession) -> int:
    text = spark.conf.get(HERE_SETTING, str(HERE_BYTES)) or ""
    if not text.isdigit():
        raise InvalidSetting(f"{HERE_SETTING}={text}: give a number of bytes, 0 for never")
    return int(text)
