"""Which segments may go: log start, size, time, in that order, from the oldest on (G5)."""

from typing import Any

import pytest

from tests.support.log_facts import Piece, make_facts
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.retention import plan_eviction, plan_retention
from varve.cleaning.retention.rules import RetentionLimits, TimestampSource
from varve.cleaning.retention.segments import SegmentList, SegmentTimes
from varve.commit_log import LogSettings

DAY = 86_400_000
NOW = 100 * DAY
OLD = Piece(newest=NOW - 8 * DAY)
YOUNG = Piece(newest=NOW - 6 * DAY)
EMPTY = Piece(offsets=0, size=0, newest=-1, appended=(NOW, NOW))


def gone(facts: SegmentList, now_ms: int = NOW) -> list[tuple[int, Reason | None]]:
    return [(one.base_offset, one.reason) for one in plan_retention(facts, now_ms).segments]


def bases(facts: SegmentList, now_ms: int = NOW) -> list[int]:
    return [base for base, _ in gone(facts, now_ms)]


def test_a_segment_goes_when_its_newest_record_is_older_than_the_limit() -> None:
    facts = make_facts(OLD, OLD, YOUNG)
    assert gone(facts) == [(0, Reason.EXPIRED_TIME), (10, Reason.EXPIRED_TIME)]
    assert bases(facts, NOW - DAY) == []
    assert bases(facts, NOW - DAY + 1) == [0, 10]


def test_size_is_counted_on_what_the_log_start_left() -> None:
    pieces = [YOUNG] * 4
    facts = make_facts(*pieces, retention_bytes=300, log_start=12)
    assert gone(facts) == [(0, Reason.BELOW_LOG_START)]
    facts = make_facts(*pieces, retention_bytes=200, log_start=12)
    assert gone(facts) == [(0, Reason.BELOW_LOG_START), (10, Reason.EXPIRED_SIZE)]


def test_all_three_reasons_in_one_pass() -> None:
    facts = make_facts(OLD, OLD, OLD, YOUNG, YOUNG, log_start=10, retention_bytes=300)
    assert gone(facts) == [
        (0, Reason.BELOW_LOG_START),
        (10, Reason.EXPIRED_SIZE),
        (20, Reason.EXPIRED_TIME),
    ]


@pytest.mark.parametrize("policy", [("compact",), ("delete",), ("compact", "delete")])
def test_what_lies_behind_the_log_start_goes_under_every_policy(policy: tuple[str, ...]) -> None:
    facts = make_facts(YOUNG, YOUNG, YOUNG, cleanup_policy=policy, log_start=20)
    assert gone(facts) == [(0, Reason.BELOW_LOG_START), (10, Reason.BELOW_LOG_START)]


def test_the_rule_names_setting_value_and_figures() -> None:
    expiry = plan_retention(make_facts(OLD, OLD, YOUNG, retention_bytes=200), NOW)
    by_size, by_time = expiry.segments
    assert by_size.rule == "retention.bytes=200: 200 bytes remain without segment 0"
    assert by_time.rule == f"the segment is 8 d old by event time, and retention.ms={7 * DAY}"
    assert expiry.size == 200


TIERED: dict[str, Any] = {"remote_storage_enable": True}


def evicted(facts: SegmentList, remote_end_offset: int, now_ms: int = NOW) -> list[int]:
    found = plan_eviction(facts, remote_end_offset, now_ms)
    assert {one.reason for one in found.segments} <= {Reason.EVICTED}
    return [one.base_offset for one in found.segments]


def test_a_tiered_log_loses_locally_only_what_lies_below_its_log_start() -> None:
    facts = make_facts(OLD, OLD, YOUNG, log_start=10, retention_bytes=0, **TIERED)
    assert gone(facts) == [(0, Reason.BELOW_LOG_START)]
    assert bases(make_facts(OLD, OLD, log_start=20, **TIERED)) == [0]
    disabled = make_facts(OLD, OLD, YOUNG, remote_log_copy_disable=True, **TIERED)
    assert bases(disabled) == [0, 10]


def test_only_copied_segments_are_evicted() -> None:
    facts = make_facts(OLD, OLD, OLD, YOUNG, local_retention_ms=DAY, **TIERED)
    assert evicted(facts, 0) == []
    assert evicted(facts, 20) == [0, 10]
    assert evicted(facts, 30) == [0, 10, 20]


def test_local_limits_hold_whatever_the_policy() -> None:
    facts = make_facts(OLD, OLD, YOUNG, cleanup_policy=("compact",), local_retention_ms=0, **TIERED)
    assert evicted(facts, 20) == [0, 10]
    by_size = make_facts(YOUNG, YOUNG, YOUNG, local_retention_bytes=200, **TIERED)
    assert evicted(by_size, 20) == [0]
    assert plan_eviction(by_size, 20, NOW).segments[0].rule == (
        "local.retention.bytes=200: 200 bytes remain without segment 0"
    )


def test_an_active_segment_that_is_due_is_rolled_once_all_before_it_are_copied() -> None:
    facts = make_facts(OLD, OLD, local_retention_ms=DAY, **TIERED)
    assert plan_eviction(facts, 10, NOW).rolls_active
    assert evicted(facts, 10) == [0]
    assert not plan_eviction(facts, 0, NOW).rolls_active
    assert not plan_eviction(facts, 10, NOW - 8 * DAY + 1).rolls_active
    empty = make_facts(OLD, EMPTY, local_retention_ms=DAY, **TIERED)
    assert not plan_eviction(empty, 10, NOW).rolls_active
    unreplicated = make_facts(OLD, OLD, local_retention_ms=DAY, high_watermark=15, **TIERED)
    assert not plan_eviction(unreplicated, 10, NOW).rolls_active


# Whose word on a segment's age is taken, and what is said when it is not


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
