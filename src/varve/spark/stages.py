"""The steps that varve runs on a session, and the stages that Spark runs for them.

Classic sessions are asked for the status store, which is there without its web page. A session of
Spark Connect reports by itself, with each response of the server, tasks and bytes read alone.

Invariant  a step is in the log of its session when it is over, whether it failed or not; the one
           under way is shown apart. A session has one step log, whoever made its runners.
Threads    any. Spark Connect reports in the thread that runs the work.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from varve.foundation.clock import Clock, SystemClock
from varve.jobs.store_count import StoreCount
from varve.spark.session_kind import find_step, is_connect

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
    """A stage as Spark Connect tells it: no time, no rows, no shuffled bytes."""

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
