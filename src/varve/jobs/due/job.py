"""Runs what is due of a log directory: for cron, a timer, or a server.

Invariant  one runner at a time has a directory (`varve-jobs.lock`). The store's own lock is not
           taken: a store may have the directory open. A job that fails does not stop the others.
Crash      a run is noted when it is over; one that was killed is due again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from varve.commit_log import LogSettings
from varve.disk import FileSystem, Lock, RealFileSystem
from varve.embedded.tier_place import DEFAULT_METADATA, read_place
from varve.embedded.topic_table import TOPICS_FILE, decode_topics
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, Locked, NotFound, StoreError
from varve.foundation.settings import GivenValue, parse_settings
from varve.jobs.due.schedule import DueJob, JobName, LastRun, plan_jobs
from varve.jobs.due.schedule_file import LOCK_FILE, read_runs, write_runs
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.address import TierAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What a job of a topic is run with; `address` is None where there is no cold tier."""

    directory: str
    topic: str
    settings: LogSettings
    address: TierAddress | None
    runner: TaskRunner
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job; `result` is what it tells itself, as JSON has it."""

    job: JobName
    topic: str
    run: LastRun
    result: object = None

    @property
    def has_failed(self) -> bool:
        return self.run.error is not None

    def to_json(self) -> dict[str, object]:
        return {
            "job": self.job.value,
            "topic": self.topic,
            "started_ms": self.run.started_ms,
            "duration_ms": self.run.ended_ms - self.run.started_ms,
            "error": self.run.error,
            "failures": self.run.failures,
            "result": self.result,
        }


Runner = Callable[[JobContext], tuple[object, str | None]]
"""Runs a job; gives its result as JSON has it, and what failed in it, if anything."""


def list_jobs(
    directory: str,
    now_ms: int,
    *,
    defaults: Mapping[str, GivenValue] | None = None,
    fs: FileSystem | None = None,
) -> list[DueJob]:
    """Every job that the settings of the directory's topics name, and whether it is due.

    `defaults` are settings of topics that say nothing themselves.
    """
    fs = fs or RealFileSystem()
    topics = read_topics(fs, directory, defaults or {})
    return plan_jobs(topics, read_runs(fs, directory), now_ms)


def run_due(
    directory: str,
    runner: TaskRunner,
    *,
    clock: Clock | None = None,
    defaults: Mapping[str, GivenValue] | None = None,
    store_settings: Mapping[str, GivenValue] | None = None,
    cluster: str | None = None,
    fs: FileSystem | None = None,
    runners: Mapping[JobName, Runner] | None = None,
    tell: Callable[[DueJob], None] = lambda job: None,
) -> list[JobOutcome]:
    """Runs the jobs that are due, one after another, and notes how each ended.

    Raises Locked where another runner has the directory. Errors of jobs are told in their outcomes.
    """
    from varve.jobs.due.runners import RUNNERS

    fs = fs or RealFileSystem()
    clock = clock or SystemClock()
    with _lock(fs, directory):
        topics = read_topics(fs, directory, defaults or {})
        runs = read_runs(fs, directory)
        due = [one for one in plan_jobs(topics, runs, clock.now_ms()) if one.is_due]
        address = _find_address(fs, directory, store_settings or {}, cluster) if due else None
        outcomes = []
        for one in due:
            tell(one)
            context = JobContext(
                directory=directory,
                topic=one.topic,
                settings=topics[one.topic],
                address=address,
                runner=runner,
                clock=clock,
            )
            outcome = _run(one, context, (runners or RUNNERS)[one.job])
            runs[one.job, one.topic] = outcome.run
            write_runs(fs, directory, runs)
            outcomes.append(outcome)
        return outcomes


def read_topics(
    fs: FileSystem, directory: str, defaults: Mapping[str, GivenValue]
) -> dict[str, LogSettings]:
    """The topics of a log directory and their settings, `defaults` below what they say."""
    path = f"{directory}/{TOPICS_FILE}"
    if not fs.exists(path):
        raise NotFound(f"{directory} holds no topics: there is no {TOPICS_FILE}")
    return {
        name: parse_settings(LogSettings, {**defaults, **entry.settings}, f"topic {name}")
        for name, entry in decode_topics(fs.read(path), path).topics.items()
    }


def _run(due: DueJob, context: JobContext, runner: Runner) -> JobOutcome:
    started_ms = context.clock.now_ms()
    result: object = None
    try:
        result, error = runner(context)
    except StoreError as failure:
        error = str(failure)
    before = 0 if due.last is None else due.last.failures
    run = LastRun(
        started_ms=started_ms,
        ended_ms=context.clock.now_ms(),
        error=error,
        failures=0 if error is None else before + 1,
    )
    return JobOutcome(job=due.job, topic=due.topic, run=run, result=result)


def _find_address(
    fs: FileSystem, directory: str, settings: Mapping[str, GivenValue], cluster: str | None
) -> TierAddress | None:
    place = read_place(fs, directory)
    if place is None:
        return None
    if place.metadata != DEFAULT_METADATA:
        raise InvalidRequest(
            f"the cold tier of {directory} keeps its manifests as varve.tier.metadata="
            f"{place.metadata} says, not beside the objects: jobs read the object store alone"
        )
    return TierAddress(place.url, tuple(settings.items()), cluster)


def _lock(fs: FileSystem, directory: str) -> Lock:
    path = f"{directory}/{LOCK_FILE}"
    try:
        return fs.lock(path)
    except Locked as error:
        raise Locked(
            f"another runner works on the jobs of {directory} ({path} is locked): it does what is "
            "due"
        ) from error
