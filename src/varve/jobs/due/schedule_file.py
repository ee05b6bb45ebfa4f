"""When each job of a log directory was last run, and how it ended.

Layout     `varve-jobs.json` in the log directory: format, and by job and topic the times, the
           failures since the last success and the last error. docs/jobs/running.md
Invariant  it may be written beside a store that has the directory open, which does not look at it.
Crash      written aside and renamed. Jobs may be repeated: a lost note makes one due too early.
"""

import json
from typing import Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.jobs.due.schedule import JobName, LastRun, Runs

JOBS_FILE: Final = "varve-jobs.json"
LOCK_FILE: Final = "varve-jobs.lock"
_FORMAT: Final = 1
_ERROR_CHARACTERS: Final = 1000


def read_runs(fs: FileSystem, directory: str) -> dict[tuple[JobName, str], LastRun]:
    """What was noted; jobs that this version does not know are left out."""
    path = f"{directory}/{JOBS_FILE}"
    if not fs.exists(path):
        return {}
    try:
        content = json.loads(fs.read(path))
        if content["format"] != _FORMAT:
            raise UnsupportedFormat(
                f"{path}: format {content['format']!r:.40}, only {_FORMAT} is known; use a newer "
                "varve"
            )
        return {
            (JobName(job), str(topic)): LastRun(**run)
            for job, topics in content["jobs"].items()
            if job in list(JobName)
            for topic, run in topics.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(
            f"{path}: not what jobs note ({type(error).__name__}: {error!s:.80}); remove it, and "
            "every job is due"
        ) from error


def write_runs(fs: FileSystem, directory: str, runs: Runs) -> None:
    """All of them anew."""
    jobs: dict[str, dict[str, object]] = {}
    for (job, topic), run in sorted(runs.items()):
        jobs.setdefault(job, {})[topic] = {
            "started_ms": run.started_ms,
            "ended_ms": run.ended_ms,
            "error": None if run.error is None else run.error[:_ERROR_CHARACTERS],
            "failures": run.failures,
        }
    content = json.dumps({"format": _FORMAT, "jobs": jobs}, indent=1) + "\n"
    write_atomically(fs, f"{directory}/{JOBS_FILE}", content.encode())
