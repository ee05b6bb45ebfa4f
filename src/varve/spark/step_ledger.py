"""The steps that a session's runners have carried out, each under the name varve gives it.

Invariant  a step stands in the ledger when it is over, be it well or not; the one under way is told
           apart. A session has one ledger, whoever made its runners.
Threads    any; `_lock` guards all. One step at a time is under way.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from varve.foundation.clock import Clock, SystemClock
from varve.jobs.store_count import StoreCount

_lock = threading.Lock()
_ledgers: "WeakKeyDictionary[Any, StepLedger]" = WeakKeyDictionary()  # guarded by _lock


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


class StepLedger:
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


def get_ledger(session: object) -> StepLedger:
    """The ledger of a session."""
    with _lock:
        found = _ledgers.get(session)
        if found is None:
            found = _ledgers[session] = StepLedger()
        return found
