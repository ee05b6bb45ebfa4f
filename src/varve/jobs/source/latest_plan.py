"""Plans a latest-per-key read: finds the latest record of each key before any value is read.

The key indexes of remote segments list their keys and are merged by hash range, as in a compaction.
Loose pieces (the log after the end of the remote tier, a segment that an offset bound cuts, a
segment without a key index) are scanned for their keys; the scan builds a key index in memory.

Layout     the index of a loose piece is a key index without batches and marks.
           docs/reference/formats/keys.md
Invariant  a planned record is the last one of its key in the pieces of its request. Records below
           the start offset of the read may be planned; the read skips them. Records without a key,
           of control batches and of aborted transactions are not planned.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.key_plan import ENTRY_BYTES, HashRange, plan_keys
from varve.cleaning.key_index.key_index import (
    ENTRY,
    NO_HORIZON,
    KeyIndexHeader,
    SegmentKeys,
    Table,
)
from varve.jobs.key_plans import (
    LatestBits,
    RangeFold,
    RangeOutcome,
    StoredBits,
    WorkArea,
    cut_hashes,
    file_bits,
    plan_area,
)
from varve.jobs.source.piece_reading import open_objects, piece_filter, read_pieces
from varve.jobs.source.pieces import (
    Bits,
    ChosenPiece,
    KeptPiece,
    Piece,
    PlannedPiece,
    RemotePiece,
    StoredKeep,
)
from varve.jobs.source.read import TopicHash
from varve.jobs.tasks import TaskRunner, ThreadRunner
from varve.jobs.tier.bucket import Bucket
from varve.jobs.tier.remote_files import TierFiles, checksum, only_keys, open_key_index
from varve.kernels.batch_layout import RecordColumn
from varve.kernels.key_merge import count_bits
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.tiering.manifest.segment import KEYS_PART

# Loose pieces


Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PieceKeys:
    """The keys of a loose piece: `data` is a key index; its record r has offset `offsets[r]`."""

    piece: Piece
    header: KeyIndexHeader
    data: bytes
    offsets: Integers


def scan_keys(piece: Piece, topic_id: str, objects: Callable[[], ObjectStore]) -> PieceKeys:
    """Scans a piece and builds the key index of its records."""
    topic_hash = TopicHash.of(topic_id)
    hashes: list[npt.NDArray[np.uint64]] = [np.empty((0, 2), np.uint64)]
    rows: list[Integers] = [np.empty((0, 3), np.int64)]
    with ExitStack() as stack:
        for block in read_pieces([piece], piece_filter, objects, stack):
            records = block.records
            chosen = block.chosen() & (records[:, RecordColumn.KEY_SIZE] >= 0)
            hashes.append(topic_hash.hash_block(block)[chosen])
            sizes = records[chosen, RecordColumn.RECORD_END]
            sizes = sizes - records[chosen, RecordColumn.RECORD_START]
            rows.append(
                np.column_stack(
                    (
                        records[chosen, RecordColumn.OFFSET],
                        sizes,
                        records[chosen, RecordColumn.VALUE_SIZE] < 0,
                    )
                )
            )
    return _build_piece_keys(piece, topic_id, np.concatenate(hashes), np.concatenate(rows))


def _build_piece_keys(
    piece: Piece, topic_id: str, hashes: npt.NDArray[np.uint64], rows: Integers
) -> PieceKeys:
    order = np.lexsort(
        (hashes[:, 1], hashes[:, 0])
    )  # stable: the last of equal hashes is the latest
    ordered = hashes[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    latest = order[is_last]
    entries = np.empty(len(latest), ENTRY)
    entries["hash_high"], entries["hash_low"] = hashes[latest, 0], hashes[latest, 1]
    entries["offset"] = rows[latest, 0] - piece.start_offset
    entries["record"] = latest
    entries["size"] = rows[latest, 1]
    entries["flags"] = rows[latest, 2]
    body = entries.tobytes()
    header = KeyIndexHeader(
        topic_id=TopicHash.secret(topic_id),
        base_offset=piece.start_offset,
        last_offset=piece.end_offset - 1,
        log_size=piece.size,
        last_batch_crc=0,
        entry_count=len(entries),
        batch_count=0,
        mark_count=0,
        record_count=len(rows),
        null_key_count=0,
        tombstone_count=int(rows[latest, 2].sum()),
        record_bytes=int(rows[:, 1].sum()),
        earliest_horizon=NO_HORIZON,
        sections_crc=checksum(body),
    )
    return PieceKeys(piece, header, header.encode() + body, rows[:, 0])


# The plan


RANGE_BYTES: Final = 64 << 20
"""Bytes of key-index entries that one task merges, approximately."""
_BUFFER_BYTES: Final = 32 << 20
"""Read buffers of one merge, shared by all its key indexes."""


def is_indexed(piece: Piece) -> bool:
    """Whether a piece is a whole remote segment with a key index, not cut by an end offset."""
    if not isinstance(piece, RemotePiece) or not piece.is_whole:
        return False
    segment = piece.segment
    return segment.find_part(KEYS_PART) is not None and piece.end_offset > segment.end_offset


@dataclass(frozen=True, slots=True)
class IndexedPiece:
    """A whole remote segment and the header of its key index."""

    piece: RemotePiece
    header: KeyIndexHeader

    @property
    def path(self) -> str:
        return self.piece.remote_path.part_key(self.piece.segment, KEYS_PART)

    def only_keys(self) -> "IndexedPiece":
        """The piece as it is sent to tasks."""
        return replace(self, piece=replace(self.piece, segment=only_keys(self.piece.segment)))


Planned = IndexedPiece | PieceKeys


@dataclass(frozen=True, slots=True)
class LatestTask:
    """Finds the latest records of the keys in one hash range of a request.

    `request` is its index in the requests that the tasks of a stage share; `number` counts the
    hash ranges of that request.
    """

    request: int
    number: int
    hashes: HashRange

    def run(self, shared: "Sequence[LatestRequest]") -> RangeOutcome:
        request = shared[self.request]
        loose_objects = MemoryObjectStore()
        remote_sizes: dict[str, int] = {}
        loose_sizes: dict[str, int] = {}
        for number, keys in enumerate(request.pieces):
            if isinstance(keys, IndexedPiece):
                remote_sizes[keys.path] = keys.header.file_size
            else:
                loose_objects.put(str(number), keys.data)
                loose_sizes[str(number)] = len(keys.data)
        with (
            TierFiles(partial(open_objects, request.address), remote_sizes) as remote_files,
            TierFiles(lambda: loose_objects, loose_sizes) as loose_files,
        ):
            plan = plan_keys(
                [
                    SegmentKeys(remote_files, keys.path, keys.header)
                    if isinstance(keys, IndexedPiece)
                    else SegmentKeys(loose_files, str(number), keys.header)
                    for number, keys in enumerate(request.pieces)
                ],
                buffer_bytes=_BUFFER_BYTES,
                hashes=self.hashes,
                allocate_bits=file_bits,
            )
        return RangeOutcome.store(plan, request.area, self.number)


@dataclass(frozen=True, slots=True)
class HeaderTask:
    """Reads the header of a segment's key index; raises Corrupt if it is of another segment."""

    address: Bucket
    piece: RemotePiece
    topic_id: str

    def run(self, shared: None) -> IndexedPiece:
        piece, secret = self.piece, TopicHash.secret(self.topic_id)
        with open_key_index(
            self.address.objects(), piece.remote_path, piece.segment, secret
        ) as index:
            return IndexedPiece(piece, index.header)


@dataclass(frozen=True, slots=True)
class KeepTask:
    """Cuts the batches of a segment that hold planned records into pieces."""

    address: Bucket
    indexed: IndexedPiece
    kept: StoredKeep
    split_bytes: int

    def run(self, shared: None) -> list[KeptPiece]:
        keep = self.kept.read_bits()
        if not keep.any():
            return []
        piece = self.indexed.piece
        with open_key_index(self.address.objects(), piece.remote_path, piece.segment) as index:
            batches = index.batches()
        stored = self.kept if isinstance(self.kept.bits, StoredBits) else None
        return cut_kept(piece, batches, keep, split_bytes=self.split_bytes, stored=stored)


def cut_kept(
    piece: RemotePiece,
    batches: Table,
    keep: Bits,
    *,
    split_bytes: int,
    stored: StoredKeep | None = None,
) -> list[KeptPiece]:
    """Cuts the batches of a segment that hold planned records into pieces of about `split_bytes`.

    A piece carries the bits of its records, or refers to the `stored` ones.
    """
    counts = batches["count"].astype(np.int64)
    kept_counts = np.empty(len(counts), np.int64)
    count_bits(keep, 0, counts, kept_counts)
    last_offsets = piece.segment.base_offset + batches["last"].astype(np.int64)
    kept_counts[last_offsets < piece.start_offset] = 0
    sizes = np.where(kept_counts > 0, batches["size"].astype(np.int64), 0)
    ends = np.cumsum(sizes)
    if not len(ends) or not ends[-1]:
        return []
    count = max(1, round(int(ends[-1]) / split_bytes))
    numbers = np.minimum((ends - sizes // 2) * count // int(ends[-1]), count - 1)
    flags = np.unpackbits(keep, bitorder="little")
    records = np.concatenate(([0], np.cumsum(counts)))
    kept_batches = np.flatnonzero(sizes)
    edges = np.flatnonzero(np.diff(numbers[kept_batches])) + 1
    pieces = []
    for run in np.split(kept_batches, edges):
        start, end = int(run[0]), int(run[-1]) + 1
        first_record, end_record = int(records[start]), int(records[end])
        bits: Bits | StoredKeep
        if stored is None:
            bits = np.packbits(flags[first_record:end_record], bitorder="little")
        else:
            bits = replace(stored, start=first_record, end=end_record)
        pieces.append(
            KeptPiece(
                remote_path=piece.remote_path,
                segment=only_keys(piece.segment),
                start=start,
                end=end,
                start_offset=piece.start_offset,
                keep=bits,
                size=int(sizes[start:end].sum()),
            )
        )
    return pieces


@dataclass(frozen=True, slots=True)
class LatestRequest:
    """The pieces of one partition, in order, whose latest records are planned.

    Tasks write the bits of the plan to `area`, or return them to the driver if it is None.
    """

    address: Bucket | None
    pieces: tuple[Planned, ...]
    area: WorkArea | None = None

    @property
    def record_counts(self) -> list[int]:
        return [piece.header.record_count for piece in self.pieces]

    def only_keys(self) -> "LatestRequest":
        """The request as it is sent to tasks: segments without parts other than the key index."""
        slim = (
            keys.only_keys() if isinstance(keys, IndexedPiece) else keys for keys in self.pieces
        )
        return replace(self, pieces=tuple(slim))

    def ranges(self, range_bytes: int) -> list[HashRange]:
        entries = sum(piece.header.entry_count for piece in self.pieces)
        return cut_hashes(-(-entries * ENTRY_BYTES // range_bytes))


def read_headers(
    address: Bucket | None, topic_id: str, pieces: Sequence[Piece]
) -> dict[str, IndexedPiece]:
    """Reads the key-index headers of the pieces that are indexed; by segment id."""
    remote_pieces = [
        piece for piece in pieces if isinstance(piece, RemotePiece) and is_indexed(piece)
    ]
    if not remote_pieces or address is None:
        return {}
    headers = ThreadRunner().run(
        "headers", [HeaderTask(address, piece, topic_id) for piece in remote_pieces]
    )
    return {piece.piece.segment.id: piece for piece in headers}


def plan_latest(
    requests: Sequence[LatestRequest],
    *,
    runner: TaskRunner,
    split_bytes: int,
    with_tombstones: bool,
    range_bytes: int = RANGE_BYTES,
) -> list[list[PlannedPiece]]:
    """The pieces that hold the latest records, for each request in the order of its pieces.

    Without `with_tombstones`, keys whose latest record is a tombstone are left out.
    """
    tasks = [
        LatestTask(request, number, hashes)
        for request, latest_request in enumerate(requests)
        for number, hashes in enumerate(latest_request.ranges(range_bytes))
    ]
    shared = [request.only_keys() for request in requests]
    folds = [RangeFold(request.record_counts, request.area) for request in requests]
    for task, outcome in zip(tasks, runner.try_run("keys", tasks, shared), strict=True):
        folds[task.request].add(outcome)
    return [
        _cut_request(request, fold.result().bits, with_tombstones, split_bytes, runner)
        for request, fold in zip(requests, folds, strict=True)
    ]


def with_areas(
    requests: Sequence[LatestRequest], area: WorkArea, inline_bytes: int
) -> list[LatestRequest]:
    """Gives each request with many records a folder of the area for its plan."""
    share = inline_bytes // max(len(requests), 1)
    assigned = []
    for number, request in enumerate(requests):
        folder = replace(area, folder=f"{area.folder}plan-{number}/")
        count = sum(request.record_counts)
        request_area = plan_area(folder, record_count=count, inline_bytes=share)
        assigned.append(replace(request, area=request_area))
    return assigned


def _cut_request(
    request: LatestRequest,
    bits: LatestBits,
    with_tombstones: bool,
    split_bytes: int,
    runner: TaskRunner,
) -> list[PlannedPiece]:
    planned: dict[int, list[PlannedPiece]] = {}
    tasks: dict[int, KeepTask] = {}
    for number, keys in enumerate(request.pieces):
        count = keys.header.record_count
        kept = StoredKeep(bits, number, count, with_tombstones=with_tombstones, end=count)
        if isinstance(keys, IndexedPiece):
            assert request.address is not None
            tasks[number] = KeepTask(request.address, keys.only_keys(), kept, split_bytes)
        else:
            planned[number] = _choose_records(keys, kept.read_bits())
    # Bits in the memory of this process are cut here, which saves sending them to tasks.
    cutter = runner if isinstance(bits, StoredBits) else ThreadRunner()
    pieces = cutter.run("batches", list(tasks.values()))
    planned |= {number: [*cut] for number, cut in zip(tasks, pieces, strict=True)}
    return [piece for number in range(len(request.pieces)) for piece in planned[number]]


def _choose_records(keys: PieceKeys, bits: Bits) -> list[PlannedPiece]:
    flags = np.unpackbits(bits, bitorder="little")[: len(keys.offsets)]
    offsets: npt.NDArray[np.int64] = keys.offsets[flags != 0]
    return [ChosenPiece(piece=keys.piece, offsets=offsets)] if len(offsets) else []
