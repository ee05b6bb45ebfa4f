"""Reads pieces as blocks of records: local, remote and served ones, whole or by a plan.

Invariant  an object that was deleted after the read was planned raises ObjectNotFound; one that is
           shorter than its manifest says raises Corrupt. Of a planned piece, a batch without kept
           records is fetched only in a gap of at most `GAP_BYTES`. A batch whose base offset and
           record count are not in the key index raises Corrupt.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import Table
from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.local_log import open_piece
from varve.jobs.source.pieces import (
    ChosenPiece,
    KeptPiece,
    LocalPiece,
    Piece,
    PlannedPiece,
    RemotePiece,
    ServedPiece,
)
from varve.jobs.source.record_blocks import BatchRange, RecordBlock, RecordFilter, read_blocks
from varve.jobs.source.server_log import read_served
from varve.jobs.tier.bucket import Bucket
from varve.jobs.tier.remote_files import open_key_index
from varve.kernels.batch_layout import BatchColumn, RecordColumn
from varve.object_store import ObjectStore
from varve.tiering.manifest.segment import LOG_PART


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """The log object of a segment."""

    objects: ObjectStore
    key: str

    @property
    def name(self) -> str:
        return f"{self.objects.name}: {self.key!r}"

    def read(self, start: int, end: int) -> memoryview:
        try:
            data = self.objects.get_range(self.key, start, end)
        except ObjectNotFound as error:
            raise ObjectNotFound(
                f"{error}; its segment was replaced or expired after the read was planned: read "
                "again. If it fails again the object is lost: `varve tier fsck` shows details"
            ) from error
        if len(data) != end - start:
            raise Corrupt(
                f"{self.name} ends at position {start + len(data)}; by the manifest it has at "
                f"least {end} bytes. `varve tier fsck` lists such objects"
            )
        return data


def open_objects(address: Bucket | None) -> ObjectStore:
    """Opens the store of the remote tier; raises InvalidRequest without an address."""
    if address is None:
        raise InvalidRequest(
            "the read includes the remote tier: give its object store with option url"
        )
    return address.objects()


def piece_filter(piece: Piece, *, min_ms: int = -LONG_MAX, max_ms: int = LONG_MAX) -> RecordFilter:
    """Selects the records of a piece."""
    return RecordFilter(piece.start_offset, piece.end_offset, min_ms, max_ms, piece.aborted)


def read_pieces(
    pieces: Iterable[Piece],
    find_filter: Callable[[Piece], RecordFilter],
    objects: Callable[[], ObjectStore],
    stack: ExitStack,
) -> Iterator[RecordBlock]:
    """The blocks of pieces in order; the next chunks are fetched while a block is used."""
    for kind, run in groupby(pieces, key=type):
        if kind is ServedPiece:
            for piece in run:
                assert isinstance(piece, ServedPiece)
                yield from read_served(piece, find_filter(piece))
            continue
        yield from read_blocks(
            batch_range
            for piece in run
            for batch_range in open_batch_ranges(piece, find_filter(piece), objects, stack)
        )


def open_batch_ranges(
    piece: Piece, record_filter: RecordFilter, objects: Callable[[], ObjectStore], stack: ExitStack
) -> list[BatchRange]:
    """The batch ranges of a local or remote piece; `stack` keeps local files open."""
    if isinstance(piece, LocalPiece):
        return open_piece(piece).batch_ranges(record_filter, piece.index_entry, stack)
    assert isinstance(piece, RemotePiece), "a served piece is read by Fetch, not from files"
    return [remote_batch_range(objects(), piece, piece.start, piece.end, record_filter)]


def remote_batch_range(
    objects: ObjectStore,
    piece: RemotePiece | KeptPiece,
    start: int,
    end: int,
    record_filter: RecordFilter,
) -> BatchRange:
    """The batches at positions [start, end) of the segment of a piece."""
    segment = piece.segment
    source = ObjectSource(objects, piece.remote_path.part_key(segment, LOG_PART))
    return BatchRange(
        source,
        piece.partition,
        start,
        end,
        record_filter,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset + 1,
    )


# Planned pieces


Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Opener = Callable[[], ObjectStore]

GAP_BYTES: Final = 256 << 10
"""A gap of up to this many bytes between kept batches is read rather than skipped."""


def read_planned(
    piece: PlannedPiece, objects: Opener, stack: ExitStack
) -> Iterator[tuple[RecordBlock, Flags]]:
    """The blocks of a piece in order, and which of their records are kept."""
    match piece:
        case KeptPiece():
            return _KeptReader(piece, objects).blocks()
        case ChosenPiece():
            return _read_chosen(piece, objects, stack)


def _read_chosen(
    piece: ChosenPiece, objects: Opener, stack: ExitStack
) -> Iterator[tuple[RecordBlock, Flags]]:
    for block in read_pieces([piece.piece], piece_filter, objects, stack):
        offsets = block.records[:, RecordColumn.OFFSET]
        yield block, block.chosen() & np.isin(offsets, piece.offsets)


class _KeptReader:
    """Reads the kept records of a piece of a remote segment."""

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
        piece = self._piece
        with open_key_index(self._objects, piece.remote_path, piece.segment) as index:
            return index.batches()[piece.start : piece.end]

    def blocks(self) -> Iterator[tuple[RecordBlock, Flags]]:
        for block in read_blocks(self._batch_ranges()):
            yield block, block.chosen() & self._flags[self._record_numbers(block)]

    def _batch_ranges(self) -> Sequence[BatchRange]:
        piece = self._piece
        sums = np.concatenate(([0], np.cumsum(self._flags)))
        kept = sums[self._firsts[1:]] > sums[self._firsts[:-1]]
        record_filter = RecordFilter(start_offset=piece.start_offset)
        return [
            remote_batch_range(self._objects, piece, start, end, record_filter)
            for start, end in join_positions(self._batches[kept])
        ]

    def _record_numbers(self, block: RecordBlock) -> Integers:
        """The number of each record of a block among the records of the piece."""
        bases = block.batches[:, BatchColumn.BASE_OFFSET]
        counts = block.batches[:, BatchColumn.RECORD_COUNT]
        rows = np.minimum(np.searchsorted(self._bases, bases), len(self._bases) - 1)
        is_listed = (self._bases[rows] == bases) & (self._counts[rows] == counts)
        if not is_listed.all():
            offset = int(bases[int(np.argmin(is_listed))])
            raise Corrupt(
                f"{block.source_name}: the batch with base offset {offset} is not in the key index "
                "or has another record count; `varve tier fsck --deep` shows which object is wrong"
            )
        starts = np.cumsum(counts) - counts
        within = np.arange(len(block.records)) - starts[block.owners]
        numbers: Integers = self._firsts[rows][block.owners] + within
        return numbers


def join_positions(batches: Table) -> list[tuple[int, int]]:
    """The positions [start, end) of batches in order; joins those with small gaps."""
    if not len(batches):
        return []
    starts = batches["position"].astype(np.int64)
    ends = starts + batches["size"]
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > GAP_BYTES) + 1
    firsts = starts[np.concatenate(([0], cuts))]
    lasts = ends[np.concatenate((cuts, [len(ends)])) - 1]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
