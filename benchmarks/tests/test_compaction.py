"""The measures of compaction at the smallest sizes: wired, and both sides do their work."""

import gc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.compaction import kafka, keyed_log
from benchmarks.compaction.sidecars import write_sidecars
from benchmarks.compaction.suite import COMPACTION
from benchmarks.measure import Measure, MeasureSkipped, Scale
from benchmarks.workspace import Workspace, open_workspace
from tests.conformance.tools.toolchain import Toolchain, ToolchainMissing
from varve.cleaning.key_index.key_index import KeyIndex
from varve.disk import RealFileSystem
from varve.records import Codec

SMALL = Scale(
    volume_bytes=1 << 20,
    batch_bytes=(4 << 10,),
    record_bytes=(100,),
    segment_bytes=64 << 10,
    buffer_bytes=1 << 20,
)
SIZES = {
    "offset_map": 256 << 10,
    "second_pass": 256 << 10,
    "many_keys": 20_000,
    "append_beside": 256 << 10,
    "index_build": 256 << 10,
}
TAKEN = [measure for measure in COMPACTION.measures if measure.name != "kafka"]


@pytest.mark.parametrize("measure", TAKEN, ids=lambda measure: measure.name)
def test_measure_gives_figures_and_leaves_no_files(measure: Measure, tmp_path: Path) -> None:
    with open_workspace(tmp_path) as workspace:
        with measure.prepare(SIZES[measure.name], workspace, SMALL) as contests:
            for contest in contests:
                # So small a plan may fit into memory that the process has free already.
                assert contest.ours() > 0 or contest.measure == "plan_memory"
                assert contest.baseline is None or contest.baseline() > 0
        gc.collect()
        assert list(workspace.root.iterdir()) == []


@pytest.mark.parametrize("measure", COMPACTION.measures, ids=lambda measure: measure.name)
@pytest.mark.parametrize("quick", [True, False])
def test_every_measure_shows_its_growth(measure: Measure, quick: bool) -> None:
    assert len(measure.default_sizes(quick=quick)) >= 2


def test_kafka_is_skipped_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Toolchain:
        raise ToolchainMissing("no java")

    monkeypatch.setattr(kafka, "prepare_toolchain", missing)
    with pytest.raises(MeasureSkipped, match="no java"):
        kafka.KafkaMeasure().prepare(1 << 20, Workspace(tmp_path), SMALL).__enter__()


@pytest.mark.parametrize("share", [0.001, 0.2, 1.0])
def test_every_key_occurs_and_no_other(share: float) -> None:
    keys = keyed_log.spread_keys(1000, round(1000 * share))
    assert len(keys) == 1000
    assert np.unique(keys).tolist() == list(range(round(1000 * share)))


def test_keys_are_written_with_their_digits() -> None:
    encoded = keyed_log.encode_keys(np.array([0, 42, 123_456_789_012]))
    assert [row.tobytes() for row in encoded] == [
        b"key-000000000000",
        b"key-000000000042",
        b"key-123456789012",
    ]


def test_copied_store_holds_the_same_and_shares_only_what_is_final(tmp_path: Path) -> None:
    shape = keyed_log.LogShape(100, Codec.NONE, 4 << 10, 0.5, 64 << 10)
    source = keyed_log.write_store(tmp_path / "source", shape, 256 << 10)
    keyed_log.copy_store(source.directory, tmp_path / "copy")
    original = keyed_log.partition_directory(source.directory)
    copied = keyed_log.partition_directory(tmp_path / "copy")
    names = sorted(path.name for path in original.iterdir())
    assert sorted(path.name for path in copied.iterdir()) == names
    data = [name for name in names if name.endswith(".log")]
    shared = [name for name in names if (original / name).samefile(copied / name)]
    assert shared == data[:-1]
    assert keyed_log.count_stored_records(copied) == source.record_count


def test_sidecars_are_whole_and_count_their_entries(tmp_path: Path) -> None:
    entry_count = write_sidecars(tmp_path, 1000)
    found = 0
    for path in tmp_path.iterdir():
        with KeyIndex(RealFileSystem().open(str(path))) as index:
            index.verify()
            found += index.header.entry_count
    assert found == entry_count > 1000
