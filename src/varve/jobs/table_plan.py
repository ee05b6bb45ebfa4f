"""What a run has to read: the pieces behind the offsets that the table has, in batches.

Invariant  a batch ends at an offset of each partition, so that what it holds is all below it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from varve.jobs.source_filters import SourceFilters
from varve.jobs.source_options import SourceOptions
from varve.jobs.source_pieces import Piece, pack
from varve.jobs.source_plan import open_partitions
from varve.jobs.source_read import TaskRead
from varve.jobs.table_state import Progress


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces for one commit, and the offset of each partition behind them."""

    pieces: tuple[Piece, ...]
    offsets: Mapping[int, int]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The topic as it is now. `missed` are offsets that expired before the table had them."""

    topic: str
    topic_id: str
    starts: Mapping[int, int]
    pieces: tuple[Piece, ...]
    ends: Mapping[int, int]
    missed: int

    def batches(self, *, limit_bytes: int) -> Iterator[Batch]:
        """All pieces in order, cut behind whole segments; at least one, be it empty."""
        taken: list[Piece] = []
        offsets: dict[int, int] = {}
        size = 0
        for partition, pieces in groupby(self.pieces, key=lambda one: one.partition):
            for end, group in groupby(pieces, key=lambda one: one.end_offset):
                segment = list(group)
                if size and size + sum(one.size for one in segment) > limit_bytes:
                    yield Batch(tuple(taken), dict(offsets))
                    taken, size = [], 0
                taken += segment
                size += sum(one.size for one in segment)
                offsets[partition] = end
            offsets[partition] = self.ends[partition]
        yield Batch(tuple(taken), {**offsets, **self.ends})


def plan_table(options: SourceOptions, progress: Progress) -> TablePlan:
    """What is behind the table's offsets; raises NotFound where the topic is not."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    pieces: list[Piece] = []
    missed = 0
    topic = topic_id = ""
    filters = SourceFilters()
    for source in open_partitions(options):
        topic, topic_id = source.topic, source.topic_id
        start, end = source.bounds()
        reached = progress.offsets.get(source.number)
        starts[source.number] = max(start, progress.starts.get(source.number, 0))
        first = start if reached is None else max(start, reached)
        if reached is not None:
            missed += max(0, start - reached)
        ends[source.number] = max(end, first)
        pieces += source.pieces(start_offset=first, end_offset=end, filters=filters)
    return TablePlan(topic, topic_id, starts, tuple(pieces), ends, missed)


def make_reads(plan: TablePlan, batch: Batch, *, split_bytes: int) -> list[TaskRead]:
    runs = pack(batch.pieces, split_bytes=split_bytes)
    return [TaskRead(plan.topic, plan.topic_id, run) for run in runs]
