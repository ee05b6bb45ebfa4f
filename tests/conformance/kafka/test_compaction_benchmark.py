"""The benchmark's comparison with Kafka's cleaner: both sides leave the same records."""

from pathlib import Path

import pytest

from benchmarks.compaction import kafka
from benchmarks.measure import Scale
from benchmarks.workspace import open_workspace
from tests.conformance.tools.toolchain import Toolchain

pytestmark = pytest.mark.java

SMALL = Scale(
    volume_bytes=1 << 20,
    batch_bytes=(4 << 10,),
    record_bytes=(100,),
    segment_bytes=1 << 20,  # the least Kafka takes
    buffer_bytes=1 << 20,
)


def test_both_cleaners_leave_one_record_of_each_key(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "prepare_toolchain", lambda: toolchain)
    monkeypatch.setattr(kafka, "_WARM_UP_COUNT", 1)
    with (
        open_workspace(tmp_path) as workspace,
        kafka.KafkaMeasure().prepare(2 << 20, workspace, SMALL) as contests,
    ):
        assert len(contests) == 2 * len(SMALL.codecs)
        for contest in contests:
            assert contest.baseline is not None
            assert contest.ours() > 0
            assert contest.baseline() > 0
