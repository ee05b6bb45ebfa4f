"""What a task reads: pieces of log objects, of a local log or of a server's, joined to splits.

Invariant  pieces of log objects begin and end where batches do, others at offsets; those of a
           partition do not overlap, and together hold every wanted record.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from varve.commit_log.sparse_index import OffsetIndex
from varve.commit_log.transaction_index import AbortedTransaction
from varve.jobs.key_plans import LatestBits
from varve.jobs.source.record_blocks import CHUNK_BYTES
from varve.kafka_client.address import ClusterAddress
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment

Bits = NDArray[np.uint8]

SLACK: Final = 1.25
"""A segment up to this factor larger than a split is still read by one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePiece:
    """Bytes [start, end) of a cold segment's log object, and the offsets wanted of them."""

    home: RemotePath
    segment: RemoteSegment
    start: int
    end: int
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def partition(self) -> int:
        return self.home.partition

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == self.segment.size

    @property
    def requests(self) -> int:
        """How often the store is asked."""
        return -(-self.size // CHUNK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPiece:
    """The offsets [start, end) of a local log, about `size` bytes; its files may change.

    `index_entry` is an offset of the last segment and where its batch begins; (0, 0) for none.
    """

    directory: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    size: int
    index_entry: tuple[int, int] = (0, 0)
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def requests(self) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPiece:
    """The offsets [start, end) of a log as its server gives them, about `size` bytes.

    The server returns the aborted transactions with the batches.
    """

    address: ClusterAddress
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    size: int
    is_committed: bool

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        return ()

    @property
    def requests(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class StoredKeep:
    """Where it is kept which of the records [start, end) of a segment are wanted.

    The segment has `number` in the plan whose bits these are, and `record_count` records.
    """

    bits: LatestBits
    number: int
    record_count: int
    with_tombstones: bool
    start: int = 0
    end: int = 0

    def read_bits(self) -> Bits:
        """Those of the whole segment."""
        (found,) = self.bits.read(self.number, [self.record_count])
        return found.keep if self.with_tombstones else found.keep & ~found.tombstones

    def read_flags(self) -> NDArray[np.bool_]:
        flags = np.unpackbits(self.read_bits(), bitorder="little")
        return flags[self.start : self.end].astype(np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPiece:
    """Batches [start, end) of a cold segment, by number, of which some records are wanted.

    `keep` has a bit for each record of these batches, as its key index numbers them, or says where
    they are; `size` is about what reading the batches takes in which a bit is set.
    """

    home: RemotePath
    segment: RemoteSegment
    start: int
    end: int
    start_offset: int
    keep: Bits | StoredKeep
    size: int

    def read_flags(self, count: int) -> NDArray[np.bool_]:
        """Whether each of its records is wanted."""
        if isinstance(self.keep, StoredKeep):
            return self.keep.read_flags()
        return np.unpackbits(self.keep, bitorder="little")[:count].astype(np.bool_)

    @property
    def partition(self) -> int:
        return self.home.partition

    @property
    def end_offset(self) -> int:
        return self.segment.end_offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPiece:
    """The records of these offsets, in order, of a piece without a key index."""

    piece: "Piece"
    offsets: NDArray[np.int64]

    @property
    def partition(self) -> int:
        return self.piece.partition

    @property
    def size(self) -> int:
        return self.piece.size


Piece = RemotePiece | LocalPiece | ServedPiece
PlannedPiece = KeptPiece | ChosenPiece
"""Of which it was found out what the latest records are."""
AnyPiece = Piece | PlannedPiece
P = TypeVar("P", bound=AnyPiece)


def cut_positions(
    index: OffsetIndex, *, size: int, start_offset: int, end_offset: int, piece_bytes: int
) -> list[tuple[int, int]]:
    """The positions [start, end) of pieces that hold all wanted offsets of a segment.

    They are cut at entries of the index, where batches begin.
    """
    entries = index.entries()
    first = index.lookup(start_offset)[1]
    last = _end_position(entries, end_offset, size)
    inner = entries[(entries[:, 1] > first) & (entries[:, 1] < last), 1]
    count = max(1, round((last - first) / piece_bytes))
    aims = first + (last - first) * np.arange(1, count) // count
    slots = np.searchsorted(inner, aims)
    edges = sorted({first, last, *(int(inner[slot]) for slot in slots if slot < len(inner))})
    return list(pairwise(edges))


def _end_position(entries: NDArray[np.int64], end_offset: int, size: int) -> int:
    """The position after all batches with offsets below the end, by the index.

    An entry names the last offset of a batch and where that batch, or one before, begins: all
    behind the next entry begin above it.
    """
    behind = int(np.searchsorted(entries[:, 0], end_offset - 1)) + 1
    return int(entries[behind, 1]) if behind < len(entries) else size


class SegmentSize(NamedTuple):
    """The bytes of the offsets [base, end)."""

    base_offset: int
    end_offset: int
    size: int


def step_by_bytes(
    segments: Iterable[SegmentSize],
    *,
    start_offset: int,
    end_offset: int,
    max_bytes: float,
) -> int:
    """The end offset of a read of about this many bytes, at most the end.

    `segments` begin at the start, and only those that are stepped over are asked for. Within a
    segment the bytes are taken as spread over its offsets.
    """
    offset = start_offset
    for base, end, size in segments:
        first, stop = max(offset, base), min(end, end_offset)
        if stop <= first:
            break
        segment_bytes = size * (stop - first) / (end - base)
        if segment_bytes > max_bytes:
            return first + int((stop - first) * max_bytes / segment_bytes)
        max_bytes -= segment_bytes
        offset = stop
    return offset


def pack(pieces: Sequence[P], *, split_bytes: int) -> list[tuple[P, ...]]:
    """Pieces in runs of about the same bytes, in their order."""
    total = sum(piece.size for piece in pieces)
    count = max(1, round(total / split_bytes))
    packed: list[list[P]] = [[] for _ in range(count)]
    done = 0
    for piece in pieces:
        middle = done + piece.size // 2
        packed[min(middle * count // max(total, 1), count - 1)].append(piece)
        done += piece.size
    return [tuple(run) for run in packed if run]
