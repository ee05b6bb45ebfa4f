"""The last segment of a log: the one that grows.

Layout     as a closed segment, but the indexes live in memory and reach their files when the
           segment is closed; recovery always rebuilds those of the last segment, so nothing is lost
           by that.
Invariant  `extent` (next offset, size) is replaced as one value after the bytes are written, so
           that a reader never sees one without the other.
           A segment that grows has no key index: one of another time is removed.
Crash      bytes past `size` are leavings of a failed write; the next append overwrites them,
           recovery cuts them.
Threads    one appender under the log's lock; readers take `extent` first and need no lock.
"""

import contextlib
from typing import NamedTuple

from varve.commit_log.append_times import AppendSpan
from varve.commit_log.names import INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.segment import Segment, sync_files
from varve.commit_log.segment_files import SegmentFiles
from varve.commit_log.settings import LogSettings
from varve.commit_log.time_index import TimeIndex
from varve.commit_log.txn_index import AbortedTransaction, TransactionIndex
from varve.disk import Buffer, File


class BatchSet(NamedTuple):
    """Whole batches to be written at once; a tuple, because one is made for every append."""

    buffers: tuple[Buffer, ...]
    size: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int


class ActiveSegment:
    """A segment open for appends."""

    def __init__(
        self,
        files: SegmentFiles,
        directory: str,
        settings: LogSettings,
        *,
        base_offset: int,
        created_ms: int,
        jitter_ms: int,
    ) -> None:
        self._files = files
        self._index_interval_bytes = settings.index_interval_bytes
        self._offset_index = OffsetIndex(base_offset, settings.segment_index_bytes)
        self._time_index = TimeIndex(base_offset, settings.segment_index_bytes)
        self._txn_index = TransactionIndex(base_offset)
        self._bytes_since_index_entry = 0
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.extent = (base_offset, 0)
        self.synced_size = 0
        # The size a truncation left, and the offset after the last batch in it.
        self.cut = (-1, base_offset)
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp = -1
        # By our clock; None until something is appended.
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

    def resume(
        self,
        *,
        next_offset: int,
        size: int,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        txn_index: TransactionIndex,
        first_timestamp: int,
    ) -> None:
        """Takes over what loading found of a segment that already holds batches."""
        self._offset_index = offset_index
        self._time_index = time_index
        self._txn_index = txn_index
        self.max_timestamp, self.max_timestamp_offset = time_index.last
        self.first_timestamp = first_timestamp
        self.has_full_index = offset_index.is_full or time_index.is_full
        self.extent = (next_offset, size)

    def append(self, batches: BatchSet) -> None:
        """Writes the batches; what fails leaves the segment as it was."""
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
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._offset_index.append(last_offset, position)
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.has_full_index = self._offset_index.is_full or self._time_index.is_full
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size
        self.extent = (last_offset + 1, position + size)

    def append_aborted(self, aborted: AbortedTransaction) -> None:
        self._txn_index.append(aborted)

    def close_indexes(self) -> None:
        """Adds the final time entry, cuts the data file to its size and writes the index files."""
        if self.max_timestamp >= 0:
            self._time_index.append(
                self.max_timestamp, self.max_timestamp_offset, skip_full_check=True
            )
        if self.writer.size() != self.size:
            self.writer.truncate(self.size)
        self._write_index(INDEX, self._offset_index.encode())
        self._write_index(TIME_INDEX, self._time_index.encode())
        if self._txn_index.count:
            self._write_index(TXN_INDEX, self._txn_index.encode())
        else:
            # A truncation may have taken the entries that a file still holds.
            with contextlib.suppress(FileNotFoundError):
                self._files.fs.remove(self.path(TXN_INDEX))

    def _write_index(self, kind: str, data: bytes) -> None:
        with self._files.fs.open_writable(self.path(kind)) as file:
            file.write_at(0, data)
            file.truncate(len(data))

    def sync(self) -> None:
        """Brings the data and the index files of a closed segment to the disk.

        The data through the file it was written by: an error in writing it back shows there.
        """
        self.writer.sync()
        sync_files(self._files.fs, self.path, self.closed().kinds[1:])

    def closed(self) -> Segment:
        """The same segment as a closed one."""
        return Segment(
            self._files,
            self.directory,
            base_offset=self.base_offset,
            size=self.size,
            has_txn_index=bool(self._txn_index.count),
        )
