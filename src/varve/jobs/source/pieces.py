"""Pieces: the parts of remote segments, local logs and served logs that tasks read.

Invariant  pieces of remote segments begin and end at batch boundaries, other pieces at offsets. The
           pieces of a partition do not overlap and together hold every requested record.
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
    """Bytes [start, end) of a remote segment's log object, and the offsets to read there."""

    remote_path: RemotePath
    segment: RemoteSegment
    start: int
    end: int
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def partition(self) -> int:
        return self.remote_path.partition

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == self.segment.size

    @property
    def requests(self) -> int:
        """The number of requests to the object store."""
        return -(-self.size // CHUNK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPiece:
    """The offsets [start, end) of a local log, about `size` bytes; its files may change.

    `index_entry` is an entry (offset, position) for the last segment; (0, 0) for none.
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
    """The offsets [start, end) of a log, fetched from its server; about `size` bytes.

    Fetch responses name the aborted transactions.
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
    """A reference to the bits of a plan for the records [start, end) of a segment.

    `number` is the segment's number in the plan; the segment has `record_count` records.
    """

    bits: LatestBits
    number: int
    record_count: int
    with_tombstones: bool
    start: int = 0
    end: int = 0

    def read_bits(self) -> Bits:
        """Reads the bits of the whole segment."""
        (segment_bits,) = self.bits.read(self.number, [self.record_count])
        return (
            segment_bits.keep
            if self.with_tombstones
            else segment_bits.keep & ~segment_bits.tombstones
        )

    def read_flags(self) -> NDArray[np.bool_]:
        flags = np.unpackbits(self.read_bits(), bitorder="little")
        return flags[self.start : self.end].astype(np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPiece:
    """Batches [start, end) of a remote segment, by number, that hold planned records.

    `keep` has a bit for each record of these batches, in the order of the key index, or refers to
    the stored bits. `size` is the bytes of the batches with a set bit.
    """

    remote_path: RemotePath
    segment: RemoteSegment
    start: int
    end: int
    start_offset: int
    keep: Bits | StoredKeep
    size: int

    def read_flags(self, count: int) -> NDArray[np.bool_]:
        """Whether each of its records is planned."""
        if isinstance(self.keep, StoredKeep):
            return self.keep.read_flags()
        return np.unpackbits(self.keep, bitorder="little")[:count].astype(np.bool_)

    @property
    def partition(self) -> int:
        return self.remote_path.partition

    @property
    def end_offset(self) -> int:
        return self.segment.end_offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPiece:
    """The planned records of a piece without a key index, by ascending offset."""

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
"""A piece with the choice of its latest records."""
AnyPiece = Piece | PlannedPiece
P = TypeVar("P", bound=AnyPiece)


def cut_positions(
    index: OffsetIndex, *, size: int, start_offset: int, end_offset: int, piece_bytes: int
) -> list[tuple[int, int]]:
    """Cuts the offsets [start, end) of a segment into ranges of positions [start, end).

    The cuts are at entries of the index, where batches begin.
    """
    entries = index.entries()
    first = index.lookup(start_offset)[1]
    last = _end_position(entries, end_offset, size)
    inner = entries[(entries[:, 1] > first) & (entries[:, 1] < last), 1]
    count = max(1, round((last - first) / piece_bytes))
    targets = first + (last - first) * np.arange(1, count) // count
    slots = np.searchsorted(inner, targets)
    edges = sorted({first, last, *(int(inner[slot]) for slot in slots if slot < len(inner))})
    return list(pairwise(edges))


def _end_position(entries: NDArray[np.int64], end_offset: int, size: int) -> int:
    """A position after all batches with offsets below the end, from the index.

    An entry has the last offset of a batch and the position of that batch or an earlier one, so
    every batch from the position of the following entry on starts above that offset.
    """
    next_entry = int(np.searchsorted(entries[:, 0], end_offset - 1)) + 1
    return int(entries[next_entry, 1]) if next_entry < len(entries) else size


class SegmentSize(NamedTuple):
    """The size in bytes of the offsets [base, end)."""

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
    """The end offset of a read of about `max_bytes`, at most `end_offset`.

    `segments` begin at the start offset and are consumed only as far as needed. The bytes of a
    segment count as spread evenly over its offsets.
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
    """Groups consecutive pieces into runs of about `split_bytes`."""
    total = sum(piece.size for piece in pieces)
    count = max(1, round(total / split_bytes))
    runs: list[list[P]] = [[] for _ in range(count)]
    packed_bytes = 0
    for piece in pieces:
        middle = packed_bytes + piece.size // 2
        runs[min(middle * count // max(total, 1), count - 1)].append(piece)
        packed_bytes += piece.size
    return [tuple(run) for run in runs if run]
