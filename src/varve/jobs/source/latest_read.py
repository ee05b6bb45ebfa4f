"""Reads the records that a plan has found to be the latest of their keys, and little else.

Invariant  a batch in which nothing is kept is fetched only where the gap is not worth a request of
           its own. Batches are told by their base offsets: one that the key index does not list as
           it stands in the log is Corrupt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import KeyIndex, Table
from varve.foundation.errors import Corrupt
from varve.jobs.source.piece_stretches import cold_stretch, open_stretches, wanted_of
from varve.jobs.source.pieces import ChosenPiece, KeptPiece, PlannedPiece
from varve.jobs.source.record_blocks import RecordBlock, Stretch, Wanted, read_blocks
from varve.jobs.tier.remote_files import TierFiles
from varve.kernels.batch_layout import BatchColumn, RecordColumn
from varve.object_store import ObjectStore
from varve.tiering.copy.segment_upload import KEYS_PART

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Opener = Callable[[], ObjectStore]

GAP_BYTES: Final = 256 << 10
"""Fewer bytes between two kept batches are read through rather than asked around."""


def read_planned(
    piece: PlannedPiece, objects: Opener, stack: ExitStack
) -> Iterator[tuple[RecordBlock, Flags]]:
    """Blocks of a piece in order, and which of their records are kept."""
    match piece:
        case KeptPiece():
            return _KeptReader(piece, objects).blocks()
        case ChosenPiece():
            return _read_chosen(piece, objects, stack)


def _read_chosen(
    piece: ChosenPiece, objects: Opener, stack: ExitStack
) -> Iterator[tuple[RecordBlock, Flags]]:
    whole = wanted_of(piece.piece)
    for block in read_blocks(open_stretches(piece.piece, whole, objects, stack)):
        offsets = block.records[:, RecordColumn.OFFSET]
        yield block, block.chosen() & np.isin(offsets, piece.offsets)


class _KeptReader:
    """One piece of a cold segment under way."""

    def __init__(self, piece: KeptPiece, objects: Opener) -> None:
        self._piece = piece
        self._objects = objects()
        self._batches = self._read_batches()
        counts = self._batches["count"].astype(np.int64)
        self._counts = counts
        self._firsts = np.concatenate(([0], np.cumsum(counts)))
        total = int(self._firsts[-1])
        self._flags = piece.read_flags(total)
        self._bases = piece.segment.base_offset + self._batches["base"].astype(np.int64)

    def _read_batches(self) -> Table:
        segment = self._piece.segment
        part = segment.find_part(KEYS_PART)
        assert part is not None
        key = self._piece.home.part_key(segment, KEYS_PART)
        with (
            TierFiles(lambda: self._objects, {key: part.size}) as files,
            KeyIndex(files.open(key)) as index,
        ):
            return index.batches()[self._piece.start : self._piece.end]

    def blocks(self) -> Iterator[tuple[RecordBlock, Flags]]:
        for block in read_blocks(self._stretches()):
            yield block, block.chosen() & self._flags[self._numbers(block)]

    def _stretches(self) -> Sequence[Stretch]:
        piece = self._piece
        sums = np.concatenate(([0], np.cumsum(self._flags)))
        kept = sums[self._firsts[1:]] > sums[self._firsts[:-1]]
        wanted = Wanted(start_offset=piece.start_offset)
        return [
            cold_stretch(self._objects, piece, start, end, wanted)
            for start, end in join_places(self._batches[kept])
        ]

    def _numbers(self, block: RecordBlock) -> Integers:
        """The number of each record of a block, among those of the piece."""
        bases = block.batches[:, BatchColumn.BASE_OFFSET]
        counts = block.batches[:, BatchColumn.RECORD_COUNT]
        found = np.minimum(np.searchsorted(self._bases, bases), len(self._bases) - 1)
        is_known = (self._bases[found] == bases) & (self._counts[found] == counts)
        if not is_known.all():
            offset = int(bases[int(np.argmin(is_known))])
            raise Corrupt(
                f"{block.stretch.source.name}: the key index does not know the batch with offset "
                f"{offset} as it is; `varve tier fsck --deep` tells which object is wrong"
            )
        starts = np.cumsum(counts) - counts
        within = np.arange(len(block.records)) - starts[block.owners]
        numbers: Integers = self._firsts[found][block.owners] + within
        return numbers


def join_places(batches: Table) -> list[tuple[int, int]]:
    """The positions [start, end) of batches in order; near ones are taken together."""
    if not len(batches):
        return []
    starts = batches["position"].astype(np.int64)
    ends = starts + batches["size"]
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > GAP_BYTES) + 1
    firsts = starts[np.concatenate(([0], cuts))]
    lasts = ends[np.concatenate((cuts, [len(ends)])) - 1]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
