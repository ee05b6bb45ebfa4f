"""Copies one closed segment to the object store: announce, upload, verify, finish.

Layout     `log index timeindex [txnindex] snapshot epochs [keys]`, each as the file of that kind,
           byte for byte. docs/reference/formats/manifest.md
Invariant  the data file was walked and every batch passed its checksum before anything is sent;
           each entry of the indexes was confirmed by its batch, or they were rebuilt.
Invariant  an object is written only under an id that the manifest announces, with the sizes and
           checksums of all its parts; a segment becomes readable only when every part was seen in
           the store at its size and the local one had not changed meanwhile.
Crash      before the announcement nothing has happened. After it the copy is finished without a
           second upload if its parts are all there and the segment is still the same; else it is
           removed (`delete_started`, objects deleted, forgotten) and begun under a new id.
Threads    one per partition at a time; another process is fenced by its leader epoch, or stopped by
           the rules of states: a copy that one process removes cannot be finished by another.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from varve.cleaning.key_index.key_index import NO_HORIZON, SegmentKeys
from varve.cleaning.work_budget import UNLIMITED, WorkBudget
from varve.commit_log import Segment
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import LOG
from varve.commit_log.producer_snapshots import decode_producer_snapshot
from varve.commit_log.segment_reader import REPAIR_REMEDY, BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound, Unavailable
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.crc import crc32c_of, extend_crc32c
from varve.object_store import Buffer, ObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    EPOCHS_PART,
    INDEX_PART,
    KEYS_PART,
    LOG_PART,
    SNAPSHOT_PART,
    TIME_INDEX_PART,
    TXN_INDEX_PART,
    ObjectPart,
    RemoteSegment,
    SegmentState,
    restrict_epochs,
)
from varve.tiering.partition import TieredPartition

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 8 << 20

# Contents


class ReadableFile(Protocol):
    def read_at(self, position: int, size: int) -> bytes: ...


class PartContent(Protocol):
    """The content of one object; may be iterated several times."""

    @property
    def part(self) -> ObjectPart: ...

    def chunks(self, budget: WorkBudget) -> Iterator[Buffer]:
        """The bytes in chunks; raises Unavailable at the end unless they match `part`."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """The first `part.size` bytes of a file."""

    fs: FileSystem
    path: str
    part: ObjectPart

    def chunks(self, budget: WorkBudget) -> Iterator[Buffer]:
        crc = 0
        with self.fs.open(self.path) as file:
            for position in range(0, self.part.size, CHUNK_BYTES):
                chunk_bytes = min(CHUNK_BYTES, self.part.size - position)
                budget.spend(chunk_bytes)
                data = file.read_at(position, chunk_bytes)
                crc = crc32c_of(data, crc)
                is_last = position + chunk_bytes == self.part.size
                if len(data) < chunk_bytes or (is_last and crc != self.part.crc32c):
                    raise Unavailable(
                        f"{self.path} changed while it was copied; the copy is made again from "
                        "what is there"
                    )
                yield data


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Content in memory."""

    data: bytes
    part: ObjectPart

    def chunks(self, budget: WorkBudget) -> Iterator[Buffer]:
        budget.spend(len(self.data))
        if self.data:
            yield self.data


def measure_file(fs: FileSystem, name: str, path: str) -> FileContent:
    """A file as it is now, to be uploaded as the part of this name."""
    with fs.open(path) as file:
        size = file.size()
        return FileContent(fs, path, ObjectPart(name, size, crc32c_of_file(file, size)))


def crc32c_of_file(file: ReadableFile, size: int) -> int:
    """The CRC-32C of the first bytes of a file, read in chunks."""
    crc = 0
    for position in range(0, size, CHUNK_BYTES):
        crc = crc32c_of(file.read_at(position, min(CHUNK_BYTES, size - position)), crc)
    return crc


def _measure_bytes(name: str, data: bytes) -> BytesContent:
    return BytesContent(data, ObjectPart(name, len(data), crc32c_of(data)))


# Reading a segment before it is copied


class _SegmentWalk:
    """One pass over a data file: its checksum and record count, and whether its indexes are valid.

    Raises Corrupt for a damaged data file, which must not be copied. As for a local reader, an
    index entry is valid only if its batch confirms it; and the last entry of a time index has the
    largest timestamp, by which the copy is searched and expires.
    """

    def __init__(self, segment: Segment, next_offset: int) -> None:
        self._path = segment.path(LOG)
        self._next_offset = next_offset
        self._expected_offset = segment.base_offset
        self._position_entries = segment.offset_index().entries()
        self._time_entries = segment.time_index().entries()
        self.crc = self.record_count = 0
        self.has_valid_indexes = True
        self._largest_timestamp = -1
        last_timestamp = segment.time_index().last[0]
        self._walk(segment)
        self.has_valid_indexes &= not (len(self._position_entries) or len(self._time_entries))
        self.has_valid_indexes &= last_timestamp == self._largest_timestamp

    def _walk(self, segment: Segment) -> None:
        walk = BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=True)
        position = 0
        for table in walk:
            self._check_offsets(table)
            self._check_indexes(table)
            data = np.frombuffer(table.buffer, np.uint8)
            self.crc = extend_crc32c(
                self.crc, data, position - table.start, table.end - table.start
            )
            position = table.end
            self.record_count += int(table.rows[:, BatchColumn.RECORD_COUNT].sum())
        walk.check_ended(self._path)
        if position != segment.size:
            raise Corrupt(
                f"{self._path}: {segment.size} bytes, but whole batches only up to {position}; "
                f"{REPAIR_REMEDY}"
            )

    def _check_offsets(self, table: BatchTable) -> None:
        """Raises Corrupt for batches out of order: a checksum does not cover the base offset."""
        rows = table.rows
        bases, lasts = rows[:, BatchColumn.BASE_OFFSET], rows[:, BatchColumn.LAST_OFFSET]
        earliest = np.concatenate(([self._expected_offset], lasts[:-1] + 1))
        wrong = np.flatnonzero((bases < earliest) | (lasts < bases) | (lasts >= self._next_offset))
        if wrong.size:
            row = int(wrong[0])
            raise Corrupt(
                f"{self._path}: position {int(rows[row, BatchColumn.POSITION])}: a batch with the "
                f"offsets {int(bases[row])} to {int(lasts[row])}, not within {int(earliest[row])} "
                f"to {self._next_offset - 1}; {REPAIR_REMEDY}"
            )
        self._expected_offset = int(lasts[-1]) + 1

    def _check_indexes(self, table: BatchTable) -> None:
        """Checks and consumes the index entries of these batches."""
        rows = table.rows
        positions, lasts = rows[:, BatchColumn.POSITION], rows[:, BatchColumn.LAST_OFFSET]
        count = np.searchsorted(self._position_entries[:, 1], positions[-1], side="right")
        offsets, starts = self._position_entries[:count].T
        batch = np.searchsorted(positions, starts)
        is_valid = (positions[batch] == starts) & (rows[batch, BatchColumn.BASE_OFFSET] <= offsets)
        self._position_entries = self._position_entries[count:]
        count = np.searchsorted(self._time_entries[:, 1], lasts[-1], side="right")
        timestamps, offsets = self._time_entries[:count].T
        batch = np.searchsorted(lasts, offsets)
        is_valid_time = rows[batch, BatchColumn.MAX_TIMESTAMP] == timestamps
        is_valid_time &= rows[batch, BatchColumn.BASE_OFFSET] <= offsets
        # An entry says that no batch before it is newer.
        largest = np.maximum.accumulate(rows[:, BatchColumn.MAX_TIMESTAMP])
        largest = np.maximum(largest, self._largest_timestamp)
        is_valid_time &= largest[batch] == timestamps
        self._largest_timestamp = int(largest[-1])
        self._time_entries = self._time_entries[count:]
        self.has_valid_indexes &= bool(is_valid.all() and is_valid_time.all())


# Uploading


def upload_parts(
    objects: ObjectStore,
    path: RemotePath,
    segment: RemoteSegment,
    contents: Sequence[PartContent],
    budget: WorkBudget = UNLIMITED,
) -> None:
    """Writes the objects of an announced segment; raises Unavailable unless all are stored."""
    for content in contents:
        key, size = path.part_key(segment, content.part.name), content.part.size
        if size <= CHUNK_BYTES:
            objects.put(key, b"".join(content.chunks(budget)))
        else:
            objects.put_parts(key, _Chunks(content, budget), size=size)
    if not _is_uploaded(objects, path, segment):
        raise Unavailable(
            f"{objects.name}: {segment} of {path} was uploaded, but not all of its objects are "
            "there with their sizes; upload it again"
        )


def _is_uploaded(objects: ObjectStore, path: RemotePath, segment: RemoteSegment) -> bool:
    """Whether all objects of a segment exist with their sizes."""
    try:
        return all(
            objects.head(path.part_key(segment, part.name)).size == part.size
            for part in segment.parts
        )
    except ObjectNotFound:
        return False


@dataclass(frozen=True, slots=True)
class _Chunks(Iterable[Buffer]):
    """The chunks of a part; each iteration starts at the beginning."""

    content: PartContent
    budget: WorkBudget

    def __iter__(self) -> Iterator[Buffer]:
        return self.content.chunks(self.budget)


# Copying


@dataclass(slots=True, kw_only=True)
class SegmentCopy:
    """The copy of one closed segment; `next_offset` is where the next one begins.

    `keys` is its key index, if its topic is compacted. `announced` are copies of it that were
    started before; `is_resumed` if the objects of one of them were complete.
    """

    tiered: TieredPartition
    segment: Segment
    next_offset: int
    keys: SegmentKeys | None
    announced: Sequence[RemoteSegment]
    now_ms: int
    budget: WorkBudget
    is_resumed: bool = False

    def run(self) -> RemoteSegment:
        """Copies the segment, or finishes a copy that was started before.

        Raises Unavailable when the store fails or the segment leaves the log meanwhile, and Corrupt
        for a damaged one; the manifest then lists what must be deleted.
        """
        tiered = self.tiered
        snapshot = tiered.log.producer_snapshot(self.next_offset)
        contents, record_count = self._gather_contents(snapshot)
        planned = self._plan(snapshot, contents, record_count)
        resumed = self._resume(planned)
        started = resumed or planned
        if resumed is None:
            self._check_in_log()
            tiered.commit(lambda manifest: manifest.announce(started), self.now_ms)
            upload_parts(tiered.objects, tiered.path, started, contents, self.budget)
        self.is_resumed = resumed is not None
        self._check_in_log()
        finished = replace(started, state=SegmentState.COPY_FINISHED, at_ms=self.now_ms)
        tiered.commit(lambda manifest: self._finish(manifest, finished), self.now_ms)
        logger.info(
            "segment copied",
            extra={
                "partition": str(tiered.path),
                "base_offset": started.base_offset,
                "bytes": started.size,
                "is_resumed": self.is_resumed,
            },
        )
        return finished

    def _gather_contents(self, snapshot: bytes) -> tuple[list[PartContent], int]:
        """The contents of the segment's objects, and how many records it has."""
        fs, segment = self.tiered.fs, self.segment
        walk = _SegmentWalk(segment, self.next_offset)
        if not walk.has_valid_indexes:
            segment.rebuild_indexes()
        contents: list[PartContent] = [
            FileContent(fs, segment.path(LOG), ObjectPart(LOG_PART, segment.size, walk.crc)),
            _measure_bytes(INDEX_PART, segment.offset_index().encode()),
            _measure_bytes(TIME_INDEX_PART, segment.time_index().encode()),
        ]
        if segment.has_txn_index:
            contents.append(_measure_bytes(TXN_INDEX_PART, segment.txn_index().encode()))
        # The leader-epoch-checkpoint file as of the end of the segment.
        epochs = LeaderEpochs()
        for epoch, start_offset in self.tiered.log.epochs:
            if start_offset < self.next_offset:
                epochs.assign(epoch, start_offset)
        contents.append(_measure_bytes(SNAPSHOT_PART, snapshot))
        contents.append(_measure_bytes(EPOCHS_PART, epochs.encode()))
        if self.keys is not None:
            contents.append(measure_file(fs, KEYS_PART, self.keys.path))
        return contents, walk.record_count

    def _plan(
        self, snapshot: bytes, contents: Sequence[PartContent], record_count: int
    ) -> RemoteSegment:
        log, segment, keys = self.tiered.log, self.segment, self.keys
        start, end = segment.base_offset, self.next_offset - 1
        epochs = restrict_epochs(log.epochs, base_offset=start, end_offset=end)
        if not epochs:
            raise Corrupt(
                f"{log.topic_partition}: no leader epoch is known for the offsets {start} to "
                f"{end}, so they cannot be copied: restore leader-epoch-checkpoint of the partition"
            )
        open_from = (entry.transaction_first_offset for entry in decode_producer_snapshot(snapshot))
        horizon = NO_HORIZON if keys is None else keys.header.earliest_horizon
        return RemoteSegment(
            id=new_id(self.tiered.random),
            state=SegmentState.COPY_STARTED,
            at_ms=self.now_ms,
            base_offset=start,
            end_offset=end,
            size=segment.size,
            record_count=record_count,
            max_timestamp=segment.max_timestamp,
            append_ms=log.appended_ms(segment),
            epochs=epochs,
            parts=tuple(content.part for content in contents),
            has_aborted=segment.has_txn_index and bool(segment.txn_index().entries()),
            undecided_from=min((offset for offset in open_from if offset >= 0), default=None),
            key_count=None if keys is None else keys.header.entry_count,
            stale_bytes=None if keys is None else _count_stale(keys),
            delete_horizon_ms=None if horizon == NO_HORIZON else horizon,
        )

    def _resume(self, planned: RemoteSegment) -> RemoteSegment | None:
        """An earlier copy that only has to be finished; removes the other earlier copies.

        Raises Unavailable when one can no longer be removed.
        """
        tiered, resumed = self.tiered, None
        for segment in self.announced:
            is_same = segment == replace(planned, id=segment.id, at_ms=segment.at_ms)
            if resumed is None and is_same and _is_uploaded(tiered.objects, tiered.path, segment):
                resumed = segment
            elif not tiered.remove([segment], self.now_ms):
                raise Unavailable(
                    f"{tiered.path}: {segment} was finished or removed by another writer "
                    "meanwhile; the next round continues from there"
                )
        return resumed

    def _check_in_log(self) -> None:
        log = self.tiered.log
        if not log.holds(self.segment):
            raise Unavailable(
                f"{log.topic_partition}: segment {self.segment.base_offset} was replaced or left "
                "the log while it was copied; the next round copies what is there"
            )

    def _finish(self, manifest: Manifest, finished: RemoteSegment) -> Manifest:
        """Makes the segment readable, and replaces segments with the same offsets."""
        tiered, log_start = self.tiered, self.tiered.log.log_start_offset
        start, end = finished.base_offset, self.next_offset
        inlined = tiered.manifests.unfold(manifest, start_offset=start, end_offset=end)
        replaced = [
            segment
            for segment in inlined.segments
            if segment.is_readable
            and segment.id != finished.id
            and segment.base_offset < end
            and segment.end_offset >= start
        ]
        for segment in replaced:
            # Its earlier offsets may be dropped only if the log starts after them.
            if segment.base_offset < start and log_start < start:
                raise InvalidRequest(
                    f"{tiered.path}: {finished} begins within {segment}, which was copied before: "
                    "the borders of local segments have moved. Restore the partition with "
                    "`varve tier restore`, or copy it to another store"
                )
        inlined = inlined.start_delete(
            [segment.id for segment in replaced],
            at_ms=self.now_ms,
            replaced_until_ms=self.now_ms + tiered.replaced_retention_ms,
        )
        return inlined.finish(finished).raise_log_start(log_start)


def _count_stale(keys: SegmentKeys) -> int:
    """Bytes of records that are superseded within their own segment: a lower bound."""
    with keys.open() as index:
        return max(index.header.record_bytes - index.listed_bytes(), 0)
