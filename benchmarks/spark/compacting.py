"""Compaction of a cold topic, against the Spark job that one would write without it."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.spark.cold_topic import SIZE_FACTOR, ColdTopic, copied, shape_of, write_cold
from benchmarks.spark.figures import make_contests
from benchmarks.spark.runs import CompactRun, LatestRun, ParquetRun, Taken
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import Workspace
from varve.spark.runner import HERE_BYTES

_AIM_SMALL, _AIM_LARGE = at_least(2), at_least(5)
_LARGE_BYTES = 1 << 10


class CompactMeasure:
    """Size: bytes of the topic's records."""

    name = "compact"
    title = "compaction, against reading all records and writing max_by(row, offset) per key"
    size_unit = SizeUnit.BYTES

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8 << 20, 16 << 20) if quick else (64 << 20, 256 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * SIZE_FACTOR * len(scale.record_bytes))
        with workspace.directory("compact") as parent:
            contests: list[Contest] = []
            for record_bytes in scale.record_bytes:
                shape = shape_of(scale, record_bytes)
                directory = parent / str(record_bytes)
                topic = write_cold(directory, shape, shape.count_records(size))
                parquet = str(directory / "parquet")
                if not scale.is_quick:
                    self._sessions.run(ParquetRun(topic.url, parquet))
                contests += self._contests(topic, parquet, workspace, scale)
            self._sessions.warm_up(contests, scale)
            yield contests

    def _contests(
        self, topic: ColdTopic, parquet: str, workspace: Workspace, scale: Scale
    ) -> list[Contest]:
        ours = partial(run_compaction, self._sessions, topic, workspace)
        aim = _AIM_LARGE if topic.shape.record_bytes >= _LARGE_BYTES else _AIM_SMALL
        within = format_bytes(topic.shape.record_bytes)
        contests: list[Contest] = []
        baselines = (
            ("compact", topic.url, "the baseline reads the same bucket with the source `varve`"),
            ("compact_parquet", parquet, "the baseline reads the same rows from Parquet"),
        )
        for name, place, note in baselines[: 1 if scale.is_quick else None]:
            contests += make_contests(
                name,
                ours,
                partial(self._run_latest, place, workspace),
                mib=topic.mib,
                scale=scale,
                aim=aim,
                note=f"{note}; both on two cores, sessions and workers warm",
                within=within,
            )
        return contests

    def _run_latest(self, place: str, workspace: Workspace) -> Taken:
        with workspace.directory("latest") as parent:
            taken = self._sessions.run(LatestRun(place, str(parent / "out")))
            shutil.rmtree(parent / "out")
        return taken


def run_compaction(
    sessions: Sessions,
    topic: ColdTopic,
    workspace: Workspace,
    cores: int = 2,
    here_bytes: int = HERE_BYTES,
) -> Taken:
    """One compaction of a copy of the bucket."""
    with copied(topic, workspace) as url:
        run = CompactRun(url, topic.key_count, topic.shape.segment_bytes, here_bytes)
        return sessions.run(run, cores=cores)
