"""How a command runs its work on Spark: start, progress, interrupt, failure, report.

Invariant  Spark writes to a file beside, never to the terminal; the file stays only where a job
           failed for a reason that it alone may tell.
Threads    the work runs in a thread of its own, so that an interrupt finds the first one waiting,
           cancels what Spark runs, and ends the session.
"""

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import typer

from varve.cli.interrupts import told_when_interrupted
from varve.cli.job_options import SparkOptions
from varve.cli.spark_log import SparkLog
from varve.foundation.clock import SystemClock
from varve.foundation.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from varve.spark.session import Session
    from varve.spark.stages import JobReport, StageReport

T = TypeVar("T")

_POLL_SECONDS: Final = 0.2
_CANCEL_SECONDS: Final = 15
_SPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""They write all of an error to standard error that is raised as well."""
_NOTHING_CHANGED: Final = "stopped; the Spark job is cancelled"


class Job:
    """A session of Spark for one command."""

    def __init__(self, name: str, spark: "Session") -> None:
        from varve.spark.session import is_connect
        from varve.spark.stages import get_step_log, open_stage_status

        self.name = name
        self.spark = spark
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._is_classic = not is_connect(spark)
        self._before = {report.stage for report in self._stages()}
        self._ledger = get_step_log(spark)
        self._steps_before = self._ledger.count
        self._look = open_stage_status(spark)

    def run(self, work: Callable[[], T], *, is_shown: bool = True) -> T:
        """Does the work, with its progress shown if wanted; an interrupt cancels it."""
        from varve.cli.job_bars import stage_bars
        from varve.spark.session import cancel_work, cancellable
        from varve.spark.stages import ProgressWatch

        def run_cancellable() -> T:
            with cancellable(self.spark):
                return work()

        watch = ProgressWatch(self._look.running)
        running = _Running(run_cancellable)
        try:
            with stage_bars(is_wanted=is_shown) as show:
                return running.wait(lambda: show(watch.poll()))
        except KeyboardInterrupt:
            cancel_work(self.spark)
            running.thread.join(_CANCEL_SECONDS)
            raise

    def report(self, rows: int | None, result: object = None) -> "JobReport":
        """What was done so far; `result` is what the job itself tells, as JSON has it."""
        from varve.spark.session import find_application
        from varve.spark.stages import JobReport

        return JobReport(
            job=self.name,
            application=find_application(self.spark),
            started_ms=self._started_ms,
            duration_ms=self._clock.now_ms() - self._started_ms,
            rows=rows,
            stages=self._stages(before=self._before),
            steps=self._ledger.steps(after=self._steps_before),
            remote_stages=self._look.remote_stages(),
            result=result,
        )

    def close(self) -> None:
        """Asks the session no more."""
        self._look.close()

    def _stages(self, before: Collection[int] = ()) -> "tuple[StageReport, ...]":
        from varve.spark.stages import read_stages

        return read_stages(self.spark, before=before) if self._is_classic else ()


@contextlib.contextmanager
def open_job(
    name: str, options: SparkOptions, *, when_interrupted: str = _NOTHING_CHANGED
) -> Iterator[Job]:
    """Starts Spark, gives the job, ends Spark; what fails in it becomes an error of one line."""
    from varve.spark.errors import SPARK_ERRORS, JobFailed, explain_failure

    for logger in _SPARK_LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)

    with told_when_interrupted(when_interrupted), SparkLog() as log:
        try:
            spark, is_ours = _start(name, options, log)
            try:
                with contextlib.closing(Job(name, spark)) as job:
                    yield job
            finally:
                if is_ours:
                    spark.stop()
        except SPARK_ERRORS as error:
            failure = explain_failure(error)
            if not isinstance(failure, JobFailed):
                raise failure from error
            raise JobFailed(f"{failure}; Spark's own log is {log.keep()}") from error


def write_report(report: "JobReport", path: str) -> None:
    """The report as a JSON file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report.to_document(), file, indent=2)
        file.write("\n")


def tell_report(report: "JobReport") -> None:
    """The report in a line, on standard error."""
    rows = "" if report.rows is None else f"{format_count(report.rows, 'row')}, "
    shuffled = f", {format_bytes(report.shuffled_bytes)} shuffled" if report.shuffled_bytes else ""
    fetched = f", {format_bytes(report.store.read_bytes)} fetched" if report.store.requests else ""
    failed = f", {report.failed_tasks} failed" if report.failed_tasks else ""
    if report.steps:
        work, tasks = (
            format_count(len(report.steps), "step"),
            sum(step_report.tasks for step_report in report.steps),
        )
    else:
        stages = report.stages or report.remote_stages
        work, tasks = format_count(len(stages), "stage"), report.tasks
    typer.secho(
        f"{rows}{work}, {format_count(tasks, 'task')}{failed}{fetched}{shuffled} in "
        f"{format_duration(report.duration_ms)}",
        dim=True,
        err=True,
    )


class _Running(Generic[T]):
    """Work in a thread of its own, which the end of the process need not wait for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._future: Future[T] = Future()
        self.thread = threading.Thread(target=self._fulfil, daemon=True)
        self.thread.start()

    def wait(self, look: Callable[[], None]) -> T:
        """What the work gives or raises; looks now and then."""
        while not wait([self._future], timeout=_POLL_SECONDS).done:
            look()
        return self._future.result()

    def _fulfil(self) -> None:
        try:
            self._future.set_result(self._work())
        except BaseException as error:  # who waits raises it
            self._future.set_exception(error)


def _start(name: str, options: SparkOptions, log: SparkLog) -> "tuple[Session, bool]":
    """A session whose Java writes to the log, and whether it was made here.

    It is made in another thread: Spark then leaves SIGINT alone, and an interrupt that comes before
    Java has answered ends this process, on which Java ends too. Java that is not waited for by
    anybody in a living process would stay.
    """
    from varve.spark.session import REMOTE_SCHEME, get_session, has_running_context

    is_remote = (options.master or "").startswith(REMOTE_SCHEME)
    is_ours = is_remote or not has_running_context()
    with _spinner("starting Spark"), log.catching():
        starting = _Running(
            lambda: get_session(master=options.master, conf=options.conf, app=f"varve {name}")
        )
        return starting.wait(lambda: None), is_ours


@contextlib.contextmanager
def _spinner(title: str) -> Iterator[None]:
    """Shown on a terminal only, by a descriptor of its own."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with (
        open(os.dup(2), "w", encoding=sys.stderr.encoding) as terminal,
        Console(file=terminal).status(title),
    ):
        yield
