"""Jobs that topics want run at intervals: which are due, and running them, for cron or a timer.

Layout     `varve-jobs.json` in the log directory: format, and by job and topic the times, the
           failures since the last success and the last error. docs/jobs/running.md
Invariant  a job that succeeded is due its interval after that run began; one that failed is tried
           again sooner, after a pause that doubles with every failure up to the interval. One
           runner at a time has a directory (`varve-jobs.lock`); the store's own lock is not taken:
           a store may have the directory open. A job that fails does not stop the others.
Crash      a run is recorded when it is over; one that was killed is due again.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

from varve.commit_log import LogSettings
from varve.disk import FileSystem, JsonDocument, Lock, RealFileSystem
from varve.embedded.tier_location import DEFAULT_METADATA, read_location
from varve.embedded.topic_table import TOPICS_FILE, decode_topics
from varve.foundation import errors
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.settings import GivenValue, parse_settings
from varve.jobs.results import JsonFields
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.bucket import Bucket

FIRST_PAUSE_MS: Final = 60_000
"""The pause after the first failure."""
_DOUBLINGS_MAX: Final = 20
JOBS_FILE: Final = "varve-jobs.json"
LOCK_FILE: Final = "varve-jobs.lock"
_DOCUMENT: Final = JsonDocument(version=1, max_bytes=64 << 20)
_ERROR_CHARACTERS: Final = 1000


class JobName(StrEnum):
    """Jobs that are repeated, in the order of their turn."""

    COMPACT = "compact"
    TABLE = "table"
    SNAPSHOT = "snapshot"
    VERIFY = "verify"


REMOTE_JOBS: Final = frozenset({JobName.COMPACT, JobName.VERIFY})
"""What they work on is the cold tier alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The last time that a job was run; `failures` counts those since the last success."""

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
    """The jobs that a topic is to be given again and again, and how often."""
    intervals = {
        JobName.COMPACT: settings.varve_job_compact_interval_ms,
        JobName.TABLE: settings.varve_job_table_interval_ms,
        JobName.SNAPSHOT: settings.varve_job_snapshot_interval_ms,
        JobName.VERIFY: settings.varve_job_verify_interval_ms,
    }
    return {job: interval_ms for job, interval_ms in intervals.items() if interval_ms > 0}


def plan_jobs(topics: Mapping[str, LogSettings], runs: Runs, now_ms: int) -> list[ScheduledJob]:
    """All jobs of all topics, those first that have waited longest."""
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
        return 0, "it was never run"
    if last.started_ms > now_ms:
        return 0, "its last run lies in the future: the clock was set back"
    if last.error is None:
        return last.started_ms + interval_ms, "by its interval"
    pause_ms = FIRST_PAUSE_MS << min(last.failures - 1, _DOUBLINGS_MAX)
    return (
        last.ended_ms + min(pause_ms, interval_ms),
        f"again after {last.failures} failure{'' if last.failures == 1 else 's'}",
    )


def _find_problem(job: JobName, settings: LogSettings) -> str | None:
    """Why a job can never be run as the settings are."""
    if job in REMOTE_JOBS and not settings.remote_storage_enable:
        return "not possible: the topic is not in the cold tier (remote.storage.enable)"
    if job is JobName.COMPACT and not settings.is_compacted:
        return "not possible: cleanup.policy has no compact in it"
    return None


def read_runs(fs: FileSystem, directory: str) -> dict[tuple[JobName, str], LastRun]:
    """What was noted; jobs that this version does not know are left out."""
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
            f"{path}: not what jobs note ({type(error).__name__}: {error!s:.80}); remove it, and "
            "every job is due"
        ) from error


def write_runs(fs: FileSystem, directory: str, runs: Runs) -> None:
    """Replaces the file."""
    jobs: dict[str, dict[str, object]] = {}
    for (job, topic), run in sorted(runs.items()):
        error = None if run.error is None else run.error[:_ERROR_CHARACTERS]
        jobs.setdefault(job, {})[topic] = asdict(replace(run, error=error))
    _DOCUMENT.write(fs, f"{directory}/{JOBS_FILE}", {"jobs": jobs})


# Running


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What a job of a topic is run with; `address` is None where there is no cold tier."""

    directory: str
    topic: str
    settings: LogSettings
    address: Bucket | None
    runner: TaskRunner
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job; `result` is its own result as JSON."""

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
) -> list[ScheduledJob]:
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
) -> list[JobOutcome]:
    """Runs the jobs that are due, one after another, and notes how each ended.

    Raises Locked where another runner has the directory. Errors of jobs are in their outcomes.
    """
    fs = fs or RealFileSystem()
    clock = clock or SystemClock()
    with _lock(fs, directory):
        topics = read_topics(fs, directory, defaults or {})
        runs = read_runs(fs, directory)
        due = [job for job in plan_jobs(topics, runs, clock.now_ms()) if job.is_due]
        address = _find_address(fs, directory, store_settings or {}, cluster) if due else None
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
            outcome = _run(job, context, (runners or RUNNERS)[job.job])
            runs[job.job, job.topic] = outcome.run
            write_runs(fs, directory, runs)
            outcomes.append(outcome)
        return outcomes


def read_topics(
    fs: FileSystem, directory: str, defaults: Mapping[str, GivenValue]
) -> dict[str, LogSettings]:
    """The topics of a log directory and their settings, `defaults` below what they say."""
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


def _find_address(
    fs: FileSystem, directory: str, settings: Mapping[str, GivenValue], cluster: str | None
) -> Bucket | None:
    place = read_location(fs, directory)
    if place is None:
        return None
    if place.metadata != DEFAULT_METADATA:
        raise errors.InvalidRequest(
            f"the cold tier of {directory} keeps its manifests as varve.tier.metadata="
            f"{place.metadata} says, not beside the objects: jobs read the object store alone"
        )
    return Bucket(place.url, tuple(settings.items()), cluster)


def _lock(fs: FileSystem, directory: str) -> Lock:
    path = f"{directory}/{LOCK_FILE}"
    try:
        return fs.lock(path)
    except errors.Locked as error:
        raise errors.Locked(
            f"another runner works on the jobs of {directory} ({path} is locked): it does what is "
            "due"
        ) from error


def run_compact(context: JobContext) -> tuple[object, str | None]:
    """Compacts what is due by the cleaner's own rules."""
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
    """Damage is a failure: it is reported again soon, until it is repaired."""
    from varve.jobs.verify.verification import verify

    result = verify(
        _get_bucket(context), [context.topic], runner=context.runner, clock=context.clock
    )
    count = len(result.failures)
    error = f"{count} damaged things, `varve job verify` lists all of them" if count else None
    return result.to_json(), error


def run_snapshot(context: JobContext) -> tuple[object, str | None]:
    """Continues from the last snapshot of its place."""
    from varve.jobs.snapshot.snapshot import SnapshotSettings, take_snapshot

    place = context.settings.varve_job_snapshot_place
    keep = context.settings.varve_job_snapshot_keep
    address = _find_bucket(context)
    is_alike = address is not None and place.partition(":")[0] == address.url.partition(":")[0]
    result = take_snapshot(
        context.topic,
        place,
        address=address,
        directories=[context.directory],
        place_settings=dict(address.settings) if address is not None and is_alike else None,
        settings=SnapshotSettings(keep=None if keep < 0 else keep),
        runner=context.runner,
        clock=context.clock,
    )
    return result.to_json(), None


def run_table(context: JobContext) -> tuple[object, str | None]:
    """Mode and format are those of the table once it exists."""
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
    """The cold tier, if the topic is in it."""
    return context.address if context.settings.remote_storage_enable else None


def _get_bucket(context: JobContext) -> Bucket:
    if context.address is None:
        raise errors.InvalidRequest(
            f"{context.directory} does not say which object store its cold tier is in: nothing "
            "was copied yet"
        )
    return context.address


RUNNERS: Final[Mapping[JobName, Runner]] = {
    JobName.COMPACT: run_compact,
    JobName.TABLE: run_table,
    JobName.SNAPSHOT: run_snapshot,
    JobName.VERIFY: run_verify,
}
