"""What a policy will let go, and when, without touching anything."""

import json

import pytest

from tests.support.log_bench import NOW_MS, Bench, make_batch
from tests.support.log_facts import Piece, make_facts
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.forecast import forecast, forecast_log
from varve.cleaning.retention.rules import BlockingRule
from varve.commit_log import LogSettings
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidSetting

DAY = 86_400_000


@pytest.fixture
def bench() -> Bench:
    clock = ManualClock(NOW_MS)
    made = Bench(MemoryFileSystem(clock), clock)
    made.open()
    for day in range(3):
        made.log.append(make_batch(10, time=day * DAY))
        clock.advance(DAY)
        made.log.roll()
    return made


def test_each_segment_has_its_time(bench: Bench) -> None:
    found = forecast(bench.log, NOW_MS + 3 * DAY)
    size = found.rows[0].segment.size
    assert [row.when_ms for row in found.rows] == [
        NOW_MS + 7 * DAY + 1,
        NOW_MS + 8 * DAY + 1,
        NOW_MS + 9 * DAY + 1,
        None,
    ]
    assert [row.reason for row in found.rows] == [Reason.EXPIRED_TIME] * 3 + [None]
    assert found.rows[3].blocked_by is BlockingRule.ACTIVE_SEGMENT
    assert [(point.segments, point.freed_bytes, point.left_bytes) for point in found.points()] == [
        (1, size, 2 * size),
        (2, 2 * size, size),
        (3, 3 * size, 0),
    ]
    assert found.at(NOW_MS + 8 * DAY + 1).freed_bytes == 2 * size
    assert (found.due_now_bytes, found.kept_bytes) == (0, 0)


def test_other_settings_may_be_tried_by_their_names(bench: Bench) -> None:
    now_ms = NOW_MS + 3 * DAY
    by_time = forecast(bench.log, now_ms, overrides={"retention.ms": str(2 * DAY)})
    assert [row.when_ms for row in by_time.rows[:2]] == [now_ms, NOW_MS + 3 * DAY + 1]
    by_size = forecast(bench.log, now_ms, overrides={"retention.bytes": 0, "retention.ms": -1})
    assert by_size.due_now_bytes == by_size.size
    kept = forecast(bench.log, now_ms, overrides={"cleanup.policy": "compact"})
    assert kept.kept_bytes == kept.size
    assert {row.blocked_by for row in kept.rows} == {BlockingRule.POLICY}
    assert bench.log.settings == LogSettings()


def test_a_name_that_is_none_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean 'retention.ms'"):
        forecast(bench.log, NOW_MS, overrides={"retention.mss": 1})


def test_stale_bytes_are_those_of_a_compacted_topic(bench: Bench) -> None:
    assert forecast(bench.log, NOW_MS, stale_bytes=42).stale_bytes is None
    overrides = {"cleanup.policy": "compact,delete"}
    found = forecast(bench.log, NOW_MS, overrides=overrides, stale_bytes=42)
    assert found.stale_bytes == 42


def test_a_segment_waits_for_those_before_it() -> None:
    facts = make_facts(Piece(newest=9 * DAY), Piece(newest=DAY), Piece(newest=20 * DAY))
    first, second, third = forecast_log(facts, 10 * DAY)
    assert first.when_ms == second.when_ms == 16 * DAY + 1
    assert second.blocked_by is BlockingRule.EARLIER_SEGMENT
    assert third.when_ms == 27 * DAY + 1


def test_what_stays_for_good_keeps_all_behind_it() -> None:
    facts = make_facts(Piece(newest=DAY), Piece(newest=DAY), Piece(newest=DAY), high_watermark=15)
    first, second, third = forecast_log(facts, 2 * DAY)
    assert first.when_ms == 8 * DAY + 1
    assert (second.when_ms, second.blocked_by) == (None, BlockingRule.HIGH_WATERMARK)
    assert third.when_ms is None


def test_without_a_time_limit_growth_alone_lets_segments_go() -> None:
    facts = make_facts(Piece(), Piece(), retention_ms=-1, retention_bytes=1000)
    for row in forecast_log(facts, DAY):
        assert row.when_ms is None
        assert "the 200 bytes may grow before retention.bytes=1000" in row.rule


def test_a_forecast_becomes_json(bench: Bench) -> None:
    document = forecast(bench.log, NOW_MS, overrides={"retention.ms": 5}).to_json()
    assert json.loads(json.dumps(document))["settings"] == {"retention.ms": "5"}
