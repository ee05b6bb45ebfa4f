"""A local log read from its files alone, while another process may be writing them.

The reader takes no lock and changes nothing. Indexes give the bounds of closed segments; the last
segment is walked, because its indexes are in the memory of its writer.

Invariant  a read ends at a whole batch with a valid checksum; bytes after it count as not written.
           A task lists the files again and reads segments that were compacted after the plan in
           their new form. `refresh` walks only the batches appended since the last scan, if the
           last batch of that scan is unchanged.
Threads    one thread scans the files; any thread may read the result of the scan.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import pairwise
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from varve.commit_log.directory_files import decode_partition_metadata as decode_metadata
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import (
    CLEANER_OFFSET_FILE,
    INDEX,
    LOG,
    LOG_START_OFFSET_FILE,
    PARTITION_METADATA_FILE,
    SNAPSHOT,
    SWAP,
    DirectoryState,
    TopicPartition,
    log_name,
    parse_file_name,
    parse_partition_directory,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.commit_log.producer_snapshots import load_snapshot, replay_batches
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment import Segment, SegmentFiles
from varve.commit_log.segment_reader import (
    BatchWalk,
    find_confirmed_position,
    find_offset_by_time,
)
from varve.commit_log.sparse_index import OffsetIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import File, FileInfo, FileSystem, RealFileSystem
from varve.foundation.errors import (
    Corrupt,
    InconsistentTopicId,
    NotFound,
    OffsetOutOfRange,
    Unavailable,
)
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.pieces import SLACK, LocalPiece, SegmentSize, cut_positions
from varve.jobs.source.record_blocks import BatchRange, RecordFilter, aborted_within, read_blocks
from varve.kernels.batch_layout import HEADER_BYTES, BatchColumn, RecordColumn

_SCANS_MAX: Final = 5
"""Scans of a directory that find a swap of compacted segments before the read fails."""
_INDEX_BYTES: Final = 1 << 20
"""Capacity of an index in memory: at 8 bytes per entry and the interval below, 8 GiB of log."""
_INDEX_INTERVAL_BYTES: Final = 64 << 10
"""Bytes of log between two entries of the index of the last segment, which is in memory only."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """An open data file, readable also after it is renamed or deleted."""

    file: File

    @property
    def name(self) -> str:
        return self.file.path

    def read(self, start: int, end: int) -> memoryview:
        data = self.file.read_at(start, end - start)
        if len(data) != end - start:
            raise Unavailable(
                f"{self.name} ends before position {end}: it was truncated; read again"
            )
        return memoryview(data)


class _LogEnd(NamedTuple):
    """The end of the last segment and the state of its transactions."""

    offset: int = 0
    position: int = 0
    stable_offset: int = 0
    aborted: Sequence[AbortedTransaction] = ()


class _LastSegmentWalk:
    """A walk over the last segment, which continues as the segment grows."""

    def __init__(self, base_offset: int, producers: ProducerStateManager) -> None:
        self.index = OffsetIndex(base_offset, _INDEX_BYTES)
        self._producers = producers
        self._aborted = TransactionIndex(base_offset)
        self._offset = base_offset
        self._position = 0
        self._last_batch = (0, b"")

    def continues(self, segment: Segment) -> bool:
        """Whether the segment still begins with the batches of this walk."""
        if segment.base_offset != self.index.base_offset or segment.size < self._position:
            return False
        position, header = self._last_batch
        return segment.file().read_at(position, len(header)) == header

    def walk(self, segment: Segment) -> _LogEnd:
        """Continues to the last whole batch with a valid checksum."""
        file, where = segment.file(), segment.path(LOG)
        walk = BatchWalk(file, start=self._position, end=segment.size, verify_crc=True)
        for table in walk:
            replay_batches(table, self._producers, self._aborted, where=where)
            last, position = table.rows[-1, [BatchColumn.LAST_OFFSET, BatchColumn.POSITION]]
            self._offset = int(last) + 1
            self._position = table.end
            self._last_batch = int(position), file.read_at(int(position), HEADER_BYTES)
            if position >= self.index.lookup(int(last))[1] + _INDEX_INTERVAL_BYTES:
                self.index.append(int(last), int(position))
        walk.check_ended(where)
        open_offsets = [transaction.first_offset for transaction in self._producers.ongoing]
        stable_offset = min([self._offset, *open_offsets])
        return _LogEnd(self._offset, self._position, stable_offset, self._aborted.entries())


def find_local_partitions(
    directories: Sequence[str], topic: str, fs: FileSystem | None = None
) -> dict[int, str]:
    """The directories of the topic's active partitions, by number; raises NotFound."""
    files = fs or RealFileSystem()
    partitions: dict[int, str] = {}
    for directory in directories:
        if not files.exists(directory):
            raise NotFound(
                f"log directory {directory} does not exist: name an existing one (--dir, dir=, "
                "option directory)"
            )
        for name in files.names(directory):
            if not name.startswith(f"{topic}-"):
                continue
            try:
                parsed = parse_partition_directory(name)
            except Corrupt:
                continue
            owner = parsed.topic_partition
            if parsed.state is DirectoryState.ACTIVE and owner.topic == topic:
                partitions[owner.partition] = f"{directory}/{name}"
    return partitions


def find_local_topics(directories: Sequence[str], fs: FileSystem | None = None) -> set[str]:
    """The topics with an active partition in one of the directories."""
    files = fs or RealFileSystem()
    topics = set()
    for name in (name for directory in directories for name in files.names(directory)):
        with suppress(Corrupt):
            parsed = parse_partition_directory(name)
            if parsed.state is DirectoryState.ACTIVE:
                topics.add(parsed.topic_partition.topic)
    return topics


P = ParamSpec("P")
T = TypeVar("T")


def _rescans(
    read: "Callable[Concatenate[LocalPartitionLog, P], T]",
) -> "Callable[Concatenate[LocalPartitionLog, P], T]":
    """Scans again and repeats a read that meets a file which the log has replaced or deleted."""

    @wraps(read)
    def repeat(log: "LocalPartitionLog", /, *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_SCANS_MAX):
            try:
                return read(log, *args, **kwargs)
            except FileNotFoundError:
                log.rescan()
        raise Unavailable(f"{log.directory}: its segments are replaced too often; read again")

    return repeat


class LocalPartitionLog:
    """The files of one partition, as of one scan of its directory.

    A file of the scan that is gone when it is read was replaced or deleted: the directory is
    scanned again. Every scan is of the same topic: NotFound if it was deleted meanwhile.
    """

    is_whole: Final = False
    """The files leave out offsets that are only in the remote tier."""

    def __init__(self, directory: str, owner: TopicPartition, fs: FileSystem | None = None) -> None:
        self.directory = directory
        self.owner = owner
        self._fs = fs or RealFileSystem()
        self._files = SegmentFiles(self._fs)
        self._segments_by_file: dict[FileInfo, Segment] = {}
        self._walk: _LastSegmentWalk | None = None
        self.segments = self._scan_segments()
        self._topic_id = self._find_topic_id()

    def refresh(self) -> "LocalPartitionLog":
        """The log after a new scan of its directory; unchanged files stay open."""
        refreshed = copy(self)
        refreshed.rescan()
        return refreshed

    def rescan(self) -> None:
        """Scans the directory again; raises InconsistentTopicId if another topic has it by now."""
        self.__dict__.pop("_end", None)
        self.__dict__.pop("start_offset", None)
        self.segments = self._scan_segments()
        if self._find_topic_id() != self._topic_id:
            raise InconsistentTopicId(
                f"{self.directory}: the topic was deleted and created again during the read: "
                "start the read once more"
            )

    def _scan_segments(self) -> list[Segment]:
        """The segments in order; scans again while compacted segments are being swapped in."""
        for _ in range(_SCANS_MAX):
            segments: dict[FileInfo, Segment] = {}
            is_swapping = False
            for info in self._list_files():
                name = parse_file_name(info.name)
                if name is None or name.kind != LOG:
                    continue
                is_swapping |= name.state == SWAP
                if name.state == "":
                    segments[info] = self._segments_by_file.get(info) or Segment(
                        self._files, self.directory, base_offset=name.offset, size=info.size
                    )
            if not is_swapping:
                for info in self._segments_by_file.keys() - segments.keys():
                    self._files.forget(self._segments_by_file[info])
                self._segments_by_file = segments
                return list(segments.values())
        raise Unavailable(
            f"{self.directory}: a compaction is swapping in its files; try again, or open the "
            "store once to complete the swap if no process has it open"
        )

    def _list_files(self) -> list[FileInfo]:
        try:
            return list(self._fs.scan(self.directory))
        except FileNotFoundError:
            raise self._not_there() from None

    def _not_there(self) -> NotFound:
        return NotFound(
            f"{self.directory} is not there: the topic was deleted, its disk is not mounted, "
            "or this machine does not share the directory"
        )

    def topic_id(self) -> str:
        """Raises NotFound without the file that has it, as of a deleted topic."""
        if self._topic_id is None:
            raise self._not_there()
        return self._topic_id

    def _find_topic_id(self) -> str | None:
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        try:
            return encode_topic_id(decode_metadata(self._fs.read(path), path))
        except FileNotFoundError:
            return None

    @cached_property
    def start_offset(self) -> int:
        """The log start offset of the checkpoint, or the first local offset if that is higher."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(first, self._read_checkpoint(LOG_START_OFFSET_FILE))

    @property
    def first_offset(self) -> int:
        """The base offset of the first local segment."""
        return self.segments[0].base_offset if self.segments else 0

    @property
    def cleaned_up_to(self) -> int:
        """The offset up to which the local cleaner has compacted, from its checkpoint."""
        return self._read_checkpoint(CLEANER_OFFSET_FILE)

    def _read_checkpoint(self, name: str) -> int:
        """The partition's offset in a checkpoint of its log directory; 0 if it has none."""
        path = f"{self.directory.rpartition('/')[0]}/{name}"
        try:
            return decode_offsets(self._fs.read(path), path).get(self.owner, 0)
        except FileNotFoundError:
            return 0

    @property
    def end_offset(self) -> int:
        return self._end.offset

    @property
    def stable_offset(self) -> int:
        """The last stable offset: every transaction below it is committed or aborted."""
        return self._end.stable_offset

    @cached_property
    @_rescans
    def _end(self) -> _LogEnd:
        if not self.segments:
            return _LogEnd()
        last = self.segments[-1]
        if self._walk is None or not self._walk.continues(last):
            self._walk = _LastSegmentWalk(last.base_offset, self._find_producers(last))
        return self._walk.walk(last)

    def _find_producers(self, last: Segment) -> ProducerStateManager:
        """The producer state at the start of the last segment, from its snapshot or a replay."""
        producers = ProducerStateManager(str(self.owner))
        if self._load_producers(producers, last.base_offset):
            return producers
        for segment in self.segments[:-1]:
            walk = BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=False)
            for table in walk:
                replay_batches(table, producers, None, where=segment.path(LOG))
            walk.check_ended(segment.path(LOG))
        return producers

    def _load_producers(self, producers: ProducerStateManager, offset: int) -> bool:
        """Loads the producer snapshot of an offset; False if it is missing or corrupt."""
        path = f"{self.directory}/{log_name(offset, SNAPSHOT)}"
        try:
            load_snapshot(producers, self._fs.read(path), where=path)
        except (FileNotFoundError, Corrupt):
            return False
        return True

    @_rescans
    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start, end), if their markers are local."""
        transactions = [
            transaction
            for segment, end in self._bounds()
            if segment is not self.segments[-1] and end > start_offset
            for transaction in segment.txn_index().entries()
        ]
        transactions += self._end.aborted
        return list(aborted_within(transactions, start_offset=start_offset, end_offset=end_offset))

    @_rescans
    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record with this timestamp or a later one, if any."""
        if not self.segments:
            return None
        for segment in self.segments[:-1]:
            if segment.max_timestamp >= timestamp:
                offset = find_offset_by_time(
                    segment, timestamp=timestamp, start_offset=start_offset, size=segment.size
                )
                if offset is not None:
                    return offset.offset
        record_filter = RecordFilter(start_offset=start_offset, min_ms=timestamp)
        source = FileSource(self.segments[-1].file())
        for block in read_blocks(
            [BatchRange(source, self.owner.partition, 0, self._end.position, record_filter)]
        ):
            offsets = block.records[block.chosen(), RecordColumn.OFFSET]
            if len(offsets):
                return int(offsets[0])
        return None

    @_rescans
    def pieces(
        self,
        *,
        start_offset: int,
        end_offset: int,
        min_ms: int,
        split_bytes: int,
        aborted: Sequence[AbortedTransaction],
    ) -> list[LocalPiece]:
        """The pieces of [start, end) that may hold a record with timestamp `min_ms` or later."""
        local_pieces: list[LocalPiece] = []
        for segment, end in self._bounds():
            low, high = max(start_offset, segment.base_offset), min(end_offset, end)
            is_last = segment is self.segments[-1]
            if low >= high or (not is_last and segment.max_timestamp < min_ms):
                continue
            for start, stop, size in self._cut_segment(segment, low, high, split_bytes):
                local_pieces.append(
                    LocalPiece(
                        directory=self.directory,
                        topic=self.owner.topic,
                        partition=self.owner.partition,
                        start_offset=start,
                        end_offset=stop,
                        size=size,
                        index_entry=self._index_entry(low) if is_last else (0, 0),
                        aborted=aborted_within(aborted, start_offset=start, end_offset=stop),
                    )
                )
        return local_pieces

    def segment_sizes(self, start_offset: int, end_offset: int) -> Iterator[SegmentSize]:
        """The sizes of the segments from an offset on."""
        for segment, end in self._bounds():
            if end > start_offset:
                yield SegmentSize(segment.base_offset, end, segment.size)

    def _index_entry(self, offset: int) -> tuple[int, int]:
        """The entry (offset, position) for an offset in the index of the last segment."""
        return (0, 0) if self._walk is None else self._walk.index.lookup(offset)

    def _bounds(self) -> Iterator[tuple[Segment, int]]:
        """Each segment and its end offset, exclusive."""
        for segment, following in pairwise(self.segments):
            yield segment, following.base_offset
        if self.segments:
            yield self.segments[-1], self.end_offset

    def _cut_segment(
        self, segment: Segment, low: int, high: int, split_bytes: int
    ) -> list[tuple[int, int, int]]:
        """Cuts a segment into pieces: start offset, end offset and approximate bytes."""
        if segment is self.segments[-1]:
            return [(low, high, max(1, self._end.position - self._index_entry(low)[1]))]
        if segment.size <= SLACK * split_bytes:
            return [(low, high, segment.size)]
        index = segment.offset_index()
        positions = cut_positions(
            index, size=segment.size, start_offset=low, end_offset=high, piece_bytes=split_bytes
        )
        entries = index.entries()
        edges = [low]
        for start, _ in positions[1:]:
            # An entry has the last offset of its batch, which may be above the range.
            edges.append(min(int(entries[np.searchsorted(entries[:, 1], start), 0]), high))
        edges.append(high)
        sizes = [end - start for start, end in positions]
        pieces = zip(edges[:-1], edges[1:], sizes, strict=True)
        return [piece for piece in pieces if piece[0] < piece[1]]

    @_rescans
    def batch_ranges(
        self, record_filter: RecordFilter, index_entry: tuple[int, int], stack: ExitStack
    ) -> list[BatchRange]:
        """The ranges of the filter's offsets in the current files, which `stack` keeps open.

        `index_entry` locates a batch if the last segment is still the one of the plan.
        """
        if not self.segments or self.segments[0].base_offset > record_filter.start_offset:
            raise OffsetOutOfRange(
                f"{self.owner}: offset {record_filter.start_offset} was deleted from "
                f"{self.directory} after the read was planned; read again"
            )
        ranges: list[BatchRange] = []
        ends = [*(segment.base_offset for segment in self.segments[1:]), LONG_MAX]
        for segment, end in zip(self.segments, ends, strict=True):
            if segment.base_offset < record_filter.end_offset and end > record_filter.start_offset:
                file = stack.enter_context(self._fs.open(segment.path(LOG)))
                size = file.size()
                start = 0
                if record_filter.start_offset > segment.base_offset:
                    entry = index_entry if end == LONG_MAX else None
                    start = self._find_start(segment, file, size, record_filter.start_offset, entry)
                if self._fs.info(segment.path(LOG)).size < size:
                    raise Unavailable(f"{file.path} was replaced while it was opened; read again")
                stop = size
                if end == LONG_MAX or end > record_filter.end_offset:
                    stop = _find_end(file, start, size, record_filter.end_offset)
                ranges.append(
                    BatchRange(
                        FileSource(file),
                        self.owner.partition,
                        start,
                        stop,
                        record_filter,
                        base_offset=segment.base_offset,
                    )
                )
        return ranges

    def _find_start(
        self,
        segment: Segment,
        file: File,
        size: int,
        offset: int,
        entry: tuple[int, int] | None,
    ) -> int:
        """A position at or before the batch of an offset, from the index file or an entry."""
        index = OffsetIndex(segment.base_offset, _INDEX_BYTES)
        if entry is None:
            try:
                data = self._fs.read(segment.path(INDEX))
            except FileNotFoundError:
                return 0
            index = OffsetIndex.decode(data, segment.base_offset, len(data))
        elif segment.base_offset <= entry[0] <= offset and entry[1]:
            index.append(*entry)
        return find_confirmed_position(file, index, offset, size=size)


def _find_end(file: File, start: int, size: int, end_offset: int) -> int:
    """The position of the first batch at or above an end offset, from batch headers."""
    walk = BatchWalk(file, start=start, end=size, verify_crc=False)
    for table in walk:
        above = np.flatnonzero(table.rows[:, BatchColumn.BASE_OFFSET] >= end_offset)
        if above.size:
            return int(table.rows[above[0], BatchColumn.POSITION])
    return walk.position


def open_piece(piece: LocalPiece, fs: FileSystem | None = None) -> LocalPartitionLog:
    return LocalPartitionLog(piece.directory, TopicPartition(piece.topic, piece.partition), fs)
