"""What a job did: rows, bytes and time, stage by stage, as Spark counted them.

Invariant  figures come from Spark's own status store, which is there without its web page; stages
           that Spark skipped since their result was there are left out.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage; a stage that was tried again is reported once for each time."""

    stage: int
    attempt: int
    name: str
    status: str
    started_ms: int
    duration_ms: int
    """From its submission to its end; of stages that ran at once both times count."""
    tasks: int
    failed_tasks: int
    run_ms: int
    """The time of all its tasks together."""
    read_rows: int
    read_bytes: int
    shuffle_read_bytes: int
    shuffle_written_bytes: int
    written_rows: int
    written_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """A whole job, as a program or a page may read it."""

    job: str
    application: str
    started_ms: int
    duration_ms: int
    rows: int | None
    """Rows that came out; None where the job has none to count."""
    stages: tuple[StageReport, ...]

    @property
    def tasks(self) -> int:
        return sum(stage.tasks for stage in self.stages)

    @property
    def failed_tasks(self) -> int:
        return sum(stage.failed_tasks for stage in self.stages)

    @property
    def shuffled_bytes(self) -> int:
        return sum(stage.shuffle_written_bytes for stage in self.stages)

    def to_document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "format": _FORMAT,
            **asdict(self),
            "tasks": self.tasks,
            "failed_tasks": self.failed_tasks,
            "shuffled_bytes": self.shuffled_bytes,
        }


def read_stages(spark: SparkSession, *, before: Collection[int] = ()) -> tuple[StageReport, ...]:
    """Every stage that the session has run, oldest first, without those of the numbers `before`."""
    context = spark.sparkContext
    gateway: Any = context._gateway  # its status store has no door in Python
    jvm: Any = context._jvm
    store: Any = context._jsc.sc().statusStore()
    quantiles = gateway.new_array(jvm.double, 0)
    found = store.stageList(
        jvm.java.util.ArrayList(), False, False, quantiles, jvm.java.util.ArrayList()
    )
    stages = [found.apply(index) for index in range(found.size())]
    reports = [
        _read_stage(stage)
        for stage in stages
        if stage.submissionTime().isDefined() and stage.stageId() not in before
    ]
    return tuple(sorted(reports, key=lambda report: (report.stage, report.attempt)))


def _read_stage(stage: Any) -> StageReport:
    started_ms = stage.submissionTime().get().getTime()
    completed = stage.completionTime()
    return StageReport(
        stage=stage.stageId(),
        attempt=stage.attemptId(),
        name=stage.name(),
        status=stage.status().toString().lower(),
        started_ms=started_ms,
        duration_ms=completed.get().getTime() - started_ms if completed.isDefined() else 0,
        tasks=stage.numTasks(),
        failed_tasks=stage.numFailedTasks(),
        run_ms=stage.executorRunTime(),
        read_rows=stage.inputRecords(),
        read_bytes=stage.inputBytes(),
        shuffle_read_bytes=stage.shuffleReadBytes(),
        shuffle_written_bytes=stage.shuffleWriteBytes(),
        written_rows=stage.outputRecords(),
        written_bytes=stage.outputBytes(),
        spilled_bytes=stage.diskBytesSpilled(),
    )
