"""Background threads: their runs, their waits, and what they log."""

import errno
import logging
import random
import threading

import pytest

from varve.foundation.backoff import Backoff
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, Unavailable
from varve.foundation.worker import (
    CORRUPT_RETRY_MAX_MS,
    LOG_INTERVAL_MAX_MS,
    LOG_INTERVAL_MIN_MS,
    RETRY_MAX_MS,
    LogDetail,
    LogRateLimiter,
    StopSignal,
    Worker,
)

HOUR_MS = 3_600_000
PATIENCE_S = 10


def test_a_wake_runs_at_once_with_the_clocks_time() -> None:
    clock = ManualClock(now_ms=42)
    seen: list[int] = []
    ran = threading.Event()

    def run_once(now_ms: int) -> None:
        seen.append(now_ms)
        ran.set()

    with Worker("test", run_once, HOUR_MS, clock) as worker:
        worker.wake()
        assert ran.wait(PATIENCE_S)
    assert seen == [42]
    assert worker.health().last_run_ms == 42


def test_runs_repeat_by_the_interval() -> None:
    ran_thrice = threading.Semaphore(0)
    with Worker("test", lambda now_ms: ran_thrice.release(), 1, ManualClock()):
        for _ in range(3):
            assert ran_thrice.acquire(timeout=PATIENCE_S)


def test_nothing_runs_before_the_interval_has_passed() -> None:
    runs: list[int] = []
    with Worker("test", runs.append, HOUR_MS, ManualClock()):
        pass
    assert runs == []


def test_a_failing_run_is_kept_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    tries = threading.Semaphore(0)
    recovered = threading.Event()
    error = OSError("disk went away")
    failures_left = [error]

    def run_once(now_ms: int) -> None:
        tries.release()
        if failures_left:
            raise failures_left.pop()
        recovered.set()

    with caplog.at_level(logging.ERROR), Worker("test", run_once, 10, ManualClock()) as worker:
        assert recovered.wait(PATIENCE_S)
        worker.wake()
        assert worker.last_error is error
    health = worker.health()
    assert (health.failures, health.failures_total) == (0, 1)
    assert health.last_error is error
    assert error.__traceback__ is None, "its frames hold the buffers of the run"
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


def test_what_is_away_is_told_without_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    recovered = threading.Event()
    failures_left = [Unavailable("the broker is away")]

    def run_once(now_ms: int) -> None:
        if failures_left:
            raise failures_left.pop()
        recovered.set()

    with caplog.at_level(logging.ERROR), Worker("test", run_once, 10, ManualClock()):
        assert recovered.wait(PATIENCE_S)
    (told,) = caplog.records
    assert "the broker is away" in told.__dict__["error"]
    assert told.exc_info is None


def test_even_an_exit_in_a_run_does_not_end_the_thread() -> None:
    ran_again = threading.Semaphore(0)

    def run_once(now_ms: int) -> None:
        ran_again.release()
        raise SystemExit(1)

    with Worker("test", run_once, 1, ManualClock()) as worker:
        assert ran_again.acquire(timeout=PATIENCE_S)
        assert ran_again.acquire(timeout=PATIENCE_S)
        assert worker.health().is_running
        assert not worker.health().is_healthy


def test_back_off_grows_and_is_capped_by_the_interval_and_the_maximum() -> None:
    def fail(now_ms: int) -> None:
        raise OSError("no")

    def delays(
        interval_ms: int,
        failures: int,
        error: Exception = OSError("no"),  # noqa: B008, a value
    ) -> list[int]:
        worker = Worker("test", fail, interval_ms, ManualClock())
        found = []
        for _ in range(failures):
            worker._record_run(0, error)
            found.append(worker._delay_ms_locked())
        return found

    assert delays(HOUR_MS, 4) == [100, 200, 400, 800]
    assert delays(HOUR_MS, 50)[-1] == RETRY_MAX_MS
    assert delays(150, 3) == [100, 150, 150]
    assert delays(150, 50, Corrupt("damaged"))[-1] == CORRUPT_RETRY_MAX_MS


def test_an_interval_of_ages_still_starts_and_stops() -> None:
    with Worker("test", lambda now_ms: None, 2**63 - 1, ManualClock()) as worker:
        assert worker.health().is_running
    assert not worker.health().is_running


def test_stop_waits_for_the_run_in_flight_and_names_it_when_it_overruns() -> None:
    entered, leave = threading.Event(), threading.Event()

    def run_once(now_ms: int) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)

    worker = Worker("slow-worker", run_once, HOUR_MS, ManualClock()).start()
    worker.wake()
    assert entered.wait(PATIENCE_S)
    with pytest.raises(Unavailable, match=r"slow-worker.*10 ms"):
        worker.stop(deadline_ms=10)
    leave.set()
    worker.stop()
    worker.stop()
    assert worker.health().runs == 1


def test_a_run_may_stop_its_own_worker() -> None:
    stopped = threading.Event()

    def run_once(now_ms: int) -> None:
        worker.stop()
        stopped.set()

    worker = Worker("test", run_once, 1, ManualClock()).start()
    assert stopped.wait(PATIENCE_S)
    worker.stop()


def test_a_worker_starts_once_only() -> None:
    with (
        Worker("test", lambda now_ms: None, HOUR_MS, ManualClock()) as worker,
        pytest.raises(RuntimeError, match="already"),
    ):
        worker.start()


def test_stop_before_start_is_harmless() -> None:
    Worker("test", lambda now_ms: None, HOUR_MS, ManualClock()).stop()


def test_what_goes_on_failing_is_logged_once_and_its_end_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recovered = threading.Event()
    runs: list[int] = []

    def run_once(now_ms: int) -> None:
        runs.append(now_ms)
        if len(runs) <= 5:
            raise OSError("disk went away")
        recovered.set()

    with caplog.at_level(logging.INFO), Worker("test", run_once, 1, ManualClock()) as worker:
        assert recovered.wait(PATIENCE_S)
        worker.stop()
    told = [(record.levelname, record.__dict__["failures"]) for record in caplog.records]
    assert told == [("ERROR", 1), ("INFO", 5)]


# Waits


def test_waits_double_up_to_the_maximum() -> None:
    backoff = Backoff(100, 1000)
    assert [backoff.wait_ms(attempt) for attempt in range(1, 7)] == [
        *(100, 200, 400, 800, 1000, 1000),
    ]
    assert backoff.wait_ms(10**9) == 1000
    assert backoff.wait_ms(0) == 100


def test_a_random_source_spreads_the_waits_over_their_upper_half() -> None:
    source = random.Random(1)
    waits = {Backoff(100, 100).wait_ms(1, source) for _ in range(200)}
    assert min(waits) >= 50
    assert max(waits) <= 100
    assert len(waits) > 20


def test_a_stop_wakes_those_who_wait() -> None:
    stop = StopSignal()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(stop.wait_ms(60_000)))
    thread.start()
    stop.set()
    thread.join(10)
    assert results == [True]
    assert stop.is_set


def test_a_wait_without_a_stop_ends_by_itself() -> None:
    assert StopSignal().wait_ms(1) is False


# What is logged


SECOND_MS = 1000
FULL = OSError(errno.ENOSPC, "no space left")
BROKEN = OSError(errno.EIO, "input/output error")


def _log_details(limiter: LogRateLimiter, *, seconds: int) -> dict[int, LogDetail]:
    """What is logged of a failure four times a second, by time."""
    logged = {ms: limiter.record_failure(FULL, ms) for ms in range(0, seconds * SECOND_MS, 250)}
    return {ms: detail for ms, detail in logged.items() if detail is not LogDetail.NONE}


def test_a_continuing_failure_is_logged_in_full_once_and_then_less_often() -> None:
    logged = _log_details(LogRateLimiter(), seconds=3600)
    assert list(logged.values())[:2] == [LogDetail.FULL, LogDetail.BRIEF]
    assert set(list(logged.values())[1:]) == {LogDetail.BRIEF}
    assert list(logged)[:5] == [0, 10_000, 30_000, 70_000, 150_000]
    assert len(logged) < 15


def test_each_kind_is_logged_in_full() -> None:
    limiter = LogRateLimiter()
    logged = [
        limiter.record_failure(error, 0) for error in (FULL, BROKEN, ValueError("x"), FULL, BROKEN)
    ]
    assert logged == [LogDetail.FULL] * 3 + [LogDetail.NONE] * 2


def test_a_failure_that_comes_and_goes_does_not_flood_the_log() -> None:
    limiter = LogRateLimiter()
    lines = 0
    for ms in range(0, 60 * SECOND_MS, 250):
        lines += limiter.record_failure(FULL, ms) is not LogDetail.NONE
        lines += limiter.record_success()
    assert lines == 6, "three failures at 0, 10 and 30 s, and three recoveries"


def test_only_the_recovery_from_a_logged_failure_is_logged() -> None:
    limiter = LogRateLimiter()
    assert not limiter.record_success()
    limiter.record_failure(FULL, 0)
    assert limiter.record_success()
    limiter.record_failure(FULL, 1)
    assert not limiter.record_success()


def test_a_failure_that_was_absent_for_long_is_logged_in_full_again() -> None:
    limiter = LogRateLimiter()
    limiter.record_failure(FULL, 0)
    assert limiter.record_failure(FULL, LOG_INTERVAL_MAX_MS) is LogDetail.FULL


def test_a_clock_that_was_set_back_does_not_silence_a_failure() -> None:
    limiter = LogRateLimiter()
    limiter.record_failure(FULL, 10**9)
    assert limiter.record_failure(FULL, 0) is LogDetail.BRIEF
    assert limiter.record_failure(FULL, LOG_INTERVAL_MIN_MS) is LogDetail.NONE
