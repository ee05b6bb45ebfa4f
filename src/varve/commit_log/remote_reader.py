"""The remote part of a log: the segments that have left the local disk for object storage.

Invariant  a remote reader serves offsets in front of the log's local start; it may hold later ones.
Threads    any number of readers; never called under a log's lock.
"""

from typing import NamedTuple, Protocol

from varve.commit_log.names import TopicPartition
from varve.commit_log.segment_reader import TimestampOffset
from varve.commit_log.transaction_index import AbortedTransaction


class RemoteRead(NamedTuple):
    """Whole batches of one remote segment, and the offset after them.

    `aborted` are the aborted transactions that touch the offsets read. Unless `is_complete`, later
    local segments may list more of them.
    """

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    is_complete: bool = True


class RemoteLogReader(Protocol):
    """Reads the remote segments of one partition."""

    def read(
        self,
        *,
        start_offset: int,
        limit_offset: int,
        max_bytes: int,
        min_one: bool,
        with_aborted: bool,
    ) -> RemoteRead | None:
        """Whole batches from the first that ends at or after `start_offset`, none at the limit.

        Segments that compaction emptied are skipped; None when no batch is left below the limit.
        Raises Unavailable, which is worth a retry, when the object store does not answer, and
        Corrupt for an offset before the limit that is in no segment.
        """

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        """The first record in [start, end) that is not older than the timestamp."""


class RemoteLogReaders(Protocol):
    """Where a log directory gets the remote reader of each log that it opens."""

    def remote_reader(self, partition: TopicPartition) -> RemoteLogReader: ...
