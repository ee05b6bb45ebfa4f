"""Shapes in one process: a store, an engine, and clients that follow.

Carries S5 and S6.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Follower, Stage
from varve.foundation.errors import Closed, DiskFull, Locked, NotFound, StoreError, Unavailable
from varve.foundation.metrics import exposition
from varve.shapes.compaction.settings import CompactionSettings
from varve.shapes.definition import define
from varve.shapes.health import EngineHealth, TopicHealth
from varve.shapes.offset import BEFORE_ALL, LAST, SNAPSHOT_END
from varve.shapes.query.subset import Subset
from varve.shapes.registry import FILE_NAME
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.log_flush import LogFlush
from varve.shapes.storage.storage import ShapeStorage


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as made:
        yield made


@pytest.fixture
def stage(path: Path) -> Iterator[Stage]:
    made = Stage(path)
    made.store.create_topic("items")
    yield made
    made.close()


def _messages(shape: Shape) -> list[dict[str, Any]]:
    pieces = [*shape.read(BEFORE_ALL, LAST)]
    found: list[dict[str, Any]] = json.loads(b"[" + b",".join(pieces) + b"]")
    return found


def test_a_client_gets_the_rows_and_then_the_changes(stage: Stage) -> None:
    stage.put("items", "a", {"n": 1})
    stage.put("items", "b", {"n": 2})
    client = Follower(stage, "items")
    assert client.catch_up() == {"a": {"key": "a", "n": 1}, "b": {"key": "b", "n": 2}}
    stage.put("items", "a", {"n": 3})
    stage.put("items", "b", None)
    stage.put("items", "c", {"n": 4})
    assert client.catch_up() == {"a": {"key": "a", "n": 3}, "c": {"key": "c", "n": 4}}
    assert client.refetches == 0


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


def test_rows_that_enter_and_leave_a_filter_are_inserted_and_deleted(stage: Stage) -> None:
    shape = stage.create("items", where="n > 1")
    for n in (1, 2, 3, 1):
        stage.put("items", "a", {"n": n})
    stage.settle("items")
    operations = [one["headers"].get("operation") for one in _messages(shape)]
    assert operations == [None, "insert", "update", "delete"]


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
    assert [one.handle for one in stage.engine.shapes()] == [again.handle]


def test_the_latest_place_does_not_go_back_when_the_shape_is_dropped_h19(stage: Stage) -> None:
    shape = stage.create("items")
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    latest = shape.latest
    assert not latest.is_virtual
    stage.engine.drop(shape, DropReason.DELETED)
    assert shape.latest == latest


def test_listeners_are_told_of_snapshots_changes_and_ends(stage: Stage) -> None:
    told: list[list[str]] = []
    end = stage.engine.subscribe(lambda handles: told.append(sorted(handles)))
    shape = stage.create("items")
    other = stage.create("items", where="n = 7")
    told.clear()
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    assert told == [[shape.handle]]
    stage.engine.drop(other, DropReason.DELETED)
    assert told[-1] == [other.handle]
    end()
    stage.put("items", "a", {"n": 2})
    stage.settle("items")
    assert len(told) == 2


def test_changes_survive_a_crash_behind_a_checkpoint_and_come_again_before_one(
    stage: Stage,
) -> None:
    client = Follower(stage, "items")
    client.catch_up()
    stage.put("items", "a", {"n": 1})
    client.catch_up()
    stage.engine.checkpoint_now()
    stage.put("items", "a", {"n": 2})
    assert client.catch_up() == {"a": {"key": "a", "n": 2}}
    offset = client.offset
    stage.crash()
    stage.put("items", "b", {"n": 3})
    assert client.catch_up() == {"a": {"key": "a", "n": 2}, "b": {"key": "b", "n": 3}}
    assert client.offset > offset
    assert client.refetches == 0


def test_a_shape_whose_snapshot_was_not_complete_is_dropped_at_the_start(stage: Stage) -> None:
    shape = stage.engine.find_or_create(define("items"))
    stage.crash()
    assert stage.engine.find(shape.handle) is None
    assert stage.engine.shapes() == []


def test_a_directory_that_no_shape_owns_goes_to_the_trash(stage: Stage) -> None:
    kept = stage.create("items")
    handle = "99991111-1"
    ShapeStorage.create(
        stage.engine._fs, stage.engine.root, handle, kept.open().settings, stage.clock
    )
    stage.restart()
    stage.engine.run_upkeep(0)
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

    monkeypatch.setattr(bad.open()._log, "begin_flush", fail)
    stage.engine.checkpoint_now()
    assert bad.drop_reason is DropReason.STORAGE_FAILED
    stage.crash()
    assert [one.handle for one in stage.engine.shapes()] == [good.handle]
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
    storage, feed = shape.open(), stage.engine._topics.get("items").feed
    end_flush, checkpoint = storage._log.end_flush, feed.checkpoint

    def note_flush(flush: LogFlush) -> StoreError | None:
        order.append("shape")
        return end_flush(flush)

    def note_checkpoint(mark: int) -> None:
        order.append("table")
        checkpoint(mark)

    monkeypatch.setattr(storage._log, "end_flush", note_flush)
    monkeypatch.setattr(feed, "checkpoint", note_checkpoint)
    stage.engine.checkpoint_now()
    assert order == ["shape", "table"]


def test_what_was_polled_and_not_yet_given_is_not_in_a_checkpoint_h16(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("items")
    stage.engine.checkpoint_now()
    stage.put("items", "a", {"n": 1})
    topic = stage.engine._topics.get("items")
    seen: list[bool] = []
    distribute = topic._distribute

    def check_first(given: Any) -> list[str]:
        seen.append(topic.checkpoint(stage.engine._pool))
        return distribute(given)

    monkeypatch.setattr(topic, "_distribute", check_first)
    stage.engine.run_turn("items")
    assert seen == [False]


def test_with_too_many_shapes_the_least_recently_read_goes(path: Path) -> None:
    stage = Stage(path, settings=EngineSettings(shapes_max=2))
    stage.store.create_topic("t")
    first, second = stage.create("t", where="n = 1"), stage.create("t", where="n = 2")
    with pytest.raises(Unavailable, match=r"shapes\.max"):
        stage.create("t", where="n = 3")
    list(second.read(BEFORE_ALL, LAST))
    list(first.read(BEFORE_ALL, LAST))
    stage.create("t", where="n = 3")
    assert second.drop_reason is DropReason.EVICTED
    assert not first.is_dropped
    stage.close()


def test_a_topic_whose_records_went_before_they_were_read_drops_its_shapes(stage: Stage) -> None:
    client = Follower(stage, "items")
    stage.put("items", "a", {"n": 1})
    client.catch_up()
    stage.engine.close()
    stage.put("items", "b", {"n": 2})
    stage.put("items", "c", {"n": 3})
    stage.store.topic("items").delete_records(before=2, partition=0)
    stage.engine = stage._open()
    assert client.catch_up() == {"c": {"key": "c", "n": 3}}
    assert client.refetches == 1


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


def test_ten_thousand_rows_come_in_several_chunks_of_a_snapshot(path: Path) -> None:
    stage = Stage(path, settings=EngineSettings(chunk_bytes=100_000))
    stage.store.create_topic("t")
    stage.store.topic("t").append_many(
        [(f"k{number}".encode(), b'{"n":%d}' % number) for number in range(10_000)]
    )
    client = Follower(stage, "t")
    assert len(client.catch_up()) == 10_000
    last_chunk = stage.engine.shapes()[0].open().snapshot.last_chunk
    assert last_chunk is not None
    assert last_chunk > 5
    stage.close()


def test_a_compaction_is_reported_and_changes_nothing_for_clients(path: Path) -> None:
    stage = Stage(
        path,
        settings=EngineSettings(chunk_bytes=2000),
        compaction=CompactionSettings(keep_chunks=0),
    )
    stage.store.create_topic("t")
    early, late = Follower(stage, "t"), Follower(stage, "t")
    early.catch_up()
    for number in range(200):
        stage.put("t", "a", {"n": number})
        if number == 100:
            early.catch_up()
    stage.settle("t")
    stage.engine.checkpoint_now()
    (shape,) = stage.engine.shapes()
    before = sum(map(len, shape.read(BEFORE_ALL, LAST)))
    report = stage.engine.compact(shape)
    assert report.outcome == "done"
    assert sum(map(len, shape.read(BEFORE_ALL, LAST))) < before / 5
    assert early.catch_up() == late.catch_up() == {"a": {"key": "a", "n": 199}}
    assert early.refetches == 0
    stage.close()


def test_health_and_metrics_tell_of_topics(stage: Stage) -> None:
    stage.engine.find_or_create(define("items"))
    assert stage.engine.health().status == "starting"
    stage.settle("items")
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    assert stage.engine.health() == EngineHealth("active", [TopicHealth("items", True, "")])
    assert stage.engine.newest_tx("items") == 1
    assert stage.engine.is_caught_up("items")
    text = exposition(stage.engine.metrics)
    assert 'varve_shapes{topic="items"} 1.0' in text
    assert 'varve_shapes_entries{topic="items"} 1.0' in text


def test_one_directory_has_one_engine(stage: Stage) -> None:
    with pytest.raises(Locked):
        stage._open()


def test_a_closed_engine_makes_no_shapes(path: Path) -> None:
    stage = Stage(path)
    stage.store.create_topic("t")
    stage.close()
    with pytest.raises(Closed):
        stage.engine.find_or_create(define("t"))


def test_a_feed_that_nobody_needs_is_closed_and_used_again(stage: Stage) -> None:
    shape = stage.create("items")
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    stage.engine.drop(shape, DropReason.DELETED)
    stage.engine.run_upkeep(0)
    stage.engine.run_upkeep(0)
    assert stage.engine.health().topics == []
    stage.put("items", "b", {"n": 2})
    assert sorted(Follower(stage, "items").catch_up()) == ["a", "b"]


def test_a_shape_made_while_its_topic_goes_is_dropped_by_upkeep(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine
    stage.put("items", "a", {"n": 1})
    stage.create("items")

    def lose_topic() -> None:
        engine._dropping.topic_gone(engine._topics.get("items"))

    monkeypatch.setattr(engine, "_make_room", lose_topic)
    late = engine.find_or_create(define("items", where="n = 1"))
    monkeypatch.undo()
    assert not late.is_dropped
    engine.run_upkeep(0)
    assert late.drop_reason is DropReason.SOURCE_LOST
    assert sorted(Follower(stage, "items", where="n = 1").catch_up()) == ["a"]


def test_a_log_of_deletes_alone_is_given_up_for_a_new_snapshot(path: Path) -> None:
    stage = Stage(path, compaction=CompactionSettings(excess_entries=20))
    stage.store.create_topic("t")
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
    stage.close()


def test_a_definition_that_cannot_be_read_is_dropped_at_the_start(stage: Stage) -> None:
    kept, lost = stage.create("items"), stage.create("items", where="n = 1")
    stage.engine.close()
    connection = sqlite3.connect(Path(stage.engine.root) / FILE_NAME)
    with connection:
        connection.execute("UPDATE shapes SET comparable = '{' WHERE handle = ?", (lost.handle,))
    connection.close()
    stage.engine = stage._open()
    assert [one.handle for one in stage.engine.shapes()] == [kept.handle]
    stage.engine.run_upkeep(0)
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
    "settings", [EngineSettings(pending_rows_max=2), EngineSettings(pending_bytes_max=20)]
)
def test_a_topic_is_read_no_further_while_too_much_waits_for_a_checkpoint(
    path: Path, settings: EngineSettings
) -> None:
    stage = Stage(path, settings=settings)
    stage.store.create_topic("t")
    stage.create("t")
    stage.engine.checkpoint_now()
    for key in ("a", "b", "c"):
        stage.put("t", key, {"n": 1})
    assert stage.engine.run_turn("t") == 3
    stage.put("t", "d", {"n": 1})
    assert stage.engine.run_turn("t") == 0
    stage.engine.checkpoint()
    assert stage.engine.run_turn("t") == 1
    stage.close()


def test_rows_are_right_when_records_went_between_crash_and_restart(path: Path) -> None:
    stage = Stage(path)
    stage.store.create_topic("t", settings={"cleanup.policy": "compact"})
    live = Follower(stage, "t", where="n < 5")
    stage.put("t", "a", {"n": 1})
    stage.put("t", "b", {"n": 1})
    live.catch_up()
    stage.engine.checkpoint_now()
    for key, n in (("a", 9), ("a", 2), ("b", 3), ("b", 9), ("c", 1), ("a", 3)):
        stage.put("t", key, {"n": n})
    assert sorted(live.catch_up()) == ["a", "c"]
    stage.engine.abandon()
    stage.put("t", "end", {"n": 9})
    stage.store.clean("t", roll=True, at_once=True)
    stage.engine = stage._open()
    wanted = {"a": {"key": "a", "n": 3}, "c": {"key": "c", "n": 1}}
    assert live.catch_up() == wanted
    assert live.refetches == 0
    assert Follower(stage, "t", where="n < 5").catch_up() == wanted
    feed = stage.engine._topics.get("t").feed
    assert feed.counts.uncertain > 0
    stage.close()
