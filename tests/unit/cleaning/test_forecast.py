"""What a policy will let go, and when, without touching anything."""

import json

import pytest

from tests.support.log_bench import NOW_MS, Bench, make_batch
from tests.support.log_facts import Piece, make_facts
from varve.cleaning.explanation import RecordState
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.forecast import forecast, forecast_log
from varve.cleaning.retention.rules import BlockingRule
from varve.cleaning.retention.segments import SegmentLocation
from varve.commit_log import LogSettings
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidSetting, StoreUnavailable
from varve.foundation.settings import GivenValue
from varve.object_store import MemoryObjectStore
from varve.testing import FaultyObjectStore, VirtualStore

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


# What will leave the local disk and what will expire in the cold tier, and whether it comes so


TIERED: dict[str, GivenValue] = {"remote.storage.enable": True, "segment.bytes": 1000}


def fill(kit: VirtualStore, **settings: GivenValue) -> None:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    topic = kit.store.create_topic("t", settings={**TIERED, **given})
    for number in range(40):
        topic.append(key=f"k{number % 3}", value=f"{number:060}")
        kit.advance(seconds=10)


@pytest.mark.parametrize(
    "settings",
    [
        {"retention_ms": 600_000, "local_retention_ms": 200_000},
        {"retention_ms": 600_000, "local_retention_bytes": 1500},
        {"retention_bytes": 2500, "local_retention_ms": 300_000},
        {"retention_ms": 250_000, "local_retention_ms": -2},
        {"retention_ms": -1, "local_retention_bytes": 0},
    ],
)
def test_what_a_forecast_says_comes_true(settings: dict[str, GivenValue]) -> None:
    with VirtualStore(settings={"varve.tier.grace.ms": 100_000}) as kit:
        fill(kit, **settings)
        kit.store.tier.copy(kit.store.partitions("t")[0], kit.now_ms)
        (forecast,) = kit.store.forecast("t")
        assert forecast.remote is not None
        moments = {row.when_ms for row in forecast.rows} | set(forecast.remote_moments())
        for moment in sorted(one for one in moments if one is not None):
            kit.advance(milliseconds=max(0, moment - kit.now_ms))
            # A pass rolls the active segment when it is due, the next copies and removes it.
            kit.run_background()
            kit.run_background()
            local = [row for row in forecast.rows if row.when_ms is None or row.when_ms > moment]
            local_start = local[0].segment.base_offset if local else 40
            remote = [row for row in forecast.remote if row.when_ms is None or row.when_ms > moment]
            offsets = kit.store.topic("t").partition(0).offsets()
            status = kit.store.tier.status(kit.store.partitions("t")[0])
            assert offsets.local_start == local_start
            assert status.remote_segments is not None
            copied = sum(row.segment.location is not SegmentLocation.LOCAL for row in remote)
            assert copied <= status.remote_segments <= len(remote)
            assert offsets.log_start == (remote[0].segment.base_offset if remote else local_start)


def test_a_topic_outside_of_the_tier_can_be_tried_in_it() -> None:
    with VirtualStore() as kit:
        fill(kit, remote_storage_enable=False)
        (plain,) = kit.store.forecast("t")
        assert plain.remote is None
        tried = {"remote.storage.enable": True, "local.retention.bytes": 0}
        (found,) = kit.store.forecast("t", settings=tried)
    assert found.remote is not None
    assert {row.segment.location for row in found.remote} == {SegmentLocation.LOCAL}
    assert [row.when_ms for row in found.rows] == [found.now_ms] * len(found.rows)


def test_a_topic_that_would_leave_the_tier_has_nothing_left_there() -> None:
    with VirtualStore() as kit:
        fill(kit, local_retention_bytes=0)
        kit.run_background()
        (found,) = kit.store.forecast("t", settings={"remote.storage.enable": False})
    assert found.remote
    assert {row.segment.location for row in found.remote} == {SegmentLocation.LEAVING}
    assert found.remote_at(found.now_ms).stored_bytes == 0


def test_segments_of_both_tiers_are_explained() -> None:
    with VirtualStore() as kit:
        fill(kit, local_retention_bytes=2000, retention_bytes=3500)
        kit.run_background()
        for number in range(20):
            kit.store.topic("t").append(key=f"k{number % 3}", value=f"{number:060}")
        found = kit.store.explain("t")
        offsets = kit.store.topic("t").partition(0).offsets()
    places = [one.location for one in found]
    assert places == sorted(places, key=[*_ORDER].index)
    assert set(places) == set(_ORDER)
    by_place = {one.location: one for one in found}
    assert by_place[SegmentLocation.LEAVING].retention.blocks[0].rule is BlockingRule.GRACE
    assert by_place[SegmentLocation.LEAVING].next_offset <= offsets.log_start
    assert by_place[SegmentLocation.REMOTE].next_offset <= offsets.local_start
    assert by_place[SegmentLocation.REMOTE].local is None
    waiting = [one.local for one in found if one.location is SegmentLocation.LOCAL]
    rules = [way.blocks[0].rule for way in waiting if way]
    assert set(rules[:-1]) == {BlockingRule.COPY}
    assert found[-2].retention.earliest_ms is None
    assert found[-1].is_active
    assert found[-1].retention.earliest_ms is not None


_ORDER = (
    SegmentLocation.LEAVING,
    SegmentLocation.REMOTE,
    SegmentLocation.BOTH,
    SegmentLocation.LOCAL,
)


def test_a_record_in_the_tier_tells_what_replaces_it_and_when_it_expires() -> None:
    with VirtualStore() as kit:
        fill(kit, local_retention_bytes=0, cleanup_policy="compact,delete")
        kit.run_background()
        record = kit.store.explain_offset("t", offset=1)
        newest = kit.store.explain_key("t", key="k0")
    assert (record.state, record.key, record.superseded_by) == (RecordState.REMOTE, b"k1", 37)
    assert record.segment is not None
    assert record.segment.location is SegmentLocation.REMOTE
    assert record.segment.retention.earliest_ms is not None
    assert newest is not None
    assert newest.offset == 39


def test_a_store_that_is_down_is_named_and_local_segments_are_still_explained() -> None:
    objects = FaultyObjectStore(MemoryObjectStore())
    with VirtualStore(objects=objects) as kit:
        fill(kit, local_retention_bytes=2000)
        kit.run_background()
        local_start = kit.store.topic("t").partition(0).offsets().local_start
        objects.go_down()
        found = kit.store.explain("t")
        record = kit.store.explain_offset("t", offset=0)
        with pytest.raises(StoreUnavailable):
            kit.store.forecast("t")
        objects.come_up()
    assert found[0].base_offset == local_start
    assert found[0].local is not None
    assert "object storage does not respond" in found[0].local.blocks[0].text
    assert (record.state, record.segment) == (RecordState.REMOTE, None)


def test_records_of_a_tiered_topic_do_not_outlive_retention_ms_in_the_active_segment() -> None:
    """Kafka rolls the active segment when it breaches retention; `segment.ms` is seven days."""
    with VirtualStore() as kit:
        topic = kit.store.create_topic(
            "t", settings={"remote.storage.enable": True, "retention.ms": 600_000}
        )
        topic.append(key="k", value="v")
        kit.run_background()
        kit.advance(milliseconds=600_000)
        kit.run_background()
        assert [record.offset for record in topic.read()] == [0]
        kit.advance(milliseconds=1)
        kit.run_background()  # rolls
        kit.run_background()  # copies and expires
        offsets = topic.partition(0).offsets()
        assert (offsets.log_start, offsets.end) == (1, 1)
        assert list(topic.read()) == []
