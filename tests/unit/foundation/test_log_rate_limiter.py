"""Failures of repeated work are logged once in full and then at growing intervals."""

import errno

from varve.foundation.worker import (
    LOG_INTERVAL_MAX_MS,
    LOG_INTERVAL_MIN_MS,
    LogDetail,
    LogRateLimiter,
)

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
