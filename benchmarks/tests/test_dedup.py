"""The measure of the deduplication, without Spark: what is prepared, sent, asked and given back."""

import pickle
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from benchmarks.dedup.event_files import write_events
from benchmarks.dedup.runs import OPERATORS, StreamRun
from benchmarks.dedup.suite import DEDUP, WindowMeasure
from benchmarks.measure import Scale
from benchmarks.spark.runs import Run, Taken
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import open_workspace

SMALL = Scale(volume_bytes=1 << 20, batch_bytes=(4 << 10,), is_quick=True)


class NoSpark(Sessions):
    """Answers at once; remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[StreamRun] = []

    def run(self, run: Run, *, cores: int = 2) -> Taken:
        assert isinstance(run, StreamRun)
        self.asked.append(pickle.loads(pickle.dumps(run)))
        return Taken(2.0, 3.0)


def test_both_operators_get_the_same_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.dedup.suite._QUICK_EVENTS", 2_000)
    sessions = NoSpark()
    with open_workspace(tmp_path) as workspace:
        with WindowMeasure(sessions).prepare(500, workspace, SMALL) as (rate, cpu):
            assert rate.baseline is not None
            assert (rate.ours(), rate.baseline()) == (1_000, 1_000)
            assert cpu.ours() == 3.0
            ours, baseline = sessions.asked
            assert {ours.operator, baseline.operator} == set(OPERATORS)
            assert ours.events == baseline.events
            assert len(list(Path(ours.events.place).iterdir())) == 4
        assert list(workspace.root.iterdir()) == []


def test_a_fifth_of_the_events_are_copies_and_the_model_counts_them(tmp_path: Path) -> None:
    events = write_events(tmp_path / "events", 5_000, 2_000, 1_000_000)
    table = pq.read_table(events.place)
    assert table.num_rows == 5_000
    assert len(table["id"].unique()) == events.kept
    assert 0.77 < events.kept / events.count < 0.83
    near = write_events(tmp_path / "near", 5_000, 2_000, 100)
    assert near.kept > events.kept


@pytest.mark.parametrize("quick", [True, False])
def test_the_measure_shows_two_sizes(quick: bool) -> None:
    (measure,) = DEDUP.measures
    assert len(measure.default_sizes(quick=quick)) == 2
