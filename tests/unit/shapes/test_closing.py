"""The end of an engine: what is under way is over before the directory is let go."""

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import pytest

from tests.support.shape_engine import Follower, Stage, wait_until
from tests.support.shape_engine_http import open_stage
from varve.disk import RealFileSystem
from varve.foundation.errors import Closed, InvalidRequest, Unavailable
from varve.shapes.compaction.compactor import Compactor
from varve.shapes.compaction.log_compaction import Block, LogCompaction
from varve.shapes.definition import Definition, define
from varve.shapes.engine import LOCK_FILE
from varve.shapes.kernels import compaction_plan, compaction_rewrite
from varve.shapes.offset import LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.registry import ShapeRegistry
from varve.shapes.removal import ShapeRemoval
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.layout import log_path
from varve.shapes.storage.shape_storage import ShapeStorage

PATIENCE_SECONDS = 20.0


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_compaction_ends_before_the_directory_is_let_go(
    stage: Stage, path: Path, monkeypatch: pytest.MonkeyPatch, is_crash: bool
) -> None:
    # Compiled now, and not while the test waits: that may take longer than it waits.
    compaction_plan.warm()
    compaction_rewrite.warm()
    begun, joining, leave = (threading.Event() for _ in range(3))
    join, blocks = Compactor.join, LogCompaction.blocks

    def compact_slowly(compaction: LogCompaction) -> Generator[Block]:
        begun.set()
        assert leave.wait(PATIENCE_SECONDS)
        yield from blocks(compaction)

    def tell_and_join(compactor: Compactor) -> None:
        joining.set()
        join(compactor)

    monkeypatch.setattr(LogCompaction, "blocks", compact_slowly)
    monkeypatch.setattr(Compactor, "join", tell_and_join)
    shape = stage.create("items")
    for number in range(20):
        stage.put("items", "1", {"n": number})
    stage.settle("items")
    end = stage.engine.abandon if is_crash else stage.engine.close
    lock = f"{stage.engine.root}/{LOCK_FILE}"
    with ThreadPoolExecutor(2) as pool:
        compacting = pool.submit(stage.engine.compact, shape)
        assert begun.wait(PATIENCE_SECONDS)
        closing = pool.submit(end)
        assert joining.wait(PATIENCE_SECONDS)
        with pytest.raises(Unavailable):
            RealFileSystem().lock(lock)
        leave.set()
        with pytest.raises(Closed, match="compacts no more"):
            compacting.result(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
    RealFileSystem().lock(lock).release()


def test_a_shape_is_dropped_before_the_directory_is_let_go_or_not_at_all(
    stage: Stage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ending, leave = (threading.Event() for _ in range(3))
    drop, end = ShapeStorage.drop, ShapeRemoval.end

    def drop_slowly(storage: ShapeStorage) -> bool:
        begun.set()
        assert leave.wait(PATIENCE_SECONDS)
        return drop(storage)

    def tell_and_end(dropping: ShapeRemoval) -> None:
        ending.set()
        end(dropping)

    monkeypatch.setattr(ShapeStorage, "drop", drop_slowly)
    monkeypatch.setattr(ShapeRemoval, "end", tell_and_end)
    shape, other = stage.create("items"), stage.create("items", where="n > 1")
    directories = [shape.open().directory, other.open().directory]
    lock = f"{stage.engine.root}/{LOCK_FILE}"
    with ThreadPoolExecutor(2) as pool:
        dropping = pool.submit(stage.engine.drop, shape, DropReason.DELETED)
        assert begun.wait(PATIENCE_SECONDS)
        closing = pool.submit(stage.engine.close)
        assert ending.wait(PATIENCE_SECONDS)
        with pytest.raises(Unavailable):
            RealFileSystem().lock(lock)
        leave.set()
        dropping.result(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
    with pytest.raises(Closed):
        stage.engine.drop(other, DropReason.DELETED)
    assert [Path(item).exists() for item in directories] == [False, True]


def test_a_reader_behind_the_end_opens_and_drops_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, closed = stage.create("items"), stage.create("items", where="n > 1")
    stage.put("items", "1", {"n": 1})
    stage.settle("items")
    directory = Path(shape.open().directory)
    read = ShapeStorage.read

    def read_late(storage: ShapeStorage, start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        stage.engine.close()
        # As the next process would by a compaction.
        Path(log_path(storage.directory, storage.manifest.latest)).unlink()
        return read(storage, start, end)

    monkeypatch.setattr(ShapeStorage, "read", read_late)
    with pytest.raises(Closed, match="drops no more"):
        list(shape.read(SNAPSHOT_END, LAST))
    assert directory.exists()
    with pytest.raises(Closed, match="closed with its engine"):
        closed.open()


def test_a_shape_that_is_being_made_is_made_before_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, leave = threading.Event(), threading.Event()
    add = ShapeRegistry.new_handle

    def add_slowly(registry: ShapeRegistry, definition: Definition) -> str:
        begun.set()
        assert leave.wait(PATIENCE_SECONDS)
        return add(registry, definition)

    monkeypatch.setattr(ShapeRegistry, "new_handle", add_slowly)
    stage = open_stage(path)
    stage.store.create_topic("made-last")
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(stage.engine.find_or_create, define("made-last"))
        assert begun.wait(PATIENCE_SECONDS)
        closing = pool.submit(stage.engine.close)
        assert not wait([closing], timeout=0.2).done
        leave.set()
        assert making.result(PATIENCE_SECONDS).definition.topic == "made-last"
        closing.result(PATIENCE_SECONDS)
    assert not [item for item in threading.enumerate() if item.name == "shapes-feed-made-last"]
    with pytest.raises(Closed):
        stage.engine.find_or_create(define("made-last", where="n > 1"))
    stage.close()


def test_an_engine_that_is_opened_again_has_its_shapes_and_serves_them(stage: Stage) -> None:
    stage.put("items", "a", {"n": 1})
    client = Follower(stage, "items")
    client.catch_up()
    events: list[str] = []
    stage.restart()
    stage.engine.subscribe(events.extend)
    assert [shape.handle for shape in stage.engine.shapes()] == [client.handle]
    stage.put("items", "b", {"n": 2})
    assert sorted(client.catch_up()) == ["a", "b"]
    assert client.refetches == 0
    assert events == [client.handle]
    shape = stage.engine.shapes()[0]
    assert stage.engine.compact(shape).handle == client.handle
    stage.engine.drop(shape, DropReason.DELETED)
    stage.engine.run_maintenance()
    assert Path(f"{stage.engine.root}/.trash").exists()
    assert list(Path(f"{stage.engine.root}/.trash").iterdir()) == []
    stage.restart()
    assert stage.engine.shapes() == []


def test_one_engine_opens_once_and_another_try_harms_nothing(stage: Stage) -> None:
    stage.create("items")
    with pytest.raises(InvalidRequest, match="open already"):
        stage.engine.open()
    stage.put("items", "a", {"n": 1})
    stage.settle("items")
    stage.engine.close()
    with pytest.raises(Closed, match="open the directory again"):
        stage.engine.open()
    stage.engine = stage._open()
    assert len(stage.engine.shapes()) == 1


def test_an_engine_with_workers_that_is_opened_again_goes_on(path: Path) -> None:
    stage = open_stage(path)
    stage.store.create_topic("t")
    shape = stage.engine.find_or_create(define("t"))
    handle = shape.handle
    wait_until(lambda: shape.is_snapshot_complete)
    for number in range(3):
        stage.restart()
        stage.put("t", str(number), {"n": number})
        (shape,) = stage.engine.shapes()
        assert shape.handle == handle
        wait_until(partial(_has_tx, shape, number + 1))
    stage.close()


def _has_tx(shape: Shape, tx: int) -> bool:
    return not shape.latest.is_virtual and shape.latest.tx >= tx
