"""Reads pieces of a topic as Arrow batches: its history, or the latest record of each key.

Invariant  history comes in the order of the pieces. The latest state is found from the newest
           record to the oldest, so that a key is decided when it is met first.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.cleaning.key_index.key_index import KeyEntry
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.cold_plan import read_offset_index
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.keys import TopicHash, WantedKeys, find_keys
from varve.jobs.source.latest_read import read_planned
from varve.jobs.source.options import Mode, SourceOptions
from varve.jobs.source.piece_stretches import cold_stretch, open_objects, open_stretches, wanted_of
from varve.jobs.source.pieces import (
    AnyPiece,
    ChosenPiece,
    ColdPiece,
    HotPiece,
    KeptPiece,
    Piece,
    ServerPiece,
    cut_positions,
)
from varve.jobs.source.record_blocks import CHUNK_BYTES, RecordBlock, Stretch, Wanted, read_blocks
from varve.kernels.batch_layout import RecordColumn
from varve.kernels.record_columns import add_hashes, mark_latest
from varve.object_store import ObjectStore

Flags = npt.NDArray[np.bool_]

_SLOTS_MIN: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class TaskRead:
    """What one task reads: pieces of a topic, and of the latest state one of `parts` by hash.

    Where it is planned which records are the latest, the pieces say so and come first to last. All
    others are read from the last to the first, and give the latest record of each key in them.
    """

    topic: str
    topic_id: str
    pieces: tuple[AnyPiece, ...]
    part: int = 0
    parts: int = 1
    with_tombstones: bool = False


def read_task(
    task: TaskRead, columns: ArrowColumns, options: SourceOptions, filters: SourceFilters
) -> Iterator[pa.RecordBatch]:
    """The rows of a task; one whose filters let no key through reads nothing."""
    for block, chosen in read_rows(task, options, filters):
        yield from columns.batches(
            block,
            np.flatnonzero(chosen),
            topic=task.topic,
            partition=block.stretch.partition,
        )


def read_rows(
    task: TaskRead, options: SourceOptions, filters: SourceFilters
) -> Iterator[tuple[RecordBlock, Flags]]:
    """Blocks of records, and which of them are rows of the task."""
    if filters.keys is not None and not filters.keys:
        return
    with ExitStack() as stack:
        yield from _TaskReader(task, options, filters, stack).blocks()


class _TaskReader:
    """One task under way."""

    def __init__(
        self, task: TaskRead, options: SourceOptions, filters: SourceFilters, stack: ExitStack
    ) -> None:
        self._task = task
        self._options = options
        self._filters = filters
        self._stack = stack
        self._hash = TopicHash.of(task.topic_id)
        self._keys = None if filters.keys is None else WantedKeys.of(filters.keys, self._hash)
        self._sought = set() if self._keys is None else set(self._keys.hashes)
        self._is_indexed = self._keys is not None and options.is_committed

    def blocks(self) -> Iterator[tuple[RecordBlock, Flags]]:
        """Blocks of records, and which of them are rows."""
        for one in self._task.pieces:
            if isinstance(one, KeptPiece | ChosenPiece):
                yield from read_planned(one, self._objects, self._stack)
        if self._options.mode is Mode.LATEST:
            yield from self._latest()
            return
        pieces = (piece for piece in self._pieces if self._may_hold(piece))
        stretches = (stretch for piece in pieces for stretch in self._stretches(piece))
        for block in read_blocks(stretches):
            chosen = block.chosen()
            if self._keys is not None:
                chosen &= self._keys.choose(self._hash.hash_block(block))
            yield block, chosen

    @property
    def _pieces(self) -> list[Piece]:
        """Those that are not planned."""
        return [
            one for one in self._task.pieces if isinstance(one, ColdPiece | HotPiece | ServerPiece)
        ]

    def _may_hold(self, piece: Piece) -> bool:
        """Whether a piece may hold a wanted key, as far as the key index tells."""
        return not (self._is_indexed and self._find_keys(piece) == {})

    def _find_keys(self, piece: Piece) -> dict[tuple[int, int], KeyEntry] | None:
        if not isinstance(piece, ColdPiece) or self._keys is None:
            return None
        return find_keys(self._objects(), piece.home, piece.segment, self._keys)

    def _objects(self) -> ObjectStore:
        return open_objects(self._options.address)

    def _wanted(self, piece: Piece) -> Wanted:
        return wanted_of(piece, min_ms=self._filters.min_ms, max_ms=self._filters.max_ms)

    def _stretches(self, piece: Piece) -> Iterable[Stretch]:
        return open_stretches(piece, self._wanted(piece), self._objects, self._stack)

    # The latest state

    def _latest(self) -> Iterator[tuple[RecordBlock, Flags]]:
        known = _KnownKeys()
        stretches = (
            stretch for piece in reversed(self._pieces) for stretch in self._latest_stretches(piece)
        )
        blocks = read_blocks(stretches, chunk_bytes=2 * CHUNK_BYTES)
        for _, group in groupby(blocks, key=lambda block: block.stretch):
            for block in reversed(list(group)):
                hashes = self._hash.hash_block(block)
                chosen = block.chosen()
                if self._keys is not None:
                    chosen &= self._keys.choose(hashes)
                if self._task.parts > 1:
                    numbers = (hashes[:, 0] >> np.uint64(32)) % np.uint64(self._task.parts)
                    chosen &= numbers == self._task.part
                known.keep_new(hashes, block, chosen)
                if not self._task.with_tombstones:
                    chosen &= block.records[:, RecordColumn.VALUE_SIZE] >= 0
                yield block, chosen

    def _latest_stretches(self, piece: Piece) -> Iterator[Stretch]:
        """The stretches of a piece, the newest first."""
        if not isinstance(piece, ColdPiece):
            yield from reversed(list(self._stretches(piece)))
            return
        found = self._look_up(piece)
        if found == {}:
            return
        wanted = self._wanted(piece)
        ranges = [wanted]
        if found is not None and all(
            piece.start_offset <= entry.offset < piece.end_offset for entry in found.values()
        ):
            offsets = sorted({entry.offset for entry in found.values()}, reverse=True)
            ranges = [replace(wanted, start_offset=one, end_offset=one + 1) for one in offsets]
            self._sought -= found.keys()
        index = read_offset_index(self._objects(), piece.home, piece.segment)
        for narrowed in ranges:
            places = cut_positions(
                index,
                size=piece.segment.size,
                start_offset=narrowed.start_offset,
                end_offset=narrowed.end_offset,
                piece_bytes=CHUNK_BYTES,
            )
            for start, end in reversed(places):
                start, end = max(start, piece.start), min(end, piece.end)
                if start < end:
                    yield cold_stretch(self._objects(), piece, start, end, narrowed)

    def _look_up(self, piece: ColdPiece) -> dict[tuple[int, int], KeyEntry] | None:
        """The latest record in a segment of each key that none behind it has; None if unknown."""
        if not self._is_indexed:
            return None
        keys = WantedKeys(frozenset(self._sought))
        if not keys.hashes:
            return {}
        return find_keys(self._objects(), piece.home, piece.segment, keys)


class _KnownKeys:
    """The keys that were met, as a set of hashes that grows."""

    def __init__(self) -> None:
        self._slots = np.zeros((_SLOTS_MIN, 2), np.uint64)
        self._count = 0

    def keep_new(self, hashes: npt.NDArray[np.uint64], block: RecordBlock, chosen: Flags) -> None:
        """Leaves chosen only the last record of each key that was not met before."""
        while 2 * (self._count + int(chosen.sum())) > len(self._slots):
            grown = np.zeros((4 * len(self._slots), 2), np.uint64)
            add_hashes(self._slots, grown)
            self._slots = grown
        self._count += mark_latest(hashes, block.records, chosen, self._slots)
