"""Nobody waits for a snapshot for ever: it comes, or it is told why it does not."""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.shape_engine import Follower, Stage
from varve.foundation.errors import Closed, NotFound, Unavailable
from varve.shapes.definition import define
from varve.shapes.feed.row import Row
from varve.shapes.feed.table import TableView
from varve.shapes.offset import BEFORE_ALL, FIRST_CHUNK, ShapeOffset
from varve.shapes.registry import ShapeRegistry
from varve.shapes.shape import DropReason, Shape
from varve.shapes.snapshotting import Snapshotter
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.storage.snapshot import SnapshotWriter
from varve.shapes.topic import ShapeTopic


def _fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException
) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def fail(*options: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        raise error

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ShapeStorage, "create"),
        (SnapshotWriter, "__init__"),
        (SnapshotWriter, "add"),
        (SnapshotWriter, "finish"),
        (ShapeRegistry, "complete"),
        (Shape, "snapshot_complete"),
    ],
)
def test_what_nobody_foresaw_fails_who_waits_and_nobody_who_comes_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    stage.put("items", "a", {"n": 1})
    stage.create("items", where="n = 9")
    shapes = [stage.engine.find_or_create(define("items", where=f"n >= {at}")) for at in (0, 1)]
    _fail_once(monkeypatch, owner, name, ValueError("nobody foresaw this"))
    stage.engine.run_turn("items")
    failed = [shape for shape in shapes if not shape.is_snapshot_complete]
    assert failed
    for shape in failed:
        assert shape.drop_reason is DropReason.SNAPSHOT_FAILED
        assert isinstance(shape.failure, Unavailable)
        assert "nobody foresaw this" in str(shape.failure)
    for at in (0, 1):
        assert sorted(Follower(stage, "items", where=f"n >= {at}").catch_up()) == ["a"]


def _fill(stage: Stage) -> list[Shape]:
    """Some shapes of few rows that wait, of a topic of so many that they are shown on the way."""
    stage.store.topic("items").append_many(
        [(b"k%d" % number, b'{"n":%d}' % number) for number in range(5000)]
    )
    stage.create("items", where="n < 0")
    return [stage.engine.find_or_create(define("items", where=f"n < {at}")) for at in (1, 2, 3)]


def test_a_shape_that_is_dropped_while_it_is_shown_fails_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = _fill(stage)
    gone: list[Shape] = []
    flush = SnapshotWriter.flush

    def drop_first(writer: SnapshotWriter) -> None:
        if not gone:
            gone.extend(item for item in shapes if item.open().snapshot is writer._snapshot)
            stage.engine.drop(gone[0], DropReason.DELETED)
        flush(writer)

    monkeypatch.setattr(SnapshotWriter, "flush", drop_first)
    stage.engine.run_turn("items")
    assert len(gone) == 1
    assert gone[0].drop_reason is DropReason.DELETED
    assert [item.is_snapshot_complete for item in shapes if item is not gone[0]] == [True, True]


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Shape, "open", NotFound("it was dropped")),
        (SnapshotWriter, "__init__", Unavailable("try again")),
        (SnapshotWriter, "add", OSError(errno.ENOSPC, "No space left on device")),
        (SnapshotWriter, "flush", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_what_a_disk_does_to_one_snapshot_fails_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
) -> None:
    shapes = _fill(stage)
    _fail_once(monkeypatch, owner, name, error)
    stage.engine.run_turn("items")
    assert sorted(item.is_snapshot_complete for item in shapes) == [False, True, True]
    (failed,) = [item for item in shapes if not item.is_snapshot_complete]
    assert failed.drop_reason is DropReason.SNAPSHOT_FAILED


def test_a_scan_ends_with_its_topic(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = _fill(stage)
    topic = stage.engine.topics.get("items")
    read: list[str] = []
    rows = TableView.rows

    def end_on_the_way(view: TableView) -> Iterator[tuple[str, Row]]:
        for item in rows(view):
            topic.end_turns()
            read.append(item[0])
            yield item

    monkeypatch.setattr(TableView, "rows", end_on_the_way)
    assert stage.engine.snapshotter.run(topic) == 0
    assert 0 < len(read) < 5000
    assert not any(shape.is_snapshot_complete for shape in shapes)
    monkeypatch.undo()
    stage.restart()
    assert len(Follower(stage, "items", where="n < 3").catch_up()) == 3


def test_an_end_in_the_middle_lets_the_next_one_serve(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("items", where="n = 9")
    stage.engine.find_or_create(define("items"))
    _fail_once(monkeypatch, Snapshotter, "_serve", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        stage.engine.run_turn("items")
    shape = stage.engine.find_or_create(define("items", where="n = 1"))
    stage.engine.run_turn("items")
    assert shape.is_snapshot_complete


def test_who_has_not_joined_a_topic_that_is_lost_waits_for_it_to_be_opened_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("items", "a", {"n": 1})
    stage.create("items", where="n = 9")
    topic = stage.engine.topics.get("items")
    shape = stage.engine.find_or_create(define("items"))

    def lose(self: ShapeTopic, shapes: object) -> None:
        monkeypatch.undo()
        topic.feed.close()
        topic.needs_opening()
        raise Closed("the feed is not open")

    monkeypatch.setattr(ShapeTopic, "join", lose)
    assert stage.engine.snapshotter.run(topic) == 0
    assert not shape.is_dropped
    assert stage.engine.snapshotter.run(topic) == 0, "the topic is not open"
    stage.engine.run_turn("items")
    assert shape.is_snapshot_complete
    assert sorted(Follower(stage, "items").catch_up()) == ["a"]


def test_who_reads_a_snapshot_that_is_given_up_is_told_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.store.topic("items").append_many(
        [(b"k%d" % number, b'{"n":%d}' % number) for number in range(5000)]
    )
    stage.create("items", where="n < 0")
    shape = stage.engine.find_or_create(define("items"))
    pieces: list[Any] = []

    def begin_reading(snapshotter: Snapshotter, shapes: object) -> None:
        pieces.append(shape.read(BEFORE_ALL, FIRST_CHUNK))
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(Snapshotter, "publish", begin_reading)
    stage.engine.run_turn("items")
    assert shape.is_dropped
    with pytest.raises(Unavailable, match="given up"):
        list(pieces[0])


def test_the_shapes_of_one_scan_are_complete_together(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync of the registry is waited for by all topics."""
    shapes = [stage.engine.find_or_create(define("items", where=f"n = {at}")) for at in range(5)]
    noted: list[set[str]] = []
    complete = ShapeRegistry.complete

    def note(registry: ShapeRegistry, starts: dict[str, ShapeOffset]) -> None:
        noted.append(set(starts))
        complete(registry, starts)

    monkeypatch.setattr(ShapeRegistry, "complete", note)
    stage.engine.run_turn("items")
    assert noted == [{shape.handle for shape in shapes}]
    assert all(shape.is_snapshot_complete for shape in shapes)
