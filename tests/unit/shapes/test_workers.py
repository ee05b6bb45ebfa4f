"""With its workers an engine goes on by itself: snapshots, changes, checkpoints, ends."""

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.shape_engine import Follower, Stage, StageMaker, wait_until
from varve.foundation.clock import SystemClock
from varve.foundation.errors import NotFound, OffsetOutOfRange, Unavailable
from varve.shapes import workers
from varve.shapes.definition import define
from varve.shapes.feed.decoders import Record
from varve.shapes.feed.initial_load import FullScan
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import DropReason
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.topics import UNUSED_ROUNDS
from varve.topics.store_cluster import StoreReader

PATIENCE_SECONDS = 20.0
WORKERS: dict[str, Any] = {"clock": SystemClock(), "maintain": True}
SETTINGS = EngineSettings(
    fetch_wait_ms=5, checkpoint_ms=20, maintenance_interval_ms=50, unflushed_rows_max=50
)


@pytest.fixture
def stage(make_stage: StageMaker) -> Stage:
    return make_stage(settings=SETTINGS, **WORKERS)


def _follow(client: Follower, expected: int) -> None:
    def has_all() -> bool:
        while client.step() and client.offset.tx >= 0:
            pass
        return sum(int(row["n"]) for row in client.rows.values()) == expected

    wait_until(has_all)


def test_waiting_shapes_are_served_together_and_their_listeners_told(stage: Stage) -> None:
    stage.put("t", "a", {"n": 1})
    reported: set[str] = set()
    lock = threading.Lock()

    def listen(handles: Collection[str]) -> None:
        with lock:
            reported.update(handles)

    stage.engine.subscribe(listen)
    shapes = [
        stage.engine.find_or_create(define("t", where=f"n = {number}")) for number in range(40)
    ]
    wait_until(lambda: all(shape.is_snapshot_complete for shape in shapes))
    wait_until(lambda: {shape.handle for shape in shapes} <= reported)


def test_one_definition_asked_for_by_many_threads_is_one_shape(stage: Stage) -> None:
    handles: list[str] = []

    def ask() -> None:
        handles.append(stage.engine.find_or_create(define("t")).handle)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(handles)) == 1


def test_shapes_of_a_topic_that_was_deleted_are_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "DELETED_MS", 200)
    shape = stage.engine.find_or_create(define("t"))
    wait_until(lambda: shape.is_snapshot_complete)
    stage.store.delete_topic("t")
    wait_until(lambda: shape.drop_reason is DropReason.SOURCE_LOST)
    wait_until(lambda: stage.engine.topics.all() == [])
    stage.store.create_topic("t")
    again = stage.engine.find_or_create(define("t"))
    wait_until(lambda: again.is_snapshot_complete or again.is_dropped)
    assert not again.is_dropped, (again.drop_reason, again.failure)
    assert again.handle != shape.handle


def test_shapes_outlive_a_broker_that_does_not_know_their_topic_for_a_moment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("t", "a", {"n": 1})
    client = Follower(stage, "t")
    _follow(client, 1)
    reader = stage.engine.topics.get("t").feed._reader
    with monkeypatch.context() as lagging:
        lagging.setattr(reader, "fetch", _not_found)
        wait_until(lambda: stage.engine.health() == "waiting")
        reported = stage.engine.topic_health("t")
        assert reported is not None
        assert reported.error == "there is no topic t; its shapes are dropped if that persists"
        lagging.setattr(reader, "offsets", _not_found)
        wait_until(lambda: not stage.engine.topics.get("t").is_ready)
    stage.put("t", "b", {"n": 2})
    _follow(client, 3)
    assert client.refetches == 0


def test_a_topic_is_not_gone_by_what_was_seen_before_it_was_read_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.engine.workers._lookups_ms["t"] = [0] * workers.DELETED_LOOKUPS
    with monkeypatch.context() as lagging:
        lagging.setattr(StoreReader, "offsets", _not_found)
        shape = stage.engine.find_or_create(define("t"))
        wait_until(lambda: shape.is_dropped or stage.engine.health() == "waiting")
    wait_until(lambda: shape.is_dropped or shape.is_snapshot_complete)
    assert not shape.is_dropped


def _not_found(*arguments: object, **options: object) -> None:
    raise NotFound("there is no topic t")


def test_a_topic_whose_feed_was_in_trouble_is_well_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _follow(Follower(stage, "t"), 0)
    reader = stage.engine.topics.get("t").feed._reader
    failing = threading.Event()

    def fail(*arguments: object, **options: object) -> None:
        failing.set()
        raise Unavailable("the broker is away")

    with monkeypatch.context() as trouble:
        trouble.setattr(reader, "fetch", fail)
        assert failing.wait(PATIENCE_SECONDS)
        wait_until(lambda: stage.engine.health() == "waiting")
        reported = stage.engine.topic_health("t")
        assert reported is not None
        assert reported.error == "the broker is away"
    wait_until(lambda: stage.engine.health() == "active")


def test_a_feed_that_does_not_stop_in_time_is_stopped_later(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STOP_TOPIC_MS", 20)
    stage = make_stage(
        None, settings=replace(SETTINGS, maintenance_interval_ms=3_600_000), **WORKERS
    )
    for name in ("slow", "unused", "used"):
        stage.store.create_topic(name)
        shape = stage.engine.find_or_create(define(name))
        wait_until(lambda shape=shape: shape.is_snapshot_complete)  # type: ignore[misc]
        if name != "used":
            stage.engine.drop(shape, DropReason.DELETED)
    reader = stage.engine.topics.get("slow").feed._reader
    entered, leave = threading.Event(), threading.Event()

    def read_slowly(*arguments: object, **options: object) -> dict[int, object]:
        entered.set()
        leave.wait(PATIENCE_SECONDS)
        return {}

    monkeypatch.setattr(reader, "fetch", read_slowly)
    assert entered.wait(PATIENCE_SECONDS)
    for _ in range(UNUSED_ROUNDS - 1):
        stage.engine.run_maintenance()
    with pytest.raises(Unavailable, match="shapes-feed-slow still runs"):
        stage.engine.run_maintenance()
    assert {item.topic for item in stage.engine.topics.all()} == {"slow", "used"}
    with pytest.raises(Unavailable, match="shapes-feed-slow still runs"):
        stage.engine.find_or_create(define("slow"))
    leave.set()
    again = stage.engine.find_or_create(define("slow"))
    wait_until(lambda: again.is_snapshot_complete)


def test_an_engine_stops_in_the_middle_of_a_filling(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()

    def read_slowly(state: FullScan) -> Iterator[Sequence[Record]]:
        while True:
            begun.set()
            release.wait(0.01)
            yield []

    monkeypatch.setattr(FullScan, "read", read_slowly)
    shape = stage.engine.find_or_create(define("t"))
    assert begun.wait(PATIENCE_SECONDS)
    assert stage.engine.health() == "starting"
    stage.close()
    assert not shape.is_snapshot_started


def test_a_topic_that_is_being_opened_holds_up_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "quick"):
        stage.store.create_topic(name)
        stage.put(name, "k0", {"n": 1})
    client = Follower(stage, "quick")
    _follow(client, 1)
    begun, release = threading.Event(), threading.Event()
    read = FullScan.read

    def read_slowly(state: FullScan) -> Iterator[Sequence[Record]]:
        begun.set()
        release.wait(2 * PATIENCE_SECONDS)
        yield from read(state)

    monkeypatch.setattr(FullScan, "read", read_slowly)
    slow = stage.engine.find_or_create(define("slow"))
    assert begun.wait(PATIENCE_SECONDS)
    count = 4 * SETTINGS.unflushed_rows_max
    for number in range(count):
        stage.put("quick", f"k{number}", {"n": number})
        if number % SETTINGS.unflushed_rows_max == 0:
            _follow(client, sum(range(number + 1)))
    _follow(client, sum(range(count)))
    assert not release.is_set()
    release.set()
    wait_until(lambda: slow.is_snapshot_complete)


def test_who_asks_while_a_lost_topic_is_opened_again_is_served(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("t", "a", {"n": 1})
    _follow(Follower(stage, "t"), 1)
    topic = stage.engine.topics.get("t")
    open_topic, reader = topic.open, topic.feed._reader
    read = reader.fetch
    asked = []

    def open_slowly() -> None:
        topic.needs_opening()
        asked.append(stage.engine.find_or_create(define("t", where="n = 1")))
        threading.Event().wait(0.1)
        open_topic()

    def lose(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(reader, "fetch", read)
        raise OffsetOutOfRange("the records are gone")

    monkeypatch.setattr(topic, "open", open_slowly)
    monkeypatch.setattr(reader, "fetch", lose)
    wait_until(lambda: bool(asked) and asked[0].is_snapshot_complete)
    assert len(asked) == 1


def test_a_topic_is_in_use_while_its_first_shape_gets_its_files(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(None, settings=replace(SETTINGS, fetch_wait_ms=200), **WORKERS)
    stage.store.create_topic("t")
    stage.put("t", "a", {"n": 1})
    create = ShapeStorage.create

    def run_maintenance() -> None:
        for _ in range(UNUSED_ROUNDS):
            stage.engine.run_maintenance()

    def create_slowly(*arguments: Any) -> ShapeStorage:
        monkeypatch.undo()
        maintenance = threading.Thread(target=run_maintenance)
        maintenance.start()
        wait_until(lambda: not maintenance.is_alive() or stage.engine.topics.all() == [])
        return create(*arguments)

    monkeypatch.setattr(ShapeStorage, "create", create_slowly)
    first, second = Follower(stage, "t"), Follower(stage, "t", where="n > 0")
    _follow(first, 1)
    _follow(second, 1)
    stage.put("t", "b", {"n": 2})
    _follow(second, 3)
    _follow(first, 3)
    stage.crash()
    stage.put("t", "c", {"n": 4})
    _follow(second, 7)
    _follow(first, 7)
    assert (first.refetches, second.refetches) == (0, 0)
