"""Reads a log by offset, up to the limit of an isolation level, and by time, from disk or tier.

Offsets before the first local segment are read from the remote tier without a lock: a reader that
waits for object storage blocks no other.

Invariant  a read returns whole batches of one segment, in order, none at or above the limit.
Threads    any number, without the log's lock: each works on one view of the segments. A segment
           that left the log meanwhile, or was replaced, makes the read retry.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from varve.commit_log.log_segments import SegmentView
from varve.commit_log.names import TopicPartition
from varve.commit_log.segment_reader import (
    BatchRun,
    ReadableSegment,
    TimestampOffset,
    find_max_timestamp,
    find_offset_by_time,
    read_batches,
)
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import InvalidRequest, OffsetOutOfRange, StoreError, Unavailable

if TYPE_CHECKING:
    from varve.commit_log.log import Log

_CACHED_POSITIONS_MAX: Final = 1024


class Isolation(StrEnum):
    """The offset up to which a read returns records."""

    LOG_END = "log_end"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class AbortedRange(NamedTuple):
    """A producer's transactional batches from `first_offset` to its next marker are aborted."""

    producer_id: int
    first_offset: int


class FetchResult(NamedTuple):
    """Whole batches as stored; the first may begin before the requested offset."""

    data: memoryview
    next_offset: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[AbortedRange, ...] = ()


class RemoteRead(NamedTuple):
    """Whole batches of one remote segment, and the offset after them.

    `aborted` are the aborted transactions that touch the offsets read. Unless `is_complete`, later
    local segments may list more of them.
    """

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    is_complete: bool = True


class RemoteReadRequest(NamedTuple):
    """A read below `limit_offset`; with `min_one` the first batch may exceed `max_bytes`."""

    start_offset: int
    limit_offset: int
    max_bytes: int
    min_one: bool = True
    with_aborted: bool = False
    """Whether the aborted transactions of the range are needed."""


class RemoteLogReader(Protocol):
    """Reads the segments of one partition that have left the local disk for object storage.

    It serves offsets before the log's local start, and may hold later ones. Any number of threads
    read; it is never called under a log's lock.
    """

    def read(self, request: RemoteReadRequest) -> RemoteRead | None:
        """Whole batches from the first that ends at or after the start, none at the limit.

        Segments that compaction emptied are skipped; None when no batch that is left ends below
        the limit, as a truncation drops a batch of which it drops an offset.
        Raises Unavailable, which is worth a retry, when the object store does not answer, and
        Corrupt for an offset before the limit that is in no segment.
        """

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        """The first record in [start, end) that is not older than the timestamp."""


class RemoteLogReaders(Protocol):
    """Provides the remote reader of each log that a log directory opens."""

    def remote_reader(self, partition: TopicPartition) -> RemoteLogReader: ...


class LogReader:
    """Reads one log."""

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._segments = log.segments
        self.remote: RemoteLogReader | None = None
        # Segment and position where recent reads ended, by next offset: a sequential reader needs
        # no index lookup. A position is valid for that segment object only. All are dropped when
        # the active segment changes, as those of a rolled one would keep its file open.
        self._next_positions: dict[int, tuple[ReadableSegment | None, int]] = {}
        self._positions_active = log.view.active

    def read(
        self, *, start_offset: int, max_bytes: int, isolation: Isolation, min_one: bool
    ) -> FetchResult:
        """Raises OffsetOutOfRange outside [log start offset, log end offset]."""
        if max_bytes < 0:
            raise InvalidRequest(
                f"{self._log.topic_partition}: max_bytes is {max_bytes}; it must be 0 or more"
            )
        while True:
            read = partial(self._read_local, start_offset, max_bytes, isolation, min_one)
            fetched = self._segments.read_stable(read)
            if fetched is None:
                fetched, start_offset = self._read_remote(
                    start_offset, max_bytes, isolation, min_one
                )
            if fetched is not None:
                return fetched

    def _read_local(
        self, start_offset: int, max_bytes: int, isolation: Isolation, min_one: bool
    ) -> FetchResult | None:
        """None if the start offset is before the first local segment."""
        log = self._log
        # The limit before the view, which then has the markers of all batches below the limit.
        limit = self._limit(isolation)
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        view = log.view
        end_offset = view.active.extent[0]
        self._check_range(start_offset, end_offset)
        if start_offset < view.first_base_offset and start_offset < limit:
            return None
        run = self._read_view(view, start_offset, min(limit, end_offset), max_bytes, min_one)
        aborted: tuple[AbortedRange, ...] = ()
        if isolation is Isolation.READ_COMMITTED and run.data:
            aborted = _to_aborted_ranges(_collect_aborted(view, start_offset, run.next_offset))
        return FetchResult(
            run.data, run.next_offset, log.log_start_offset, high_watermark, stable, aborted
        )

    def _read_remote(
        self, start_offset: int, max_bytes: int, isolation: Isolation, min_one: bool
    ) -> tuple[FetchResult | None, int]:
        """Batches from the remote tier, or None and the offset to read next.

        That offset is the local start, or the limit before it, if no remote batch remains below;
        `start_offset` if a segment left the local disk meanwhile, since its abort markers may have
        been missed.
        """
        log = self._log
        limit = self._limit(isolation)
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        remote_end = log.view.first_base_offset
        is_committed = isolation is Isolation.READ_COMMITTED
        request = RemoteReadRequest(
            start_offset, min(limit, remote_end), max_bytes, min_one, with_aborted=is_committed
        )
        try:
            run = self._get_remote(start_offset).read(request)
        except StoreError:
            # The objects of records that were deleted meanwhile may no longer exist.
            self._check_range(start_offset, log.end_offset)
            raise
        # Records that were deleted meanwhile must not be served, even if their objects exist.
        self._check_range(start_offset, log.end_offset)
        if run is None:
            return None, max(start_offset, request.limit_offset)
        aborted = list(run.aborted)
        if is_committed and not run.is_complete:
            aborted += self.collect_aborted(start_offset, run.next_offset)
            if log.view.first_base_offset != remote_end:
                return None, start_offset
        return FetchResult(
            run.data,
            run.next_offset,
            log.log_start_offset,
            high_watermark,
            stable,
            _to_aborted_ranges(aborted),
        ), run.next_offset

    def _get_remote(self, offset: int) -> RemoteLogReader:
        if self.remote is None:
            log = self._log
            raise Unavailable(
                f"{log.topic_partition}: offset {offset} is in object storage alone, the local "
                f"disk holds {log.view.first_base_offset} to {log.end_offset}: open the store with "
                "its remote tier (varve.tier.url)"
            )
        return self.remote

    def _read_view(
        self, view: SegmentView, start_offset: int, limit: int, max_bytes: int, min_one: bool
    ) -> BatchRun:
        cached_segment, position = self._next_positions.pop(start_offset, (None, 0))
        if start_offset < limit:
            for segment in view.from_offset(start_offset):
                if segment.base_offset >= limit:
                    break
                run = read_batches(
                    segment,
                    start_offset=start_offset,
                    limit_offset=limit,
                    max_bytes=max_bytes,
                    min_one=min_one,
                    size=segment.size,
                    position=position if segment is cached_segment else None,
                )
                if run is not None:
                    self._cache_next_position(view, segment, run)
                    return run
        # No batch lies between the start offset and the limit: the reader continues at the limit.
        return BatchRun(memoryview(b""), max(start_offset, limit), 0)

    def _cache_next_position(
        self, view: SegmentView, segment: ReadableSegment, run: BatchRun
    ) -> None:
        if (
            view.active is not self._positions_active
            or len(self._next_positions) >= _CACHED_POSITIONS_MAX
        ):
            self._next_positions.clear()
            self._positions_active = view.active
        self._next_positions[run.next_offset] = (segment, run.end_position)

    def _limit(self, isolation: Isolation) -> int:
        if isolation is Isolation.READ_UNCOMMITTED:
            return self._log.high_watermark
        if isolation is Isolation.READ_COMMITTED:
            return self._log.last_stable_offset
        return self._log.end_offset

    def _check_range(self, start_offset: int, end_offset: int) -> None:
        log = self._log
        if not log.log_start_offset <= start_offset <= end_offset:
            raise OffsetOutOfRange(
                f"{log.topic_partition}: offset {start_offset} is outside the log, which begins "
                f"at {log.log_start_offset} and whose records end before {end_offset}; read "
                "from there"
            )

    def find_offset_by_time(self, timestamp: int) -> TimestampOffset | None:
        """The first record not older than the timestamp, below the high watermark."""
        log = self._log
        while True:
            start_offset, local_start = log.log_start_offset, log.view.first_base_offset
            offset = None
            if start_offset < local_start:
                offset = self._search_remote_time(timestamp, start_offset, local_start)
            if offset is None:
                offset = self._segments.read_stable(lambda: self._search_time(log.view, timestamp))
            # A segment that moved to the remote tier meanwhile may have been missed in both.
            is_unchanged = log.view.first_base_offset == local_start
            if log.log_start_offset == start_offset and is_unchanged:
                return offset if offset and offset.offset < log.high_watermark else None

    def _search_remote_time(
        self, timestamp: int, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        try:
            return self._get_remote(start_offset).find_offset_by_time(
                timestamp, start_offset=start_offset, end_offset=end_offset
            )
        except StoreError:
            if self._log.log_start_offset == start_offset:
                raise
            return None  # deleted meanwhile: the caller retries

    def _search_time(self, view: SegmentView, timestamp: int) -> TimestampOffset | None:
        for segment in view:
            size = segment.size
            if segment.max_timestamp < timestamp:
                continue
            offset = find_offset_by_time(
                segment,
                timestamp=timestamp,
                start_offset=self._log.log_start_offset,
                size=size,
            )
            if offset is not None:
                return offset
        return None

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log."""
        return self._segments.read_stable(self._search_max_timestamp)

    def _search_max_timestamp(self) -> TimestampOffset | None:
        segments: list[ReadableSegment] = list(self._log.view)
        newest = max(segments, key=lambda segment: segment.max_timestamp)
        return find_max_timestamp(newest, size=newest.size)

    def collect_aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that touch [start, end), in the order of their markers."""
        return self._segments.read_stable(
            lambda: _collect_aborted(self._log.view, start_offset, end_offset)
        )

    def aborted_transactions(self) -> list[AbortedTransaction]:
        """All aborted transactions in the transaction indexes."""
        return self._segments.read_stable(
            lambda: [
                aborted
                for segment in self._log.view.may_hold_aborted()
                for aborted in segment.txn_index().entries()
            ]
        )


def _to_aborted_ranges(aborted: Iterable[AbortedTransaction]) -> tuple[AbortedRange, ...]:
    """Without duplicates: both tiers may list the same transaction."""
    ranges = [
        AbortedRange(transaction.producer_id, transaction.first_offset) for transaction in aborted
    ]
    return tuple(dict.fromkeys(ranges))


def _collect_aborted(
    view: SegmentView, start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions that touch [start, end).

    Their markers are in the segment of the start offset or in later ones.
    """
    aborted: list[AbortedTransaction] = []
    for segment in view.may_hold_aborted(start_offset):
        transactions, is_complete = segment.txn_index().collect(start_offset, end_offset)
        aborted += transactions
        if is_complete:
            break
    return aborted
