"""What a session tells of its stages while they run, and afterwards over Spark Connect.

Classic sessions are asked for the status store, which is there without its web page. A session of
Spark Connect tells by itself, with each answer of the server, tasks and bytes read alone.

Threads    Spark Connect tells in the thread that runs the work; `_lock` guards what it told.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pyspark.sql import SparkSession

from varve.spark.progress import StageProgress
from varve.spark.session_kind import PREFIX, is_connect
from varve.spark.step_ledger import get_ledger


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """A stage as Spark Connect tells it: no time, no rows, no shuffled bytes."""

    stage: int
    name: str
    tasks: int
    tasks_done: int
    read_bytes: int


class StageLook(Protocol):
    """Who is asked which stages run, and which were told of."""

    def running(self) -> Sequence[StageProgress]: ...
    def told(self) -> tuple[RemoteStage, ...]: ...
    def close(self) -> None: ...


def open_look(spark: SparkSession) -> StageLook:
    return _ConnectLook(spark) if is_connect(spark) else _ClassicLook(spark)


def step_name(description: str | None, call_site: str) -> str:
    """The step of varve's that a stage belongs to, else the action of Spark's."""
    if description and description.startswith(PREFIX):
        return description.removeprefix(PREFIX)
    return description or call_site.partition(" at ")[0]


class _ClassicLook:
    """Asks the status store."""

    def __init__(self, spark: SparkSession) -> None:
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()  # no door in Python

    def running(self) -> Sequence[StageProgress]:
        found = self._store.activeStages()
        return [_read_running(found.apply(index)) for index in range(found.size())]

    def told(self) -> tuple[RemoteStage, ...]:
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


class _ConnectLook:
    """Is told; a stage that Spark skipped is told as well, and left out as soon as that shows."""

    def __init__(self, spark: SparkSession) -> None:
        self._ledger = get_ledger(spark)
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

    def told(self) -> tuple[RemoteStage, ...]:
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
        found = [
            RemoteStage(
                one.stage_id, name, one.num_tasks, one.num_completed_tasks, one.num_bytes_read
            )
            for one in without_skipped(stages or ())
        ]
        with self._lock:
            self._stages.update((one.stage, one) for one in found if one.tasks_done)
            self._running = tuple(
                StageProgress(one.stage, one.name, one.tasks, one.tasks_done, 0, one.read_bytes)
                for one in found
                if not done and one.tasks_done < one.tasks
            )


def without_skipped(stages: Iterable[Any]) -> list[Any]:
    """Stages but those of which no task was done though a later one is under way."""
    ordered = sorted(stages, key=lambda one: int(one.stage_id))
    last = max((one.stage_id for one in ordered if one.num_completed_tasks), default=-1)
    return [one for one in ordered if one.num_completed_tasks or one.stage_id > last]
