"""The bytes of all shapes on disk are bounded: shapes.max.bytes."""

import pytest

from tests.support.shape_engine import Stage, StageMaker
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.shapes import snapshotting
from varve.shapes.definition import define
from varve.shapes.metrics import DISK_BYTES
from varve.shapes.offset import BEFORE_ALL
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.shape import BETWEEN_POLLS_MS, UNREAD_MS, DropReason, Shape

_LIMIT = 1 << 20
_ROW_BYTES = 60_000


def _disk_bytes(stage: Stage) -> int:
    """What the directories of shapes take, without those of dropped ones."""
    root = stage.path / "shapes"
    files = [path for path in root.glob("??/??/*/*/*") if path.is_file()]
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


def _fill(stage: Stage, topic: str, rows: int) -> None:
    for number in range(rows):
        stage.put(topic, f"k{number}", {"text": "x" * _ROW_BYTES, "n": number})


def _read(shape: Shape) -> None:
    offset = BEFORE_ALL
    while offset < shape.latest:
        end = shape.chunk_end(offset) or shape.latest
        list(shape.read(offset, end))
        offset = end


@pytest.fixture
def stage(make_stage: StageMaker) -> Stage:
    return make_stage(settings=EngineSettings(bytes_max=_LIMIT), clock=ManualClock())


def test_what_shapes_take_is_measured(make_stage: StageMaker) -> None:
    stage = make_stage(compaction=CompactionSettings(keep_chunks=0, min_bytes=0))
    engine = stage.engine
    assert engine.eviction.total_bytes == 0
    _fill(stage, "t", 3)
    shapes = [stage.create("t"), stage.create("t", where="n = 1")]
    for _ in range(3):
        engine.run_maintenance()
        assert abs(engine.eviction.total_bytes - _disk_bytes(stage)) <= 2 * 4096
        _fill(stage, "t", 4)
        stage.settle("t")
        engine.checkpoint_now()
    engine.compact(shapes[0])
    engine.run_maintenance()
    measured = engine.eviction.total_bytes
    assert abs(measured - _disk_bytes(stage)) <= 2 * 4096
    (metric,) = [one for one in engine.metrics.collect() if one.name == DISK_BYTES.name]
    assert metric.samples[0].value == measured
    stage.restart()
    stage.engine.run_maintenance()
    assert abs(stage.engine.eviction.total_bytes - _disk_bytes(stage)) <= 2 * 4096
    engine = stage.engine
    for shape in engine.shapes():
        engine.drop(shape, DropReason.DELETED)
    engine.run_maintenance()
    assert engine.eviction.total_bytes == 0


def test_shapes_that_grow_beyond_the_limit_evict_the_least_recently_read(stage: Stage) -> None:
    _fill(stage, "t", 6)
    first, second = stage.create("t"), stage.create("t", where="n >= 0")
    for shape in (second, first):
        _read(shape)
    _fill(stage, "t", 9)
    stage.settle("t")
    stage.engine.checkpoint_now()
    stage.engine.run_maintenance()
    assert second.drop_reason is DropReason.EVICTED
    assert not first.is_dropped
    assert _disk_bytes(stage) <= _LIMIT
    stage.engine.run_maintenance()
    assert not first.is_dropped


def test_at_the_limit_a_new_shape_evicts_others_or_is_refused_by_name(stage: Stage) -> None:
    _fill(stage, "t", 7)
    first, second = stage.create("t"), stage.create("t", where="n >= 0")
    stage.put("t", "k", {"text": "x" * 300_000, "n": 1})
    stage.settle("t")
    stage.engine.checkpoint_now()
    stage.engine.run_maintenance()
    assert stage.engine.eviction.total_bytes > _LIMIT
    with pytest.raises(Unavailable, match=r"in use.*shapes\.max\.bytes"):
        stage.create("t", where="n = 1")
    _read(second)
    stage.create("t", where="n = 1")
    assert second.drop_reason is DropReason.EVICTED
    assert not first.is_dropped


def test_shapes_in_use_are_not_evicted(stage: Stage) -> None:
    _fill(stage, "t", 9)
    shapes = [stage.create("t"), stage.create("t", where="n >= 0")]
    with shapes[0].pin(), shapes[1].subscribe():
        for shape in shapes:
            _read(shape)
        stage.engine.run_maintenance()
        assert not any(shape.is_dropped for shape in shapes)
    stage.clock.advance(UNREAD_MS + BETWEEN_POLLS_MS)  # type: ignore[attr-defined]
    stage.engine.run_maintenance()
    assert [shape.is_dropped for shape in shapes] == [True, False]


def test_a_snapshot_of_more_than_half_is_refused_and_evicts_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotting, "CHECKED_BYTES", 4 * _ROW_BYTES)
    monkeypatch.setattr(snapshotting, "_PUBLISHED_AFTER_ROWS", 1)
    _fill(stage, "t", 20)
    small = stage.create("t", where="n < 4")
    _read(small)
    large = stage.create("t", where="n >= 0")
    assert large.drop_reason is DropReason.SNAPSHOT_FAILED
    assert "shapes.max.bytes" in str(large.failure)
    assert not small.is_dropped
    stage.engine.run_maintenance()
    assert _disk_bytes(stage) < _LIMIT // 2


def test_snapshots_that_are_written_together_evict_and_then_fail(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotting, "CHECKED_BYTES", 2 * _ROW_BYTES)
    monkeypatch.setattr(snapshotting, "_PUBLISHED_AFTER_ROWS", 1)
    _fill(stage, "t", 8)
    old = stage.create("t")
    _read(old)
    new = [
        stage.engine.find_or_create(define("t", where=f"n >= 0 and {n} = {n}")) for n in range(4)
    ]
    stage.settle("t")
    assert old.drop_reason is DropReason.EVICTED
    failed = [shape for shape in new if shape.is_dropped]
    assert 0 < len(failed) < 4
    assert all("in use" in str(shape.failure) for shape in failed)
    stage.engine.run_maintenance()
    assert _disk_bytes(stage) <= _LIMIT
