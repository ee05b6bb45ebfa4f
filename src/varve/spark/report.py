"""What a job did: its result, its steps as varve counts them, its stages as Spark does.

Layout     docs/jobs/running.md tells the fields of the document.
Invariant  figures of stages come from Spark's own status store, which is there without its web
           page; stages that Spark skipped since their result was there are left out. Bytes of
           object stores are those that varve's tasks asked for themselves: Spark knows nothing of
           them.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from varve.jobs.store_count import StoreCount
from varve.spark.stages import RemoteStage, StepReport, step_name

FORMAT: Final = 2
_OVER_CONNECT: Final = (
    "over Spark Connect stages are reported by tasks and bytes read alone, without time, rows and "
    "shuffled bytes, and short ones may be missing"
)
_NOT_COUNTED: Final = (
    "what the data source fetched from object stores is not counted; `varve job query --estimate` "
    "tells what a read takes at most"
)


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
    steps: tuple[StepReport, ...] = ()
    remote_stages: tuple[RemoteStage, ...] = ()
    """The stages of a job over Spark Connect, in place of `stages`."""
    result: object = None
    """What the job itself tells, as JSON has it."""

    @property
    def tasks(self) -> int:
        done = sum(remote_stage.tasks_done for remote_stage in self.remote_stages)
        return sum(stage.tasks for stage in self.stages) + done

    @property
    def store(self) -> StoreCount:
        """What the tasks of all steps asked of object stores."""
        return sum((step.store for step in self.steps), StoreCount())

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures leave out."""
        found = [_OVER_CONNECT] if self.remote_stages else []
        return (*found, *([] if self.steps else [_NOT_COUNTED]))

    @property
    def failed_tasks(self) -> int:
        return sum(stage.failed_tasks for stage in self.stages)

    @property
    def shuffled_bytes(self) -> int:
        """Between processes: by Spark's shuffles, and to the tasks of steps and back."""
        sent = sum(step.sent_bytes for step in self.steps)
        return sum(stage.shuffle_written_bytes for stage in self.stages) + sent

    def to_document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "format": FORMAT,
            **asdict(self),
            "store": self.store.to_json(),
            "notes": list(self.notes),
            "tasks": self.tasks,
            "failed_tasks": self.failed_tasks,
            "shuffled_bytes": self.shuffled_bytes,
        }


def read_stages(spark: SparkSession, *, before: Collection[int] = ()) -> tuple[StageReport, ...]:
    """Every stage of a classic session, oldest first, without those of the numbers `before`.

    Over Spark Connect nobody can be asked.
    """
    context = spark.sparkContext
    gateway: Any = context._gateway  # its status store has no API in Python
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
    described = stage.description()
    return StageReport(
        stage=stage.stageId(),
        attempt=stage.attemptId(),
        name=step_name(described.get() if described.isDefined() else None, stage.name()),
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
