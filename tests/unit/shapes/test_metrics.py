"""What an engine of shapes measures."""

from typing import Any

from tests.support.shape_engine import Stage
from varve.foundation.metrics import exposition
from varve.shapes.metrics import RESULTS
from varve.shapes.shape import DropReason


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
