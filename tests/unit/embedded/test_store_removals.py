"""Why something is still here and when it goes, asked of an open store."""

import pytest

import varve
from varve.cleaning.explanation import RecordState
from varve.cleaning.retention.rules import BlockingRule
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest, InvalidSetting, OffsetOutOfRange

DAY_MS = 86_400_000
COMPACTED: dict[str, str | int] = {"cleanup.policy": "compact"}


def _scores(store: varve.Store) -> varve.Topic:
    topic = store.create_topic("scores", settings=COMPACTED)
    topic.append_many([("a", "1"), ("b", "2"), ("a", "3"), ("b", None)])
    topic.partition().log.roll()
    return topic


def test_a_record_is_explained_before_and_after_cleaning(store: varve.Store) -> None:
    _scores(store)
    before = store.explain_offset("scores", offset=0)
    assert (before.state, before.superseded_by) == (RecordState.SUPERSEDED, 2)
    store.clean()
    assert store.explain_offset("scores", offset=0).state is RecordState.REMOVED
    tombstone = store.explain_key("scores", key="b")
    assert tombstone is not None
    assert tombstone.state is RecordState.TOMBSTONE
    assert tombstone.compaction is not None
    assert tombstone.compaction.blocks[-1].rule is BlockingRule.DELETE_HORIZON
    assert store.explain_key("scores", key=b"never") is None
    with pytest.raises(OffsetOutOfRange):
        store.explain_offset("scores", offset=9)


def test_an_offset_needs_its_partition(store: varve.Store) -> None:
    store.create_topic("many", partitions=2)
    with pytest.raises(InvalidRequest, match="name one"):
        store.explain_offset("many", offset=0)


def test_a_forecast_is_what_then_happens(store: varve.Store, clock: ManualClock) -> None:
    topic = store.create_topic("visits", settings={"retention.ms": DAY_MS})
    for _ in range(3):
        topic.append(value="v")
        topic.partition().log.roll()
        clock.advance(DAY_MS // 4)
    (found,) = store.forecast("visits")
    assert [row.when_ms is None for row in found.rows] == [False, False, False, True]
    for point in found.points():
        clock.advance(point.when_ms - clock.now_ms())
        store.run_once()
        assert topic.partition().log.size == point.left_bytes


def test_a_forecast_tries_other_settings_and_changes_nothing(
    store: varve.Store, clock: ManualClock
) -> None:
    topic = store.create_topic("visits", settings={"retention.ms": DAY_MS})
    topic.append(value="v")
    clock.advance(1000)
    (found,) = store.forecast("visits", settings={"retention.ms": 500})
    assert found.due_now_bytes == found.size > 0
    assert topic.settings.retention_ms == DAY_MS
    assert len(list(topic.read())) == 1
    with pytest.raises(InvalidSetting):
        store.forecast("visits", settings={"retention.m": 5})


def test_a_forecast_of_a_compacted_topic_tells_what_is_stale(store: varve.Store) -> None:
    _scores(store)
    store.create_topic("plain")
    plain, scores = store.forecast()
    assert plain.stale_bytes is None
    assert scores.stale_bytes is not None
    assert scores.stale_bytes > 0
    (tried,) = store.forecast("plain", settings={"cleanup.policy": "compact"})
    assert tried.stale_bytes is None


def test_figures_are_brought_up_without_cleaning(store: varve.Store) -> None:
    from varve.foundation.metrics import exposition

    topic = _scores(store)
    store.measure()
    assert "varve_cleaner_max_dirty_percent 100.0\n" in exposition(store.metrics)
    assert len(list(topic.read())) == 4
