"""Shapes in one process: a store, an engine, and clients that follow.

Carries S5 and S6.
"""

import gc
import json
from typing import Any

import pytest

from tests.support.shape_engine import Follower, Stage, StageMaker
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, InvalidRequest, Locked, NotFound, Unavailable
from varve.foundation.metrics import exposition
from varve.shapes.compaction import compactor
from varve.shapes.definition import define
from varve.shapes.feed.table import TableView
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.filter.subset import Subset
from varve.shapes.metrics import RESULTS, TopicHealth
from varve.shapes.offset import BEFORE_ALL, FIRST_CHUNK, LAST, SNAPSHOT_END
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.shape import BETWEEN_POLLS_MS, UNREAD_MS, DropReason, Shape
from varve.shapes.storage.layout import new_suffix


def _messages(shape: Shape) -> list[dict[str, Any]]:
    """Those of a snapshot of one chunk, and of the log."""
    pieces = [*shape.read(BEFORE_ALL, FIRST_CHUNK), *shape.read(SNAPSHOT_END, LAST)]
    actual: list[dict[str, Any]] = json.loads(b"[" + b",".join(pieces) + b"]")
    return actual


def test_one_definition_is_one_shape(stage: Stage) -> None:
    definition = define("items", where="n = 1")
    shape = stage.engine.find_or_create(definition)
    assert stage.engine.find_or_create(define("items", where="(n = 1)")) is shape
    assert stage.engine.find_or_create(define("items", where="n = 2")) is not shape
    assert stage.engine.find(shape.handle) is shape
    assert stage.engine.find_by_definition(definition) is shape


def test_a_topic_that_is_not_there_makes_no_shape(stage: Stage) -> None:
    with pytest.raises(NotFound):
        stage.engine.find_or_create(define("others"))
    assert stage.engine.shapes() == []


def test_before_its_snapshot_has_begun_a_shape_cannot_be_read_and_stays(stage: Stage) -> None:
    shape = stage.engine.find_or_create(define("items"))
    assert not shape.is_snapshot_started
    assert shape.latest == SNAPSHOT_END
    with pytest.raises(Unavailable):
        shape.read(BEFORE_ALL, LAST)
    assert not shape.is_dropped
    stage.settle("items")
    assert shape.is_snapshot_complete


def test_a_dropped_shape_is_found_no_more_and_its_handle_not_used_again_h23(stage: Stage) -> None:
    shape = stage.create("items")
    stage.engine.drop(shape, DropReason.DELETED)
    assert stage.engine.find(shape.handle) is None
    assert shape.drop_reason is DropReason.DELETED
    with pytest.raises(NotFound):
        shape.read(BEFORE_ALL, LAST)
    again = stage.create("items")
    assert again.handle != shape.handle
    stage.restart()
    assert [item.handle for item in stage.engine.shapes()] == [again.handle]


def test_the_latest_place_does_not_go_back_when_the_shape_is_dropped_h19(stage: Stage) -> None:
    shape = stage.create("items")
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    latest = shape.latest
    assert not latest.is_virtual
    stage.engine.drop(shape, DropReason.DELETED)
    assert shape.latest == latest


def test_listeners_are_told_of_snapshots_changes_and_ends(stage: Stage) -> None:
    reported: list[list[str]] = []
    end = stage.engine.subscribe(lambda handles: reported.append(sorted(handles)))
    shape = stage.create("items")
    other = stage.create("items", where="n = 7")
    reported.clear()
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    assert reported == [[shape.handle]]
    stage.engine.drop(other, DropReason.DELETED)
    assert reported[-1] == [other.handle]
    end()
    stage.put("items", "a", {"n": 2})
    stage.settle("items")
    assert len(reported) == 2


def test_with_too_many_shapes_the_least_recently_read_goes(make_stage: StageMaker) -> None:
    stage = make_stage(settings=EngineSettings(shapes_max=2))
    first, second = stage.create("t", where="n = 1"), stage.create("t", where="n = 2")
    with pytest.raises(Unavailable, match=r"shapes\.max"):
        stage.create("t", where="n = 3")
    list(second.read(BEFORE_ALL, LAST))
    list(first.read(BEFORE_ALL, LAST))
    stage.create("t", where="n = 3")
    assert second.drop_reason is DropReason.EVICTED
    assert not first.is_dropped


def test_a_limit_that_was_lowered_is_come_to(make_stage: StageMaker) -> None:
    stage = make_stage()
    for number in range(6):
        stage.create("t", where=f"n = {number}")
    stage.engine.close()
    stage._settings = EngineSettings(shapes_max=3)
    stage.engine = stage._open()
    stage.create("t", where="n = 9")
    assert len(stage.engine.shapes()) == 3


def test_shapes_that_nobody_came_to_read_make_room_after_a_while(make_stage: StageMaker) -> None:
    clock = ManualClock()
    stage = make_stage(settings=EngineSettings(shapes_max=2), clock=clock)
    first, second = stage.create("t", where="n = 1"), stage.create("t", where="n = 2")
    clock.advance(UNREAD_MS)
    stage.create("t", where="n = 3")
    assert first.drop_reason is DropReason.EVICTED
    assert not second.is_dropped


def test_a_shape_whose_first_rows_were_waited_for_stays_until_they_are_read(
    make_stage: StageMaker,
) -> None:
    stage = make_stage(settings=EngineSettings(shapes_max=1))
    first = stage.create("t", where="n = 1")
    with first.subscribe():
        pass
    with pytest.raises(Unavailable, match="just created"):
        stage.create("t", where="n = 2")
    list(first.read(BEFORE_ALL, LAST))
    stage.create("t", where="n = 2")
    assert first.drop_reason is DropReason.EVICTED


def test_a_shape_makes_no_room_while_it_is_read(make_stage: StageMaker) -> None:
    stage = make_stage(settings=EngineSettings(shapes_max=1))
    first = stage.create("t", where="n = 1")
    with first.pin():
        list(first.read(BEFORE_ALL, LAST))
        with pytest.raises(Unavailable, match="all of them are in use"):
            stage.create("t", where="n = 2")
    stage.create("t", where="n = 2")
    assert first.drop_reason is DropReason.EVICTED


def test_shapes_that_are_followed_make_no_room(make_stage: StageMaker) -> None:
    clock = ManualClock()
    stage = make_stage(settings=EngineSettings(shapes_max=2), clock=clock)
    first, second = stage.create("t", where="n = 1"), stage.create("t", where="n = 2")
    list(second.read(BEFORE_ALL, LAST))
    clock.advance(UNREAD_MS)
    with first.subscribe():
        with second.subscribe(), pytest.raises(Unavailable, match="all of them are in use"):
            stage.create("t", where="n = 3")
        with pytest.raises(Unavailable, match="all of them are in use"):
            stage.create("t", where="n = 3")  # who followed the second may ask again
        clock.advance(BETWEEN_POLLS_MS)
        stage.create("t", where="n = 3")
    assert second.drop_reason is DropReason.EVICTED
    assert not first.is_dropped


def test_how_changes_are_told_is_forgotten_with_the_last_shape_told_so(stage: Stage) -> None:
    for number in range(20):
        shape = stage.create("items", columns=f"c{number}")
        stage.engine.drop(shape, DropReason.DELETED)
    del shape
    gc.collect()
    assert len(stage.engine.topics.get("items")._encoders) <= 1


def test_changes_only_begins_without_rows(stage: Stage) -> None:
    stage.put("items", "a", {"n": 1})
    client = Follower(stage, "items", log="changes_only")
    assert client.catch_up() == {}
    stage.put("items", "b", {"n": 2})
    assert client.catch_up() == {"b": {"key": "b", "n": 2}}


def test_a_subset_has_the_rows_of_now_and_a_place_to_go_on_from(stage: Stage) -> None:
    for number in range(5):
        stage.put("items", f"k{number}", {"n": number, "m": 0})
    shape = stage.create("items", where="n > 0", columns="n")
    stage.put("items", "k4", {"n": 40, "m": 0})
    stage.settle("items")
    subset = Subset.parse(where="n < 4", order_by="n DESC", limit=2)
    result = stage.engine.subset(shape, subset)
    rows = [json.loads(row) for row in result.rows]
    assert [row["value"] for row in rows] == [{"key": "k3", "n": 3}, {"key": "k2", "n": 2}]
    assert {row["headers"]["snapshot_mark"] for row in rows} == {result.mark}
    assert result.tx == 6
    assert result.position == shape.latest


@pytest.mark.parametrize(
    "settings", [EngineSettings(subset_rows_max=2), EngineSettings(subset_bytes_max=200)]
)
def test_a_subset_that_is_too_large_is_refused(
    make_stage: StageMaker, settings: EngineSettings
) -> None:
    stage = make_stage("items", settings=settings)
    for number in range(3):
        stage.put("items", f"k{number}", {"n": number})
    shape = stage.create("items")
    with pytest.raises(InvalidRequest, match="more than"):
        stage.engine.subset(shape, Subset.parse(order_by="n"))
    assert len(stage.engine.subset(shape, Subset.parse(order_by="n", limit=1)).rows) == 1


def test_a_subset_after_a_crash_is_not_behind_what_was_told_before(make_stage: StageMaker) -> None:
    clock = ManualClock()
    settings = EngineSettings(max_poll_records=2, checkpoint_ms=3_600_000)
    stage = make_stage(None, settings=settings, clock=clock)
    stage.store.create_topic("items", partitions=1)
    stage.put("items", "gone", {"n": 0})
    shape = stage.create("items", log="changes_only")
    for number in range(5):
        stage.put("items", "k", {"n": number})
    stage.put("items", "gone", None)
    stage.settle("items")
    reported, mark = shape.latest, stage.engine.subset(shape, Subset.parse()).mark
    clock.advance(1)
    stage.crash()
    actual = stage.engine.find(shape.handle)
    assert actual is not None
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"not open yet|read again"):
            stage.engine.subset(actual, Subset.parse())
        stage.engine.run_turn("items")
    result = stage.engine.subset(actual, Subset.parse())
    assert [json.loads(row)["value"] for row in result.rows] == [{"key": "k", "n": 4}]
    assert result.position == reported
    assert result.mark != mark


def test_a_subset_that_nobody_waits_for_is_read_no_further(stage: Stage) -> None:
    for number in range(5):
        stage.put("items", f"k{number}", {"n": number})
    shape = stage.create("items", where="n > 100")
    answers = iter([False, False, True])
    with pytest.raises(Unavailable, match="has disconnected"):
        stage.engine.subset(shape, Subset.parse(), lambda: next(answers))
    assert next(answers, None) is None


def test_a_subset_of_a_topic_that_is_lost_meanwhile_comes_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("items", "a", {"n": 1})
    shape = stage.create("items")

    def lose(feed: TopicFeed) -> TableView:
        raise Closed("the feed of topic items is not open")

    monkeypatch.setattr(TopicFeed, "view", lose)
    with pytest.raises(Unavailable, match="being opened again"):
        stage.engine.subset(shape, Subset.parse())


def test_a_shape_that_is_dropped_while_it_is_compacted_is_not_found(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("items", "a", {"n": 1})
    shape = stage.create("items")
    stage.put("items", "a", {"n": 2})
    stage.settle("items")

    def drop_first(*arguments: object) -> str:
        stage.engine.drop(shape, DropReason.DELETED)
        return new_suffix(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compactor, "new_suffix", drop_first)
    with pytest.raises(NotFound, match="dropped while it was compacted"):
        stage.engine.compact(shape)


def test_ten_thousand_rows_come_in_several_chunks_of_a_snapshot(make_stage: StageMaker) -> None:
    stage = make_stage(settings=EngineSettings(chunk_bytes=100_000))
    stage.store.topic("t").append_many(
        [(f"k{number}".encode(), b'{"n":%d}' % number) for number in range(10_000)]
    )
    client = Follower(stage, "t")
    assert len(client.catch_up()) == 10_000
    last_chunk = stage.engine.shapes()[0].open().snapshot.last_chunk
    assert last_chunk is not None
    assert last_chunk > 5


def test_a_compaction_is_reported_and_changes_nothing_for_clients(make_stage: StageMaker) -> None:
    stage = make_stage(
        settings=EngineSettings(chunk_bytes=2000),
        compaction=CompactionSettings(keep_chunks=0),
    )
    early, late = Follower(stage, "t"), Follower(stage, "t")
    early.catch_up()
    for number in range(200):
        stage.put("t", "a", {"n": number})
        if number == 100:
            early.catch_up()
    stage.settle("t")
    stage.engine.checkpoint_now()
    (shape,) = stage.engine.shapes()
    before = sum(map(len, shape.read(SNAPSHOT_END, LAST)))
    report = stage.engine.compact(shape)
    assert report.outcome == "done"
    assert sum(map(len, shape.read(SNAPSHOT_END, LAST))) < before / 5
    assert early.catch_up() == late.catch_up() == {"a": {"key": "a", "n": 199}}
    assert early.refetches == 0


def test_health_and_metrics_tell_of_topics(stage: Stage) -> None:
    stage.engine.find_or_create(define("items"))
    assert stage.engine.health() == "starting"
    stage.settle("items")
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    assert stage.engine.health() == "active"
    assert stage.engine.topic_health("items") == TopicHealth("items", True, "")
    assert stage.engine.topic_health("others") is None
    assert stage.engine.newest_tx("items") == 1
    assert stage.engine.is_caught_up("items")
    text = exposition(stage.engine.metrics)
    assert 'varve_shapes{topic="items"} 1.0' in text
    assert 'varve_shapes_entries_total{topic="items"} 1.0' in text


def test_a_topic_that_is_lost_meanwhile_keeps_nobody_from_the_figures_of_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.store.create_topic("others")
    stage.create("items")
    stage.create("others")

    def lag(feed: TopicFeed) -> int:
        if feed.topic == "items":
            raise Closed("the feed is not open")
        return 0

    monkeypatch.setattr(TopicFeed, "lag", property(lag))
    text = exposition(stage.engine.metrics)
    assert 'varve_shapes_feed_lag_records{topic="others"} 0.0' in text
    assert 'varve_shapes_topic_ready{topic="items"} 0.0' in text
    assert 'records{topic="items"' not in text


def test_one_directory_has_one_engine(stage: Stage) -> None:
    with pytest.raises(Locked):
        stage._open()


def test_a_log_of_deletes_alone_is_given_up_for_a_new_snapshot(make_stage: StageMaker) -> None:
    stage = make_stage(compaction=CompactionSettings(resnapshot_entries=20))
    client = Follower(stage, "t")
    client.catch_up()
    for number in range(40):
        stage.put("t", f"k{number}", {"n": number})
        stage.put("t", f"k{number}", None)
    stage.put("t", "last", {"n": 1})
    client.catch_up()
    stage.engine.checkpoint_now()
    (shape,) = stage.engine.shapes()
    stage.engine.compact(shape)
    assert shape.drop_reason is DropReason.OUTGROWN
    assert client.catch_up() == {"last": {"key": "last", "n": 1}}
    (again,) = stage.engine.shapes()
    assert len(_messages(again)) == 2


def _samples(stage: Stage, name: str) -> dict[str, float]:
    lines = [line for line in exposition(stage.engine.metrics).splitlines() if line[0] != "#"]
    samples = dict(line.rsplit(" ", 1) for line in lines)
    return {key: float(value) for key, value in samples.items() if key.startswith(name)}


def _put(stage: Stage, *rows: Any) -> None:
    for row in rows:
        stage.put("items", "a", row)
    stage.settle("items")


def test_what_is_counted_rises_also_while_topics_come_and_go(stage: Stage) -> None:
    stage.create("items")
    stage.create("items", where="n = 2")
    _put(stage, {"n": 1}, {"n": 2}, {"n": 2}, None)
    assert _samples(stage, "varve_shapes_changes_total") == {
        'varve_shapes_changes_total{topic="items"}': 3
    }
    assert _samples(stage, "varve_shapes_entries_total") == {
        'varve_shapes_entries_total{topic="items"}': 5
    }
    for shape in stage.engine.shapes():
        stage.engine.drop(shape, DropReason.DELETED)
    for _ in range(3):
        stage.engine.run_maintenance()
    assert _samples(stage, "varve_shapes{") == {}
    stage.create("items")
    _put(stage, {"n": 5})
    assert _samples(stage, "varve_shapes_changes_total") == {
        'varve_shapes_changes_total{topic="items"}': 4
    }


def test_every_record_has_one_result(stage: Stage) -> None:
    stage.create("items")
    _put(stage, {"n": 1}, {"n": 1}, {"n": 2}, None, None)
    stage.store.topic("items").append(key=None, value=b"{}")
    stage.settle("items")
    records = _samples(stage, "varve_shapes_source_records_total")
    assert {key.split('result="')[1].split('"')[0] for key in records} == set(RESULTS)
    assert sum(records.values()) == 6
    assert "# TYPE varve_shapes_source_records_total counter" in exposition(stage.engine.metrics)
