"""Which jobs are due, by the settings of topics and what was run before.

Invariant  a job that succeeded is due its interval after that run began; one that failed is tried
           again sooner, after a pause that doubles with every failure up to the interval.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from varve.commit_log import LogSettings

FIRST_PAUSE_MS: Final = 60_000
"""The pause after the first failure."""
_DOUBLINGS_MAX: Final = 20


class JobName(StrEnum):
    """Jobs that are worth repeating, in the order of their turn."""

    COMPACT = "compact"
    TABLE = "table"
    SNAPSHOT = "snapshot"
    VERIFY = "verify"


COLD_JOBS: Final = frozenset({JobName.COMPACT, JobName.VERIFY})
"""What they work on is the cold tier alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The last time that a job was run; `failures` counts those since the last success."""

    started_ms: int
    ended_ms: int
    error: str | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob:
    """One job of one topic: when it is due, and why."""

    job: JobName
    topic: str
    interval_ms: int
    next_ms: int
    is_due: bool
    why: str
    last: LastRun | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


Runs = Mapping[tuple[JobName, str], LastRun]


def find_intervals(settings: LogSettings) -> dict[JobName, int]:
    """The jobs that a topic is to be given again and again, and how often."""
    found = {
        JobName.COMPACT: settings.varve_job_compact_interval_ms,
        JobName.TABLE: settings.varve_job_table_interval_ms,
        JobName.SNAPSHOT: settings.varve_job_snapshot_interval_ms,
        JobName.VERIFY: settings.varve_job_verify_interval_ms,
    }
    return {job: interval_ms for job, interval_ms in found.items() if interval_ms > 0}


def plan_jobs(topics: Mapping[str, LogSettings], runs: Runs, now_ms: int) -> list[DueJob]:
    """All jobs of all topics, those first that have waited longest."""
    found = [
        _plan_job(job, topic, settings, interval_ms, runs.get((job, topic)), now_ms)
        for topic, settings in topics.items()
        for job, interval_ms in find_intervals(settings).items()
    ]
    turn = list(JobName)
    return sorted(found, key=lambda one: (one.next_ms, turn.index(one.job), one.topic))


def _plan_job(
    job: JobName,
    topic: str,
    settings: LogSettings,
    interval_ms: int,
    last: LastRun | None,
    now_ms: int,
) -> DueJob:
    next_ms, why = _find_next(interval_ms, last, now_ms)
    problem = _find_problem(job, settings)
    return DueJob(
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
    if job in COLD_JOBS and not settings.remote_storage_enable:
        return "not possible: the topic is not in the cold tier (remote.storage.enable)"
    if job is JobName.COMPACT and not settings.is_compacted:
        return "not possible: cleanup.policy has no compact in it"
    return None
