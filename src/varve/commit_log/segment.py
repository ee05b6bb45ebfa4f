"""Segments on the local disk: closed ones, and the active one that takes appends.

Layout     `<base offset>.log .index .timeindex` and, when needed, `.txnindex .keys .snapshot`.
           docs/reference/formats/segment-and-indexes.md
Invariant  base offset and size of a closed segment never change; truncation and cleaning create a
           new object. The active segment keeps its indexes in memory and writes their files when it
           is closed, which loses nothing, as recovery always rebuilds those of the last segment.
           Its `extent` (next offset, size) is replaced as one value after the bytes are written: a
           reader never sees one without the other. It has no key index: an old one is removed.
           Only data files cannot be rebuilt. A missing or wrong index is rebuilt in memory;
           `SegmentFiles.take_rebuilt` lists the ones whose files the log has to write.
Crash      a failed write may leave bytes past the active segment's `size`; the next append
           overwrites them, recovery truncates them.
Threads    closed: any, without a lock. Active: one appender under the log's lock; readers take
           `extent` first and need no lock. `SegmentFiles`: one lock, never held during I/O.
"""

import contextlib
import logging
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from varve.commit_log.append_times import (
    NO_TXN_INDEX,
    UNKNOWN_CHECK,
    AppendSpan,
    txn_check_of,
)
from varve.commit_log.health import raise_unless_derived
from varve.commit_log.names import (
    DELETED,
    INDEX,
    KEYS,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    log_name,
)
from varve.commit_log.producer_snapshots import load_snapshot, replay_batches
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment_reader import (
    BatchWalk,
    ReadableSegment,
    find_batch_position,
    find_end,
    find_largest_timestamp,
    find_newest_entry,
    first_batch_timestamp,
)
from varve.commit_log.settings import LogSettings
from varve.commit_log.sparse_index import OffsetIndex, SegmentIndexer, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import Buffer, File, FileSystem, write_atomically, write_file
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError

logger = logging.getLogger(__name__)

SEGMENT_KINDS: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX, KEYS)
DEFAULT_OPEN_SEGMENTS: Final = 256
"""A quarter of the usual limit of 1024 open files; connections and appends need the rest."""
_DEFAULT_SETTINGS: Final = LogSettings()
_PREALLOCATED_MAX: Final = 16 << 20
"""Kafka preallocates an index with 10 MiB by default."""

Index = TypeVar("Index", OffsetIndex, TimeIndex)


class OpenSegment:
    """The open data file of a closed segment and its indexes, which are read when first used."""

    def __init__(self, files: "SegmentFiles", segment: "Segment") -> None:
        self._files = files
        self._fs = files.fs
        self.segment = segment
        self.file: File = files.fs.open(segment.path(LOG))
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._has_damaged_data = False

    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = self._read_index(INDEX, OffsetIndex)
        if self._offset_index is None and not self.rebuild_indexes():
            # Without an entry, every scan begins at the first batch.
            self._offset_index = OffsetIndex.decode(b"", self.segment.base_offset, 0)
        assert self._offset_index is not None
        return self._offset_index

    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            index = self._read_index(TIME_INDEX, TimeIndex)
            # Without entries it is valid only if the segment has no bytes.
            if index is not None and (index.count or not self.segment.size):
                self._time_index = index
        if self._time_index is None and not self.rebuild_indexes():
            self._time_index = TimeIndex.decode(b"", self.segment.base_offset, 0)
        assert self._time_index is not None
        return self._time_index

    @property
    def _index_bytes_max(self) -> int:
        """Larger files are damaged: an entry is smaller than its batch. Kafka preallocates some."""
        return max(self.segment.size, self.segment.settings.segment_index_bytes, _PREALLOCATED_MAX)

    def _read_index(self, kind: str, index_type: type[Index]) -> Index | None:
        """The index in a file; None if it is missing or invalid."""
        path = self.segment.path(kind)
        try:
            if self._fs.info(path).size > self._index_bytes_max:
                return None
            data = self._fs.read(path)
            index = index_type.decode(data, self.segment.base_offset, len(data))
            index.check(path)
        except (OSError, Corrupt) as error:
            raise_unless_derived(error)
            return None
        return index if index.is_ascending else None

    def rebuild_indexes(self) -> bool:
        """Rebuilds offset and time index by a scan of the data file.

        False, with both unchanged, unless the data file has whole batches up to its end. An empty
        one has lost them: its indexes stay, so that `varve check` reports it.
        """
        segment, path = self.segment, self.segment.path(LOG)
        if self._has_damaged_data or not segment.size:
            return False
        indexer = SegmentIndexer(segment.base_offset, segment.settings, path)
        walk = BatchWalk(self.file, start=0, end=segment.size, verify_crc=False)
        try:
            is_whole = all(indexer.add(table.rows) == len(table.rows) for table in walk)
        except StoreError:
            is_whole = False
        self._has_damaged_data = not is_whole or walk.position != segment.size
        if self._has_damaged_data:
            return False
        self._offset_index, self._time_index = indexer.offset_index(), indexer.time_index()
        self._files.add_rebuilt(self)
        logger.warning("rebuilt the indexes of a segment", extra={"path": path})
        return True

    def txn_index(self) -> TransactionIndex:
        """The index of aborted transactions; a segment that never had a file has none."""
        if self._txn_index is None:
            path = self.segment.path(TXN_INDEX)
            try:
                if self._fs.info(path).size > self._index_bytes_max:
                    raise Corrupt(f"{path} is larger than the index of its segment can be")
                data = self._fs.read(path)
                if self.segment.txn_check not in (UNKNOWN_CHECK, txn_check_of(data)):
                    raise Corrupt(f"{path} is not the file that was written")
                self._txn_index = TransactionIndex.decode(
                    data, base_offset=self.segment.base_offset, where=path
                )
            except FileNotFoundError:
                self._txn_index = TransactionIndex(self.segment.base_offset)
                if self.segment.has_txn_index:
                    self._txn_index = self._rebuild_txn_index()
            except (OSError, Corrupt) as error:
                raise_unless_derived(error)
                self._txn_index = self._rebuild_txn_index()
        return self._txn_index

    def _rebuild_txn_index(self) -> TransactionIndex:
        """Replays the segment from the producer snapshot at its beginning.

        Raises Corrupt without one: an index that lacks entries would show aborted records.
        """
        segment, path = self.segment, self.segment.path(LOG)
        producers = ProducerStateManager()
        if segment.base_offset:
            snapshot = segment.path(SNAPSHOT)
            try:
                data = self._fs.read(snapshot)
            except FileNotFoundError:
                raise Corrupt(
                    f"{segment.path(TXN_INDEX)} is missing or damaged, and so is {snapshot}, which "
                    "rebuilding it needs; `varve check --repair` rebuilds both"
                ) from None
            load_snapshot(producers, data, offset=segment.base_offset, where=snapshot)
        index = TransactionIndex(segment.base_offset)
        walk = BatchWalk(self.file, start=0, end=segment.size, verify_crc=False)
        for table in walk:
            replay_batches(table, producers, index, where=path)
        walk.check_ended(path)
        segment.txn_check = txn_check_of(index.encode())
        self._files.add_rebuilt(self)
        logger.warning("rebuilt the index of aborted transactions", extra={"path": path})
        return index

    def write_indexes(self) -> None:
        """Writes the index files, durably."""
        for kind in self.segment.index_kinds:
            self.write_index(kind)

    def write_index(self, kind: str) -> None:
        if kind == INDEX:
            data = self.offset_index().encode()
        else:
            data = self.time_index().encode() if kind == TIME_INDEX else self.txn_index().encode()
        write_atomically(self._fs, self.segment.path(kind), data)


class SegmentFiles:
    """A bounded LRU cache of open segments, shared by all logs of a store.

    An evicted file stays open until the last reader that uses it releases it.
    """

    def __init__(self, fs: FileSystem, capacity: int = DEFAULT_OPEN_SEGMENTS) -> None:
        self.fs = fs
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[Segment, OpenSegment] = OrderedDict()  # guarded by _lock
        self._rebuilt: dict[Segment, OpenSegment] = {}  # guarded by _lock

    def get(self, segment: "Segment") -> OpenSegment:
        """Raises FileNotFoundError when the segment has left the log: list the segments again."""
        with self._lock:
            cached = self._open.get(segment)
            if cached is not None:
                self._open.move_to_end(segment)
                return cached
        opened = OpenSegment(self, segment)
        with self._lock:
            self._open[segment] = opened
            while len(self._open) > self._capacity:
                self._open.popitem(last=False)
        return opened

    def release(self, segment: "Segment") -> None:
        """Closes a segment that was opened for a moment, unless its indexes were rebuilt."""
        with self._lock:
            if segment not in self._rebuilt:
                self._open.pop(segment, None)

    def forget(self, segment: "Segment") -> None:
        with self._lock:
            self._open.pop(segment, None)
            self._rebuilt.pop(segment, None)

    def add_rebuilt(self, opened: OpenSegment) -> None:
        """Registers a segment whose index files the log has to rewrite."""
        with self._lock:
            self._rebuilt[opened.segment] = opened

    def take_rebuilt(self, directory: str) -> list[OpenSegment]:
        """Removes and returns the segments of a partition whose index files need a rewrite."""
        if not self._rebuilt:
            return []
        with self._lock:
            segments = [segment for segment in self._rebuilt if segment.directory == directory]
            return [self._rebuilt.pop(segment) for segment in segments]


class Segment:
    """A closed segment."""

    __slots__ = (
        "_files", "_newest", "base_offset", "directory", "has_txn_index", "settings", "size",
        "txn_check",
    )  # fmt: skip

    def __init__(
        self,
        files: SegmentFiles,
        directory: str,
        *,
        base_offset: int,
        size: int,
        has_txn_index: bool = False,
        txn_check: int = UNKNOWN_CHECK,
        settings: LogSettings | None = None,
    ) -> None:
        """`settings` are the log's, by which lost indexes are rebuilt.

        `txn_check` recognises its transaction index: a lost one counts as lost, not as none.
        """
        self._files = files
        self.directory = directory
        self.settings = settings or _DEFAULT_SETTINGS
        self.base_offset = base_offset
        self.size = size
        self.has_txn_index = has_txn_index or txn_check not in (UNKNOWN_CHECK, NO_TXN_INDEX)
        self.txn_check = txn_check
        self._newest: tuple[int, int] | None = None

    def path(self, kind: str) -> str:
        return f"{self.directory}/{log_name(self.base_offset, kind)}"

    def file(self) -> File:
        return self._files.get(self).file

    def offset_index(self) -> OffsetIndex:
        return self._files.get(self).offset_index()

    def time_index(self) -> TimeIndex:
        return self._files.get(self).time_index()

    def txn_index(self) -> TransactionIndex:
        return self._files.get(self).txn_index()

    def rebuild_indexes(self) -> bool:
        return self._files.get(self).rebuild_indexes()

    @property
    def max_timestamp(self) -> int:
        """Largest record timestamp; -1 when the segment has none."""
        return self._find_newest()[0]

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the earliest batch that holds `max_timestamp`."""
        return self._find_newest()[1]

    def _find_newest(self) -> tuple[int, int]:
        if self._newest is None:
            self._newest = find_newest_entry(self, size=self.size)
        return self._newest

    @property
    def index_kinds(self) -> Sequence[str]:
        """The index files that loading uses without a rebuild."""
        return (INDEX, TIME_INDEX, TXN_INDEX) if self.has_txn_index else (INDEX, TIME_INDEX)

    def sync(self) -> None:
        """Syncs its files; an index file that vanished is rebuilt."""
        fs = self._files.fs
        _sync_file(fs, self.path(LOG))
        for kind in self.index_kinds:
            try:
                _sync_file(fs, self.path(kind))
            except FileNotFoundError:
                self._files.get(self).write_index(kind)

    def mark_deleted(self) -> None:
        """Renames the files `.deleted`; open readers continue. The caller removes them later."""
        self._files.forget(self)
        rename_segment_files(self._files, self.directory, self.base_offset, "", DELETED)


def _sync_file(fs: FileSystem, path: str) -> None:
    with fs.open(path) as file:
        file.sync()


def rename_segment_files(
    files: SegmentFiles, directory: str, base_offset: int, old: str, new: str
) -> None:
    """Renames a segment's files from one state suffix to another, the data file first.

    Skips missing ones.
    """
    for kind in SEGMENT_KINDS:
        path = f"{directory}/{log_name(base_offset, kind)}"
        try:
            files.fs.rename(path + old, path + new)
        except FileNotFoundError:
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContents:
    """The extent of a segment, and its indexes with room for more entries.

    `largest_timestamp` is paired with the last offset of the earliest batch that has it.
    """

    base_offset: int
    next_offset: int
    size: int
    first_timestamp: int
    largest_timestamp: tuple[int, int]
    offset_index: OffsetIndex
    time_index: TimeIndex
    txn_index: TransactionIndex


def read_contents(segment: ReadableSegment, settings: LogSettings) -> SegmentContents:
    """The contents of a whole segment."""
    find_newest_entry(segment, size=segment.size)  # rebuilds a time index that lost its end
    next_offset, size = find_end(segment, size=segment.size)
    return _read_contents(segment, settings, next_offset=next_offset, size=size)


def read_contents_before(
    segment: ReadableSegment, offset: int, settings: LogSettings
) -> SegmentContents:
    """The contents of a segment before the first batch whose last offset reaches the offset."""
    batch = find_batch_position(segment, offset, size=segment.size)
    size = segment.size if batch is None else batch[0]
    contents = _read_contents(segment, settings, next_offset=offset, size=size)
    offset_index, time_index = contents.offset_index, contents.time_index
    offset_index.truncate_to(offset)
    time_index.truncate_to(offset)
    contents.txn_index.truncate_to(offset)
    largest = find_largest_timestamp(segment.file(), time_index, offset_index, size=size)
    return replace(contents, largest_timestamp=largest)


def _read_contents(
    segment: ReadableSegment, settings: LogSettings, *, next_offset: int, size: int
) -> SegmentContents:
    base_offset, max_bytes = segment.base_offset, settings.segment_index_bytes
    time_index = TimeIndex.decode(segment.time_index().encode(), base_offset, max_bytes)
    return SegmentContents(
        base_offset=base_offset,
        next_offset=next_offset,
        size=size,
        first_timestamp=first_batch_timestamp(segment, size=size),
        largest_timestamp=time_index.last,
        offset_index=OffsetIndex.decode(segment.offset_index().encode(), base_offset, max_bytes),
        time_index=time_index,
        txn_index=TransactionIndex.decode(segment.txn_index().encode(), base_offset=base_offset),
    )


class BatchSet(NamedTuple):
    """Whole batches of one write; a tuple, because every append creates one."""

    buffers: tuple[Buffer, ...]
    size: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int


def draw_jitter(settings: LogSettings, random: random.Random) -> int:
    """How much earlier a segment rolls, so that partitions do not all roll at once."""
    limit = min(settings.segment_jitter_ms, settings.segment_ms)
    return random.randrange(limit) if limit > 0 else 0


class ActiveSegment:
    """A segment open for appends; `resume` continues after existing content."""

    def __init__(
        self,
        files: SegmentFiles,
        directory: str,
        settings: LogSettings,
        *,
        base_offset: int,
        clock: Clock,
        random: random.Random,
    ) -> None:
        self._files = files
        self._settings = settings
        self._offset_index = OffsetIndex(base_offset, settings.segment_index_bytes)
        self._time_index = TimeIndex(base_offset, settings.segment_index_bytes)
        self._txn_index = TransactionIndex(base_offset)
        self._bytes_since_index_entry = 0
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = clock.now_ms()
        self.jitter_ms = draw_jitter(settings, random)
        self.extent = (base_offset, 0)
        self.synced_size = 0
        # The size after a truncation, and the offset after the last remaining batch.
        self.truncated = (-1, base_offset)
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp = -1
        # By the local clock; None until the first append.
        self.appended: AppendSpan | None = None
        self.has_full_index = self._offset_index.is_full or self._time_index.is_full
        with contextlib.suppress(FileNotFoundError):
            files.fs.remove(self.path(KEYS))
        self.writer: File = files.fs.open_writable(self.path(LOG))

    def path(self, kind: str) -> str:
        return f"{self.directory}/{log_name(self.base_offset, kind)}"

    def file(self) -> File:
        return self.writer

    def offset_index(self) -> OffsetIndex:
        return self._offset_index

    def time_index(self) -> TimeIndex:
        return self._time_index

    def txn_index(self) -> TransactionIndex:
        return self._txn_index

    @property
    def next_offset(self) -> int:
        return self.extent[0]

    @property
    def size(self) -> int:
        return self.extent[1]

    def resume(self, contents: "SegmentContents") -> None:
        """Continues after the batches that are already in the data file."""
        self._offset_index = contents.offset_index
        self._time_index = contents.time_index
        self._txn_index = contents.txn_index
        self.max_timestamp, self.max_timestamp_offset = contents.largest_timestamp
        self.first_timestamp = contents.first_timestamp
        self.has_full_index = self._offset_index.is_full or self._time_index.is_full
        self.extent = (contents.next_offset, contents.size)

    def append(self, batches: BatchSet) -> None:
        """Writes the batches; a failure leaves the segment unchanged."""
        buffers, size, _, last_offset, max_timestamp, max_timestamp_offset = batches
        position = self.extent[1]
        try:
            self.writer.write_at(position, *buffers)
        except OSError:
            with contextlib.suppress(OSError):
                self.writer.truncate(position)
            raise
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = max_timestamp_offset
        if self._bytes_since_index_entry > self._settings.index_interval_bytes:
            self._offset_index.append(last_offset, position)
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.has_full_index = self._offset_index.is_full or self._time_index.is_full
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size
        self.extent = (last_offset + 1, position + size)

    def is_idle(self, now_ms: int, settings: LogSettings) -> bool:
        """Whether the segment is due to roll by the local clock.

        Otherwise retention and compaction would never reach the last records of an idle topic.
        """
        if self.appended is None or not self.size:
            return False
        return now_ms - self.appended.first_ms > settings.max_segment_ms - self.jitter_ms

    def rebuild_indexes(self) -> bool:
        """Always False: the indexes grow while readers use them. A wrong entry that was loaded is
        detected again once the segment is closed.
        """
        return False

    def close_indexes(self) -> None:
        """Adds the final time entry, trims the data file to its size, writes the index files."""
        if self.max_timestamp >= 0:
            self._time_index.append(
                self.max_timestamp, self.max_timestamp_offset, skip_full_check=True
            )
        if self.writer.size() != self.size:
            self.writer.truncate(self.size)
        for kind, index in self._index_files():
            write_file(self._files.fs, self.path(kind), index.encode(), sync=False)
        if not self._txn_index.count:
            # A truncation may have removed the entries of an existing file.
            with contextlib.suppress(FileNotFoundError):
                self._files.fs.remove(self.path(TXN_INDEX))

    def _index_files(self) -> Iterator[tuple[str, OffsetIndex | TimeIndex | TransactionIndex]]:
        yield INDEX, self._offset_index
        yield TIME_INDEX, self._time_index
        if self._txn_index.count:
            yield TXN_INDEX, self._txn_index

    def sync(self) -> None:
        """Syncs data and index files after the segment is closed.

        The data is synced through the descriptor that wrote it, which reports write-back errors. An
        index file that vanished is rewritten.
        """
        fs = self._files.fs
        self.writer.sync()
        for kind, index in self._index_files():
            try:
                _sync_file(fs, self.path(kind))
            except FileNotFoundError:
                write_atomically(fs, self.path(kind), index.encode())

    @property
    def txn_check(self) -> int:
        return txn_check_of(self._txn_index.encode())

    def closed(self) -> Segment:
        """The same segment as a closed one."""
        return Segment(
            self._files,
            self.directory,
            base_offset=self.base_offset,
            size=self.size,
            has_txn_index=bool(self._txn_index.count),
            txn_check=self.txn_check,
            settings=self._settings,
        )
