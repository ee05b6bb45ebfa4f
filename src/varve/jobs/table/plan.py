"""What a run has to read: the pieces behind the offsets that the table has, in batches.

Invariant  a batch ends at an offset of each partition, so that what it holds is all below it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from varve.foundation.errors import InvalidRequest
from varve.jobs import derived_outputs
from varve.jobs.source.options import SourceFilters, SourceOptions
from varve.jobs.source.pieces import Piece
from varve.jobs.source.topic_source import PartitionSource, open_partitions
from varve.jobs.table.table_state import SyncState
from varve.topics import HistoryMark


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces for one commit, and the offset of each partition after them.

    With the last one the table has all of the topic.
    """

    pieces: tuple[Piece, ...]
    offsets: Mapping[int, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The topic as it is now. `missed` are offsets that expired before the table had them.

    With `is_rebuild` all of it is read and replaces what the table has. `breaks` describe
    partitions whose log is no longer the one that the table was read from.
    """

    sources: tuple[PartitionSource, ...]
    breaks: tuple[str, ...]
    topic: str
    topic_id: str
    starts: Mapping[int, int]
    pieces: tuple[Piece, ...]
    ends: Mapping[int, int]
    missed: int
    is_remote: bool
    is_rebuild: bool

    def batches(self, *, limit_bytes: int) -> Iterator[Batch]:
        """All pieces in order, cut behind whole segments; at least one, be it empty.

        What replaces all that a table has is one batch.
        """
        taken: list[Piece] = []
        offsets: dict[int, int] = {}
        size = 0
        for partition, pieces in groupby(self.pieces, key=lambda piece: piece.partition):
            for end, group in groupby(pieces, key=lambda piece: piece.end_offset):
                segment = list(group)
                is_full = size and size + sum(piece.size for piece in segment) > limit_bytes
                if is_full and not self.is_rebuild:
                    yield Batch(tuple(taken), dict(offsets), is_last=False)
                    taken, size = [], 0
                taken += segment
                size += sum(piece.size for piece in segment)
                offsets[partition] = end
            offsets[partition] = self.ends[partition]
        yield Batch(tuple(taken), {**offsets, **self.ends}, is_last=True)

    def advance(self, before: SyncState, offsets: Mapping[int, int]) -> SyncState:
        """How far the table is with a batch, with the marks of the offsets that move."""
        moved = {
            partition: offset
            for partition, offset in offsets.items()
            if self.is_rebuild or before.offsets.get(partition) != offset
        }
        marks: dict[int, HistoryMark] = {
            partition: mark for partition, mark in before.marks.items() if partition not in moved
        }
        for source in self.sources:
            if source.number in moved:
                mark = source.find_mark(moved[source.number])
                if mark is not None:
                    marks[source.number] = mark
        return replace(
            before,
            offsets={**before.offsets, **offsets},
            marks=marks,
            cleaned={source.number: source.cleaned_up_to for source in self.sources},
        )


def plan_table(options: SourceOptions, progress: SyncState, *, is_keyed: bool = False) -> TablePlan:
    """What is behind the table's offsets; raises NotFound where the topic is not.

    For a table of keys, which must see tombstones, it is all of the topic where some of them may
    have left the log unseen, or where single records of keys were erased from the table, or where
    the log lost records that the table has.
    """
    sources = open_partitions(options)
    bounds = {source.number: source.bounds() for source in sources}
    is_remote = derived_outputs.is_remote(sources)
    breaks = _find_breaks(sources, progress)
    is_rebuild = is_keyed and (
        progress.needs_rebuild
        or bool(breaks)
        or not all(
            has_tombstones(
                progress, source.number, bounds[source.number], source.cleaned_up_to, is_remote
            )
            for source in sources
        )
    )
    reached = {} if is_rebuild else progress.offsets
    pieces: list[Piece] = []
    ends: dict[int, int] = {}
    missed = 0
    for source in sources:
        start, end = bounds[source.number]
        first = max(start, reached.get(source.number, start))
        missed += max(0, start - progress.offsets.get(source.number, start))
        ends[source.number] = max(end, first)
        pieces += source.pieces(start_offset=first, end_offset=end, filters=SourceFilters())
    return TablePlan(
        sources=tuple(sources),
        breaks=breaks,
        topic=sources[0].topic,
        topic_id=sources[0].topic_id,
        starts={
            partition: max(start, progress.starts.get(partition, 0))
            for partition, (start, _) in bounds.items()
        },
        pieces=tuple(pieces),
        ends=ends,
        missed=missed,
        is_remote=is_remote,
        is_rebuild=is_rebuild,
    )


def _find_breaks(sources: Sequence[PartitionSource], progress: SyncState) -> tuple[str, ...]:
    breaks: list[str] = []
    for source in sources:
        reached = progress.offsets.get(source.number)
        if reached is not None:
            seen = source.find_break(reached, progress.marks.get(source.number))
            breaks += [] if seen is None else [f"{source.topic}-{source.number}: {seen}"]
    return tuple(breaks)


def check_history(plan: TablePlan, name: str, *, is_keyed: bool) -> None:
    """Raises where an appended table has rows that the log lost: its history cannot be read again.

    A table of keys is rebuilt then.
    """
    if plan.breaks and not is_keyed:
        raise InvalidRequest(
            f"table {name} has rows of records that the log has lost: {plan.breaks[0]:.300}. Roll "
            "the table back to a snapshot from before, or drop it and its side table and create "
            "it again; nothing was changed"
        )


def has_tombstones(
    progress: SyncState,
    partition: int,
    bounds: tuple[int, int],
    cleaned_up_to: int,
    is_remote: bool,
) -> bool:
    """Whether every tombstone behind what the table has is still in the log.

    Above `cleaned_up_to` none has gone. How long one stays below is not asked: a compaction may
    have run with another `delete.retention.ms` than the topic has now. Where less is noted as
    compacted than before, the note was lost.
    """
    start_offset, end_offset = bounds
    reached = progress.offsets.get(partition)
    if reached is None or reached >= end_offset or reached <= start_offset:
        return True
    known = progress.cleaned.get(partition, 0)
    return progress.is_remote == is_remote and known <= cleaned_up_to <= reached
