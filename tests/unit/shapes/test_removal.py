"""Shapes are dropped for good on a disk that fails, and in nobody's way.

Carries S1.
"""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shape_engine import Follower, Stage, StageMaker
from varve.foundation.clock import ManualClock
from varve.foundation.errors import NotFound, Unavailable
from varve.shapes.definition import define
from varve.shapes.registry import ShapeRegistry
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.layout import list_handles
from varve.shapes.storage.log_writer import LogRemainderCopy
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

FULL = OSError(errno.ENOSPC, "No space left on device")
LARGE = {"n": 1, "text": "x" * 200_000}
"""More than the buffer of a log: it is written with the turn that tells it."""


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(ManualClock())


@pytest.fixture
def stage(path: Path, files: FaultyFileSystem) -> Iterator[Stage]:
    created = Stage(path, files=files, settings=EngineSettings(chunk_bytes=50_000))
    created.store.create_topic("items")
    yield created
    created.close()


def _directory(shape: Shape) -> str:
    storage = shape.find_storage()
    assert storage is not None
    return storage.directory


def _mend(files: FaultyFileSystem, directory: str) -> None:
    del files._plan.broken_paths[directory]


def _fail_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(registry: ShapeRegistry, handles: object) -> None:
        raise Unavailable("registry: disk I/O error")

    monkeypatch.setattr(ShapeRegistry, "remove", fail)


def test_a_shape_whose_files_can_be_neither_written_nor_moved_takes_nothing_from_others(
    stage: Stage, files: FaultyFileSystem
) -> None:
    clients = [Follower(stage, "items", where=f"n >= {number}") for number in range(-5, 1)]
    for client in clients:
        client.catch_up()
    bad = stage.engine.shapes()[2]
    directory = _directory(bad)
    files.fail_under(directory, FULL)
    stage.put("items", "a", LARGE)
    stage.engine.run_turn("items")
    assert bad.drop_reason is DropReason.STORAGE_FAILED
    others = [client for client in clients if client.handle != bad.handle]
    for client in others:
        assert client.catch_up()["a"]["text"] == LARGE["text"]
    assert [client.refetches for client in others] == [0] * 5
    stage.engine.checkpoint_now()
    with pytest.raises(OSError, match="No space"):
        stage.engine.run_maintenance()
    _mend(files, directory)
    stage.engine.run_maintenance()
    assert not files.exists(directory)


def test_rounds_of_maintenance_take_turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that delete the same directory would each miss what the other deleted."""
    began, goes_on = threading.Event(), threading.Event()
    count = 0

    def clean_up() -> None:
        nonlocal count
        count += 1
        began.set()
        goes_on.wait(10)

    monkeypatch.setattr(stage.engine.removal, "clean_up", clean_up)
    rounds = [threading.Thread(target=stage.engine.run_maintenance) for _ in range(2)]
    rounds[0].start()
    assert began.wait(10)
    rounds[1].start()
    rounds[1].join(0.1)
    assert count == 1
    goes_on.set()
    for one in rounds:
        one.join(10)
    assert count == 2


def test_a_shape_that_is_kept_by_registry_and_disk_holds_up_the_table(
    stage: Stage, files: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash it would be taken up again, and never be told what the table has by then."""
    client = Follower(stage, "items")
    client.catch_up()
    stage.engine.checkpoint_now()
    bad = stage.engine.shapes()[0]
    directory = _directory(bad)
    files.fail_under(directory, FULL)
    with monkeypatch.context() as failing:
        _fail_registry(failing)
        stage.put("items", "a", LARGE)
        stage.engine.run_turn("items")
        assert bad.is_dropped
        with pytest.raises(Unavailable, match="disk I/O"):
            stage.engine.checkpoint_now()
        _mend(files, directory)
        stage.crash()
        assert client.catch_up()["a"]["text"] == LARGE["text"], "the crash came before the table"
        again = stage.engine.shapes()[0]
        assert again.handle == bad.handle
        files.fail_under(directory, FULL)
        stage.put("items", "b", LARGE)
        stage.engine.run_turn("items")
        assert again.is_dropped
    stage.engine.checkpoint_now()
    stage.crash()
    assert stage.engine.find(bad.handle) is None
    _mend(files, directory)
    assert sorted(client.catch_up()) == ["a", "b"]
    assert client.refetches == 1


def test_a_shape_that_holds_up_its_table_holds_up_no_other_and_is_told_of(
    make_stage: StageMaker, files: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(None, files=files, settings=EngineSettings(unflushed_rows_max=1))
    for topic in ("items", "others"):
        stage.store.create_topic(topic)
        stage.create(topic)
        stage.engine.checkpoint_now()
    (bad,) = [item for item in stage.engine.shapes() if item.definition.topic == "items"]
    directory = _directory(bad)
    files.fail_under(directory, FULL)
    with monkeypatch.context() as failing:
        _fail_registry(failing)
        for topic in ("items", "others"):
            stage.put(topic, "a", LARGE)
            stage.engine.run_turn(topic)
        assert bad.is_dropped
        with pytest.raises(Unavailable, match="disk I/O"):
            stage.engine.checkpoint_now()
        stage.put("others", "b", LARGE)
        assert stage.engine.run_turn("others") == 1, "its table was not written"
        with pytest.raises(Unavailable, match=r"topic items is not read further.*disk I/O"):
            stage.engine.run_turn("items")
    _mend(files, directory)


def test_the_trash_is_made_while_there_is_room_for_it(stage: Stage) -> None:
    assert stage.engine.fs.exists(f"{stage.engine.root}/.trash")


def test_a_shape_that_is_kept_by_the_registry_alone_finds_no_files(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Follower(stage, "items")
    client.catch_up()
    shape = stage.engine.shapes()[0]
    with monkeypatch.context() as failing:
        _fail_registry(failing)
        stage.engine.drop(shape, DropReason.DELETED)
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    stage.engine.checkpoint_now()
    stage.crash()
    assert client.catch_up() == {"a": {"key": "a", "n": 1}}
    assert client.refetches == 1


def test_files_are_gone_for_good_where_the_registry_keeps_the_shape(
    stage: Stage, files: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (stage.create("items", where=f"n = {number}") for number in range(3))
    directory = _directory(second)
    before = files.steps
    stage.engine.drop(first, DropReason.DELETED)
    assert not [step for step in files.trace[before:] if step.operation == "sync directory"]
    _fail_registry(monkeypatch)
    gone = _directory(third)
    stage.engine.drop(third, DropReason.DELETED)
    assert stage.engine.removal.wait_until_durable("items", 0)
    assert not files.after_crash(CrashMode.LOSE_UNSYNCED).exists(gone)
    with monkeypatch.context() as failing:

        def fail(path: str) -> None:
            raise FULL

        failing.setattr(files, "sync_directory", fail)
        stage.engine.drop(second, DropReason.DELETED)
        assert not files.exists(directory)
        with pytest.raises(Unavailable, match="disk I/O"):
            stage.engine.removal.wait_until_durable("items", 0)
    stage.engine.run_maintenance()
    assert stage.engine.removal.wait_until_durable("items", 0)
    assert not files.after_crash(CrashMode.LOSE_UNSYNCED).exists(directory)


def test_a_drop_that_is_broken_off_holds_up_the_table(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = stage.create("items")
    stage.engine.checkpoint_now()
    dropping = stage.engine.removal
    with monkeypatch.context() as failing:

        def fail(registry: ShapeRegistry, handles: object) -> None:
            raise MemoryError

        failing.setattr(ShapeRegistry, "remove", fail)
        with pytest.raises(MemoryError):
            stage.engine.drop(shape, DropReason.DELETED)
        with pytest.raises(MemoryError):
            dropping.wait_until_durable("items", 0)
    stage.engine.run_maintenance()
    assert dropping.wait_until_durable("items", 0)
    stage.crash()
    result = stage.engine.find(shape.handle)
    assert result is not None
    with pytest.raises(NotFound):
        result.open()


def test_a_checkpoint_waits_for_a_shape_that_is_being_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("items")
    stage.engine.checkpoint_now()
    dropping = stage.engine.removal
    seen: list[bool] = []
    remove = ShapeRegistry.remove

    def look(registry: ShapeRegistry, handles: list[str]) -> None:
        seen.append(dropping.wait_until_durable("items", 0))
        remove(registry, handles)

    monkeypatch.setattr(ShapeRegistry, "remove", look)
    stage.engine.drop(stage.engine.shapes()[0], DropReason.DELETED)
    assert (seen, dropping.wait_until_durable("items", 0)) == ([False], True)


def test_who_asks_while_a_shape_is_being_dropped_gets_another_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stage.create("items")
    created: list[Shape] = []
    mark, remove = Shape.mark_dropped, ShapeRegistry.remove

    def ask() -> None:
        created.append(stage.engine.find_or_create(first.definition))

    def ask_after_mark(shape: Shape, reason: DropReason) -> bool:
        is_first = mark(shape, reason)
        ask()
        return is_first

    def ask_before_remove(registry: ShapeRegistry, handles: list[str]) -> None:
        ask()
        remove(registry, handles)

    monkeypatch.setattr(Shape, "mark_dropped", ask_after_mark)
    monkeypatch.setattr(ShapeRegistry, "remove", ask_before_remove)
    stage.engine.drop(first, DropReason.DELETED)
    monkeypatch.undo()
    assert len({shape.handle for shape in created}) == 1
    assert created[0].handle != first.handle
    stage.settle("items")
    stage.restart()
    assert [shape.handle for shape in stage.engine.shapes()] == [created[0].handle]


def test_an_engine_that_stops_leaves_the_rest_of_the_trash_for_later(
    stage: Stage, files: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [stage.create("items", where=f"n = {number}") for number in range(5)]
    trash = f"{stage.engine.root}/.trash"
    stage.engine.removal.drop(shapes, DropReason.SOURCE_LOST)
    with monkeypatch.context() as patched:
        remove = files.remove_tree

        def stop(path: str) -> None:
            stage.engine.removal.end_cleanup()
            remove(path)

        patched.setattr(files, "remove_tree", stop)
        stage.engine.run_maintenance()
    assert len(files.names(trash)) == 4
    stage.restart()
    stage.engine.run_maintenance()
    assert files.names(trash) == []


def test_directories_that_cannot_be_moved_or_removed_keep_no_others(
    stage: Stage, files: FaultyFileSystem
) -> None:
    root, trash = stage.engine.root, f"{stage.engine.root}/.trash"
    shapes = [stage.create("items", where=f"n = {number}") for number in range(6)]
    directories = [_directory(shape) for shape in shapes]
    for directory in directories[:3]:
        files.fail_under(directory, FULL)
    stage.engine.removal.drop(shapes, DropReason.SOURCE_LOST)
    _mend(files, directories[1])
    kept = f"{trash}/{sorted(files.names(trash))[0]}"
    files.fail_under(kept, FULL)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            stage.engine.run_maintenance()
        assert set(list_handles(files, root)) == {shapes[0].handle, shapes[2].handle}
        assert [f"{trash}/{name}" for name in files.names(trash)] == [kept]
    for path in (kept, directories[0], directories[2]):
        _mend(files, path)
    stage.engine.run_maintenance()
    assert list(list_handles(files, root)) == []
    assert files.names(trash) == []


def test_who_waits_is_not_served_while_the_engine_stops(stage: Stage) -> None:
    stage.create("items")
    topic = stage.engine.topics.get("items")
    late = stage.engine.find_or_create(define("items", where="n = 1"))
    topic.end_turns()
    assert stage.engine.snapshotter.run(topic) == 0
    assert not late.is_open


def test_a_shape_whose_compaction_cannot_be_put_in_place_is_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("items", "a", {"n": 1})
    shape = stage.create("items")
    stage.put("items", "a", {"n": 2})
    stage.settle("items")

    def fail(copy: LogRemainderCopy, log_end: int) -> None:
        raise FULL

    monkeypatch.setattr(LogRemainderCopy, "copy_to", fail)
    with pytest.raises(NotFound, match="could not be compacted and was dropped"):
        stage.engine.compact(shape)
    assert shape.drop_reason is DropReason.STORAGE_FAILED
    assert stage.engine.find(shape.handle) is None


def test_scratch_that_a_crash_left_goes_with_the_next_start(
    stage: Stage, files: FaultyFileSystem
) -> None:
    root = stage.engine.root
    for handle in ("1111-1", "2222-2"):
        files.make_directory(f"{root}/.tmp/{handle}")
        files.open_writable(f"{root}/.tmp/{handle}/part.0").close()
    stage.restart()
    assert not files.exists(f"{root}/.tmp")
    stage.engine.run_maintenance()
    assert files.names(f"{root}/.trash") == []
