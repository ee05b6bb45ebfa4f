"""Follows a partition's files while another process appends to them.

Invariant  changes nothing and takes no lock; returns only records of whole batches with a good CRC,
           so it waits for a write in flight. Control batches are skipped; whether a transaction
           commits is not known here.
Threads    one; it is a cursor.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from varve.commit_log.names import (
    LOG,
    LOG_START_OFFSET_FILE,
    DirectoryState,
    TopicPartition,
    log_name,
    parse_file_name,
    parse_partition_directory,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.embedded.partition import columns_within, stored_records
from varve.embedded.stored_record import StoredRecord
from varve.foundation.errors import Corrupt, OffsetOutOfRange
from varve.kernels.batch_layout import BatchColumn, ScanStatus
from varve.records import CommittedBatches

# A write in flight is complete after this many polls; bytes that are still wrong are corrupt.
_STALLED_POLLS_MAX: Final = 20
_BROKEN: Final = (ScanStatus.BAD_CRC, ScanStatus.BAD_MAGIC)


class Follower:
    """A cursor over one partition's files."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        topic_partition: TopicPartition,
        *,
        start: int | None,
        is_tiered: bool = False,
    ) -> None:
        """Begins at an offset, by default at the first record on the local disk.

        Offsets of a tiered partition that are only in object storage are skipped.
        """
        self._fs = fs
        self._directory = f"{root}/{topic_partition}"
        self._topic_partition = topic_partition
        first = min(self._base_offsets(), default=0)
        checkpoint = self._read_log_start(root)
        # Without a tier the first segment counts: the checkpoint may lag behind deletions.
        if is_tiered and checkpoint is not None:
            self.log_start = checkpoint
        else:
            self.log_start = max(first, checkpoint or 0)
        self.local_start = max(self.log_start, first)
        """The first offset on the local disk; earlier ones are in the remote tier."""
        if start is not None and start < self.log_start:
            raise OffsetOutOfRange(
                f"{topic_partition}: offset {start} is before the log start offset {self.log_start}"
            )
        self.offset = self.local_start if start is None else max(start, self.local_start)
        self._base_offset = -1
        self._position = 0
        self._status = ScanStatus.END
        self._stalled_polls = 0

    def _read_log_start(self, root: str) -> int | None:
        path = f"{root}/{LOG_START_OFFSET_FILE}"
        with suppress(FileNotFoundError):
            return decode_offsets(self._fs.read(path), where=path).get(self._topic_partition)
        return None

    def _base_offsets(self) -> list[int]:
        names = map(parse_file_name, self._fs.names(self._directory))
        return [name.offset for name in names if name and name.kind == LOG and not name.state]

    def skip_to_end(self) -> None:
        """Moves the cursor to the end of the partition."""
        last = max(self._base_offsets(), default=0)
        self.offset = max(self.offset, last)
        for _ in self._tables_of_segment():
            pass

    def poll(self) -> Iterator[StoredRecord]:
        """The records appended since the last poll."""
        while True:
            for table in self._tables_of_segment():
                yield from self._records_in(table)
            later_bases = [base for base in self._base_offsets() if base > self._base_offset]
            has_unread_bytes = bool(later_bases) and self._has_unread_bytes()
            if self._is_stopped(is_closed=has_unread_bytes) or not later_bases:
                return
            if not has_unread_bytes:
                self.offset = max(self.offset, min(later_bases))

    def _has_unread_bytes(self) -> bool:
        """Whether the segment has bytes after the cursor."""
        with suppress(FileNotFoundError):
            return self._fs.info(self._path()).size > self._position
        return False

    def _is_stopped(self, *, is_closed: bool) -> bool:
        """Whether the last walk stopped at bytes that are not a batch; raises if they persist.

        After the batches of an active segment there may be a partial write or preallocated bytes;
        a closed segment has nothing but batches.
        """
        is_broken = self._status in _BROKEN or (is_closed and self._status is not ScanStatus.END)
        self._stalled_polls = self._stalled_polls + 1 if is_broken else 0
        if self._stalled_polls > _STALLED_POLLS_MAX:
            raise Corrupt(
                f"{self._path()}: no whole batch at position {self._position}; run `varve check` "
                "on the directory"
            )
        return is_broken

    def _path(self) -> str:
        return f"{self._directory}/{log_name(self._base_offset)}"

    def _tables_of_segment(self) -> Iterator[BatchTable]:
        """The new batches of the segment that holds the offset; moves the cursor after them."""
        bases = self._base_offsets()
        base = max((base for base in bases if base <= self.offset), default=min(bases, default=0))
        if base != self._base_offset:
            self._base_offset, self._position = base, 0
        try:
            file = self._fs.open(self._path())
        except FileNotFoundError:
            return
        with file:
            size = file.size()
            self._position = self._position if self._position <= size else 0
            walk = BatchWalk(file, start=self._position, end=size, verify_crc=True)
            for table in walk:
                yield table
                self.offset = max(self.offset, int(table.rows[-1, BatchColumn.LAST_OFFSET]) + 1)
                self._position = table.end
            self._status = walk.status
            if walk.status is ScanStatus.OLD_MAGIC:
                walk.check_ended(self._path())

    def _records_in(self, table: BatchTable) -> Iterator[StoredRecord]:
        first = int(table.rows[0, BatchColumn.POSITION]) - table.start
        data = bytes(table.buffer[first : table.end - table.start])
        start = self.offset
        for batch in CommittedBatches(data, start_offset=start, where=self._directory):
            columns = columns_within(batch, start=start)
            yield from stored_records(columns, self._topic_partition.partition)


def find_partitions(fs: FileSystem, root: str, topic: str) -> list[TopicPartition]:
    """The topic's partitions in a log directory, found by their directories' names."""
    partitions = []
    for entry in fs.scan(root):
        if entry.is_directory:
            with suppress(Corrupt):  # not ours to judge here
                directory = parse_partition_directory(entry.name)
                is_active = directory.state is DirectoryState.ACTIVE
                if is_active and directory.topic_partition.topic == topic:
                    partitions.append(directory.topic_partition)
    return sorted(partitions)
