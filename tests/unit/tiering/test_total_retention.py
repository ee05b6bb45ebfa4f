"""Which remote segments are due by the limits of both tiers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.remote_builder import make_segment
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.rules import RetentionLimits, RetentionScope, due_now
from varve.commit_log import Log, LogSettings
from varve.tiering.expiry import describe_segment
from varve.tiering.manifest.segment import RemoteSegment, SegmentState

NOW_MS = 10_000
SEGMENTS = [make_segment(number, SegmentState.COPY_FINISHED) for number in range(5)]
"""Of 1000 bytes and 100 offsets each; number n has times up to 10 n, appended up to 10 n + 9."""


def expired(
    segments: list[RemoteSegment] = SEGMENTS, now_ms: int = NOW_MS, **given: Any
) -> list[tuple[int, Reason | None]]:
    log_start_offset = given.pop("log_start_offset", 0)
    end_offset = given.pop("end_offset", 600)
    given.setdefault("retention_ms", -1)
    log = cast(
        "Log", SimpleNamespace(epochs=((0, 0),), end_offset=end_offset, local_start_offset=0)
    )
    limits = RetentionLimits.total(LogSettings(**given))
    described = [describe_segment(one, log) for one in segments]
    found = due_now(described, RetentionScope(limits, 5_500, log_start_offset), now_ms)
    return [(one.segment.base_offset // 100, one.reason) for one in found]


def test_without_limits_nothing_goes() -> None:
    assert expired() == []


def test_by_age_those_go_that_are_older_than_the_limit_and_the_walk_ends_at_the_first_younger() -> (
    None
):
    assert expired(now_ms=1_000, retention_ms=975) == [
        (0, Reason.EXPIRED_TIME),
        (1, Reason.EXPIRED_TIME),
        (2, Reason.EXPIRED_TIME),
    ]
    assert expired(now_ms=1_000, retention_ms=980) == [
        (0, Reason.EXPIRED_TIME),
        (1, Reason.EXPIRED_TIME),
    ]
    young_first = [replace(SEGMENTS[0], max_timestamp=999, append_ms=(999, 999)), *SEGMENTS[1:]]
    assert expired(young_first, now_ms=1_000, retention_ms=500) == []


@pytest.mark.parametrize(
    ("limit", "count"), [(5_500, 0), (4_501, 0), (4_500, 1), (3_500, 2), (500, 5), (0, 5)]
)
def test_by_size_they_go_as_long_as_the_limit_is_left_in_both_tiers(limit: int, count: int) -> None:
    assert expired(retention_bytes=limit) == [(n, Reason.EXPIRED_SIZE) for n in range(count)]


def test_what_goes_by_age_counts_for_the_size_too() -> None:
    found = expired(now_ms=1_000, retention_ms=985, retention_bytes=3_500)
    assert found == [(0, Reason.EXPIRED_SIZE), (1, Reason.EXPIRED_SIZE)]


def test_behind_the_log_start_they_go_whatever_the_policy() -> None:
    gone = [(0, Reason.BELOW_LOG_START), (1, Reason.BELOW_LOG_START)]
    assert expired(log_start_offset=200, cleanup_policy=("compact",)) == gone
    assert expired(log_start_offset=299) == gone
    assert expired(log_start_offset=200, retention_bytes=3_500) == gone


def test_a_compacted_topic_loses_nothing_by_age_or_size() -> None:
    policy = ("compact",)
    assert expired(cleanup_policy=policy, retention_ms=1, retention_bytes=0) == []
    assert len(expired(cleanup_policy=("compact", "delete"), retention_ms=1)) == 5


def test_segments_of_another_history_are_passed_over() -> None:
    foreign = replace(SEGMENTS[1], epochs=((7, 100),))
    found = expired([SEGMENTS[0], foreign, *SEGMENTS[2:]], retention_bytes=3_500)
    assert found == [(0, Reason.EXPIRED_SIZE), (2, Reason.EXPIRED_SIZE)]
    assert expired([foreign], retention_ms=1) == []
    assert expired([foreign], log_start_offset=200) == [(1, Reason.BELOW_LOG_START)]


def test_what_the_log_does_not_reach_is_passed_over() -> None:
    assert expired(end_offset=450, retention_ms=1)[-1] == (3, Reason.EXPIRED_TIME)


def test_a_timestamp_far_in_the_future_does_not_keep_a_segment_for_ever() -> None:
    late = replace(SEGMENTS[0], max_timestamp=1 << 50)
    assert expired([late], now_ms=1 << 40, retention_ms=1_000) == [(0, Reason.EXPIRED_TIME)]
