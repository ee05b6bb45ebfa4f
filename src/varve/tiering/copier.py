"""Copies the closed segments of a store's tiered topics to object storage, oldest first.

Invariant  segments of a partition are copied strictly in order, from the offset that the manifest
           gives, and only when they are durable on the local disk and all their transactions are
           decided. A failure stays with its partition and is retried after a time that doubles.
Crash      no state is kept here: the manifest lists started copies, and the next round continues.
Threads    one thread calls `run_once` and `copy`; any thread may call `failures`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.key_index.key_index import SegmentKeys
from varve.cleaning.key_index.segment_indexes import partition_io
from varve.cleaning.work_budget import Throttle, WorkBudget
from varve.commit_log import Log, Segment, TopicPartition
from varve.foundation.backoff import Backoff
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    StoreError,
    StoreUnavailable,
    Unavailable,
)
from varve.foundation.settings import LONG_MAX
from varve.foundation.worker import StopSignal
from varve.tiering.history_check import check_same_history
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.metrics import COPY, COPY_QUOTA
from varve.tiering.partition import TieredPartition, TieredPartitions, find_closed
from varve.tiering.segment_upload import SegmentCopy


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Progress of a copy: bytes copied, and bytes to copy of the partition."""

    partition: TopicPartition
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied of one partition.

    `copied_offset` is where the next copy begins, None if an error left it unknown. Of `segments`,
    `resumed_count` were uploaded by an earlier round and only finished now. `removed_count` counts
    replaced or abandoned remote segments that were removed. `error` ended the round early; segments
    copied before it stay.
    """

    partition: TopicPartition
    copied_offset: int | None
    segments: tuple[RemoteSegment, ...] = ()
    resumed_count: int = 0
    removed_count: int = 0
    error: str | None = None

    @property
    def log_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def stored_bytes(self) -> int:
        """All bytes that were put into the store, indexes included."""
        return sum(segment.stored_bytes for segment in self.segments)


logger = logging.getLogger(__name__)

RETRIES: Final = Backoff(first_ms=1_000, max_ms=600_000)
ROUND_BYTES_MAX: Final = 256 << 20
"""Bytes that a round copies of one partition before others, and its expiry, have their turn."""
UNAVAILABLE_MAX: Final = 3
"""Consecutive partitions with an unavailable store after which a round ends."""

Progress = Callable[[CopyProgress], None]


class CopyStopped(Unavailable):
    """Copying was stopped; the next round finishes or removes the started copy."""


@dataclass(slots=True)
class _Retry:
    """Consecutive failures of copying one log, and the time of the next attempt."""

    log: Log
    failures: int = 0
    retry_ms: int = 0
    error: str = ""


class TierCopier:
    """Copies the partitions of one store.

    Key indexes of compacted topics are built through `cleaner`. `stop` ends a round before its
    next chunk. `before_first` is called before the first copy.
    """

    def __init__(
        self,
        partitions: TieredPartitions,
        *,
        cleaner: LogCleaner,
        clock: Clock,
        stop: StopSignal,
        before_first: Callable[[], None] | None = None,
    ) -> None:
        self._before_first = before_first
        self._partitions = partitions
        self._store = partitions.store
        self._cleaner = cleaner
        self._settings = partitions.settings
        self._stop = stop
        self._lock = threading.Lock()
        self._retries: dict[TopicPartition, _Retry] = {}  # guarded by _lock
        self._unavailable_count = 0
        self.throttle = Throttle(
            self._settings.remote_log_manager_copy_max_bytes_per_second, clock, self._wait_for_rate
        )

    def _wait_for_rate(self, wait_ms: float) -> None:
        self._partitions.metrics.observe_throttle(COPY_QUOTA, wait_ms)
        self._stop.wait_ms(wait_ms)

    def run_once(self, now_ms: int) -> list[CopyReport]:
        """Copies closed segments of every tiered topic; partitions that failed wait."""
        reports = []
        self._unavailable_count = 0
        queue = deque(
            partition
            for partition, log, _ in self._store.logs()
            if log.settings.copies_to_tier
            and not self._partitions.is_leaving(log)
            and self._is_due(partition, log, now_ms)
        )
        while queue and not self._stop.is_set and self._unavailable_count < UNAVAILABLE_MAX:
            partition = queue.popleft()
            # The topic may have been deleted or altered since; skip it.
            with suppress(InvalidRequest):
                report = self.copy(partition, now_ms, limit_bytes=ROUND_BYTES_MAX)
                reports.append(report)
                if report.error is None and report.log_bytes >= ROUND_BYTES_MAX:
                    queue.append(partition)
        return reports

    def _is_due(self, partition: TopicPartition, log: Log, now_ms: int) -> bool:
        """Whether there may be a segment to copy, without a request to the store."""
        with self._lock:
            retry = self._retries.get(partition)
            if retry is not None and retry.log is log:
                return now_ms >= retry.retry_ms
        try:
            offset = self._partitions.get(partition).copied_offset
        except StoreError:
            return True
        return offset is None or bool(find_closed(log, offset))

    def copy(
        self,
        partition: TopicPartition,
        now_ms: int,
        *,
        progress: Progress | None = None,
        limit_bytes: int | None = None,
    ) -> CopyReport:
        """Copies closed segments of one partition now; a failure is in the report.

        With a limit it stops after the segment that reaches it. Raises InvalidRequest for a topic
        that is not copied.
        """
        log = self._store.get(partition)
        if not log.settings.copies_to_tier:
            raise InvalidRequest(
                f"{partition}: its topic is not copied to object storage; set "
                "remote.storage.enable=true and remote.log.copy.disable=false with "
                "`varve topic alter`"
            )
        this_round: _CopyRound | None = None
        error: StoreError | None = None
        try:
            tiered = self._partitions.get(partition)
            this_round = _CopyRound(self, tiered, now_ms, progress)
            with tiered.work, partition_io(tiered.directory, f"copying of {partition}"):
                try:
                    this_round.run(limit_bytes or LONG_MAX)
                    tiered.record_remote_size()
                finally:
                    tiered.record_copy_lag()
            self._unavailable_count = 0
            with self._lock:
                self._retries.pop(partition, None)
        except CopyStopped as stopped:
            error = stopped
        except StoreError as failure:
            error = failure
            self._unavailable_count += isinstance(failure, StoreUnavailable)
            self._note_failure(partition, log, failure, now_ms)
        text = None if error is None else str(error)
        if this_round is None:
            return CopyReport(partition=partition, copied_offset=None, error=text)
        return this_round.report(text)

    def _note_failure(
        self, partition: TopicPartition, log: Log, error: StoreError, now_ms: int
    ) -> None:
        with self._lock:
            retry = self._retries.get(partition)
            if retry is None or retry.log is not log:
                retry = self._retries[partition] = _Retry(log)
            retry.failures += 1
            retry.retry_ms = now_ms + RETRIES.wait_ms(retry.failures)
            retry.error = str(error)
        logger.warning(
            "copying of %(partition)s failed, will be retried: %(error)s",
            {"partition": str(partition), "error": str(error)},
        )

    def failures(self) -> dict[TopicPartition, str]:
        """The error of the last copy, for partitions that failed and are still copied."""
        copied = {
            partition: log
            for partition, log, _ in self._store.logs()
            if log.settings.copies_to_tier
        }
        with self._lock:
            return {
                partition: retry.error
                for partition, retry in self._retries.items()
                if copied.get(partition) is retry.log
            }

    def prepare_first(self) -> None:
        """Calls `before_first` before the first copy."""
        if self._before_first is not None:
            self._before_first()
            self._before_first = None

    def find_keys(
        self, log: Log, segment: Segment, next_offset: int, now_ms: int
    ) -> SegmentKeys | None:
        """The key index of a segment of a compacted topic; raises Corrupt for a damaged segment."""
        if not log.settings.is_compacted:
            return None
        partition = log.topic_partition
        keys = self._cleaner.ensure_keys(partition, segment, next_offset, now_ms)
        if keys is None:
            raise Corrupt(
                f"{partition}: segment {segment.base_offset} is damaged and cannot be copied; "
                "`varve check` on the directory shows more"
            )
        return keys

    def check_continues(self, tiered: TieredPartition) -> None:
        """Raises CopyStopped when the partition leaves the tier, or copying stops."""
        if not self._partitions.is_current(tiered):
            raise CopyStopped(f"{tiered.log.topic_partition}: it is leaving the remote tier")
        if self._stop.is_set:
            raise CopyStopped(
                f"{tiered.log.topic_partition}: copying was stopped; the next round continues"
            )


class _CopyRound(WorkBudget):
    """One round over one partition; throttles the copies and reports their progress."""

    def __init__(
        self, copier: TierCopier, tiered: TieredPartition, now_ms: int, progress: Progress | None
    ) -> None:
        self._copier = copier
        self._tiered = tiered
        self._now_ms = now_ms
        self._progress = progress
        self._copied: list[RemoteSegment] = []
        self._resumed_count = 0
        self._removed_count = 0
        self._total_bytes = 0
        self._segment_bytes = 0
        self._sent_bytes = 0  # of the segment that is being copied, with its indexes

    def report(self, error: str | None) -> CopyReport:
        return CopyReport(
            partition=self._tiered.log.topic_partition,
            copied_offset=self._tiered.copied_offset,
            segments=tuple(self._copied),
            resumed_count=self._resumed_count,
            removed_count=self._removed_count,
            error=error,
        )

    def run(self, limit_bytes: int) -> None:
        """Copies all waiting segments, or up to the one that reaches the limit."""
        tiered, log = self._tiered, self._tiered.log
        self._copier.check_continues(tiered)
        manifest = tiered.load()
        check_same_history(tiered, manifest)
        waiting = self._find_waiting()
        pending = list(tiered.manifests.pending(manifest))
        stale = [segment for segment in pending if self._is_stale(segment, waiting)]
        self._removed_count += len(tiered.remove(stale, self._now_ms))
        self._total_bytes = sum(segment.size for segment, _ in waiting)
        for segment, next_offset in waiting:
            if not log.settings.copies_to_tier or self._done_bytes >= limit_bytes:
                break
            self._copier.prepare_first()
            self._copy(segment, next_offset, pending)
        if self._copied or self._removed_count:
            tiered.load()
        tiered.retire_versions(self._now_ms)

    def _find_waiting(self) -> list[tuple[Segment, int]]:
        """The closed segments to copy, each with the offset of the next one."""
        log = self._tiered.log
        waiting = find_closed(log, self._tiered.next_copy_offset)
        if waiting:
            # Do not copy records that a crash could still remove from the local log.
            log.flush()
        limit = min(log.last_stable_offset, log.recovery_point)
        return [(segment, end) for segment, end in waiting if end <= limit]

    def _is_stale(self, segment: RemoteSegment, waiting: list[tuple[Segment, int]]) -> bool:
        """Whether its grace period has ended, or its copy was started and will not be finished."""
        if segment.state is not SegmentState.COPY_STARTED:
            return segment.may_be_deleted(self._now_ms)
        if any(_is_copy_of(segment, local, end) for local, end in waiting):
            return False
        # Below the copied offset it may be the output of a running job.
        is_of_job = segment.end_offset < self._tiered.next_copy_offset
        return not is_of_job or self._tiered.is_abandoned(segment, self._now_ms)

    def _copy(self, segment: Segment, next_offset: int, pending: list[RemoteSegment]) -> None:
        tiered, log = self._tiered, self._tiered.log
        announced = [remote for remote in pending if _is_copy_of(remote, segment, next_offset)]
        copy = SegmentCopy(
            tiered=tiered,
            segment=segment,
            next_offset=next_offset,
            keys=self._copier.find_keys(log, segment, next_offset, self._now_ms),
            announced=announced,
            now_ms=self._now_ms,
            budget=self,
        )
        self._segment_bytes, self._sent_bytes = segment.size, 0
        try:
            self._copied.append(copy.run())
        except (StoreError, OSError):
            tiered.metrics.observe_error(COPY, log.topic_partition)
            raise
        tiered.metrics.observe(COPY, log.topic_partition, segment.size)
        self._resumed_count += copy.is_resumed
        self._removed_count += len(announced) - copy.is_resumed
        tiered.copied_offset = next_offset

    @property
    def _done_bytes(self) -> int:
        return sum(segment.size for segment in self._copied)

    def spend(self, size: int) -> None:
        self._copier.check_continues(self._tiered)
        if self._progress is not None:
            done = self._done_bytes + min(self._sent_bytes, self._segment_bytes)
            self._progress(CopyProgress(self._tiered.log.topic_partition, done, self._total_bytes))
        self._sent_bytes += size
        self._copier.throttle.spend(size)


def _is_copy_of(remote: RemoteSegment, segment: Segment, next_offset: int) -> bool:
    return (
        remote.state is SegmentState.COPY_STARTED
        and remote.base_offset == segment.base_offset
        and remote.end_offset == next_offset - 1
    )
