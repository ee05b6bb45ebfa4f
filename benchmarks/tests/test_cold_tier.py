"""The measures of the cold tier at the smallest sizes, in a directory: both sides do their work."""

import gc
from pathlib import Path

import pytest

from benchmarks.cold_tier import beside_cold, first_record, places
from benchmarks.cold_tier.suite import COLD_TIER
from benchmarks.measure import Measure, Scale
from benchmarks.workspace import open_workspace
from tests.conformance.tools.go_programs import ProgramMissing

SMALL = Scale(volume_bytes=1 << 20, batch_bytes=(4 << 10,))
SIZES = {
    "copy": 64 << 10,
    "cold_read": 64 << 10,
    "first_record": 16 << 10,
    "commit": 200,
    "beside_cold": 5,
    "manifest_memory": 200,
}


@pytest.mark.parametrize("measure", COLD_TIER.measures, ids=lambda measure: measure.name)
def test_measure_gives_figures_and_leaves_no_files(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise ProgramMissing("not built")

    monkeypatch.setattr(places, "find_minio", missing)
    for module in (first_record, beside_cold):
        monkeypatch.setattr(module, "_SEGMENT_BYTES", 64 << 10)
        monkeypatch.setattr(module, "_SEGMENTS", 3)
    with open_workspace(tmp_path) as workspace:
        with measure.prepare(SIZES[measure.name], workspace, SMALL) as contests:
            for contest in contests:
                assert contest.ours() > 0
                assert contest.baseline is None or contest.baseline() > 0
        gc.collect()
        assert list(workspace.root.iterdir()) == []


@pytest.mark.parametrize("measure", COLD_TIER.measures, ids=lambda measure: measure.name)
@pytest.mark.parametrize("quick", [True, False])
def test_every_measure_shows_its_growth(measure: Measure, quick: bool) -> None:
    assert len(measure.default_sizes(quick=quick)) >= 2
