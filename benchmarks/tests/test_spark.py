"""The measures of the Spark jobs, without Spark: what is prepared, sent, asked and given back."""

import gc
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.measure import Measure, MeasureSkipped, Scale
from benchmarks.spark.cold_topic import PARTITION_COUNT, TOPIC, copied, shape_of, write_cold
from benchmarks.spark.cpu_time import count_cpu_seconds, read_cpu_seconds
from benchmarks.spark.erasing import KEY_COUNT, choose_keys, write_segments
from benchmarks.spark.figures import TimedRuns, seconds
from benchmarks.spark.runs import CompactRun, EraseRun, LatestRun, ParquetRun, Run, ScanRun, Taken
from benchmarks.spark.sessions import Sessions
from benchmarks.spark.suite import SPARK
from benchmarks.workspace import open_workspace
from varve.cleaning.removals.removal import Reason
from varve.commit_log import LogSettings
from varve.foundation.errors import InvalidRequest
from varve.jobs.compact.job import compact
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket, find_topic

SMALL = Scale(volume_bytes=1 << 20, batch_bytes=(4 << 10,), segment_bytes=64 << 10)
SIZES = {"shuffle": 400, "erase": 2}
TAKEN = [measure for measure in SPARK.measures if measure.name != "scan_kafka"]


class NoSpark(Sessions):
    """Answers at once; remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[type[Run], int]] = []

    def run(self, run: Run, *, cores: int = 2) -> Taken:
        assert pickle.loads(pickle.dumps(run)) == run
        self.asked.append((type(run), cores))
        if isinstance(run, LatestRun):
            os.mkdir(run.target)
        return Taken(2.0, 3.0, shuffled_bytes=10, sent_bytes=20, store_bytes=30)


@pytest.mark.parametrize("measure", TAKEN, ids=lambda measure: measure.name)
def test_measure_gives_figures_and_leaves_no_files(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = NoSpark()
    monkeypatch.setattr(measure, "_sessions", sessions)
    monkeypatch.setattr("benchmarks.spark.growing.FULL_BYTES", 64 << 10)
    monkeypatch.setattr("benchmarks.spark.erasing.FULL_SEGMENTS", 8)
    with open_workspace(tmp_path) as workspace:
        with measure.prepare(SIZES.get(measure.name, 64 << 10), workspace, SMALL) as contests:
            for contest in contests:
                assert contest.ours() > 0
                assert contest.baseline is not None
                assert contest.baseline() > 0
        gc.collect()
        assert list(workspace.root.iterdir()) == []
    assert sessions.asked


@pytest.mark.parametrize("measure", SPARK.measures, ids=lambda measure: measure.name)
@pytest.mark.parametrize("quick", [True, False])
def test_every_measure_shows_its_growth(measure: Measure, quick: bool) -> None:
    assert len(measure.default_sizes(quick=quick)) >= 2


def test_kafka_source_is_skipped_with_a_reason(tmp_path: Path) -> None:
    (kafka,) = (measure for measure in SPARK.measures if measure.name == "scan_kafka")
    with (
        open_workspace(tmp_path) as workspace,
        pytest.raises(MeasureSkipped, match="no server"),
        kafka.prepare(1 << 20, workspace, SMALL),
    ):
        pass


def test_each_copy_of_a_bucket_can_be_compacted_to_one_record_per_key(tmp_path: Path) -> None:
    with open_workspace(tmp_path) as workspace, workspace.directory("topic") as parent:
        topic = write_cold(parent, shape_of(SMALL, 100), 4000)
        assert (topic.record_count, topic.key_count) == (4000, 800)
        assert len(find_topic(Bucket(topic.url), TOPIC).partitions) == PARTITION_COUNT
        settings = CompactSettings(
            log=LogSettings(cleanup_policy=("compact",), segment_bytes=64 << 10), is_forced=True
        )
        for _ in range(2):
            with copied(topic, workspace) as url:
                result = compact(Bucket(url), [TOPIC], settings=settings, runner=LocalRunner())
                assert sum(one.segments_rewritten for one in result.partitions) > PARTITION_COUNT
                assert sum(one.records[Reason.KEPT] for one in result.partitions) == topic.key_count


@pytest.mark.parametrize("count", [1, 3, 6])
def test_keys_to_erase_lie_in_as_many_segments_as_asked(count: int, tmp_path: Path) -> None:
    topic = write_segments(tmp_path, 6, SMALL)
    keys = choose_keys(topic, count)
    assert len(keys) == KEY_COUNT
    numbers = [int(key.removeprefix(b"key-")) for key in keys]
    places = [divmod(number, PARTITION_COUNT) for number in numbers]
    touched = {
        one
        for one in topic.segments
        for offset, partition in places
        if partition == one.partition and one.base_offset <= offset <= one.end_offset
    }
    assert len(touched) == count
    with pytest.raises(InvalidRequest, match="segments"):
        choose_keys(topic, len(topic.segments) + 1)


def test_cpu_time_counts_children_and_not_what_they_took_before() -> None:
    spin = (
        "import os, sys\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    end = sum(os.times()[:2]) + 0.2\n"
        "    while sum(os.times()[:2]) < end: pass\n"
        "    print('done', flush=True)\n"
    )
    start = read_cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(2):
            before = read_cpu_seconds()
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            assert 0.15 <= count_cpu_seconds(since=before) < 0.4
        assert count_cpu_seconds(since=start) >= 0.3
    assert count_cpu_seconds(since=start) < 0.3, "it has ended, and nobody took over its time"


def test_figures_follow_the_clock_and_leave_out_the_first_cpu_time() -> None:
    taken = Taken(2.0, 3.0)
    assert seconds(taken, SMALL) == 2.0
    assert seconds(taken, Scale(1, (1,), ticker=time.thread_time)) == 3.0
    figures = iter([100.0, 2.0, 4.0])
    runs = TimedRuns(lambda: Taken(1.0, next(figures)))
    for _ in range(3):
        runs()
    assert runs.cpu_seconds() == 3.0


def test_runs_can_travel() -> None:
    for run in (
        CompactRun("file:/b", 1, 2),
        EraseRun("file:/b", frozenset({b"k"}), 2),
        LatestRun("file:/b", "/t"),
        ScanRun("/p", ("key",)),
        ParquetRun("file:/b", "/t"),
    ):
        assert pickle.loads(pickle.dumps(run)) == run
