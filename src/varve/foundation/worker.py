"""A thread for background work, which is a plain `run_once(now_ms)`.

Invariant  the thread ends only by `stop`: a failing run is kept, logged and tried again. What goes
           on failing is logged at growing intervals.
Threads    any thread may call `wake`, `health` and `stop`; `run_once` never runs twice at a time.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, Unavailable
from varve.foundation.failure_notes import FailureNotes, Telling

logger = logging.getLogger(__name__)

RETRY_MIN_MS = 100
RETRY_MAX_MS = 60_000
CORRUPT_RETRY_MAX_MS = 600_000
STOP_DEADLINE_MS = 30_000


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """How a worker fares; `last_run_ms` is the start of its last run, None before the first.

    `failures` counts the failed runs since the last good one, and `last_error` is the newest error
    ever seen, so that a failure which healed can still be read.
    """

    name: str
    is_running: bool
    runs: int
    failures: int
    failures_total: int
    last_run_ms: int | None
    last_error: BaseException | None

    @property
    def is_healthy(self) -> bool:
        return self.is_running and self.failures == 0


class Worker:
    """Calls `run_once` every `interval_ms`, and at once when woken.

    After a failure it waits from `RETRY_MIN_MS`, doubling up to the smaller of `RETRY_MAX_MS` and
    the interval, so that work due once a minute is not hammered and rare work is not forgotten.
    Damaged bytes seldom mend by themselves: behind these it waits up to `CORRUPT_RETRY_MAX_MS`.
    """

    def __init__(
        self, name: str, run_once: Callable[[int], None], interval_ms: int, clock: Clock
    ) -> None:
        self.name = name
        self._run_once = run_once
        self._interval_ms = max(1, interval_ms)
        self._clock = clock
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None  # guarded by _condition
        self._is_stopping = False  # guarded by _condition
        self._is_woken = False  # guarded by _condition
        self._runs = 0  # guarded by _condition
        self._failures = 0  # guarded by _condition
        self._failures_total = 0  # guarded by _condition
        self._last_run_ms: int | None = None  # guarded by _condition
        self._last_error: BaseException | None = None  # guarded by _condition
        self._notes = FailureNotes()  # the thread's own

    def start(self) -> Self:
        """Start the thread; the first run comes after one interval, or at the first `wake`."""
        with self._condition:
            if self._thread is not None:
                raise RuntimeError(f"worker {self.name} was started already: make a new one")
            self._thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
            self._thread.start()
        return self

    def wake(self) -> None:
        """Run as soon as possible; wakes before the run begins count as one."""
        with self._condition:
            self._is_woken = True
            self._condition.notify_all()

    def stop(self, deadline_ms: int = STOP_DEADLINE_MS) -> None:
        """End the thread after the run in flight; may be called twice and before `start`.

        Raises Unavailable when that run outlasts the deadline; the thread then ends by itself.
        """
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(deadline_ms / 1000)
        if thread.is_alive():
            raise Unavailable(
                f"worker {self.name} still runs {deadline_ms} ms after it was told to stop; "
                "it ends after this run: stop again with a longer deadline to wait for it"
            )

    def health(self) -> WorkerHealth:
        with self._condition:
            return WorkerHealth(
                name=self.name,
                is_running=self._thread is not None and self._thread.is_alive(),
                runs=self._runs,
                failures=self._failures,
                failures_total=self._failures_total,
                last_run_ms=self._last_run_ms,
                last_error=self._last_error,
            )

    @property
    def last_error(self) -> BaseException | None:
        return self._last_error

    @property
    def failures(self) -> int:
        return self._failures

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _loop(self) -> None:
        while self._wait_until_due():
            now_ms = self._clock.now_ms()
            failure: BaseException | None = None
            try:
                self._run_once(now_ms)
            except BaseException as error:
                # Even SystemExit from a callback must not end the thread unseen.
                failure = error
            self._note_run(now_ms, failure)

    def _wait_until_due(self) -> bool:
        """Sleep until the next run, a wake or a stop; False when it is time to end."""
        with self._condition:
            timeout_s = min(self._delay_ms_locked() / 1000, threading.TIMEOUT_MAX)
            self._condition.wait_for(lambda: self._is_woken or self._is_stopping, timeout_s)
            self._is_woken = False
            return not self._is_stopping

    def _delay_ms_locked(self) -> int:
        if self._failures == 0:
            return self._interval_ms
        retry_ms = RETRY_MIN_MS << min(self._failures - 1, 20)
        if isinstance(self._last_error, Corrupt):
            return min(retry_ms, CORRUPT_RETRY_MAX_MS)
        return min(retry_ms, RETRY_MAX_MS, self._interval_ms)

    def _note_run(self, now_ms: int, failure: BaseException | None) -> None:
        with self._condition:
            self._runs += 1
            self._last_run_ms = now_ms
            failures = self._failures
            self._failures = 0 if failure is None else failures + 1
            if failure is not None:
                self._failures_total += 1
                self._last_error = failure
        if failure is not None:
            self._tell(failure, failures + 1)
        elif self._notes.went_well():
            extra = {"worker": self.name, "failures": failures}
            logger.info("worker runs well again", extra=extra)

    def _tell(self, failure: BaseException, failures: int) -> None:
        # A run may have lasted for hours.
        telling = self._notes.failed(failure, self._clock.now_ms())
        if telling is not Telling.NOT:
            # Of what is away for a while the text says all there is to know.
            is_traced = telling is Telling.IN_FULL and not isinstance(failure, Unavailable)
            logger.error(
                "worker run failed, will be tried again",
                exc_info=failure if is_traced else None,
                extra={"worker": self.name, "failures": failures, "error": repr(failure)},
            )
