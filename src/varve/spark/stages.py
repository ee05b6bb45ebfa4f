"""The steps that varve runs on a session, the stages that Spark runs for them, and the report.

Classic sessions are asked for the status store, which is there without its web page. A session of
Spark Connect reports by itself, with each response of the server, tasks and bytes read alone.

Layout     docs/jobs/running.md describes the fields of the report.
Invariant  a step is in the log of its session when it is over, whether it failed or not; the one
           under way is shown apart. A session has one step log, whoever made its runners. Stages
           that Spark skipped since their result was there are left out. Bytes of object stores are
           those that varve's tasks asked for themselves: Spark knows nothing of them.
Threads    any. Spark Connect reports in the thread that runs the work.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from varve.foundation.clock import Clock, SystemClock
from varve.jobs.tier.bucket import StoreCount
from varve.spark.session import find_step, is_connect

_lock = threading.Lock()
_ledgers: "WeakKeyDictionary[Any, StepLog]" = WeakKeyDictionary()  # guarded by _lock


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: what its tasks asked of object stores, all of them together."""

    name: str
    tasks: int
    failed_tasks: int
    """Tasks whose outcome is a failure; those that Spark repeated are not among them."""
    started_ms: int
    duration_ms: int
    store: StoreCount
    sent_bytes: int = 0
    """What went to tasks in other processes and came back from them."""


class RunningStep:
    """A step under way; who carries it out notes the outcomes here."""

    def __init__(self, name: str, tasks: int) -> None:
        self.name = name
        self.tasks = tasks
        self.failed_tasks = 0
        self.store = StoreCount()
        self.sent_bytes = 0


class StepLog:
    """The steps of one session, oldest first."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._steps: list[StepReport] = []
        self._running: str | None = None

    @contextmanager
    def step(self, name: str, tasks: int) -> Iterator[RunningStep]:
        """Counts what happens inside."""
        running = RunningStep(name, tasks)
        started_ms = self._clock.now_ms()
        with _lock:
            self._running = name
        try:
            yield running
        finally:
            ended_ms = self._clock.now_ms()
            with _lock:
                self._running = None
                self._steps.append(
                    StepReport(
                        name,
                        tasks,
                        running.failed_tasks,
                        started_ms,
                        ended_ms - started_ms,
                        running.store,
                        running.sent_bytes,
                    )
                )

    @property
    def running(self) -> str | None:
        """The name of the step under way."""
        with _lock:
            return self._running

    @property
    def count(self) -> int:
        with _lock:
            return len(self._steps)

    def steps(self, *, after: int = 0) -> tuple[StepReport, ...]:
        """Those that are over, without the first `after`."""
        with _lock:
            return tuple(self._steps[after:])


def get_step_log(session: object) -> StepLog:
    """The ledger of a session."""
    with _lock:
        found = _ledgers.get(session)
        if found is None:
            found = _ledgers[session] = StepLog()
        return found


# How far a job is


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage that runs, under the name of varve's step where it belongs to one."""

    stage: int
    name: str
    tasks: int
    tasks_done: int = 0
    failed_tasks: int = 0
    read_bytes: int = 0
    """As far as Spark counts them: what tasks fetch themselves is known when they are done."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The stages that run, and the tasks of all that were seen; those to come are not known."""

    running: tuple[StageProgress, ...]
    stages_done: int
    tasks_done: int
    tasks: int
    failed_tasks: int


class ProgressWatch:
    """Adds up the progress of the running stages each time it is asked."""

    def __init__(self, find_running: Callable[[], Sequence[StageProgress]]) -> None:
        self._find_running = find_running
        self._seen: dict[int, StageProgress] = {}

    def look(self) -> JobProgress:
        """How far it is now."""
        running = sorted(self._find_running(), key=lambda progress: progress.stage)
        self._seen.update((progress.stage, progress) for progress in running)
        active = {progress.stage for progress in running}
        seen = self._seen.values()
        return JobProgress(
            running=tuple(running),
            stages_done=len(self._seen) - len(active),
            tasks_done=sum(
                progress.tasks_done if progress.stage in active else progress.tasks
                for progress in seen
            ),
            tasks=sum(progress.tasks for progress in seen),
            failed_tasks=sum(progress.failed_tasks for progress in seen),
        )


# The stages of a session


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """A stage as Spark Connect reports it: no time, no rows, no shuffled bytes."""

    stage: int
    name: str
    tasks: int
    tasks_done: int
    read_bytes: int


class StageStatusSource(Protocol):
    """Reports which stages run, and those that Spark Connect has reported."""

    def running(self) -> Sequence[StageProgress]: ...
    def remote_stages(self) -> tuple[RemoteStage, ...]: ...
    def close(self) -> None: ...


def open_stage_status(spark: SparkSession) -> StageStatusSource:
    return _ConnectProgress(spark) if is_connect(spark) else _StatusStore(spark)


def step_name(description: str | None, call_site: str) -> str:
    """The step of varve's that a stage belongs to, else the action of Spark's."""
    if description is None:
        return call_site.partition(" at ")[0]
    return find_step(description) or description


class _StatusStore:
    """Asks the status store."""

    def __init__(self, spark: SparkSession) -> None:
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()  # Python has no API for it

    def running(self) -> Sequence[StageProgress]:
        found = self._store.activeStages()
        return [_read_running(found.apply(index)) for index in range(found.size())]

    def remote_stages(self) -> tuple[RemoteStage, ...]:
        return ()  # the report asks the status store for all of it

    def close(self) -> None: ...


def _read_running(stage: Any) -> StageProgress:
    described = stage.description()
    return StageProgress(
        stage.stageId(),
        step_name(described.get() if described.isDefined() else None, stage.name()),
        stage.numTasks(),
        stage.numCompleteTasks(),
        stage.numFailedTasks(),
        stage.inputBytes() + stage.shuffleReadBytes(),
    )


class _ConnectProgress:
    """Listens; a skipped stage is reported as well, and left out as soon as that shows."""

    def __init__(self, spark: SparkSession) -> None:
        self._ledger = get_step_log(spark)
        self._spark = spark
        self._lock = threading.Lock()
        self._stages: dict[int, RemoteStage] = {}  # guarded by _lock
        self._running: tuple[StageProgress, ...] = ()  # guarded by _lock
        # pyspark declares a handler that takes anything.
        self._handler = cast(Any, self._take)
        spark.registerProgressHandler(self._handler)

    def running(self) -> Sequence[StageProgress]:
        with self._lock:
            return self._running

    def remote_stages(self) -> tuple[RemoteStage, ...]:
        with self._lock:
            return tuple(self._stages[number] for number in sorted(self._stages))

    def close(self) -> None:
        self._spark.removeProgressHandler(self._handler)

    def _take(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        name = self._ledger.running or "query"
        remote_stages = [
            RemoteStage(
                one.stage_id, name, one.num_tasks, one.num_completed_tasks, one.num_bytes_read
            )
            for one in without_skipped(stages or ())
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
    """Stages but those of which no task was done though a later one is under way."""
    ordered = sorted(stages, key=lambda stage: int(stage.stage_id))
    last = max((one.stage_id for one in ordered if one.num_completed_tasks), default=-1)
    return [one for one in ordered if one.num_completed_tasks or one.stage_id > last]


# The report


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
    """The job's own report, as JSON."""

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
