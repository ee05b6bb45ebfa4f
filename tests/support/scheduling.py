"""Gives whole test files to the workers, those that take longest first.

A file's module fixtures are set up once, and the files of a group share what one worker starts,
such as a Spark session. `tests/durations.json` has the seconds of every file, at least half a
second; `make durations` writes it anew. A file that is not in it may be long, so it starts first.
"""

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # ships no types

DURATIONS: Final = Path(__file__).parents[1] / "durations.json"
_SECONDS_MIN: Final = 0.5


def scope_of(nodeid: str) -> str:
    """The file of a test, or the group that its file belongs to."""
    file = nodeid.split("::", 1)[0]
    if file.startswith("tests/spark/"):
        return "Spark, dedup" if "/test_dedup" in file else "Spark"
    return file


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # a base without types
    """One scope after the other, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Orders scopes by their recorded seconds, new files first, and keeps the order within each."""
    recorded = json.loads(DURATIONS.read_text("utf-8"))
    seconds: defaultdict[str, float] = defaultdict(float)
    for file in {item.nodeid.split("::", 1)[0] for item in items}:
        seconds[scope_of(file)] += recorded.get(file, math.inf)
    items.sort(key=lambda item: -seconds[scope_of(item.nodeid)])


class DurationRecorder:
    """Writes the durations of a run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.split("::", 1)[0]] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        seconds_by_file = {
            file: max(_SECONDS_MIN, round(seconds, 1))
            for file, seconds in sorted(self._seconds.items())
        }
        DURATIONS.write_text(json.dumps(seconds_by_file, indent=1) + "\n", encoding="utf-8")
