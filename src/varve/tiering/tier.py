"""The remote tier of an open store: copies, expiry, local retention, reads and status.

Invariant  the log works without it: an object store that is down fails only copies, expiry and
           remote reads, each with a retriable error.
Invariant  an eviction drops whole segments from the oldest on that end before the copied offset of
           the newest manifest, and whose copies were compared (`history_check`); the log start
           offset stays, so every record remains readable. An active segment that is due is rolled,
           so that the next round copies it. An eviction is recorded before a file is dropped.
Threads    any; copy, expiry and removal of one partition exclude each other.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Final

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.key_index.segment_indexes import partition_io
from varve.cleaning.retention.retention import LogRetention, RetentionPlan
from varve.cleaning.retention.segments import RemoteSegments
from varve.cleaning.work_budget import Throttle
from varve.commit_log import Log, LogManager, TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError, StoreUnavailable
from varve.foundation.metrics import MetricTable
from varve.foundation.worker import StopSignal
from varve.object_store import ObjectStore
from varve.tiering.copier import UNAVAILABLE_MAX, CopyReport, Progress, TierCopier
from varve.tiering.expiry import (
    RemoteExpiry,
    expire_segments,
    preview_expiry,
    read_remote_segments,
)
from varve.tiering.history_check import check_copied
from varve.tiering.metrics import FETCH, FETCH_QUOTA, TierMetrics
from varve.tiering.partition import ManifestStores, TieredPartition, TieredPartitions
from varve.tiering.read.extent_cache import FetchMeter
from varve.tiering.read.remote_log import ReadCaches, RemoteLog
from varve.tiering.settings import TierSettings

if TYPE_CHECKING:
    from varve.tiering.metadata.topic import MetadataTopic
from varve.cleaning.retention.segments import read_consistently
from varve.tiering.partition import find_closed

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S: Final = 10.0
"""How long a pass waits for the copy of a partition to end; the next pass tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """The status of one partition in both tiers.

    `lag_*` count closed segments that are not copied. `pending_*` count unreadable segments in the
    store: announced ones, and those being deleted. `oldest_*` is when the oldest record of a tier
    was appended, None without any. Fields that need a request to the store are None without one.
    """

    partition: TopicPartition
    is_enabled: bool
    is_copying: bool
    log_start_offset: int
    local_start_offset: int
    end_offset: int
    local_bytes: int
    local_segments: int
    oldest_local_ms: int | None
    copied_offset: int | None = None
    remote_bytes: int | None = None
    remote_segments: int | None = None
    oldest_remote_ms: int | None = None
    stored_bytes: int | None = None
    pending_segments: int | None = None
    lag_bytes: int | None = None
    lag_segments: int | None = None
    manifest_version: int | None = None


def observe_local(log: Log) -> TierStatus:
    """The status of the local tier only, as for a topic that is not tiered."""
    return read_consistently(log, lambda: _observe_local(log))


def _observe_local(log: Log) -> TierStatus:
    segments = list(log.view)
    first = next((segment for segment in segments if segment.size), None)
    return TierStatus(
        partition=log.topic_partition,
        is_enabled=log.settings.remote_storage_enable,
        is_copying=log.settings.copies_to_tier,
        log_start_offset=log.log_start_offset,
        local_start_offset=max(log.log_start_offset, log.local_start_offset),
        end_offset=log.end_offset,
        local_bytes=log.size,
        local_segments=len(segments),
        oldest_local_ms=None if first is None else log.appended_ms(first)[0],
    )


def observe_tiers(tiered: TieredPartition) -> TierStatus:
    """The status of both tiers by the newest manifest; raises Unavailable."""
    manifest = tiered.load()
    log, copied_offset = tiered.log, tiered.next_copy_offset
    uncopied = find_closed(log, copied_offset)
    oldest = next(tiered.manifests.readable(manifest, from_offset=log.log_start_offset), None)
    return replace(
        observe_local(log),
        copied_offset=copied_offset,
        remote_bytes=manifest.log_bytes,
        remote_segments=manifest.readable_count,
        oldest_remote_ms=None if oldest is None else oldest.append_ms[0],
        stored_bytes=manifest.stored_bytes,
        pending_segments=manifest.segment_count - manifest.readable_count,
        lag_bytes=sum(segment.size for segment, _ in uncopied),
        lag_segments=len(uncopied),
        manifest_version=manifest.version,
    )


@dataclass(frozen=True, slots=True)
class TierPass:
    """The result of a pass over one partition: local evictions, and expiry in both tiers."""

    partition: TopicPartition
    moved: RetentionPlan
    expiry: RemoteExpiry


class _PartitionFetchMeter(FetchMeter):
    """Counts the fetches of one partition and keeps them, with all others, below the quota."""

    def __init__(self, partition: TopicPartition, metrics: TierMetrics, quota: Throttle) -> None:
        super().__init__()
        self._partition = partition
        self._metrics = metrics
        self._quota = quota

    def record_fetch(self, size: int) -> None:
        super().record_fetch(size)
        self._metrics.observe(FETCH, self._partition, size)
        self._quota.spend(size)

    def record_failure(self) -> None:
        self._metrics.observe_error(FETCH, self._partition)


class Tier:
    """The remote tier of one store. `close` it before the object store.

    `cache_directory` holds indexes of remote segments on the local disk. `backend` is the manifest
    backend, with `metadata_topic` for `topic`. `may_be_new` is False if segments were copied
    before. `store_metrics` are the metrics of a metered object store.
    """

    def __init__(
        self,
        store: LogManager,
        objects: ObjectStore,
        *,
        cleaner: LogCleaner,
        clock: Clock,
        random: random.Random,
        settings: TierSettings,
        cache_directory: str,
        backend: str = "object",
        metadata_topic: "MetadataTopic | None" = None,
        writer: str = "varve",
        before_first_copy: Callable[[], None] | None = None,
        may_be_new: bool = True,
        store_metrics: MetricTable | None = None,
    ) -> None:
        self.objects = objects
        self.settings = settings
        self._store = store
        self._cleaner = cleaner
        self._clock = clock
        self._stop = StopSignal()
        self.caches = ReadCaches.open(
            objects, clock, settings, fs=store.fs, directory=cache_directory
        )
        self.metrics = TierMetrics(caches=self.caches, stores=store_metrics)
        self.partitions = TieredPartitions(
            store,
            ManifestStores(
                backend,
                objects,
                random=random,
                wait=self._stop.wait_ms,
                settings=settings,
                topic=metadata_topic,
            ),
            clock=clock,
            writer=writer,
            metrics=self.metrics,
            may_be_new=may_be_new,
        )
        self.copier = TierCopier(
            self.partitions,
            cleaner=cleaner,
            clock=clock,
            stop=self._stop,
            before_first=before_first_copy,
        )
        self._fetch_quota = Throttle(
            settings.remote_log_manager_fetch_max_bytes_per_second, clock, self._wait_for_fetch_rate
        )
        self.failures: dict[TopicPartition, str] = {}
        """The error of the last pass over a partition, for partitions where it failed."""

    def _wait_for_fetch_rate(self, wait_ms: float) -> None:
        self.metrics.observe_throttle(FETCH_QUOTA, wait_ms)
        self._stop.wait_ms(wait_ms)

    def remote_log(self, partition: TopicPartition) -> RemoteLog:
        """The remote log of a partition; raises StoreError if its log start cannot be loaded."""
        tiered = self.partitions.get(partition)
        if not tiered.log.is_start_known:
            tiered.load()  # nothing before the log start is requested from the tier
        if tiered.remote is None:
            # Two threads may each create one: both are valid, and the later one stays.
            tiered.remote = RemoteLog(
                tiered.path,
                tiered.manifests,
                self.caches,
                read_ahead_max_bytes=self.settings.varve_tier_read_ahead_max_bytes,
                meter=_PartitionFetchMeter(partition, self.metrics, self._fetch_quota),
                local=tiered.log,
            )
        return tiered.remote

    def _tiered_logs(self) -> list[tuple[TopicPartition, Log]]:
        return [
            (partition, log)
            for partition, log, directory in self._store.logs()
            if log.settings.remote_storage_enable and directory.failure is None
        ]

    def copy_once(self, now_ms: int) -> list[CopyReport]:
        """Copies closed segments of every tiered topic; partitions that failed wait."""
        return self.copier.run_once(now_ms)

    def copy(
        self, partition: TopicPartition, now_ms: int, *, progress: Progress | None = None
    ) -> CopyReport:
        """Copies closed segments of one partition now; a failure is in the report."""
        return self.copier.copy(partition, now_ms, progress=progress)

    def expire_once(self, now_ms: int) -> list[TierPass]:
        """One pass over every tiered partition; a failure is noted, and the others continue.

        Partitions that failed before come last, and the pass ends when the store is down. A
        partition that is being copied is tried again after the others.
        """
        passes = []
        refusals = 0
        tiered = [partition for partition, _ in self._tiered_logs()]
        self._forget_failures(tiered)
        queue = deque(sorted(tiered, key=self.failures.__contains__))
        busy: set[TopicPartition] = set()
        while queue and not self._stop.is_set and refusals < UNAVAILABLE_MAX:
            partition = queue.popleft()
            try:
                with self._try_work_lock(partition, is_last_try=partition in busy) as is_free:
                    if is_free:
                        passes.append(self.expire(partition, now_ms))
                    elif partition not in busy:
                        busy.add(partition)
                        queue.append(partition)
                        continue
                self.failures.pop(partition, None)
                refusals = 0
            except StoreError as error:
                refusals += isinstance(error, StoreUnavailable)
                self.failures[partition] = str(error)
                logger.warning(
                    "expiry of %(partition)s in the remote tier failed, will be retried: %(error)s",
                    {"partition": str(partition), "error": str(error)},
                )
        return passes

    @contextmanager
    def _try_work_lock(self, partition: TopicPartition, *, is_last_try: bool) -> Iterator[bool]:
        """Takes the work lock of a partition; yields False while another thread has it."""
        work = self.partitions.get(partition).work
        is_free = work.acquire(timeout=LOCK_TIMEOUT_S if is_last_try else 0)
        try:
            yield is_free
        finally:
            if is_free:
                work.release()

    def _forget_failures(self, tiered: Sequence[TopicPartition]) -> None:
        for partition in set(self.failures) - set(tiered):
            self.failures.pop(partition, None)

    def expire(self, partition: TopicPartition, now_ms: int) -> TierPass:
        """Applies local and total retention to one partition; raises StoreError."""
        tiered = self.partitions.get(partition)
        with tiered.work, partition_io(tiered.directory, f"retention of {partition}"):
            if not self.partitions.is_current(tiered):
                return TierPass(partition, RetentionPlan(partition), RemoteExpiry())
            expiry = expire_segments(tiered, now_ms)
            moved = RetentionPlan(partition)
            if tiered.log.settings.copies_to_tier:
                moved = self._evict(tiered, now_ms)
            tiered.record_copy_lag()
            tiered.record_remote_size()
            return TierPass(partition, moved, expiry)

    def _evict(self, tiered: TieredPartition, now_ms: int) -> RetentionPlan:
        """Evicts local segments step by step; rolls the active segment if it is due."""
        retention = self._retention_of(tiered)
        evicted = RetentionPlan(tiered.log.topic_partition)
        while not self._stop.is_set:
            step = evict_copied_segments(tiered, retention, now_ms)
            if not step.segments:
                break
            evicted = replace(evicted, segments=evicted.segments + step.segments)
        return evicted

    def _retention_of(self, tiered: TieredPartition) -> LogRetention:
        return LogRetention(tiered.log, self._cleaner.removals.get(tiered.log))

    def preview(self, partition: TopicPartition, now_ms: int) -> TierPass:
        """What `expire` would do now; nothing changes. Raises StoreError."""
        tiered = self.partitions.get(partition)
        expiry = preview_expiry(tiered, now_ms)
        evicted = RetentionPlan(partition)
        if tiered.log.settings.copies_to_tier:
            copied = tiered.next_copy_offset
            evicted = self._retention_of(tiered).plan_eviction(copied, now_ms)
        return TierPass(partition, evicted, expiry)

    def check_removable(self, partition: TopicPartition) -> None:
        """Raises StoreError when `remove` would fail now."""
        self.partitions.get(partition).check_removable()

    def remove(self, partition: TopicPartition, now_ms: int) -> int:
        """Removes a partition and all its objects from the tier; returns its segment count.

        From now on its log is not copied, even if this raises; call it again to finish.
        `partitions.end_leaving` makes the log tiered again.
        """
        tiered = self.partitions.get(partition)
        self.partitions.begin_leaving(tiered.log)
        with tiered.work:
            try:
                removed = tiered.remove_all(now_ms)
            finally:
                # A cached manifest whose objects are removed would be reported as lost.
                self.partitions.forget(partition)
        self.failures.pop(partition, None)
        return removed

    def remote_segments(self, partition: TopicPartition) -> RemoteSegments:
        """All remote segments of a partition; raises Unavailable when the store is down."""
        delay_ms = self.settings.replaced_retention_ms
        return read_remote_segments(self.partitions.get(partition), delete_delay_ms=delay_ms)

    def status(self, partition: TopicPartition) -> TierStatus:
        """The status of a partition in both tiers; raises Unavailable when the store is down."""
        return observe_tiers(self.partitions.get(partition))

    def measure(self, now_ms: int) -> None:
        """Updates the metrics of partitions, by recent manifests.

        A failure is noted for its partition; when the store is down the update ends.
        """
        for partition, _ in self._tiered_logs():
            try:
                tiered = self.partitions.get(partition)
                tiered.recent(now_ms)
                tiered.record_copy_lag()
                tiered.record_remote_size()
            except StoreError as error:
                self.failures[partition] = str(error)
                if isinstance(error, StoreUnavailable):
                    return

    def stop(self) -> None:
        """Ends a round in progress before its next chunk."""
        self._stop.set()

    def close(self) -> None:
        """Stops work in progress; the object store stays open."""
        self.stop()
        self.caches.close()


STEP_BYTES: Final = 1 << 30
"""Bytes read, compared and evicted between two checks of the stop signal."""


def evict_copied_segments(
    tiered: TieredPartition, retention: LogRetention, now_ms: int
) -> RetentionPlan:
    """Evicts due segments, at most one step; returns those that were evicted.

    Raises StoreError when object storage does not answer or does not hold a segment, OSError when
    the removal cannot be recorded; nothing is evicted then.
    """
    planned = retention.plan_eviction(tiered.next_copy_offset, now_ms)
    if planned.segments:
        # The log may have been truncated, or the tier changed by another writer, since then.
        manifest = tiered.load()
        planned = _first_step(retention.plan_eviction(tiered.next_copy_offset, now_ms))
    if planned.end_offset is None:
        if planned.rolls_active:
            retention.roll()
        return planned
    view = tiered.log.view
    try:
        check_copied(tiered, manifest, planned.end_offset)
    except Corrupt:
        if tiered.log.view is not view:
            return replace(planned, segments=())  # compacted while they were compared
        raise
    return replace(planned, segments=tuple(retention.evict(planned.segments, now_ms)))


def _first_step(planned: RetentionPlan) -> RetentionPlan:
    """The first segments, up to the one that reaches the limit of one step."""
    sizes = accumulate(segment.size for segment in planned.segments)
    count = sum(1 for _ in takewhile(lambda size: size < STEP_BYTES, sizes)) + 1
    return replace(planned, segments=planned.segments[:count])
