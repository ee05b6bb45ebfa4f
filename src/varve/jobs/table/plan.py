"""Plans the sync of a table: the pieces of the log after the table's offsets, in steps.

Invariant  a step ends at one offset of each partition; it and the steps before it hold all records
           from the table's offsets up to there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from varve.foundation.errors import InvalidRequest
from varve.jobs import derived_outputs
from varve.jobs.source.options import SourceFilters, SourceOptions
from varve.jobs.source.pieces import Piece
from varve.jobs.source.topic_source import PartitionSource, keeps_tombstones, open_partitions
from varve.jobs.table.table_state import SyncState
from varve.topics import HistoryMark


@dataclass(frozen=True, slots=True)
class SyncStep:
    """Pieces for one commit, and the table's offset of each partition after it.

    After the last step the table is up to date.
    """

    pieces: tuple[Piece, ...]
    offsets: Mapping[int, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The plan of a sync: its pieces, and the offset of each partition after the last one (`ends`).

    `starts` are the log starts, below which rows are expired; `missed` counts offsets that expired
    before the table read them. With `is_rebuild` the whole topic is read and replaces all rows of
    the table. `breaks` describe partitions whose log has lost records that the table has.
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

    def steps(self, *, limit_bytes: int) -> Iterator[SyncStep]:
        """Yields all pieces in order, in steps of whole segments; at least one, possibly empty.

        A step exceeds the limit only with a single segment. A rebuild is one step.
        """
        step_pieces: list[Piece] = []
        offsets: dict[int, int] = {}
        size = 0
        for partition, pieces in groupby(self.pieces, key=lambda piece: piece.partition):
            for end, group in groupby(pieces, key=lambda piece: piece.end_offset):
                segment = list(group)
                is_full = size and size + sum(piece.size for piece in segment) > limit_bytes
                if is_full and not self.is_rebuild:
                    yield SyncStep(tuple(step_pieces), dict(offsets), is_last=False)
                    step_pieces, size = [], 0
                step_pieces += segment
                size += sum(piece.size for piece in segment)
                offsets[partition] = end
            offsets[partition] = self.ends[partition]
        yield SyncStep(tuple(step_pieces), {**offsets, **self.ends}, is_last=True)

    def advance(self, before: SyncState, offsets: Mapping[int, int]) -> SyncState:
        """Returns the state after a step, with new marks for the offsets that advance."""
        advanced = {
            partition: offset
            for partition, offset in offsets.items()
            if self.is_rebuild or before.offsets.get(partition) != offset
        }
        marks: dict[int, HistoryMark] = {
            partition: mark for partition, mark in before.marks.items() if partition not in advanced
        }
        for source in self.sources:
            if source.number in advanced:
                mark = source.find_mark(advanced[source.number])
                if mark is not None:
                    marks[source.number] = mark
        return replace(
            before,
            offsets={**before.offsets, **offsets},
            marks=marks,
            cleaned={source.number: source.cleaned_up_to for source in self.sources},
        )


def plan_table(options: SourceOptions, progress: SyncState, *, is_keyed: bool = False) -> TablePlan:
    """Plans the pieces after the table's offsets; raises NotFound for an unknown topic.

    A keyed table is rebuilt from the whole topic if tombstones may have left the log before it read
    them, if single records of keys were erased from it, or if the log lost records that it has.
    """
    sources = open_partitions(options)
    bounds = {source.number: source.bounds() for source in sources}
    is_remote = derived_outputs.is_remote(sources)
    breaks = _find_breaks(sources, progress)
    is_rebuild = is_keyed and (
        progress.needs_rebuild
        or bool(breaks)
        or not all(
            keeps_tombstones(
                progress.offsets[source.number],
                bounds=bounds[source.number],
                cleaned_before=progress.cleaned.get(source.number, 0),
                cleaned_up_to=source.cleaned_up_to,
                is_same_tier=progress.is_remote == is_remote,
            )
            for source in sources
            if source.number in progress.offsets
        )
    )
    table_offsets = {} if is_rebuild else progress.offsets
    pieces: list[Piece] = []
    ends: dict[int, int] = {}
    missed = 0
    for source in sources:
        start, end = bounds[source.number]
        first_offset = max(start, table_offsets.get(source.number, start))
        missed += max(0, start - progress.offsets.get(source.number, start))
        ends[source.number] = max(end, first_offset)
        pieces += source.pieces(start_offset=first_offset, end_offset=end, filters=SourceFilters())
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
        offset = progress.offsets.get(source.number)
        if offset is not None:
            history_break = source.find_break(offset, progress.marks.get(source.number))
            if history_break is not None:
                breaks.append(f"{source.topic}-{source.number}: {history_break}")
    return tuple(breaks)


def check_history(plan: TablePlan, name: str, *, is_keyed: bool) -> None:
    """Raises InvalidRequest if an appended table has rows of records that the log has lost.

    A keyed table is rebuilt instead.
    """
    if plan.breaks and not is_keyed:
        raise InvalidRequest(
            f"table {name} has rows of records that the log has lost: {plan.breaks[0]:.300}. Roll "
            "the table back to a snapshot from before, or drop it and its side table and create "
            "it again; nothing was changed"
        )
