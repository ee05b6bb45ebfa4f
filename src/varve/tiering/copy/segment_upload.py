"""Copies one closed segment to the object store: announce, upload, verify, finish.

Layout     `log index timeindex [txnindex] snapshot epochs [keys]`, each as the file of that kind,
           byte for byte. docs/formats/manifest.md
Invariant  the data file was walked and every batch passed its checksum before anything is sent. An
           object is written only under an id that the manifest announces, with the sizes and
           checksums of all its parts; a segment becomes readable only when every part was seen in
           the store at its size and the local one had not changed meanwhile.
Crash      before the announcement nothing has happened. After it the copy is finished without a
           second upload if its parts are all there and the segment is still the same; else it is
           removed (`delete_started`, objects deleted, forgotten) and begun under a new id.
Threads    one per partition at a time; another process is fenced by its leader epoch, or stopped by
           the rules of states: what one removes another cannot finish.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from varve.cleaning.key_index.key_index import NO_HORIZON, SegmentKeys
from varve.cleaning.work_budget import UNLIMITED, WorkBudget
from varve.commit_log import Log, Segment
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX
from varve.commit_log.producer_snapshots import decode_producer_snapshot
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound, Unavailable
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.crc import crc32c_of, extend_crc32c
from varve.object_store import Buffer, ObjectStore
from varve.tiering.manifest.commit import ManifestEdit
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState, restrict_epochs
from varve.tiering.manifest.store import ManifestStore

CHUNK_BYTES: Final = 8 << 20

LOG_PART: Final = "log"
SNAPSHOT_PART: Final = "snapshot"
EPOCHS_PART: Final = "epochs"
KEYS_PART: Final = "keys"


class ReadableFile(Protocol):
    def read_at(self, position: int, size: int) -> bytes: ...


class PartContent(Protocol):
    """What one object will hold; may be walked several times."""

    @property
    def part(self) -> ObjectPart: ...

    def chunks(self, budget: WorkBudget) -> Iterator[Buffer]:
        """Raises Unavailable at the end when it was not what `part` says."""


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
                wanted = min(CHUNK_BYTES, self.part.size - position)
                budget.spend(wanted)
                data = file.read_at(position, wanted)
                crc = crc32c_of(data, crc)
                if len(data) < wanted:
                    raise self._changed()
                if position + wanted == self.part.size and crc != self.part.crc32c:
                    raise self._changed()
                yield data

    def _changed(self) -> Unavailable:
        return Unavailable(
            f"{self.path} changed while it was copied; the copy is made again from what is there"
        )


@dataclass(frozen=True, slots=True)
class BytesContent:
    """A few bytes that are at hand."""

    data: bytes
    part: ObjectPart

    def chunks(self, budget: WorkBudget) -> Iterator[Buffer]:
        budget.spend(len(self.data))
        if self.data:
            yield self.data


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """A segment ready to be copied: its objects, and what was counted on the way."""

    contents: tuple[PartContent, ...]
    record_count: int
    has_aborted: bool
    undecided_from: int | None

    @property
    def parts(self) -> tuple[ObjectPart, ...]:
        return tuple(content.part for content in self.contents)


def gather_parts(
    fs: FileSystem,
    log: Log,
    segment: Segment,
    *,
    next_offset: int,
    keys: SegmentKeys | None,
) -> SegmentParts:
    """Reads a segment's files and makes out what its objects will hold.

    Raises Corrupt for a damaged data file: a copy must not outlive what it should have been.
    """
    log_part, record_count = _walk(segment, next_offset)
    contents: list[PartContent] = [FileContent(fs, segment.path(LOG), log_part)]
    contents.append(measure_file(fs, "index", segment.path(INDEX)))
    contents.append(measure_file(fs, "timeindex", segment.path(TIME_INDEX)))
    if segment.has_txn_index:
        contents.append(measure_file(fs, "txnindex", segment.path(TXN_INDEX)))
    snapshot = log.producer_snapshot(next_offset)
    contents.append(_bytes(SNAPSHOT_PART, snapshot))
    contents.append(_bytes(EPOCHS_PART, _epochs_text(log, next_offset)))
    if keys is not None:
        contents.append(measure_file(fs, KEYS_PART, keys.path))
    has_aborted = segment.has_txn_index and bool(segment.txn_index().entries())
    return SegmentParts(tuple(contents), record_count, has_aborted, _find_undecided(snapshot))


def _find_undecided(snapshot: bytes) -> int | None:
    """Where the oldest transaction begins that was open when the snapshot was taken."""
    open_from = [
        entry.transaction_first_offset
        for entry in decode_producer_snapshot(snapshot)
        if entry.transaction_first_offset >= 0
    ]
    return min(open_from, default=None)


def _walk(segment: Segment, next_offset: int) -> tuple[ObjectPart, int]:
    path = segment.path(LOG)
    walk = BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=True)
    crc, position, records = 0, 0, 0
    expected = segment.base_offset
    for table in walk:
        expected = _check_offsets(table, expected, next_offset, path)
        data = np.frombuffer(table.buffer, np.uint8)
        crc = extend_crc32c(crc, data, position - table.start, table.end - table.start)
        position = table.end
        records += int(table.rows[:, BatchColumn.RECORD_COUNT].sum())
    walk.check_ended(path)
    if position != segment.size:
        raise Corrupt(
            f"{path}: {segment.size} bytes, but whole batches only up to {position}; "
            "`varve check --repair` cuts or rebuilds what can be mended"
        )
    return ObjectPart(LOG_PART, segment.size, crc), records


def _check_offsets(table: BatchTable, expected: int, end: int, path: str) -> int:
    """The offset behind the last batch; a batch's checksum does not cover its base offset."""
    bases, lasts = table.rows[:, BatchColumn.BASE_OFFSET], table.rows[:, BatchColumn.LAST_OFFSET]
    earliest = np.concatenate(([expected], lasts[:-1] + 1))
    wrong = np.flatnonzero((bases < earliest) | (lasts < bases) | (lasts >= end))
    if wrong.size:
        row = int(wrong[0])
        raise Corrupt(
            f"{path}: position {int(table.rows[row, BatchColumn.POSITION])}: a batch with the "
            f"offsets {int(bases[row])} to {int(lasts[row])}, not within {int(earliest[row])} to "
            f"{end - 1}; "
            "`varve check --repair` cuts or rebuilds what can be mended"
        )
    return int(lasts[-1]) + 1


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


def _bytes(name: str, data: bytes) -> BytesContent:
    return BytesContent(data, ObjectPart(name, len(data), crc32c_of(data)))


def upload_parts(
    objects: ObjectStore,
    path: RemotePath,
    segment: RemoteSegment,
    contents: Sequence[PartContent],
    budget: WorkBudget = UNLIMITED,
) -> None:
    """Writes the objects of an announced segment; raises Unavailable unless all are there then."""
    for content in contents:
        key, size = path.part_key(segment, content.part.name), content.part.size
        if size <= CHUNK_BYTES:
            objects.put(key, b"".join(content.chunks(budget)))
        else:
            objects.put_parts(key, _Chunks(content, budget), size=size)
    if not is_uploaded(objects, path, segment):
        raise Unavailable(
            f"{objects.name}: {segment} of {path} was uploaded, but not all of its objects are "
            "there with their sizes; upload it again"
        )


def is_uploaded(objects: ObjectStore, path: RemotePath, segment: RemoteSegment) -> bool:
    """Whether all objects of a segment are there at their sizes."""
    for part in segment.parts:
        try:
            object_info = objects.head(path.part_key(segment, part.name))
        except ObjectNotFound:
            return False
        if object_info.size != part.size:
            return False
    return True


class _Chunks(Iterable[Buffer]):
    """The content of a part, from its beginning each time it is walked."""

    def __init__(self, content: PartContent, budget: WorkBudget) -> None:
        self._content = content
        self._budget = budget

    def __iter__(self) -> Iterator[Buffer]:
        return self._content.chunks(self._budget)


def _epochs_text(log: Log, next_offset: int) -> bytes:
    """The leader epochs up to the end of the segment, as their file would hold them then."""
    epochs = LeaderEpochs()
    for epoch, start_offset in log.epochs:
        if start_offset < next_offset:
            epochs.assign(epoch, start_offset)
    return epochs.encode()


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    """A closed segment to copy; `next_offset` is where the next one begins.

    `keys` is its key index, where its topic is compacted. `announced` are copies of it that were
    begun before.
    """

    log: Log
    segment: Segment
    next_offset: int
    keys: SegmentKeys | None = None
    announced: Sequence[RemoteSegment] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """A segment that can be read now; `is_resumed` if its objects were there already."""

    segment: RemoteSegment
    is_resumed: bool


class SegmentCopier:
    """Copies the segments of one partition.

    `writer` names who commits, in words. `replaced_ms` is how long the objects of a segment stay
    after another has taken its place.
    """

    def __init__(
        self,
        objects: ObjectStore,
        manifests: ManifestStore,
        path: RemotePath,
        *,
        fs: FileSystem,
        random: random.Random,
        writer: str,
        replaced_ms: int,
    ) -> None:
        self._objects = objects
        self._manifests = manifests
        self._path = path
        self._fs = fs
        self._random = random
        self._writer = writer
        self._replaced_ms = replaced_ms

    def copy(self, request: CopyRequest, *, now_ms: int, budget: WorkBudget) -> Copied:
        """Copies a segment, or finishes a copy that was begun before.

        Raises Unavailable when the store fails or the segment leaves the log meanwhile, and
        Corrupt for a damaged one; the manifest then tells what is left to be taken back.
        """
        parts = gather_parts(
            self._fs,
            request.log,
            request.segment,
            next_offset=request.next_offset,
            keys=request.keys,
        )
        wanted = self._describe(request, parts, now_ms)
        segment: RemoteSegment | None = None
        for announced in request.announced:
            if segment is None and self._can_finish(announced, wanted):
                segment = announced
            else:
                self._remove(announced, request.log, now_ms=now_ms)
        started = segment or wanted
        if segment is None:
            self._check_held(request)
            self._commit(lambda manifest: manifest.announce(started), request.log, now_ms)
            upload_parts(self._objects, self._path, started, parts.contents, budget)
        self._check_held(request)
        finished = self._finish(started, request.log, now_ms)
        logger.info(
            "segment copied",
            extra={
                "partition": str(self._path),
                "base_offset": started.base_offset,
                "bytes": started.size,
                "is_resumed": segment is not None,
            },
        )
        return Copied(finished, segment is not None)

    def _describe(self, request: CopyRequest, parts: SegmentParts, now_ms: int) -> RemoteSegment:
        log, segment = request.log, request.segment
        end_offset = request.next_offset - 1
        epochs = restrict_epochs(log.epochs, base_offset=segment.base_offset, end_offset=end_offset)
        if not epochs:
            raise Corrupt(
                f"{log.topic_partition}: no leader epoch is known for the offsets "
                f"{segment.base_offset} to {end_offset}, so they cannot be copied: "
                "restore leader-epoch-checkpoint of the partition"
            )
        header = None if request.keys is None else request.keys.header
        horizon = NO_HORIZON if header is None else header.earliest_horizon
        return RemoteSegment(
            id=new_id(self._random),
            base_offset=segment.base_offset,
            end_offset=end_offset,
            size=segment.size,
            record_count=parts.record_count,
            max_timestamp=segment.max_timestamp,
            append_ms=log.appended_ms(segment),
            epochs=epochs,
            parts=parts.parts,
            has_aborted=parts.has_aborted,
            undecided_from=parts.undecided_from,
            state=SegmentState.COPY_STARTED,
            at_ms=now_ms,
            key_count=None if header is None else header.entry_count,
            stale_bytes=None if request.keys is None else _count_stale(request.keys),
            delete_horizon_ms=None if horizon == NO_HORIZON else horizon,
        )

    def _can_finish(self, announced: RemoteSegment, wanted: RemoteSegment) -> bool:
        same = replace(wanted, id=announced.id, at_ms=announced.at_ms)
        return announced == same and is_uploaded(self._objects, self._path, announced)

    def _check_held(self, request: CopyRequest) -> None:
        if not request.log.holds(request.segment):
            raise Unavailable(
                f"{request.log.topic_partition}: segment {request.segment.base_offset} was "
                "replaced or left the log while it was copied; the next round copies what is there"
            )

    def _finish(self, started: RemoteSegment, log: Log, now_ms: int) -> RemoteSegment:
        """Makes the segment readable; those whose offsets it holds too go in the same commit."""
        finished = replace(started, state=SegmentState.COPY_FINISHED, at_ms=now_ms)
        start, end = started.base_offset, started.end_offset + 1

        def change(manifest: Manifest) -> Manifest:
            near = self._manifests.unfold(manifest, start_offset=start, end_offset=end)
            replaced = [
                segment
                for segment in near.segments
                if segment.is_readable
                and segment.id != started.id
                and segment.base_offset < end
                and segment.end_offset >= start
            ]
            for segment in replaced:
                # What it holds before this one is not read any more once the log starts behind it.
                if segment.base_offset < start and log.log_start_offset < start:
                    raise InvalidRequest(
                        f"{self._path}: {started} begins within {segment}, which was copied "
                        "before: "
                        "the borders of local segments have moved. Restore the partition with "
                        "`varve tier restore`, or copy it to another store"
                    )
            near = near.start_delete(
                [segment.id for segment in replaced],
                at_ms=now_ms,
                replaced_until_ms=now_ms + self._replaced_ms,
            )
            return near.finish(finished).raise_log_start(log.log_start_offset)

        self._commit(change, log, now_ms)
        return finished

    def _remove(self, segment: RemoteSegment, log: Log, *, now_ms: int) -> None:
        """Takes back a copy that was begun before; raises Unavailable when it cannot any more."""
        removed = self._manifests.remove(
            [segment], leader_epoch=latest_epoch(log), writer=self._writer, now_ms=now_ms
        )
        if not removed:
            raise Unavailable(
                f"{self._path}: {segment} was finished or removed by another writer meanwhile; the "
                "next round goes on from there"
            )

    def _commit(self, change: ManifestEdit, log: Log, now_ms: int) -> Manifest:
        return self._manifests.commit(
            change, leader_epoch=latest_epoch(log), writer=self._writer, now_ms=now_ms
        )


def latest_epoch(log: Log) -> int | None:
    """The leader epoch that a log's process commits in; None before the first record."""
    return log.epochs[-1].epoch if log.epochs else None


def _count_stale(keys: SegmentKeys) -> int:
    """Bytes of records that are superseded within their own segment: a lower bound."""
    with keys.open() as index:
        return max(index.header.record_bytes - index.listed_bytes(), 0)
