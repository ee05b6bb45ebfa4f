"""The measures of window stores at the smallest sizes: wired, and both sides do their work."""

from pathlib import Path

import pytest

from benchmarks.measure import Measure, Scale
from benchmarks.windows import suite
from benchmarks.windows.suite import WINDOWS
from benchmarks.workspace import open_workspace

SMALL = Scale(volume_bytes=1 << 20, batch_bytes=(4 << 10,), is_quick=True)
SIZES = {"memory": 2, "drop": 50, "restore": 300}


@pytest.mark.parametrize("measure", WINDOWS.measures, ids=lambda measure: measure.name)
def test_measure_gives_figures_and_leaves_no_files(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_QUICK_ENTRIES", 2_000)
    monkeypatch.setattr(suite, "_SMALL_SEGMENT", 20)
    with open_workspace(tmp_path) as workspace:
        with measure.prepare(SIZES[measure.name], workspace, SMALL) as contests:
            for contest in contests:
                assert contest.ours() > 0
                assert contest.baseline is not None
                assert contest.baseline() > 0
        assert list(workspace.root.iterdir()) == []
