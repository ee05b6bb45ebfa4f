"""Whose word on a segment's age is taken, and what is said when it is not."""

import pytest

from varve.cleaning.retention.rules import RetentionLimits, TimestampSource
from varve.cleaning.retention.segments import SegmentTimes
from varve.commit_log import LogSettings

HOUR = 3_600_000
APPENDED = 1_000 * HOUR


@pytest.mark.parametrize(
    ("policy", "event_ms", "expected_ms", "source"),
    [
        ("bounded", APPENDED - HOUR, APPENDED - HOUR, TimestampSource.EVENT),
        ("bounded", APPENDED, APPENDED, TimestampSource.EVENT),
        ("bounded", APPENDED + 1, APPENDED, TimestampSource.APPEND),
        ("bounded", APPENDED - 10 * HOUR, APPENDED - 10 * HOUR, TimestampSource.EVENT),
        ("bounded", APPENDED - 10 * HOUR - 1, APPENDED, TimestampSource.APPEND),
        ("bounded", 0, APPENDED, TimestampSource.APPEND),
        ("bounded", -1, APPENDED, TimestampSource.APPEND),
        ("event", APPENDED + HOUR, APPENDED + HOUR, TimestampSource.EVENT),
        ("event", 0, 0, TimestampSource.EVENT),
        ("event", -1, APPENDED, TimestampSource.APPEND),
        ("append", APPENDED - HOUR, APPENDED, TimestampSource.APPEND),
        ("append", APPENDED + HOUR, APPENDED, TimestampSource.APPEND),
    ],
)
def test_the_time_that_counts(
    policy: str, event_ms: int, expected_ms: int, source: TimestampSource
) -> None:
    times = SegmentTimes(event_ms, APPENDED - HOUR, APPENDED)
    settings = LogSettings(retention_time=policy, retention_ms=10 * HOUR)
    found = RetentionLimits.total(settings).timestamp(times)
    assert (found.ms, found.source) == (expected_ms, source)


def test_what_was_overruled_is_said() -> None:
    settings = LogSettings(retention_ms=HOUR)
    future = RetentionLimits.total(settings).timestamp(
        SegmentTimes(APPENDED + 5, APPENDED, APPENDED)
    )
    assert "5 ms after the last append" in future.note
    past = RetentionLimits.total(settings).timestamp(
        SegmentTimes(APPENDED - 2 * HOUR, APPENDED, APPENDED)
    )
    assert "retention.ms=3600000" in past.note
    believed = RetentionLimits.total(settings).timestamp(SegmentTimes(APPENDED, APPENDED, APPENDED))
    assert not believed.is_rejected


def test_without_a_limit_no_past_is_too_old() -> None:
    settings = LogSettings(retention_ms=-1)
    assert RetentionLimits.total(settings).timestamp(SegmentTimes(0, APPENDED, APPENDED)).ms == 0


def test_append_time_by_choice_overrules_nothing() -> None:
    settings = LogSettings(retention_time="append")
    assert (
        not RetentionLimits.total(settings)
        .timestamp(SegmentTimes(0, APPENDED, APPENDED))
        .is_rejected
    )
