"""The measures of the hot log at the smallest sizes: wired, and both sides do their work."""

import gc
from pathlib import Path

import pytest

from benchmarks.hot_log.append import aim_for
from benchmarks.hot_log.logs import UnsyncedFileSystem
from benchmarks.hot_log.suite import HOT_LOG
from benchmarks.measure import Measure, Scale
from benchmarks.workspace import open_workspace

SMALL = Scale(volume_bytes=1 << 20, batch_bytes=(4 << 10, 8 << 10))
SIZES = {
    "append": 16 << 10,
    "build": 100,
    "read": 64 << 10,
    "parse": 100,
    "recovery": 1 << 20,
    "open": 20,
}


@pytest.mark.parametrize("measure", HOT_LOG.measures, ids=lambda measure: measure.name)
def test_measure_gives_figures_and_leaves_no_files(measure: Measure, tmp_path: Path) -> None:
    with open_workspace(tmp_path) as workspace:
        with measure.prepare(SIZES[measure.name], workspace, SMALL) as contests:
            for contest in contests:
                assert contest.ours() > 0
                assert contest.baseline is None or contest.baseline() > 0
        gc.collect()
        assert list(workspace.root.iterdir()) == []


@pytest.mark.parametrize("measure", HOT_LOG.measures, ids=lambda measure: measure.name)
@pytest.mark.parametrize("quick", [True, False])
def test_every_measure_shows_its_growth(measure: Measure, quick: bool) -> None:
    assert len(measure.default_sizes(quick=quick)) >= 2


@pytest.mark.parametrize(
    ("batch_bytes", "limit"),
    [(4 << 10, None), (16 << 10, 0.4), (64 << 10, 0.4), (128 << 10, 0.7), (2 << 20, 0.85)],
)
def test_append_aim_is_that_of_the_next_smaller_stated_size(
    batch_bytes: int, limit: float | None
) -> None:
    aim = aim_for(batch_bytes)
    assert (aim.limit if aim else None) == limit


def test_files_that_are_never_synced_still_hold_their_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with UnsyncedFileSystem().open_writable(path) as file:
        file.write_at(0, b"bytes")
        file.sync()
    with UnsyncedFileSystem().open(path) as file:
        assert file.read_at(0, 5) == b"bytes"
