"""What an engine makes durable and when, and what it does with what a crash or a bad disk left.

Carries S4.
"""

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.shape_engine import Follower, Stage, StageMaker
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, DiskFull, NotFound, StoreError, Unavailable
from varve.shapes.checkpoint import REOPEN_MS
from varve.shapes.definition import define
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import BEFORE_ALL, LAST, SNAPSHOT_END
from varve.shapes.registry import FILE_NAME
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.layout import (
    FIRST_SUFFIX,
    SLOT_DISTANCE,
    find_slot,
    log_path,
    pointer_path,
    shape_directory,
)
from varve.shapes.storage.log_writer import LogFlush, ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage


def test_a_shape_whose_snapshot_was_not_complete_is_dropped_at_the_start(stage: Stage) -> None:
    shape = stage.engine.find_or_create(define("items"))
    stage.crash()
    assert stage.engine.find(shape.handle) is None
    assert stage.engine.shapes() == []


def test_a_directory_that_no_shape_owns_goes_to_the_trash(stage: Stage) -> None:
    kept = stage.create("items")
    handle = "99991111-1"
    ShapeStorage.create(
        stage.engine.fs, stage.engine.root, handle, kept.open().settings, stage.clock
    )
    stage.restart()
    stage.engine.run_maintenance()
    assert not (Path(stage.engine.root) / "99" / "99" / handle).exists()
    assert list((Path(stage.engine.root) / ".trash").iterdir()) == []
    assert stage.engine.shapes()[0].open().latest == SNAPSHOT_END


def test_a_shape_whose_files_are_gone_is_dropped_when_it_is_read(stage: Stage) -> None:
    handle = stage.create("items").handle
    stage.engine.close()
    (directory,) = Path(stage.engine.root).glob(f"*/*/{handle}")
    directory.rename(directory.with_name("elsewhere"))
    stage.engine = stage._open()
    shape = stage.engine.find(handle)
    assert shape is not None
    with pytest.raises(NotFound):
        shape.read(BEFORE_ALL, LAST)
    assert shape.drop_reason is DropReason.STORAGE_FAILED
    assert stage.create("items").handle != handle


def test_a_shape_that_cannot_be_flushed_is_dropped_and_holds_nobody_up_h17(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = stage.create("items", where="n < 9"), stage.create("items")
    stage.put("items", "a", {"n": 1})
    stage.settle("items")

    def fail() -> None:
        raise DiskFull("No space left on device")

    monkeypatch.setattr(bad.open(), "begin_flush", fail)
    stage.engine.checkpoint_now()
    assert bad.drop_reason is DropReason.STORAGE_FAILED
    stage.crash()
    assert [item.handle for item in stage.engine.shapes()] == [good.handle]
    assert stage.engine.run_turn("items") == 0, "the checkpoint did not move on"


def test_many_shapes_are_made_durable_together(stage: Stage) -> None:
    shapes = [stage.create("items", where=f"n > {number}") for number in range(40)]
    stage.settle("items")
    stage.put("items", "a", {"n": 100})
    stage.settle("items")
    stage.engine.checkpoint_now()
    stage.crash()
    assert stage.engine.run_turn("items") == 0, "the checkpoint did not move on"
    places = {shape.latest for shape in stage.engine.shapes()}
    assert (len(stage.engine.shapes()), len(places)) == (len(shapes), 1)
    assert places != {SNAPSHOT_END}


def test_the_table_is_written_only_behind_the_shapes_h16(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = stage.create("items")
    stage.engine.checkpoint_now()
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    order: list[str] = []
    storage, feed = shape.open(), stage.engine.topics.get("items").feed
    end_flush, checkpoint = storage.end_flush, feed.checkpoint

    def note_flush(flush: LogFlush) -> StoreError | None:
        order.append("shape")
        return end_flush(flush)

    def note_checkpoint(mark: int) -> None:
        order.append("table")
        checkpoint(mark)

    monkeypatch.setattr(storage, "end_flush", note_flush)
    monkeypatch.setattr(feed, "checkpoint", note_checkpoint)
    stage.engine.checkpoint_now()
    assert order == ["shape", "table"]


def test_what_was_polled_and_not_yet_given_is_not_in_a_checkpoint_h16(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("items")
    stage.engine.checkpoint_now()
    stage.put("items", "a", {"n": 1})
    topic = stage.engine.topics.get("items")
    seen: list[bool] = []
    distribute = topic._distribute

    def check_first(options: Any) -> list[str]:
        seen.append(topic.checkpoint.run())
        return distribute(options)

    monkeypatch.setattr(topic, "_distribute", check_first)
    stage.engine.run_turn("items")
    assert seen == [False]


def test_a_definition_that_cannot_be_read_is_dropped_at_the_start(stage: Stage) -> None:
    kept, lost = stage.create("items"), stage.create("items", where="n = 1")
    stage.engine.close()
    connection = sqlite3.connect(Path(stage.engine.root) / FILE_NAME)
    with connection:
        connection.execute("UPDATE shapes SET comparable = '{' WHERE handle = ?", (lost.handle,))
    connection.close()
    stage.engine = stage._open()
    assert [item.handle for item in stage.engine.shapes()] == [kept.handle]
    stage.engine.run_maintenance()
    assert not list(Path(stage.engine.root).glob(f"*/*/{lost.handle}"))
    assert list(Path(stage.engine.root).glob(f"*/*/{kept.handle}"))


def test_a_shape_whose_log_is_damaged_is_dropped_by_its_reader(stage: Stage) -> None:
    client = Follower(stage, "items")
    client.catch_up()
    for number in range(50):
        stage.put("items", "a", {"n": number})
    stage.settle("items")
    stage.restart()
    handle = stage.engine.shapes()[0].handle
    (path,) = Path(stage.engine.root).glob(f"*/*/{handle}/log/log.*.jsonfile.bin")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert client.catch_up() == {"a": {"key": "a", "n": 49}}
    assert client.refetches == 1
    assert stage.engine.find(handle) is None


@pytest.mark.parametrize(
    "settings", [EngineSettings(unflushed_rows_max=2), EngineSettings(unflushed_bytes_max=20)]
)
def test_a_topic_is_read_no_further_while_too_much_waits_for_a_checkpoint(
    make_stage: StageMaker, settings: EngineSettings
) -> None:
    stage = make_stage(settings=settings)
    stage.create("t")
    stage.engine.checkpoint_now()
    for key in ("a", "b", "c"):
        stage.put("t", key, {"n": 1})
    assert stage.engine.run_turn("t") == 3
    stage.put("t", "d", {"n": 1})
    assert stage.engine.run_turn("t") == 0
    stage.engine.checkpoint()
    assert stage.engine.run_turn("t") == 1


def _fail_first_append(monkeypatch: pytest.MonkeyPatch, fail: Callable[[Shape], None]) -> None:
    append, calls = Shape.append, 0

    def fail_at_the_first(shape: Shape, entries: list[ShapeEntry]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            fail(shape)
        append(shape, entries)

    monkeypatch.setattr(Shape, "append", fail_at_the_first)


def test_what_fails_in_one_shape_keeps_nothing_from_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Follower(stage, "items", where=f"n >= {number}") for number in range(3)]
    for client in clients:
        client.catch_up()
    stage.put("items", "a", {"n": 3})

    def fail(shape: Shape) -> None:
        raise ValueError("nobody foresaw this")

    _fail_first_append(monkeypatch, fail)
    assert stage.engine.run_turn("items") == 1
    for client in clients:
        assert client.catch_up() == {"a": {"key": "a", "n": 3}}
    assert sorted(client.refetches for client in clients) == [0, 0, 1]


def test_a_turn_in_which_a_shape_cannot_be_dropped_is_told_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Follower(stage, "items", where=f"n >= {number}") for number in range(3)]
    for client in clients:
        client.catch_up()
    stage.put("items", "a", {"n": 3})
    topic = stage.engine.topics.get("items")

    def fail(shape: Shape) -> None:
        stage.engine.drop(shape, DropReason.STORAGE_FAILED)
        raise ValueError("nobody foresaw this while it was dropped")

    _fail_first_append(monkeypatch, fail)
    with pytest.raises(ValueError, match="nobody"):
        stage.engine.run_turn("items")
    assert not topic.is_ready
    for client in clients:
        assert client.catch_up() == {"a": {"key": "a", "n": 3}}
    assert sorted(client.refetches for client in clients) == [0, 0, 1]


def _fail_table(stage: Stage, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(mark: int) -> None:
        raise DiskFull("No space left on device")

    monkeypatch.setattr(stage.engine.topics.get(topic).feed, "checkpoint", fail)


def test_a_table_that_cannot_be_written_holds_up_no_other_topic(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.store.create_topic("others")
    for topic in ("items", "others"):
        stage.create(topic)
        stage.put(topic, "a", {"n": 1})
        stage.settle(topic)
    _fail_table(stage, "items", monkeypatch)
    with pytest.raises(DiskFull):
        stage.engine.checkpoint_now()
    stage.crash()
    assert stage.engine.run_turn("others") == 0, "it was not durable"
    assert stage.engine.run_turn("items") == 1


def test_a_feed_that_is_lost_before_its_checkpoint_is_no_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Follower(stage, "items")
    client.catch_up()
    stage.put("items", "a", {"n": 1})
    assert stage.engine.run_turn("items") == 1

    def lose(feed: TopicFeed, mark: int) -> None:
        raise Closed("the feed of topic items is not open")

    with monkeypatch.context() as lost:
        lost.setattr(TopicFeed, "checkpoint", lose)
        stage.engine.checkpoint_now()
    stage.crash()
    assert stage.engine.run_turn("items") == 1, "it was not durable"
    assert client.catch_up() == {"a": {"key": "a", "n": 1}}


def test_a_topic_that_stands_still_for_its_table_says_so(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(settings=EngineSettings(unflushed_rows_max=2))
    client = Follower(stage, "t")
    client.catch_up()
    stage.engine.checkpoint_now()
    with monkeypatch.context() as failing:
        _fail_table(stage, "t", failing)
        for key in ("a", "b", "c"):
            stage.put("t", key, {"n": 1})
        assert stage.engine.run_turn("t") == 3
        assert stage.engine.run_turn("t") == 0, "a checkpoint is waited for"
        with pytest.raises(DiskFull):
            stage.engine.checkpoint()
        with pytest.raises(Unavailable, match="table cannot be written: No space"):
            stage.engine.run_turn("t")
    stage.engine.checkpoint()
    assert stage.engine.run_turn("t") == 0
    assert len(client.catch_up()) == 3


def test_a_table_that_goes_on_failing_is_opened_again(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    stage = make_stage(clock=clock)
    client = Follower(stage, "t")
    client.catch_up()
    stage.put("t", "a", {"n": 1})
    topic = stage.engine.topics.get("t")
    with monkeypatch.context() as failing:
        _fail_table(stage, "t", failing)
        for is_ready in (True, False):
            with pytest.raises(DiskFull):
                stage.engine.checkpoint_now()
            assert topic.is_ready == is_ready
            clock.advance(REOPEN_MS)
    assert client.catch_up() == {"a": {"key": "a", "n": 1}}
    stage.engine.checkpoint_now()
    assert client.refetches == 0


@pytest.mark.parametrize("name", ["open", "read", "chunk_end"])
def test_a_shape_whose_files_cannot_be_read_now_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stage.put("items", "a", {"n": 1})
    client = Follower(stage, "items")
    client.catch_up()
    stage.restart()
    (shape,) = stage.engine.shapes()

    def fail(*options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "manifest.json")

    with monkeypatch.context() as failing:
        failing.setattr(ShapeStorage, name, fail)
        with pytest.raises(Unavailable, match=r"Permission denied: 'manifest\.json'"):
            shape.chunk_end(BEFORE_ALL) if name == "chunk_end" else shape.read(BEFORE_ALL, LAST)
    stage.put("items", "b", {"n": 2})
    assert sorted(client.catch_up()) == ["a", "b"]
    assert client.refetches == 0


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


@pytest.mark.parametrize("is_opened_first", [False, True])
@pytest.mark.parametrize("damage", ["old pointer", "torn pointer and log"])
def test_a_shape_with_less_than_the_table_is_dropped(
    stage: Stage, damage: str, *, is_opened_first: bool
) -> None:
    client, other = Follower(stage, "items"), Follower(stage, "items", where="n >= 0")
    pointers, sizes = [], []
    for one in (client, other):
        one.catch_up()
    for number in range(3):
        stage.put("items", f"k{number}", {"n": number})
        for one in (client, other):
            one.catch_up()
        stage.engine.checkpoint_now()
        directory = shape_directory(stage.engine.root, client.handle or "")
        pointers.append(Path(pointer_path(directory)).read_bytes())
        sizes.append(Path(log_path(directory, FIRST_SUFFIX)).stat().st_size)
    stage.engine.close()
    if damage == "old pointer":
        Path(pointer_path(directory)).write_bytes(pointers[1])
    else:
        newest = find_slot(pointers[2])
        is_second = newest is None or newest[1].tx < 3
        start = SLOT_DISTANCE if is_second else 0
        Path(pointer_path(directory)).write_bytes(
            pointers[2][:start] + b"\xff" * 24 + pointers[2][start + 24 :]
        )
        with Path(log_path(directory, FIRST_SUFFIX)).open("r+b") as log:
            log.seek(sizes[1])
            log.write(bytes(sizes[2] - sizes[1]))
    stage.engine = stage._open()
    if not is_opened_first:
        stage.settle("items")
    expected = {f"k{number}": {"key": f"k{number}", "n": number} for number in range(3)}
    assert (client.catch_up(), other.catch_up()) == (expected, expected)
    assert (client.refetches, other.refetches) == (1, 0)
