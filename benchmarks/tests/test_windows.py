"""The measures of window stores at the smallest sizes: wired, and both sides do their work."""

import pickle
from pathlib import Path

import pytest

from benchmarks.measure import Measure, Scale
from benchmarks.spark.runs import Run, Taken
from benchmarks.spark.sessions import Sessions
from benchmarks.windows import checking, many_ids, segment_life
from benchmarks.windows.events import WINDOW_MS, make_events
from benchmarks.windows.many_ids import IDS_MAX, ManyIdsMeasure
from benchmarks.windows.many_ids_process import Found
from benchmarks.windows.many_ids_process import measure as measure_ids
from benchmarks.windows.processing import ProcessorMeasure, SparkRun
from benchmarks.windows.suite import WINDOWS
from benchmarks.workspace import Workspace, open_workspace
from varve.foundation.errors import InvalidRequest

SMALL = Scale(volume_bytes=1 << 20, batch_bytes=(4 << 10,), is_quick=True)
SIZES = {"check": 100, "window": 200, "drop": 50, "restore": 300, "memory": 2, "many_ids": 500}


class NoSpark(Sessions):
    """Answers at once; remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[SparkRun] = []

    def run(self, run: Run, *, cores: int = 2) -> Taken:
        assert isinstance(run, SparkRun)
        self.asked.append(pickle.loads(pickle.dumps(run)))
        return Taken(2.0, 3.0)


def measure_here(workspace: Workspace, count: int, scale: Scale) -> Found:
    with workspace.directory("many") as directory:
        return measure_ids(directory / "s", count, scale.ticker)


@pytest.mark.parametrize(
    "measure", [one for one in WINDOWS.measures if one.name in SIZES], ids=lambda one: one.name
)
def test_measure_gives_figures_and_leaves_no_files(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_QUICK_EVENTS", 400)
    monkeypatch.setattr(segment_life, "QUICK_ENTRIES", 2_000)
    monkeypatch.setattr(segment_life, "SMALL_SEGMENT", 20)
    monkeypatch.setattr(many_ids, "_measure", measure_here)
    with open_workspace(tmp_path) as workspace:
        with measure.prepare(SIZES[measure.name], workspace, SMALL) as contests:
            for contest in contests:
                assert contest.ours() > 0
                assert contest.baseline is None or contest.baseline() > 0
        assert list(workspace.root.iterdir()) == []


def test_the_processor_keeps_what_it_should_and_the_job_gets_a_copy_of_the_topic(
    tmp_path: Path,
) -> None:
    sessions = NoSpark()
    with open_workspace(tmp_path) as workspace:
        with ProcessorMeasure(sessions).prepare(2_000, workspace, SMALL) as (rate, cpu):
            assert rate.baseline is not None
            assert rate.ours() > 0
            assert rate.baseline() == 1_000
            assert cpu.ours() > 0
            warm, asked = sessions.asked
            assert warm.place != asked.place
            assert asked.kept == make_events(2_000).kept
            assert (Path(asked.place) / "data").is_dir()
        assert list(workspace.root.iterdir()) == []


def test_checks_one_by_one_keep_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_QUICK_EVENTS", 1_000)
    with (
        open_workspace(tmp_path) as workspace,
        checking.CheckMeasure().prepare(1, workspace, SMALL) as (check, calls),
    ):
        assert check.baseline is not None
        assert check.ours() > 0
        assert check.baseline() > 0
        assert calls.measure == "check_calls"


def test_a_fifth_of_the_events_are_copies_within_the_window_of_the_first() -> None:
    events = make_events(5_000)
    first: dict[bytes, int] = {}
    for id, time in zip(events.ids, events.times, strict=True):
        assert abs(time - first.setdefault(id, time)) <= WINDOW_MS
    assert len(first) == events.kept
    assert 0.77 < events.kept / len(events) < 0.83


def test_more_ids_than_are_allowed_are_refused(tmp_path: Path) -> None:
    with (
        open_workspace(tmp_path) as workspace,
        pytest.raises(InvalidRequest, match="choose fewer"),
        ManyIdsMeasure().prepare(IDS_MAX + 1, workspace, SMALL),
    ):
        pass


@pytest.mark.parametrize("quick", [True, False])
def test_every_measure_but_that_of_spark_shows_two_sizes(quick: bool) -> None:
    for measure in WINDOWS.measures:
        least = 1 if quick and measure.name == "processor" else 2
        assert len(measure.default_sizes(quick=quick)) >= least
