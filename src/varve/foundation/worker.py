"""A background thread that calls `run_once(now_ms)` at intervals and retries after failures.

Invariant  only `stop` ends the thread: a failed run is recorded, logged and retried. Each kind of
           failure is logged in full once, then briefly at growing intervals.
Threads    any thread may call `wake`, `health` and `stop`; runs of `run_once` never overlap.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

from varve.foundation.backoff import Backoff
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, Unavailable, without_frames

logger = logging.getLogger(__name__)

RETRY_MIN_MS: Final = 100
"""Many failures end at once, such as that of a file which was replaced meanwhile."""
RETRY_MAX_MS: Final = 60_000
"""A disk or an object store that works again is used within a minute."""
CORRUPT_RETRY_MAX_MS: Final = 600_000
STOP_DEADLINE_MS: Final = 30_000
"""As long as Kafka's consumer takes at most to close (DEFAULT_CLOSE_TIMEOUT_MS)."""
LOG_INTERVAL_MIN_MS: Final = 10_000
LOG_INTERVAL_MAX_MS: Final = 600_000
"""The longest interval between two log messages of a continuing failure. A failure that was absent
for as long is logged in full."""


class StopSignal:
    """A request to stop, set once and never cleared, that waiting threads notice at once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait_ms(self, wait_ms: float) -> bool:
        """Sleeps for `wait_ms` or until the signal is set; returns whether it is set."""
        return self._event.wait(min(wait_ms / 1000, threading.TIMEOUT_MAX))


_RETRY: Final = Backoff(RETRY_MIN_MS, RETRY_MAX_MS)
_CORRUPT_RETRY: Final = Backoff(RETRY_MIN_MS, CORRUPT_RETRY_MAX_MS)

_FailureKind = tuple[type[BaseException], int | None]


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The state of a worker; `last_run_ms` is the start of its last run, None before the first.

    `failures` counts the failed runs since the last successful one. `last_error` is the newest
    error of all runs, so that it can be read after the worker has recovered.
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

    After a failure it waits `RETRY_MIN_MS`, doubling up to the smaller of `RETRY_MAX_MS` and the
    interval, so that rare work is retried soon and frequent work not more often than usual. Damaged
    bytes seldom repair themselves: after `Corrupt` it waits up to `CORRUPT_RETRY_MAX_MS`.
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
        self._log_limiter = LogRateLimiter()  # used by the worker's thread only

    def start(self) -> Self:
        """Start the thread; the first run comes after one interval, or at the first `wake`."""
        with self._condition:
            if self._thread is not None:
                raise RuntimeError(f"worker {self.name} has already been started: create another")
            self._thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
            self._thread.start()
        return self

    def wake(self) -> None:
        """Run as soon as possible; several calls before the run starts cause one run."""
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
                f"worker {self.name} still runs {deadline_ms} ms after the stop; "
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
                # Even SystemExit from a callback must not end the thread unnoticed.
                failure = error
            self._record_run(now_ms, failure)

    def _wait_until_due(self) -> bool:
        """Sleep until the next run, a wake or a stop; False after a stop."""
        with self._condition:
            timeout_s = min(self._delay_ms_locked() / 1000, threading.TIMEOUT_MAX)
            self._condition.wait_for(lambda: self._is_woken or self._is_stopping, timeout_s)
            self._is_woken = False
            return not self._is_stopping

    def _delay_ms_locked(self) -> int:
        if self._failures == 0:
            return self._interval_ms
        if isinstance(self._last_error, Corrupt):
            return _CORRUPT_RETRY.wait_ms(self._failures)
        return min(_RETRY.wait_ms(self._failures), self._interval_ms)

    def _record_run(self, now_ms: int, failure: BaseException | None) -> None:
        with self._condition:
            self._runs += 1
            self._last_run_ms = now_ms
            failures = self._failures
            self._failures = 0 if failure is None else failures + 1
            if failure is not None:
                self._failures_total += 1
                self._last_error = failure
        if failure is not None:
            self._log_failure(failure, failures + 1)
            without_frames(failure)
        elif self._log_limiter.record_success():
            extra = {"worker": self.name, "failures": failures}
            logger.info("worker recovered", extra=extra)

    def _log_failure(self, failure: BaseException, failures: int) -> None:
        # Not the time when the run started: it may have lasted for hours.
        detail = self._log_limiter.record_failure(failure, self._clock.now_ms())
        if detail is not LogDetail.NONE:
            # The message of Unavailable says everything; a traceback adds nothing.
            is_traced = detail is LogDetail.FULL and not isinstance(failure, Unavailable)
            logger.error(
                "worker run failed, it will be repeated",
                exc_info=failure if is_traced else None,
                extra={"worker": self.name, "failures": failures, "error": repr(failure)},
            )


class LogDetail(Enum):
    """How much of a failure is logged."""

    NONE = auto()
    BRIEF = auto()
    FULL = auto()


class LogRateLimiter:
    """Decides which failures of repeated work are logged.

    Each kind of failure is logged in full once, then briefly at growing intervals. A failure that
    comes and goes is logged in full again only after it was absent for `LOG_INTERVAL_MAX_MS`. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self._by_kind: dict[_FailureKind, _LoggedFailure] = {}
        self._is_recovery_due = False

    def record_failure(self, error: BaseException, now_ms: int) -> LogDetail:
        """The detail to log this failure with."""
        kind = (type(error), error.errno if isinstance(error, OSError) else None)
        logged = self._by_kind.get(kind)
        if logged is None or now_ms - logged.seen_ms >= LOG_INTERVAL_MAX_MS:
            self._by_kind[kind] = _LoggedFailure(now_ms)
            detail = LogDetail.FULL
        else:
            detail = logged.record_repeat(now_ms)
        if detail is not LogDetail.NONE:
            self._is_recovery_due = True
        return detail

    def record_success(self) -> bool:
        """Whether to log the recovery: once after a failure that was logged."""
        is_due, self._is_recovery_due = self._is_recovery_due, False
        return is_due


class _LoggedFailure:
    """When one kind of failure was last seen and logged, and the interval to its next message."""

    __slots__ = ("_interval_ms", "_logged_ms", "seen_ms")

    def __init__(self, now_ms: int) -> None:
        self.seen_ms = self._logged_ms = now_ms
        self._interval_ms = LOG_INTERVAL_MIN_MS

    def record_repeat(self, now_ms: int) -> LogDetail:
        self.seen_ms = now_ms
        # A clock that was set back must not silence the failure.
        if 0 <= now_ms - self._logged_ms < self._interval_ms:
            return LogDetail.NONE
        self._logged_ms = now_ms
        self._interval_ms = min(2 * self._interval_ms, LOG_INTERVAL_MAX_MS)
        return LogDetail.BRIEF
