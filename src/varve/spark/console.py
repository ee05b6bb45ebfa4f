"""A job on Spark from a terminal: start, progress bars, Ctrl-C, errors, report.

Invariant  Spark writes to a temporary log file, never to the terminal; the file is kept only if the
           job fails for a reason that varve cannot explain.
Threads    the work runs in a thread of its own, so that Ctrl-C finds the main thread waiting; it
           cancels the Spark jobs and stops the session.
"""

import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest, NotFound, StoreError
from varve.foundation.units import format_bytes, format_count, format_duration
from varve.jobs.tasks import Task, TaskError, TaskRunner

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from varve.spark.session import Session
    from varve.spark.stages import JobProgress, JobReport, SessionWatch, StageProgress

T = TypeVar("T")

_REPORT_FORMATS: Final = (2,)
_POLL_SECONDS: Final = 0.2
_CANCEL_SECONDS: Final = 15
_SPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
"""They write all of an error to standard error that is raised as well."""
_LOG_BYTES_MAX: Final = 1 << 20
"""How much of Spark's log is searched for the reason why Java could not start."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The Spark cluster, None for this machine, and Spark's settings."""

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


class SparkLog:
    """What Spark's processes print, in a temporary file that is deleted unless kept.

    A process that is started while it catches writes to the file as long as it runs.
    """

    def __init__(self) -> None:
        self._descriptor, self.path = tempfile.mkstemp(prefix="varve-job-", suffix=".log")
        self._is_kept = False

    def __enter__(self) -> "SparkLog":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._is_kept:
            os.unlink(self.path)

    def read(self) -> str:
        """The beginning of the log."""
        return os.pread(self._descriptor, _LOG_BYTES_MAX, 0).decode(errors="replace")

    def keep(self) -> str:
        """Keep the file after the job; returns its path."""
        self._is_kept = True
        return self.path

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Redirect the output of this process, and of those it starts, to the file.

        Java prints on standard output why it cannot start.
        """
        saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        for descriptor in saved:
            os.dup2(self._descriptor, descriptor)
        try:
            yield
        finally:
            for descriptor, copy in saved.items():
                os.dup2(copy, descriptor)
                os.close(copy)


class SparkJob:
    """A job whose Spark session starts when the first task needs it.

    Arguments that the job refuses before then cost no start of Spark.
    """

    def __init__(self, name: str, options: SparkOptions, log: SparkLog) -> None:
        self.name = name
        self._options = options
        self._log = log
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._session: SessionWatch | None = None
        self._is_ours = False

    @property
    def is_started(self) -> bool:
        return self._session is not None

    @property
    def spark(self) -> "Session":
        """The session, started if it was not; Ctrl-C cancels what this thread runs in it."""
        from varve.spark.session import tag_work
        from varve.spark.stages import watch_session

        if self._session is None:
            spark, self._is_ours = _start(self.name, self._options, self._log)
            self._session = watch_session(spark)
        tag_work(self._session.spark)
        return self._session.spark

    def runner(self, topics: Sequence[str] = ()) -> TaskRunner:
        """Runs tasks on Spark, which starts with the first of them."""
        return _StartingRunner(self, topics)

    def run(self, work: Callable[[], T], *, is_shown: bool = True) -> T:
        """Does the work with progress bars; Ctrl-C cancels it."""
        running = _Running(work)
        try:
            with _spinner("planning, then starting Spark", is_shown=self._session is None):
                running.wait_until(lambda: self._session is not None)
            session = self._session
            if session is None:
                return running.wait(lambda: None)
            from varve.spark.stages import ProgressWatch

            progress = ProgressWatch()
            with _stage_bars(is_shown=is_shown) as show:
                return running.wait(lambda: show(progress.poll(session.running())))
        except KeyboardInterrupt:
            if self._session is not None:
                from varve.spark.session import cancel_work

                cancel_work(self._session.spark)
                running.thread.join(_CANCEL_SECONDS)
            raise

    def report(self, rows: int | None, result: object = None) -> "JobReport":
        """The report so far; `result` is the JSON of the job's own result."""
        from varve.spark.stages import JobReport

        session = self._session
        return JobReport(
            job=self.name,
            application="" if session is None else session.application,
            started_ms=self._started_ms,
            duration_ms=self._clock.now_ms() - self._started_ms,
            rows=rows,
            stages=() if session is None else session.stages(),
            steps=() if session is None else session.steps(),
            remote_stages=() if session is None else session.remote_stages(),
            result=result,
        )

    def close(self) -> None:
        """Stops polling the session, and stops Spark unless it ran before, or has ended."""
        if self._session is None:
            return
        from varve.spark.errors import SPARK_ERRORS

        with contextlib.suppress(*SPARK_ERRORS):
            self._session.close()
            if self._is_ours:
                self._session.spark.stop()


class _StartingRunner(TaskRunner):
    """The runner of a job's session, which starts with the first tasks."""

    def __init__(self, job: SparkJob, topics: Sequence[str]) -> None:
        self._job = job
        self._topics = topics

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> "Iterator[T | TaskError]":
        if not tasks:
            return
        from varve.spark.runner import SparkRunner

        runner = SparkRunner(self._job.spark, self._job.name, self._topics)
        yield from runner.try_run(stage, tasks, shared)


@contextlib.contextmanager
def open_job(name: str, options: SparkOptions) -> Iterator[SparkJob]:
    """Yields a job, stops its Spark; a failure is one sentence, with the path of Spark's log."""
    for logger in _SPARK_LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with SparkLog() as log:
        job = SparkJob(name, options, log)
        try:
            with contextlib.closing(job):
                yield job
        except Exception as error:
            if "pyspark" not in sys.modules:
                raise
            from varve.spark.errors import SPARK_ERRORS, explain_failure

            if not isinstance(error, (*SPARK_ERRORS, StoreError)):
                raise
            failure = explain_failure(error, log.read())
            if job.is_started or failure is not error:
                failure.args = (f"{failure}; Spark's log is {log.keep()}",)
            if failure is error:
                raise
            raise failure from error


def write_report(report: "JobReport", path: str) -> None:
    """The report as a JSON file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report.to_document(), file, indent=2)
        file.write("\n")


def read_report(path: str) -> dict[str, Any]:
    """The document of a report file; raises InvalidRequest for another file."""
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no report {path!r:.300}; `varve job compact --report FILE` writes one, as "
            "does every other job"
        ) from error
    except (ValueError, IsADirectoryError) as error:
        raise InvalidRequest(_no_report(path)) from error
    if not isinstance(document, dict) or not {"job", "stages", "started_ms"} <= document.keys():
        raise InvalidRequest(_no_report(path))
    if document.get("format") not in _REPORT_FORMATS:
        raise InvalidRequest(
            f"{path} is a report of format {document.get('format')!r:.40}, this varve shows "
            f"{', '.join(map(str, _REPORT_FORMATS))}"
        )
    return document


def _no_report(path: str) -> str:
    return f"{path} is not the report of a job: name a file that --report of a job wrote"


def summarize_report(report: "JobReport") -> str:
    """The report in one line."""
    rows = "" if report.rows is None else f"{format_count(report.rows, 'row')}, "
    shuffled = f", {format_bytes(report.shuffled_bytes)} shuffled" if report.shuffled_bytes else ""
    fetched = f", {format_bytes(report.store.read_bytes)} fetched" if report.store.requests else ""
    failed = f", {report.failed_tasks} failed" if report.failed_tasks else ""
    if report.steps:
        work = format_count(len(report.steps), "step")
        tasks = sum(step.tasks for step in report.steps)
    else:
        work = format_count(len(report.stages or report.remote_stages), "stage")
        tasks = report.tasks
    return (
        f"{rows}{work}, {format_count(tasks, 'task')}{failed}{fetched}{shuffled} in "
        f"{format_duration(report.duration_ms)}"
    )


class _Running(Generic[T]):
    """Work in a daemon thread: the end of the process does not wait for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._future: Future[T] = Future()
        self.thread = threading.Thread(target=self._fulfil, daemon=True)
        self.thread.start()

    def wait(self, look: Callable[[], None]) -> T:
        """The result or error of the work; calls `look` while it runs."""
        while not self._is_done():
            look()
        return self._future.result()

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Returns when the condition holds or the work ends."""
        while not is_reached() and not self._is_done():
            pass

    def _is_done(self) -> bool:
        return bool(wait([self._future], timeout=_POLL_SECONDS).done)

    def _fulfil(self) -> None:
        try:
            self._future.set_result(self._work())
        except BaseException as error:  # who waits raises it
            self._future.set_exception(error)


def _start(name: str, options: SparkOptions, log: SparkLog) -> "tuple[Session, bool]":
    """A session whose Java process writes to the log, and whether it was created here.

    It is created in another thread, so that Spark leaves SIGINT alone: Ctrl-C before Java has
    answered ends this process, and Java with it.
    """
    from varve.spark.session import REMOTE_SCHEME, get_session, has_running_context

    is_remote = (options.master or "").startswith(REMOTE_SCHEME)
    is_ours = is_remote or not has_running_context()
    with log.catching():
        starting = _Running(
            lambda: get_session(master=options.master, conf=options.conf, app=f"varve {name}")
        )
        return starting.wait(lambda: None), is_ours


@contextlib.contextmanager
def _spinner(title: str, *, is_shown: bool) -> Iterator[None]:
    """Shown on a terminal only, through a descriptor that the log does not catch."""
    if not is_shown or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with (
        open(os.dup(2), "w", encoding=sys.stderr.encoding) as terminal,
        Console(file=terminal).status(title),
    ):
        yield


@contextlib.contextmanager
def _stage_bars(*, is_shown: bool) -> "Iterator[Callable[[JobProgress], None]]":
    """Yields the function that shows progress; without a terminal it does nothing."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks{task.fields[details]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bars(bars).show


class _Bars:
    """A bar per running stage, or one that says that none runs."""

    def __init__(self, bars: "Progress") -> None:
        self._bars = bars
        self._ids: dict[int, TaskID] = {}
        self._idle = bars.add_task("planning", total=None, details="")

    def show(self, progress: "JobProgress") -> None:
        running = {stage_progress.stage: stage_progress for stage_progress in progress.running}
        for ended in self._ids.keys() - running.keys():
            self._bars.remove_task(self._ids.pop(ended))
        for stage, stage_progress in running.items():
            if stage not in self._ids:
                self._ids[stage] = self._bars.add_task(
                    stage_progress.name, total=stage_progress.tasks, details=""
                )
            self._bars.update(
                self._ids[stage],
                completed=stage_progress.tasks_done,
                total=stage_progress.tasks,
                details=_details(stage_progress),
            )
        done = f"after {progress.stages_done} stages" if progress.stages_done else "planning"
        self._bars.update(self._idle, description=done, visible=not running)


def _details(progress: "StageProgress") -> str:
    read = f", {format_bytes(progress.read_bytes)}" if progress.read_bytes else ""
    failed = f", {progress.failed_tasks} failed" if progress.failed_tasks else ""
    return f"{read}{failed}"
