"""The steps that varve runs on a session, the stages that Spark runs for them, and the report.

Stages of a classic session come from Spark's status store, which works without the web UI. Spark
Connect reports progress with each response of the server, by tasks and bytes read only.

Layout     docs/how-to/run-jobs-on-a-cluster.md describes the fields of the report.
Invariant  a step is in the log of its session once it has ended, failed or not; a running step is
           reported separately. A session has one step log, which all its runners share. Stages
           that Spark skipped, because their result existed, are left out. Bytes of object stores
           are those that varve's own tasks requested: Spark does not count them.
Threads    any. Spark Connect reports in the thread that runs the work.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from varve.foundation.clock import Clock, SystemClock
from varve.jobs.tier.bucket import StoreCount
from varve.spark.session import find_application, find_step, is_connect

_lock = threading.Lock()
_step_logs: "WeakKeyDictionary[Any, StepLog]" = WeakKeyDictionary()  # guarded by _lock


@dataclass(slots=True)
class StepReport:
    """A step; its runner counts the outcomes of its tasks here while it runs.

    `store` counts the requests of all its tasks to object stores.
    """

    name: str
    tasks: int
    failed_tasks: int = 0
    """Tasks whose outcome is a failure, without those that Spark repeated."""
    started_ms: int = 0
    duration_ms: int = 0
    store: StoreCount = field(default_factory=StoreCount)
    sent_bytes: int = 0
    """Bytes sent to tasks in other processes, and received from them."""


class StepLog:
    """The steps of one session, oldest first."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._steps: list[StepReport] = []  # guarded by the module's _lock
        self._running: str | None = None  # guarded by the module's _lock

    @contextmanager
    def step(self, name: str, tasks: int) -> Iterator[StepReport]:
        """Adds the step to the log when the block ends."""
        step = StepReport(name, tasks, started_ms=self._clock.now_ms())
        with _lock:
            self._running = name
        try:
            yield step
        finally:
            step.duration_ms = self._clock.now_ms() - step.started_ms
            with _lock:
                self._running = None
                self._steps.append(step)

    @property
    def running(self) -> str | None:
        """The name of the step in progress; None where there is none."""
        with _lock:
            return self._running

    @property
    def count(self) -> int:
        with _lock:
            return len(self._steps)

    def steps(self, *, after: int = 0) -> tuple[StepReport, ...]:
        """The finished steps, without the first `after`."""
        with _lock:
            return tuple(self._steps[after:])


def get_step_log(session: object) -> StepLog:
    """The step log of a session, created at the first call."""
    with _lock:
        log = _step_logs.get(session)
        if log is None:
            log = _step_logs[session] = StepLog()
        return log


# Progress


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A running stage, named after its step where it belongs to one of varve's."""

    stage: int
    name: str
    tasks: int
    tasks_done: int = 0
    failed_tasks: int = 0
    read_bytes: int = 0
    """As Spark counts them; the bytes that tasks fetch themselves are counted when they end."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The running stages, and how many have ended; later stages are unknown."""

    running: tuple[StageProgress, ...]
    stages_done: int


class ProgressWatch:
    """Remembers the stages seen at each call of `poll`."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def poll(self, running: Sequence[StageProgress]) -> JobProgress:
        ordered = sorted(running, key=lambda progress: progress.stage)
        self._seen |= {progress.stage for progress in ordered}
        return JobProgress(tuple(ordered), len(self._seen) - len(ordered))


# The report


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """A stage as Spark Connect reports it: no time, no rows, no shuffled bytes."""

    stage: int
    name: str
    tasks: int
    tasks_done: int
    read_bytes: int


FORMAT: Final = 2
_OVER_CONNECT: Final = (
    "over Spark Connect stages are reported by tasks and bytes read alone, without time, rows and "
    "shuffled bytes, and short ones may be missing"
)
_NOT_COUNTED: Final = (
    "what the data source fetched from object stores is not counted; `varve job query --estimate` "
    "shows what a read takes at most"
)


@dataclass(frozen=True, slots=True)
class StageReport:
    """One attempt of a stage."""

    stage: int
    attempt: int
    name: str
    status: str
    started_ms: int
    duration_ms: int
    """From submission to end; the times of concurrent stages overlap."""
    tasks: int
    failed_tasks: int
    run_ms: int
    """The sum over its tasks."""
    read_rows: int
    read_bytes: int
    shuffle_read_bytes: int
    shuffle_written_bytes: int
    written_rows: int
    written_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """The report of a job, for programs and web pages."""

    job: str
    application: str
    started_ms: int
    duration_ms: int
    rows: int | None
    """Rows of the result; None for a job that returns none."""
    stages: tuple[StageReport, ...]
    steps: tuple[StepReport, ...] = ()
    remote_stages: tuple[RemoteStage, ...] = ()
    """The stages of a job over Spark Connect, in place of `stages`."""
    result: object = None
    """The job's own report, as JSON."""

    @property
    def tasks(self) -> int:
        done = sum(remote_stage.tasks_done for remote_stage in self.remote_stages)
        return sum(stage.tasks for stage in self.stages) + done

    @property
    def store(self) -> StoreCount:
        """The requests of the tasks of all steps to object stores."""
        return sum((step.store for step in self.steps), StoreCount())

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures do not cover."""
        connect_notes = [_OVER_CONNECT] if self.remote_stages else []
        return (*connect_notes, *([] if self.steps else [_NOT_COUNTED]))

    @property
    def failed_tasks(self) -> int:
        return sum(stage.failed_tasks for stage in self.stages)

    @property
    def shuffled_bytes(self) -> int:
        """Between processes: by Spark's shuffles, and to the tasks of steps and back."""
        sent = sum(step.sent_bytes for step in self.steps)
        return sum(stage.shuffle_written_bytes for stage in self.stages) + sent

    def to_document(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "format": FORMAT,
            **asdict(self),
            "store": self.store.to_json(),
            "notes": list(self.notes),
            "tasks": self.tasks,
            "failed_tasks": self.failed_tasks,
            "shuffled_bytes": self.shuffled_bytes,
        }


# A session during a job


class SessionWatch(ABC):
    """A session, and the stages and steps that it has run since this was created."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._step_log = get_step_log(spark)
        self._step_count_before = self._step_log.count

    @property
    def application(self) -> str:
        return find_application(self.spark)

    def steps(self) -> tuple[StepReport, ...]:
        return self._step_log.steps(after=self._step_count_before)

    @abstractmethod
    def running(self) -> Sequence[StageProgress]:
        """The stages that run now."""

    def stages(self) -> tuple[StageReport, ...]:
        """Every stage of a classic session, oldest first; Spark Connect has no such list."""
        return ()

    def remote_stages(self) -> tuple[RemoteStage, ...]:
        """The stages that Spark Connect has reported."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Stops polling the session."""


def watch_session(spark: SparkSession) -> SessionWatch:
    return _ConnectWatch(spark) if is_connect(spark) else _ClassicWatch(spark)


def step_name(description: str | None, call_site: str) -> str:
    """The varve step that a stage belongs to, else the action of Spark."""
    if description is None:
        return call_site.partition(" at ")[0]
    return find_step(description) or description


class _ClassicWatch(SessionWatch):
    """Reads Spark's status store, for which Python has no API."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._context: Any = spark.sparkContext
        self._store: Any = self._context._jsc.sc().statusStore()
        self._stages_before: set[int] = set()
        self._stages_before = {report.stage for report in self.stages()}

    def running(self) -> Sequence[StageProgress]:
        stages = self._store.activeStages()
        return [_read_running(stages.apply(index)) for index in range(stages.size())]

    def stages(self) -> tuple[StageReport, ...]:
        jvm = self._context._jvm
        quantiles = self._context._gateway.new_array(jvm.double, 0)
        listed = self._store.stageList(
            jvm.java.util.ArrayList(), False, False, quantiles, jvm.java.util.ArrayList()
        )
        stages = [listed.apply(index) for index in range(listed.size())]
        reports = [
            _read_stage(stage)
            for stage in stages
            if stage.submissionTime().isDefined() and stage.stageId() not in self._stages_before
        ]
        return tuple(sorted(reports, key=lambda report: (report.stage, report.attempt)))

    def close(self) -> None: ...


def _read_name(stage: Any) -> str:
    described = stage.description()
    return step_name(described.get() if described.isDefined() else None, stage.name())


def _read_running(stage: Any) -> StageProgress:
    return StageProgress(
        stage.stageId(),
        _read_name(stage),
        stage.numTasks(),
        stage.numCompleteTasks(),
        stage.numFailedTasks(),
        stage.inputBytes() + stage.shuffleReadBytes(),
    )


def _read_stage(stage: Any) -> StageReport:
    started_ms = stage.submissionTime().get().getTime()
    completed = stage.completionTime()
    return StageReport(
        stage=stage.stageId(),
        attempt=stage.attemptId(),
        name=_read_name(stage),
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


class _ConnectWatch(SessionWatch):
    """Listens to progress reports; leaves out a skipped stage once a later stage has run."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._lock = threading.Lock()
        self._stages: dict[int, RemoteStage] = {}  # guarded by _lock
        self._running: tuple[StageProgress, ...] = ()  # guarded by _lock
        # pyspark declares a handler that takes anything.
        self._handler = cast(Any, self._on_progress)
        spark.registerProgressHandler(self._handler)

    def running(self) -> Sequence[StageProgress]:
        with self._lock:
            return self._running

    def remote_stages(self) -> tuple[RemoteStage, ...]:
        with self._lock:
            return tuple(self._stages[number] for number in sorted(self._stages))

    def close(self) -> None:
        self.spark.removeProgressHandler(self._handler)

    def _on_progress(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        name = self._step_log.running or "query"
        remote_stages = [
            RemoteStage(
                reported.stage_id,
                name,
                reported.num_tasks,
                reported.num_completed_tasks,
                reported.num_bytes_read,
            )
            for reported in without_skipped(stages or ())
        ]
        with self._lock:
            self._stages.update((stage.stage, stage) for stage in remote_stages if stage.tasks_done)
            self._running = tuple(
                StageProgress(
                    stage.stage, stage.name, stage.tasks, stage.tasks_done, 0, stage.read_bytes
                )
                for stage in remote_stages
                if not done and stage.tasks_done < stage.tasks
            )


def without_skipped(stages: Iterable[Any]) -> list[Any]:
    """The stages without those that have no completed task although a later stage has."""
    ordered = sorted(stages, key=lambda stage: int(stage.stage_id))
    last = max(
        (reported.stage_id for reported in ordered if reported.num_completed_tasks), default=-1
    )
    return [
        reported for reported in ordered if reported.num_completed_tasks or reported.stage_id > last
    ]
