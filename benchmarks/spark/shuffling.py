"""What a compaction sends between processes, by the size of values and beside the obvious job."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from benchmarks.compaction.keyed_log import LogShape
from benchmarks.measure import Contest, Scale, at_most
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.spark.cold_topic import SIZE_FACTOR, ColdTopic, shape_of, write_cold
from benchmarks.spark.compacting import run_compaction
from benchmarks.spark.runs import LatestRun
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import Workspace

_UNIT = "B/record"


class ShuffleMeasure:
    """Size: records of the topic, the same for every size of values."""

    name = "shuffle"
    title = "bytes that a compaction sends between processes, per record"
    size_unit = SizeUnit.COUNT

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (10_000, 20_000) if quick else (100_000, 200_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        small, large = min(scale.record_bytes), max(scale.record_bytes)
        workspace.require(size * (small + large) * SIZE_FACTOR)
        with workspace.directory("shuffle") as parent:
            topics = {
                each: write_cold(parent / str(each), _shape_of(scale, each, large), size)
                for each in sorted({small, large})
            }
            count = {
                each: partial(self._count_ours, topic, workspace) for each, topic in topics.items()
            }
            yield [
                Contest(
                    "shuffle",
                    _UNIT,
                    count[large],
                    count[small],
                    at_most(1.1),
                    "shuffled by Spark, and sent to tasks and back; the baseline has values of "
                    f"{format_bytes(small)} in as many records and segments",
                    format_bytes(large),
                    repeat_count_max=1,
                ),
                Contest(
                    "shuffle_obvious",
                    _UNIT,
                    count[large],
                    partial(self._count_obvious, topics[large], workspace),
                    None,
                    "the baseline is max_by(row, offset) per key over all records",
                    format_bytes(large),
                    repeat_count_max=1,
                ),
            ]

    def _count_ours(self, topic: ColdTopic, workspace: Workspace) -> float:
        # What is little the driver does itself, and nothing would be sent.
        taken = run_compaction(self._sessions, topic, workspace, here_bytes=0)
        return (taken.shuffled_bytes + taken.sent_bytes) / topic.record_count

    def _count_obvious(self, topic: ColdTopic, workspace: Workspace) -> float:
        with workspace.directory("latest") as parent:
            taken = self._sessions.run(LatestRun(topic.url, str(parent / "out")))
        return taken.shuffled_bytes / topic.record_count


def _shape_of(scale: Scale, record_bytes: int, largest_bytes: int) -> LogShape:
    """Segments of smaller values are smaller: all have about as many records."""
    shape, largest = shape_of(scale, record_bytes), shape_of(scale, largest_bytes)
    size = shape.segment_bytes
    return replace(
        shape, segment_bytes=size * largest.count_records(size) // shape.count_records(size)
    )
