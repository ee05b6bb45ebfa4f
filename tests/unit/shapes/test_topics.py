"""A topic is read from the first shape asked for to a while after the last, by one feed."""

import threading

import pytest

from tests.support.shape_engine import Follower, Stage, StageMaker
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.shapes.definition import define
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.shape import DropReason, Shape
from varve.shapes.topics import LOOKUP_INTERVAL_MS

PATIENCE_SECONDS = 20.0


def test_a_shape_made_while_its_topic_goes_is_dropped_by_upkeep(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine
    stage.put("items", "a", {"n": 1})
    stage.create("items")

    def lose_topic() -> None:
        engine.topics.handle_deleted(engine.topics.get("items"))

    monkeypatch.setattr(engine.eviction, "make_room", lose_topic)
    late = engine.find_or_create(define("items", where="n = 1"))
    monkeypatch.undo()
    assert not late.is_dropped
    engine.run_maintenance()
    assert late.drop_reason is DropReason.SOURCE_LOST
    assert sorted(Follower(stage, "items", where="n = 1").catch_up()) == ["a"]


def test_a_topic_that_is_found_and_cannot_be_opened_is_not_looked_for_again_and_again(
    make_stage: StageMaker,
) -> None:
    clock = ManualClock()
    stage = make_stage(clock=clock)
    engine = stage.engine
    engine.find_or_create(define("t"))
    engine.topics.handle_deleted(engine.topics.get("t"))
    with pytest.raises(Unavailable, match="topic t was deleted"):
        engine.find_or_create(define("t"))
    clock.advance(LOOKUP_INTERVAL_MS)
    assert not engine.find_or_create(define("t")).is_dropped


def test_who_waits_for_a_broker_holds_up_nobody_who_asks_for_another_topic(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, make_feed = stage.engine, stage.make_feed
    stage.store.create_topic("slow")
    asked, answer = threading.Event(), threading.Event()

    def make_slowly(topic: str) -> TopicFeed:
        if topic == "slow":
            asked.set()
            answer.wait(3 * PATIENCE_SECONDS)
        return make_feed(topic)

    monkeypatch.setattr(engine, "open_feed", make_slowly)
    created: dict[str, Shape] = {}

    def ask(topic: str) -> None:
        created[topic] = engine.find_or_create(define(topic))

    threads = [threading.Thread(target=ask, args=[topic]) for topic in ("slow", "items")]
    threads[0].start()
    assert asked.wait(PATIENCE_SECONDS)
    threads[1].start()
    threads[1].join(PATIENCE_SECONDS)
    is_held_up = threads[1].is_alive()
    answer.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not is_held_up
    assert sorted(created) == ["items", "slow"]
    stage.settle("slow")
    assert created["slow"].is_snapshot_complete


def test_a_topic_that_two_ask_for_at_once_is_connected_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine
    feeds: list[TopicFeed] = []
    closed: list[TopicFeed] = []
    created: list[Shape] = []

    def make_feed(topic: str) -> TopicFeed:
        feed = stage.make_feed(topic)
        feeds.append(feed)
        if len(feeds) == 1:
            created.append(engine.find_or_create(define("items", where="n = 1")))
        return feed

    close = TopicFeed.close

    def note_close(feed: TopicFeed) -> None:
        closed.append(feed)
        close(feed)

    monkeypatch.setattr(engine, "open_feed", make_feed)
    monkeypatch.setattr(TopicFeed, "close", note_close)
    created.append(engine.find_or_create(define("items")))
    assert closed == feeds[:1]
    assert engine.topics.get("items").feed is feeds[1]
    stage.settle("items")
    assert [item.is_snapshot_complete for item in created] == [True, True]
