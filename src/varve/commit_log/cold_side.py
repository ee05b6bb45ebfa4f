"""What a log asks of the part of it that has left the local disk.

Invariant  a cold side serves offsets in front of the log's local start; it may hold later ones too.
Threads    any number of readers.
"""

from typing import NamedTuple, Protocol

from varve.commit_log.names import TopicPartition
from varve.commit_log.segment_reader import TimestampOffset
from varve.commit_log.txn_index import AbortedTransaction


class ColdRun(NamedTuple):
    """Whole batches of one cold segment, and the offset after them.

    `aborted` touch the offsets read; unless `is_complete` more of them may be known to the segments
    behind those of the cold side.
    """

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    is_complete: bool = True


class ColdSide(Protocol):
    """The cold part of one log."""

    def read(
        self,
        *,
        start_offset: int,
        limit_offset: int,
        max_bytes: int,
        min_one: bool,
        with_aborted: bool,
    ) -> ColdRun | None:
        """Whole batches from the first that ends at or behind `start_offset`, none at the limit.

        Where compaction left nothing, the segments behind follow; None when they hold nothing up
        to the limit. Raises Unavailable, which may pass, when the store cannot be asked, and
        Corrupt for an offset before the limit that is in no segment.
        """

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        """The first record in [start, end) that is not older than the timestamp."""


def no_cold_side(partition: TopicPartition) -> ColdSide | None:
    """For logs whose store has no cold tier."""
    return None
