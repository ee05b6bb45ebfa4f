"""Schedules the jobs that topics request at intervals: lists and runs those that are due.

Layout     `varve-jobs.json` in the log directory: the format version, and by job and topic the
           times of the last run, its error and the failures since the last success.
           docs/how-to/run-jobs-on-a-cluster.md
Invariant  a job that succeeded is due one interval after the start of that run; a failed job is
           retried after a pause that doubles with every failure, up to the interval. One scheduler
           at a time works on a directory (`varve-jobs.lock`); the lock of the store is not taken,
           so that a store may have the directory open. A failed job does not stop the others.
Crash      a run is recorded when it ends; a killed job is due again.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

from varve.commit_log import LogSettings
from varve.disk import FileSystem, JsonDocument, Lock, RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE, decode_topics
from varve.foundation import errors
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.settings import GivenValue, parse_settings
from varve.jobs.results import JsonFields
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.bucket import Bucket
from varve.jobs.tier.location import TopicLocation

FIRST_PAUSE_MS: Final = 60_000
"""The pause after the first failure."""
_DOUBLINGS_MAX: Final = 20
"""Bounds the shift: 2^20 minutes are about two years, longer than any useful interval."""
JOBS_FILE: Final = "varve-jobs.json"
LOCK_FILE: Final = "varve-jobs.lock"
_DOCUMENT: Final = JsonDocument(version=1, max_bytes=64 << 20)
_ERROR_CHARACTERS_MAX: Final = 1000


class JobName(StrEnum):
    """Jobs that can be scheduled; jobs that are due at the same time run in this order."""

    COMPACT = "compact"
    TABLE = "table"
    SNAPSHOT = "snapshot"
    VERIFY = "verify"


REMOTE_JOBS: Final = frozenset({JobName.COMPACT, JobName.VERIFY})
"""Jobs that only work on remote segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The last run of a job; `failures` counts the failed runs since the last success."""

    started_ms: int
    ended_ms: int
    error: str | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob(JsonFields):
    """One job of one topic: when it is due, and why."""

    job: JobName
    topic: str
    interval_ms: int
    next_ms: int
    is_due: bool
    why: str
    last: LastRun | None = None


Runs = Mapping[tuple[JobName, str], LastRun]


def find_intervals(settings: LogSettings) -> dict[JobName, int]:
    """Returns the jobs that a topic requests, with their intervals."""
    intervals = {
        JobName.COMPACT: settings.varve_job_compact_interval_ms,
        JobName.TABLE: settings.varve_job_table_interval_ms,
        JobName.SNAPSHOT: settings.varve_job_snapshot_interval_ms,
        JobName.VERIFY: settings.varve_job_verify_interval_ms,
    }
    return {job: interval_ms for job, interval_ms in intervals.items() if interval_ms > 0}


def plan_jobs(topics: Mapping[str, LogSettings], runs: Runs, now_ms: int) -> list[ScheduledJob]:
    """Plans all jobs of all topics, ordered by the time at which they are due."""
    jobs = [
        _plan_job(job, topic, settings, interval_ms, runs.get((job, topic)), now_ms)
        for topic, settings in topics.items()
        for job, interval_ms in find_intervals(settings).items()
    ]
    turns = list(JobName)
    return sorted(jobs, key=lambda job: (job.next_ms, turns.index(job.job), job.topic))


def _plan_job(
    job: JobName,
    topic: str,
    settings: LogSettings,
    interval_ms: int,
    last: LastRun | None,
    now_ms: int,
) -> ScheduledJob:
    next_ms, why = _find_next(interval_ms, last, now_ms)
    problem = _find_problem(job, settings)
    return ScheduledJob(
        job=job,
        topic=topic,
        interval_ms=interval_ms,
        next_ms=next_ms,
        is_due=problem is None and next_ms <= now_ms,
        why=problem or why,
        last=last,
    )


def _find_next(interval_ms: int, last: LastRun | None, now_ms: int) -> tuple[int, str]:
    if last is None:
        return 0, "it has never run"
    if last.started_ms > now_ms:
        return 0, "its last run is in the future: the clock was set back"
    if last.error is None:
        return last.started_ms + interval_ms, "by its interval"
    pause_ms = FIRST_PAUSE_MS << min(last.failures - 1, _DOUBLINGS_MAX)
    return (
        last.ended_ms + min(pause_ms, interval_ms),
        f"again after {last.failures} failure{'' if last.failures == 1 else 's'}",
    )


def _find_problem(job: JobName, settings: LogSettings) -> str | None:
    """Returns why the topic's settings rule a job out; None if they do not."""
    if job in REMOTE_JOBS and not settings.remote_storage_enable:
        return "not possible: the topic has no remote segments (remote.storage.enable is false)"
    if job is JobName.COMPACT and not settings.is_compacted:
        return "not possible: cleanup.policy does not include compact"
    return None


def read_runs(fs: FileSystem, directory: str) -> dict[tuple[JobName, str], LastRun]:
    """Reads the recorded runs; jobs that this version does not know are skipped."""
    path = f"{directory}/{JOBS_FILE}"
    try:
        content = _DOCUMENT.read(fs, path)
        if content is None:
            return {}
        return {
            (JobName(job), str(topic)): LastRun(**run)
            for job, topics in content["jobs"].items()
            if job in list(JobName)
            for topic, run in topics.items()
        }
    except errors.UnsupportedFormat:
        raise
    except (errors.Corrupt, ValueError, TypeError, KeyError, AttributeError) as error:
        raise errors.Corrupt(
            f"{path}: cannot be read as a record of job runs ({type(error).__name__}: "
            f"{error!s:.80}): remove it; every job is due then"
        ) from error


def write_runs(fs: FileSystem, directory: str, runs: Runs) -> None:
    """Replaces the file of recorded runs."""
    jobs: dict[str, dict[str, object]] = {}
    for (job, topic), run in sorted(runs.items()):
        error = None if run.error is None else run.error[:_ERROR_CHARACTERS_MAX]
        jobs.setdefault(job, {})[topic] = asdict(replace(run, error=error))
    _DOCUMENT.write(fs, f"{directory}/{JOBS_FILE}", {"jobs": jobs})


# Running


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """The inputs of a scheduled job; `address` is None for a directory without a tier."""

    directory: str
    topic: str
    settings: LogSettings
    address: Bucket | None
    runner: TaskRunner
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of one scheduled job; `result` is the result of the job as JSON."""

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
"""Runs a job; returns its result as JSON, and the error if a part of it failed."""


def list_jobs(
    directory: str, now_ms: int, *, defaults: Mapping[str, GivenValue] | None = None
) -> list[ScheduledJob]:
    """Lists every job that the settings of the directory's topics request.

    `defaults` are the values of settings that a topic does not set.
    """
    fs = RealFileSystem()
    topics = read_topics(fs, directory, defaults or {})
    return plan_jobs(topics, read_runs(fs, directory), now_ms)


def run_due(
    directory: str,
    runner: TaskRunner,
    *,
    clock: Clock | None = None,
    defaults: Mapping[str, GivenValue] | None = None,
    store_settings: Mapping[str, GivenValue] | None = None,
) -> list[JobOutcome]:
    """Runs the jobs that are due, one after another, and records each run.

    Raises Locked if another scheduler works on the directory. Errors of jobs are in their outcomes.
    """
    fs = RealFileSystem()
    clock = clock or SystemClock()
    with _lock(fs, directory):
        topics = read_topics(fs, directory, defaults or {})
        runs = read_runs(fs, directory)
        due = [job for job in plan_jobs(topics, runs, clock.now_ms()) if job.is_due]
        location = TopicLocation(dir=directory, settings=store_settings)
        address = location.find_bucket() if due else None
        outcomes = []
        for job in due:
            context = JobContext(
                directory=directory,
                topic=job.topic,
                settings=topics[job.topic],
                address=address,
                runner=runner,
                clock=clock,
            )
            outcome = _run(job, context, RUNNERS[job.job])
            runs[job.job, job.topic] = outcome.run
            write_runs(fs, directory, runs)
            outcomes.append(outcome)
        return outcomes


def read_topics(
    fs: FileSystem, directory: str, defaults: Mapping[str, GivenValue]
) -> dict[str, LogSettings]:
    """Reads the topics of a log directory with their settings, on top of `defaults`."""
    path = f"{directory}/{TOPICS_FILE}"
    if not fs.exists(path):
        raise errors.NotFound(f"{directory} holds no topics: there is no {TOPICS_FILE}")
    return {
        name: parse_settings(LogSettings, {**defaults, **entry.settings}, f"topic {name}")
        for name, entry in decode_topics(fs.read(path), path).topics.items()
    }


def _run(due: ScheduledJob, context: JobContext, runner: Runner) -> JobOutcome:
    started_ms = context.clock.now_ms()
    result: object = None
    try:
        result, error = runner(context)
    except errors.StoreError as failure:
        error = str(failure)
    before = 0 if due.last is None else due.last.failures
    run = LastRun(
        started_ms=started_ms,
        ended_ms=context.clock.now_ms(),
        error=error,
        failures=0 if error is None else before + 1,
    )
    return JobOutcome(job=due.job, topic=due.topic, run=run, result=result)


def _lock(fs: FileSystem, directory: str) -> Lock:
    path = f"{directory}/{LOCK_FILE}"
    try:
        return fs.lock(path)
    except errors.Locked as error:
        raise errors.Locked(
            f"another scheduler is running the jobs of {directory} ({path} is locked): wait until "
            "it has ended"
        ) from error


def run_compact(context: JobContext) -> tuple[object, str | None]:
    """Compacts the topic if its partitions are due by the rules of the log cleaner."""
    from varve.jobs.compact.job import compact
    from varve.jobs.compact.settings import CompactSettings

    result = compact(
        _get_bucket(context),
        [context.topic],
        settings=CompactSettings(log=context.settings),
        runner=context.runner,
        clock=context.clock,
    )
    return result.to_json(), "; ".join(result.failures) or None


def run_verify(context: JobContext) -> tuple[object, str | None]:
    """Verifies the topic; damage counts as a failure, so that it is soon reported again."""
    from varve.jobs.verify.verification import verify

    result = verify(
        _get_bucket(context), [context.topic], runner=context.runner, clock=context.clock
    )
    count = len(result.failures)
    error = f"{count} findings of damage: `varve job verify` lists all of them" if count else None
    return result.to_json(), error


def run_snapshot(context: JobContext) -> tuple[object, str | None]:
    """Takes a snapshot that continues from the last one of its place."""
    from varve.jobs.snapshot.snapshot import SnapshotSettings, take_snapshot
    from varve.jobs.snapshot.store import choose_place_settings

    place = context.settings.varve_job_snapshot_place
    keep = context.settings.varve_job_snapshot_keep
    address = _find_bucket(context)
    result = take_snapshot(
        context.topic,
        place,
        address=address,
        directories=[context.directory],
        place_settings=choose_place_settings(place, {}, address),
        settings=SnapshotSettings(keep=None if keep < 0 else keep),
        runner=context.runner,
        clock=context.clock,
    )
    return result.to_json(), None


def run_table(context: JobContext) -> tuple[object, str | None]:
    """Syncs the table of the topic; an existing table keeps its mode and format."""
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.table.sync import sync_table

    settings = context.settings
    result = sync_table(
        context.topic,
        settings.varve_job_table_name,
        catalog=CatalogAddress(
            settings.varve_job_table_warehouse or None, settings.varve_job_table_catalog or None
        ),
        runner=context.runner,
        address=_find_bucket(context),
        directories=[context.directory],
        clock=context.clock,
    )
    return result.to_json(), None


def _find_bucket(context: JobContext) -> Bucket | None:
    """Returns the bucket of the tier; None if the topic has no remote segments."""
    return context.address if context.settings.remote_storage_enable else None


def _get_bucket(context: JobContext) -> Bucket:
    if context.address is None:
        raise errors.InvalidRequest(
            f"{context.directory} does not record the object store of its tier: no segment has "
            "been copied yet"
        )
    return context.address


RUNNERS: Final[Mapping[JobName, Runner]] = {
    JobName.COMPACT: run_compact,
    JobName.TABLE: run_table,
    JobName.SNAPSHOT: run_snapshot,
    JobName.VERIFY: run_verify,
}
