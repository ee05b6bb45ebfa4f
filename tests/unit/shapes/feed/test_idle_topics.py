"""A topic that nobody writes to is read to its end all the same.

Carries S4.
"""

from tests.support.shape_engine import Follower, StageMaker
from varve.foundation.clock import ManualClock


def test_a_crash_after_a_long_silence_sends_nobody_back(make_stage: StageMaker) -> None:
    clock = ManualClock()
    stage = make_stage(None, clock=clock)
    settings: dict[str, str | int] = {"cleanup.policy": "compact", "delete.retention.ms": 100_000}
    stage.store.create_topic("t", settings=settings)
    stage.put("t", "a", {"n": 0})
    client = Follower(stage, "t")
    client.catch_up()
    for _ in range(5):
        clock.advance(60_000)
        stage.engine.run_turn("t")
        stage.engine.checkpoint()
    stage.engine.abandon()
    for number in range(3):
        stage.put("t", "b", {"n": number})
    stage.store.clean("t", roll=True, at_once=True)
    stage.crash()
    assert client.catch_up().keys() == {"a", "b"}
    assert client.refetches == 0


def test_a_clock_set_back_holds_no_checkpoint_up(make_stage: StageMaker) -> None:
    clock = ManualClock()
    stage = make_stage(clock=clock)
    client = Follower(stage, "t")
    client.catch_up()
    stage.engine.checkpoint()
    clock.advance(-3_600_000)
    stage.put("t", "a", {"n": 1})
    stage.engine.run_turn("t")
    feed = stage.engine.topics.get("t").feed
    assert feed.unflushed_rows == 1
    stage.engine.checkpoint()
    assert feed.unflushed_rows == 0
