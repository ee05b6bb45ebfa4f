"""Reads the pieces of a task as Arrow batches: all records, or the latest of each key.

Invariant  all records come in the order of the pieces. Latest records that are not planned are
           found by reading from the newest record to the oldest: the first record of a key wins. A
           segment whose key index lacks the hash of a key has no committed record of that key.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.cleaning.key_index.key_index import KeyEntry
from varve.commit_log.directory_files import decode_topic_id
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.options import Mode, SourceFilters, SourceOptions
from varve.jobs.source.piece_reading import (
    open_batch_ranges,
    open_objects,
    piece_filter,
    read_pieces,
    read_planned,
    remote_batch_range,
)
from varve.jobs.source.pieces import (
    AnyPiece,
    ChosenPiece,
    KeptPiece,
    LocalPiece,
    Piece,
    RemotePiece,
    ServedPiece,
    cut_positions,
)
from varve.jobs.source.record_blocks import (
    CHUNK_BYTES,
    BatchRange,
    RecordBlock,
    RecordFilter,
    read_blocks,
)
from varve.jobs.source.remote_plan import read_offset_index
from varve.jobs.tier.remote_files import open_key_index
from varve.kernels.batch_layout import RecordColumn
from varve.kernels.hashes import hash_bytes, hash_keys
from varve.kernels.record_columns import add_hashes, mark_latest
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import KEYS_PART, RemoteSegment

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class TopicHash:
    """The hash function of a topic's keys, seeded by the two halves of the topic id."""

    first: np.uint64
    second: np.uint64

    @classmethod
    def of(cls, topic_id: str) -> Self:
        secret = cls.secret(topic_id)
        return cls(
            np.uint64(int.from_bytes(secret[:8], "little")),
            np.uint64(int.from_bytes(secret[8:], "little")),
        )

    @staticmethod
    def secret(topic_id: str) -> bytes:
        """The bytes of a topic id, which seed the hash and are in every key-index header."""
        return decode_topic_id(topic_id).bytes

    def hash(self, key: bytes) -> tuple[int, int]:
        data = np.frombuffer(key, np.uint8)
        high, low = hash_bytes(data, 0, len(key), self.first, self.second)
        return int(high), int(low)

    def hash_block(self, block: RecordBlock) -> Hashes:
        """The hashes of all records; zeros for records without a key."""
        out = np.empty((len(block.records), 2), np.uint64)
        hash_keys(block.payload, block.records, self.first, self.second, out)
        return out


@dataclass(frozen=True, slots=True)
class RequestedKeys:
    """The keys of a filter, as hashes."""

    hashes: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, keys: Iterable[bytes], topic: TopicHash) -> Self:
        return cls(frozenset(topic.hash(key) for key in keys))

    def choose(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which records may have one of the keys; compares the first half of the hash only."""
        highs = np.fromiter((high for high, _ in self.hashes), np.uint64, len(self.hashes))
        return np.isin(hashes[:, 0], highs)


def find_keys(
    objects: ObjectStore, remote_path: RemotePath, segment: RemoteSegment, keys: RequestedKeys
) -> dict[tuple[int, int], KeyEntry] | None:
    """The latest record of each key in a segment; None if the segment has no key index."""
    if segment.find_part(KEYS_PART) is None:
        return None
    if segment.key_count == 0:
        return {}
    with open_key_index(objects, remote_path, segment) as index:
        entries = ((key_hash, index.find(*key_hash)) for key_hash in sorted(keys.hashes))
        return {key_hash: entry for key_hash, entry in entries if entry is not None}


# Tasks


Flags = npt.NDArray[np.bool_]

_SLOTS_MIN: Final = 1 << 16
"""Initial slots of the set of seen keys: 1 MiB."""


@dataclass(frozen=True, slots=True)
class TaskRead:
    """The pieces that one task reads; for the latest state, share `part` of `parts` by key hash.

    Planned pieces are read in order. For the latest state, all other pieces are read from the last
    to the first and give the latest record of each key in them.
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
    """The rows of a task; none if the filters exclude every key."""
    for block, chosen in read_rows(task, options, filters):
        yield from columns.batches(
            block,
            np.flatnonzero(chosen),
            topic=task.topic,
            partition=block.partition,
        )


def read_rows(
    task: TaskRead, options: SourceOptions, filters: SourceFilters
) -> Iterator[tuple[RecordBlock, Flags]]:
    """The blocks of a task, and which of their records are rows."""
    if filters.keys is not None and not filters.keys:
        return
    with ExitStack() as stack:
        yield from _TaskReader(task, options, filters, stack).blocks()


class _TaskReader:
    """Reads the blocks of one task."""

    def __init__(
        self, task: TaskRead, options: SourceOptions, filters: SourceFilters, stack: ExitStack
    ) -> None:
        self._task = task
        self._options = options
        self._filters = filters
        self._stack = stack
        self._hash = TopicHash.of(task.topic_id)
        self._keys = None if filters.keys is None else RequestedKeys.of(filters.keys, self._hash)
        self._unresolved = set() if self._keys is None else set(self._keys.hashes)
        self._is_indexed = self._keys is not None and options.is_committed

    def blocks(self) -> Iterator[tuple[RecordBlock, Flags]]:
        for planned in self._task.pieces:
            if isinstance(planned, KeptPiece | ChosenPiece):
                yield from read_planned(planned, self._objects, self._stack)
        if self._options.mode is Mode.LATEST:
            yield from self._latest()
            return
        pieces = (piece for piece in self._pieces if self._may_hold(piece))
        for block in read_pieces(pieces, self._piece_filter, self._objects, self._stack):
            chosen = block.chosen()
            if self._keys is not None:
                chosen &= self._keys.choose(self._hash.hash_block(block))
            yield block, chosen

    @property
    def _pieces(self) -> list[Piece]:
        """The pieces without a plan."""
        return [
            piece
            for piece in self._task.pieces
            if isinstance(piece, RemotePiece | LocalPiece | ServedPiece)
        ]

    def _may_hold(self, piece: Piece) -> bool:
        """False if the key index of the piece has none of the keys."""
        return not (self._is_indexed and self._find_keys(piece) == {})

    def _find_keys(self, piece: Piece) -> dict[tuple[int, int], KeyEntry] | None:
        if not isinstance(piece, RemotePiece) or self._keys is None:
            return None
        return find_keys(self._objects(), piece.remote_path, piece.segment, self._keys)

    def _objects(self) -> ObjectStore:
        return open_objects(self._options.address)

    def _piece_filter(self, piece: Piece) -> RecordFilter:
        return piece_filter(piece, min_ms=self._filters.min_ms, max_ms=self._filters.max_ms)

    # The latest state

    def _latest(self) -> Iterator[tuple[RecordBlock, Flags]]:
        seen = _SeenKeys()
        for block in self._newest_first():
            hashes = self._hash.hash_block(block)
            chosen = block.chosen()
            if self._keys is not None:
                chosen &= self._keys.choose(hashes)
            if self._task.parts > 1:
                numbers = (hashes[:, 0] >> np.uint64(32)) % np.uint64(self._task.parts)
                chosen &= numbers == self._task.part
            seen.mark_latest_unseen(hashes, block, chosen)
            if not self._task.with_tombstones:
                chosen &= block.records[:, RecordColumn.VALUE_SIZE] >= 0
            yield block, chosen

    def _newest_first(self) -> Iterator[RecordBlock]:
        pieces = reversed(self._pieces)
        for is_served, run in groupby(pieces, key=lambda piece: isinstance(piece, ServedPiece)):
            if is_served:
                for piece in run:
                    blocks = read_pieces([piece], self._piece_filter, self._objects, self._stack)
                    yield from reversed(list(blocks))
                continue
            batch_ranges = (
                batch_range for piece in run for batch_range in self._latest_batch_ranges(piece)
            )
            blocks_in_order = read_blocks(batch_ranges, chunk_bytes=2 * CHUNK_BYTES)
            for _, group in groupby(blocks_in_order, key=lambda block: block.batch_range):
                yield from reversed(list(group))

    def _latest_batch_ranges(self, piece: Piece) -> Iterator[BatchRange]:
        """The batch ranges of a piece, newest first."""
        if not isinstance(piece, RemotePiece):
            local = open_batch_ranges(piece, self._piece_filter(piece), self._objects, self._stack)
            yield from reversed(local)
            return
        entries = self._find_unresolved(piece)
        if entries == {}:
            return
        whole_piece = self._piece_filter(piece)
        filters = [whole_piece]
        if entries is not None and all(
            piece.start_offset <= entry.offset < piece.end_offset for entry in entries.values()
        ):
            offsets = sorted({entry.offset for entry in entries.values()}, reverse=True)
            filters = [
                replace(whole_piece, start_offset=offset, end_offset=offset + 1)
                for offset in offsets
            ]
            self._unresolved -= entries.keys()
        index = read_offset_index(self._objects(), piece.remote_path, piece.segment)
        for narrowed in filters:
            positions = cut_positions(
                index,
                size=piece.segment.size,
                start_offset=narrowed.start_offset,
                end_offset=narrowed.end_offset,
                piece_bytes=CHUNK_BYTES,
            )
            for start, end in reversed(positions):
                start, end = max(start, piece.start), min(end, piece.end)
                if start < end:
                    yield remote_batch_range(self._objects(), piece, start, end, narrowed)

    def _find_unresolved(self, piece: RemotePiece) -> dict[tuple[int, int], KeyEntry] | None:
        """The latest record in a segment of each key without a newer one; None if not indexed."""
        if not self._is_indexed:
            return None
        keys = RequestedKeys(frozenset(self._unresolved))
        if not keys.hashes:
            return {}
        return find_keys(self._objects(), piece.remote_path, piece.segment, keys)


class _SeenKeys:
    """A growing set of the key hashes seen so far."""

    def __init__(self) -> None:
        self._slots = np.zeros((_SLOTS_MIN, 2), np.uint64)
        self._count = 0

    def mark_latest_unseen(
        self, hashes: npt.NDArray[np.uint64], block: RecordBlock, chosen: Flags
    ) -> None:
        """Keeps in `chosen` only the last record of each key that was not seen before."""
        while 2 * (self._count + int(chosen.sum())) > len(self._slots):
            grown = np.zeros((4 * len(self._slots), 2), np.uint64)
            add_hashes(self._slots, grown)
            self._slots = grown
        self._count += mark_latest(hashes, block.records, chosen, self._slots)
