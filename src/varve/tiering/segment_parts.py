"""The objects that a closed segment becomes: its files, its producers, its leader epochs.

Layout     `log index timeindex [txnindex] snapshot epochs [keys]`, each as the file of that kind,
           byte for byte. docs/formats/manifest.md
Invariant  the data file was walked and every batch passed its checksum before anything is sent.
Threads    any; what is read belongs to the segment as long as `Log.holds` says so afterwards.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from varve.cleaning.key_index.key_index import SegmentKeys
from varve.commit_log import Log, Segment
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX
from varve.commit_log.producer_snapshot import decode_producer_snapshot
from varve.commit_log.segment_scan import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, Unavailable
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.crc import crc32c, extend_crc32c
from varve.object_store import Buffer
from varve.tiering.cold_segment import ObjectPart

CHUNK_BYTES: Final = 8 << 20

LOG_PART: Final = "log"
SNAPSHOT_PART: Final = "snapshot"
EPOCHS_PART: Final = "epochs"
KEYS_PART: Final = "keys"

Pace = Callable[[int], None]
"""Told of bytes before they are sent; may wait, and may raise to stop."""


class PartContent(Protocol):
    """What one object will hold; may be walked several times."""

    @property
    def part(self) -> ObjectPart: ...

    def chunks(self, pace: Pace) -> Iterator[Buffer]:
        """Raises Unavailable at the end when it was not what `part` says."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """The first `part.size` bytes of a file."""

    fs: FileSystem
    path: str
    part: ObjectPart

    def chunks(self, pace: Pace) -> Iterator[Buffer]:
        crc = 0
        with self.fs.open(self.path) as file:
            for position in range(0, self.part.size, CHUNK_BYTES):
                wanted = min(CHUNK_BYTES, self.part.size - position)
                pace(wanted)
                data = file.read_at(position, wanted)
                crc = extend_crc32c(crc, np.frombuffer(data, np.uint8), 0, len(data))
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

    def chunks(self, pace: Pace) -> Iterator[Buffer]:
        pace(len(self.data))
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
    contents.append(_file(fs, "index", segment.path(INDEX)))
    contents.append(_file(fs, "timeindex", segment.path(TIME_INDEX)))
    if segment.has_txn_index:
        contents.append(_file(fs, "txnindex", segment.path(TXN_INDEX)))
    snapshot = log.producer_snapshot(next_offset)
    contents.append(_bytes(SNAPSHOT_PART, snapshot))
    contents.append(_bytes(EPOCHS_PART, _epochs_text(log, next_offset)))
    if keys is not None:
        contents.append(_file(fs, KEYS_PART, keys.path))
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
            "offsets "
            f"{int(bases[row])} to {int(lasts[row])}, not within {int(earliest[row])} to "
            f"{end - 1}; "
            "`varve check --repair` cuts or rebuilds what can be mended"
        )
    return int(lasts[-1]) + 1


def _file(fs: FileSystem, name: str, path: str) -> FileContent:
    size, crc = 0, 0
    with fs.open(path) as file:
        end = file.size()
        while size < end:
            data = file.read_at(size, min(CHUNK_BYTES, end - size))
            crc = extend_crc32c(crc, np.frombuffer(data, np.uint8), 0, len(data))
            size += len(data)
    return FileContent(fs, path, ObjectPart(name, size, crc))


def _bytes(name: str, data: bytes) -> BytesContent:
    crc = int(crc32c(np.frombuffer(data, np.uint8), 0, len(data))) if data else 0
    return BytesContent(data, ObjectPart(name, len(data), crc))


def _epochs_text(log: Log, next_offset: int) -> bytes:
    """The leader epochs up to the end of the segment, as their file would hold them then."""
    epochs = LeaderEpochs()
    for epoch, start_offset in log.epochs:
        if start_offset < next_offset:
            epochs.assign(epoch, start_offset)
    return epochs.encode()
