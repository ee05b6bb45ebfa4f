"""A cold side that counts the reads that fail.

Threads    any number of readers.
"""

from varve.commit_log import TopicPartition
from varve.commit_log.remote_log import RemoteLogReader, RemoteRead
from varve.commit_log.segment_reader import TimestampOffset
from varve.foundation.errors import OffsetOutOfRange, StoreError
from varve.tiering.metrics import TierMetrics


class CountedColdSide:
    """A RemoteLogReader over another; an offset out of range is no failure."""

    def __init__(
        self, side: RemoteLogReader, partition: TopicPartition, metrics: TierMetrics
    ) -> None:
        self._side = side
        self._partition = partition
        self._metrics = metrics

    def read(
        self,
        *,
        start_offset: int,
        limit_offset: int,
        max_bytes: int,
        min_one: bool,
        with_aborted: bool,
    ) -> RemoteRead | None:
        try:
            return self._side.read(
                start_offset=start_offset,
                limit_offset=limit_offset,
                max_bytes=max_bytes,
                min_one=min_one,
                with_aborted=with_aborted,
            )
        except StoreError as error:
            self._note(error)
            raise

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        try:
            return self._side.find_offset_by_time(
                timestamp, start_offset=start_offset, end_offset=end_offset
            )
        except StoreError as error:
            self._note(error)
            raise

    def _note(self, error: StoreError) -> None:
        if not isinstance(error, OffsetOutOfRange):
            self._metrics.observe_fetch_error(self._partition)
