"""Producer state on disk: snapshot files, and the replay of the batches after the newest one.

Layout     `<offset>.snapshot` holds the state up to but excluding the offset: version (i16, 1),
           CRC-32C of what follows it (u32), count (i32), then 46-byte entries: producer id (i64),
           epoch (i16), last sequence (i32), last offset (i64), offset delta (i32), timestamp (i64),
           coordinator epoch (i32), first offset of the open transaction (i64, -1 none), big-endian.
           docs/reference/formats/producer-snapshot.md
Invariant  replay follows the rules of replication: nothing stored is rejected, no sequence is
           checked. A snapshot has one batch per producer, producer state has five: the older ones
           are restored from the ends of the last segments, if their newest batches agree.
Crash      snapshots are hints, written in place: a torn or damaged one is removed, and replay
           starts at an older one or at the log start.
"""

import contextlib
import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.commit_log.health import raise_unless_derived
from varve.commit_log.names import DELETED, LOG, SNAPSHOT, log_name
from varve.commit_log.producer_state import (
    CACHED_BATCH_COUNT,
    NONE,
    AppendOrigin,
    BatchMetadata,
    BatchSummary,
    Marker,
    ProducerStateEntry,
    ProducerStateManager,
)
from varve.commit_log.segment_reader import (
    BatchTable,
    BatchWalk,
    ReadableSegment,
    find_batch_position,
    find_start_position,
)
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import FileSystem, write_file
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_layout import CONTROL_BIT, INT64_MAX, TRANSACTIONAL_BIT, BatchColumn
from varve.kernels.crc import crc32c_of
from varve.records import (
    Batch,
    ControlType,
    decode_control_record,
)

VERSION = 1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_REMEDY = "remove the snapshot, producer state is rebuilt from an older one"


class SnapshotEntry(NamedTuple):
    """One producer in the snapshot file; -1 stands for an unknown value."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def encode_producer_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The file's bytes, with the entries in this order."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    data = b"".join([_HEADER.pack(VERSION, 0, len(packed)), *packed])
    return _HEADER.pack(VERSION, _crc_of(data), len(packed)) + data[_HEADER.size :]


def decode_producer_snapshot(
    data: bytes | bytearray | memoryview, where: str = "producer snapshot"
) -> list[SnapshotEntry]:
    """The entries of a file; raises Corrupt unless version, checksum and length are valid."""
    if len(data) < _HEADER.size:
        raise Corrupt(
            f"{where}: {len(data)} bytes are fewer than the header's {_HEADER.size}: {_REMEDY}"
        )
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedFormat(
            f"{where}: snapshot version {version}, only {VERSION} is known: {_REMEDY}"
        )
    computed = _crc_of(data)
    if computed != crc:
        raise Corrupt(
            f"{where}: checksum is {computed:#010x}, the header says {crc:#010x}: {_REMEDY}"
        )
    if count < 0 or len(data) != _HEADER.size + count * _ENTRY.size:
        raise Corrupt(
            f"{where}: {len(data)} bytes cannot hold {count} entries of {_ENTRY.size} bytes: "
            f"{_REMEDY}"
        )
    return [SnapshotEntry(*row) for row in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])]


def _crc_of(data: bytes | bytearray | memoryview) -> int:
    return crc32c_of(memoryview(data)[_CRC_END:])


def encode_snapshot(producers: ProducerStateManager) -> bytes:
    """The snapshot file's bytes: the last batch of each producer."""
    return encode_producer_snapshot(_to_snapshot(entry) for entry in producers.entries.values())


def load_snapshot(
    producers: ProducerStateManager,
    data: bytes,
    *,
    offset: int = INT64_MAX,
    now_ms: int = 0,
    expiration_ms: int = INT64_MAX,
    where: str = "producer snapshot",
) -> None:
    """Replaces all state by a snapshot without its expired producers.

    Raises Corrupt, and changes nothing, if the snapshot is damaged or is not one at `offset`.
    """
    loaded = [_from_snapshot(row) for row in decode_producer_snapshot(data, where)]
    newest = max((entry.last_offset for entry in loaded), default=NONE)
    if newest >= offset:
        raise Corrupt(
            f"{where}: offset {newest} lies at or after the snapshot's own offset {offset}: "
            f"{_REMEDY}"
        )
    producers.replace(entry for entry in loaded if not entry.is_expired(now_ms, expiration_ms))


def _to_snapshot(entry: ProducerStateEntry) -> SnapshotEntry:
    last = entry.batches[-1] if entry.batches else BatchMetadata(NONE, NONE, 0, NONE)
    first_offset = entry.transaction_first_offset
    return SnapshotEntry(
        producer_id=entry.producer_id,
        epoch=entry.epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        transaction_first_offset=NONE if first_offset is None else first_offset,
    )


def _from_snapshot(row: SnapshotEntry) -> ProducerStateEntry:
    last = BatchMetadata(row.last_sequence, row.last_offset, row.offset_delta, row.timestamp)
    first_offset = row.transaction_first_offset
    return ProducerStateEntry(
        row.producer_id,
        row.epoch,
        (last,) if row.last_offset >= 0 else (),
        row.timestamp,
        row.coordinator_epoch,
        first_offset if first_offset >= 0 else None,
    )


def summarize_row(row: list[int], batch: memoryview | None, where: str) -> BatchSummary:
    """The summary of one scanned batch for producer state; only control batches need `batch`."""
    is_control = row[BatchColumn.ATTRIBUTES] & CONTROL_BIT
    return BatchSummary.of_batch(
        row,
        base_offset=row[BatchColumn.BASE_OFFSET],
        max_timestamp=row[BatchColumn.MAX_TIMESTAMP],
        marker=decode_marker(batch, where) if is_control and batch is not None else None,
    )


def decode_marker(batch: memoryview, where: str) -> Marker | None:
    """The transaction marker in a control batch; None if it is empty or of another type."""
    records = Batch(bytes(batch), where=where).records()
    if not records or records[0].key is None:
        return None
    control = decode_control_record(records[0].key, records[0].value)
    if control.type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return Marker(
        committed=control.type == ControlType.COMMIT,
        coordinator_epoch=-1 if control.coordinator_epoch is None else control.coordinator_epoch,
    )


def count_before_bad_marker(table: BatchTable, *, where: str) -> int:
    """The number of batches before the first malformed marker; all if there is none."""
    is_control = (table.rows[:, BatchColumn.ATTRIBUTES] & CONTROL_BIT) != 0
    for row in np.flatnonzero(is_control & (table.rows[:, BatchColumn.PRODUCER_ID] >= 0)):
        try:
            decode_marker(table.bytes_of(int(row)), where)
        except Corrupt:
            return int(row)
    return len(table.rows)


def replay_batches(
    table: BatchTable,
    producers: ProducerStateManager,
    txn_index: TransactionIndex | None,
    *,
    where: str,
) -> None:
    """Applies the batches of a table; aborted transactions are added to the index, if any."""
    for row in _find_relevant_rows(table.rows):
        fields = table.rows[row].tolist()
        is_control = fields[BatchColumn.ATTRIBUTES] & CONTROL_BIT
        summary = summarize_row(fields, table.bytes_of(int(row)) if is_control else None, where)
        plan = producers.check_and_plan([summary], AppendOrigin.REPLICATION)
        producers.apply(plan, txn_index)


def _find_relevant_rows(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The rows that affect the final producer state, in order.

    Of a producer's data batches these are the last five, which producer state keeps, and those that
    may open a transaction: the first, and any after a marker or a batch outside a transaction.
    """
    with_producer = np.flatnonzero(rows[:, BatchColumn.PRODUCER_ID] >= 0)
    if not with_producer.size:
        return with_producer
    order = np.argsort(rows[with_producer, BatchColumn.PRODUCER_ID], kind="stable")
    grouped = with_producer[order]
    producer_ids = rows[grouped, BatchColumn.PRODUCER_ID]
    attributes = rows[grouped, BatchColumn.ATTRIBUTES]
    is_control = (attributes & CONTROL_BIT) != 0
    continues = (attributes & TRANSACTIONAL_BIT) != 0
    continues[1:] &= continues[:-1] & ~is_control[:-1] & (producer_ids[1:] == producer_ids[:-1])
    continues[:1] = False
    may_open = ((attributes & TRANSACTIONAL_BIT) != 0) & ~continues
    data = np.flatnonzero(~is_control)
    data_ids = producer_ids[data]
    group_ends = np.searchsorted(data_ids, data_ids, side="right")
    is_recent = np.zeros(grouped.size, np.bool_)
    is_recent[data] = group_ends - np.arange(data.size) <= CACHED_BATCH_COUNT
    return np.sort(grouped[is_control | may_open | is_recent])


logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshot files of one partition directory."""

    def __init__(self, fs: FileSystem, directory: str, offsets: Iterable[int]) -> None:
        self.fs = fs
        self._directory = directory
        self.offsets = sorted(offsets)
        self._unsynced: list[int] = []
        self.has_removed = False

    def path(self, offset: int) -> str:
        return f"{self._directory}/{log_name(offset, SNAPSHOT)}"

    @property
    def latest(self) -> int:
        return self.offsets[-1] if self.offsets else -1

    def write(self, producers: ProducerStateManager) -> None:
        """Writes the state at its map end offset, unless a snapshot at or after it exists."""
        offset = producers.map_end_offset
        # At offset 0 the state is empty, and Kafka writes no snapshot either.
        if offset <= max(self.latest, 0):
            return
        write_file(self.fs, self.path(offset), encode_snapshot(producers), sync=False)
        self.offsets.append(offset)
        self._unsynced.append(offset)

    def mark_unsynced_from(self, offset: int) -> None:
        """Marks snapshots that an earlier process may have written without a sync."""
        self._unsynced = [snapshot for snapshot in self.offsets if snapshot >= offset]

    def take_unsynced(self) -> list[int]:
        """The offsets of snapshots written since the last call; the caller syncs them."""
        unsynced, self._unsynced = self._unsynced, []
        return unsynced

    def sync(self, offset: int) -> bool:
        """False if the file has vanished: loading then replays from an older one."""
        try:
            with self.fs.open(self.path(offset)) as file:
                file.sync()
        except FileNotFoundError:
            return False
        return True

    def remove(self, offset: int) -> None:
        self.forget(offset)
        self.has_removed = True
        with contextlib.suppress(FileNotFoundError):
            self.fs.remove(self.path(offset))

    def set_aside(self, offset: int) -> None:
        """Renames it `.deleted`; the caller removes it later with the files of its segment."""
        self.forget(offset)
        with contextlib.suppress(FileNotFoundError):
            self.fs.rename(self.path(offset), self.path(offset) + DELETED)

    def forget(self, offset: int) -> None:
        """Stops using the snapshot; its file stays."""
        if offset in self.offsets:
            self.offsets.remove(offset)
        if offset in self._unsynced:
            self._unsynced.remove(offset)

    def remove_stray(self, base_offsets: Sequence[int]) -> None:
        """Removes snapshots at offsets that are no segment's base offset.

        The last one is kept if it is not below the last base offset.
        """
        bases = set(base_offsets)
        stray = [offset for offset in self.offsets if offset not in bases]
        if stray and base_offsets and stray[-1] >= base_offsets[-1]:
            stray.pop()
        for offset in stray:
            self.remove(offset)

    def load_newest(
        self,
        producers: ProducerStateManager,
        segments: Sequence[ReadableSegment],
        *,
        now_ms: int,
        expiration_ms: int,
    ) -> int | None:
        """Loads the newest valid snapshot and returns its offset; removes others after it."""
        while self.offsets:
            path, offset = self.path(self.latest), self.latest
            try:
                data = self.fs.read(path)
                load_snapshot(producers, data, offset=offset, where=path)
                _check_against_end(
                    producers,
                    segments,
                    offset=offset,
                    expired_before_ms=now_ms - expiration_ms,
                    where=path,
                )
                producers.expire(now_ms, expiration_ms)
            except (Corrupt, OSError) as error:
                raise_unless_derived(error)
                extra = {"path": path, "error": str(error)}
                logger.warning("removed a damaged snapshot", extra=extra)
                producers.clear()
                self.remove(self.latest)
            else:
                return self.latest
        return None


@dataclass(frozen=True, slots=True)
class ProducerLoad:
    """Parameters of loading producer state."""

    log_start_offset: int
    now_ms: int
    expiration_ms: int
    where: str = "log"


def load_producers(
    snapshots: ProducerSnapshots,
    segments: Sequence[ReadableSegment],
    *,
    end_offset: int,
    load: ProducerLoad,
) -> ProducerStateManager:
    """Loads producer state up to `end_offset`; writes the snapshots that a loaded log has."""
    producers = ProducerStateManager(load.where)
    last_bases = [segment.base_offset for segment in segments[-2:]]
    for offset in [o for o in snapshots.offsets if o > end_offset or o <= load.log_start_offset]:
        snapshots.remove(offset)
    newest = snapshots.load_newest(
        producers, segments, now_ms=load.now_ms, expiration_ms=load.expiration_ms
    )
    map_end = load.log_start_offset if newest is None else newest
    for number, segment in enumerate(segments):
        upper = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if upper <= map_end or segment.base_offset >= end_offset:
            continue
        start = max(segment.base_offset, map_end)
        if segment.base_offset in last_bases and segment.base_offset >= map_end:
            producers.map_end_offset = segment.base_offset
            snapshots.write(producers)
        _replay_segment(segment, producers, start=start, end=end_offset)
    producers.map_end_offset = end_offset
    if end_offset > map_end:
        snapshots.write(producers)
    return producers


def read_snapshot(
    snapshots: ProducerSnapshots, segments: Sequence[ReadableSegment], *, offset: int
) -> bytes:
    """The bytes of the snapshot at an offset, rebuilt if the file is missing or damaged.

    Writes and removes nothing. `segments` contains at least those before the offset.
    """
    producers = ProducerStateManager()
    start = 0
    for snapshot in reversed([older for older in snapshots.offsets if older <= offset]):
        path = snapshots.path(snapshot)
        try:
            data = snapshots.fs.read(path)
            load_snapshot(producers, data, offset=snapshot, where=path)
            _check_against_end(
                producers, segments, offset=snapshot, expired_before_ms=INT64_MAX, where=path
            )
        except (Corrupt, OSError) as error:
            raise_unless_derived(error)
            producers.clear()
            continue
        if snapshot == offset:
            return data
        start = snapshot
        break
    ends = [readable_segment.base_offset for readable_segment in segments[1:]] + [offset]
    for segment, end in zip(segments, ends, strict=False):
        if end > start and segment.base_offset < offset:
            first = max(segment.base_offset, start)
            _replay_segment(segment, producers, start=first, end=offset)
    producers.map_end_offset = offset
    return encode_snapshot(producers)


def _check_against_end(
    producers: ProducerStateManager,
    segments: Sequence[ReadableSegment],
    *,
    offset: int,
    expired_before_ms: int,
    where: str,
) -> None:
    """Raises Corrupt if the state at an offset lacks a batch of a producer right before it.

    A snapshot of another offset is found so, unless no producer wrote in between. Only the last
    `_CHECKED_BYTES` are read. A producer may be missing once it has expired.
    """
    before = [segment for segment in segments if segment.base_offset < offset]
    if not before:
        return
    segment = before[-1]
    end = find_start_position(segment, offset, size=segment.size)
    position = _tail_position(segment, end - _CHECKED_BYTES)
    for table in BatchWalk(segment.file(), start=position, end=segment.size, verify_crc=False):
        rows = table.rows
        is_data = (rows[:, BatchColumn.ATTRIBUTES] & CONTROL_BIT) == 0
        is_data &= rows[:, BatchColumn.PRODUCER_ID] >= 0
        for row in rows[is_data & (rows[:, BatchColumn.LAST_OFFSET] < offset)].tolist():
            entry = producers.entries.get(row[BatchColumn.PRODUCER_ID])
            if entry is None:
                is_missing = row[BatchColumn.MAX_TIMESTAMP] >= expired_before_ms
            else:
                is_same_epoch = entry.epoch == row[BatchColumn.PRODUCER_EPOCH]
                is_missing = is_same_epoch and entry.last_offset < row[BatchColumn.LAST_OFFSET]
            if is_missing:
                raise Corrupt(
                    f"{where}: it lacks the batch of producer {row[BatchColumn.PRODUCER_ID]} that "
                    f"ends at offset {row[BatchColumn.LAST_OFFSET]}: {_REMEDY}"
                )


def _replay_segment(
    segment: ReadableSegment, producers: ProducerStateManager, *, start: int, end: int
) -> None:
    batch_position = find_batch_position(segment, start, size=segment.size)
    if batch_position is None:
        return
    path = segment.path(LOG)
    walk = BatchWalk(segment.file(), start=batch_position[0], end=segment.size, verify_crc=False)
    for table in walk:
        inside = int((table.rows[:, BatchColumn.BASE_OFFSET] < end).sum())
        rows = table.rows[:inside]
        replay_batches(
            BatchTable(rows, table.buffer, table.start, table.end), producers, None, where=path
        )
        if inside < len(table.rows):
            return
    walk.check_ended(path)


_CHECKED_BYTES: Final = 64 << 10
RESTORED_BYTES: Final = 1 << 20
"""How much of a segment's end is replayed: batches that a producer may retry are the newest."""


def restore_cached_batches(
    segments: Sequence[ReadableSegment], producers: ProducerStateManager
) -> None:
    """Completes the cached batches of producers from the ends of the segments, in order."""
    if not any(_is_incomplete(entry) for entry in producers.entries.values()):
        return
    try:
        manager = _replay_tails(segments)
    except Corrupt:
        return  # reads and checks report the damage; the snapshot is enough to continue
    for producer_id, entry in producers.entries.items():
        other = manager.entries.get(producer_id)
        if other is not None and _is_incomplete(entry) and _has_same_newest(other, entry):
            older = other.batches[: -len(entry.batches)]
            producers.entries[producer_id] = entry._replace(batches=(*older, *entry.batches))


def _replay_tails(segments: Sequence[ReadableSegment]) -> ProducerStateManager:
    manager = ProducerStateManager()
    for segment in segments:
        start = _tail_position(segment, segment.size - RESTORED_BYTES)
        for table in BatchWalk(segment.file(), start=start, end=segment.size, verify_crc=False):
            replay_batches(table, manager, None, where=segment.path(LOG))
    return manager


def _is_incomplete(entry: ProducerStateEntry) -> bool:
    return 0 < len(entry.batches) < CACHED_BATCH_COUNT


def _has_same_newest(other: ProducerStateEntry, entry: ProducerStateEntry) -> bool:
    """Whether the newest batches of the other entry are the batches of this one."""
    newest = other.batches[-len(entry.batches) :]
    sequences_and_offsets = [
        [(metadata.last_sequence, metadata.last_offset) for metadata in batches]
        for batches in (newest, entry.batches)
    ]
    return other.epoch == entry.epoch and sequences_and_offsets[0] == sequences_and_offsets[1]


def _tail_position(segment: ReadableSegment, before: int) -> int:
    """The position of a batch at or not far before a position."""
    entries = segment.offset_index().entries()
    number = int(np.searchsorted(entries[:, 1], before, side="right")) - 1
    if number < 0:
        return 0
    return find_start_position(segment, int(entries[number, 0]), size=segment.size)
