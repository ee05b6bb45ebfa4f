"""The cold tier of an open store: copies, expiry, local retention and reads, over one object store.

Invariant  the log works without it: a store that is down fails copies, expiry and remote reads,
           each with an error that may pass, and nothing else.
Invariant  an eviction drops whole segments from the oldest on that end before the copied offset of
           the newest manifest, and whose copies were compared (`history_check`); the log start
           offset stays, so every record is still read. An active segment that is due is rolled, so
           that the next round copies it. An eviction is recorded before the first file is dropped.
Threads    any; copy, expiry and removal of one partition exclude each other.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Final

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.retention.retention import LogRetention, RetentionPlan
from varve.cleaning.retention.segments import RemoteSegments
from varve.cleaning.work_budget import Throttle
from varve.commit_log import Log, LogManager, TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError, StoreUnavailable
from varve.foundation.metrics import MetricTable
from varve.foundation.worker import StopSignal
from varve.object_store import ObjectStore
from varve.tiering.copy.copier import UNAVAILABLE_MAX, CopyReport, Progress, TierCopier
from varve.tiering.copy.history_check import check_copied
from varve.tiering.expiry import (
    RemoteExpiry,
    expire_segments,
    preview_expiry,
    read_remote_segments,
)
from varve.tiering.metadata.backends import ManifestStores
from varve.tiering.metadata.topic import MetadataTopic
from varve.tiering.metrics import FETCH, FETCH_QUOTA, TierMetrics
from varve.tiering.partition import TieredPartition, TieredPartitions
from varve.tiering.read.extent_cache import FetchMeter
from varve.tiering.read.read_caches import ReadCaches
from varve.tiering.read.remote_log import RemoteLog
from varve.tiering.settings import TierSettings
from varve.tiering.tier_status import TierStatus, observe_tiers

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S: Final = 10.0
"""How long a pass waits for a copy of one partition; the next pass comes soon."""


@dataclass(frozen=True, slots=True)
class TierPass:
    """What a pass over one partition removed: from the local disk, and from both tiers."""

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
    """The cold tier of one store. `close` it before the object store.

    `cache_directory` is for indexes of cold segments, on the local disk. `backend` names who keeps
    the manifests, in `metadata_topic` if it is the topic. `may_be_new` unless something was copied
    before. `store_metrics` has the figures of the object store, where that is metered.
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
        metadata_topic: MetadataTopic | None = None,
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
        """What went wrong in the last pass over a partition, for those it went wrong with."""

    def _wait_for_fetch_rate(self, wait_ms: float) -> None:
        self.metrics.observe_throttle(FETCH_QUOTA, wait_ms)
        self._stop.wait_ms(wait_ms)

    def remote_log(self, partition: TopicPartition) -> RemoteLog:
        """The remote part of a partition; raises StoreError where its start must be asked for."""
        tiered = self.partitions.get(partition)
        if not tiered.log.is_start_known:
            tiered.load()  # nothing before the log start is requested from the tier
        if tiered.remote is None:
            # Two threads may each make one: either reads right, and the later one stays.
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
        """Copies what there is of every topic that is to be copied; those that failed wait."""
        return self.copier.run_once(now_ms)

    def copy(
        self, partition: TopicPartition, now_ms: int, *, progress: Progress | None = None
    ) -> CopyReport:
        """Copies what there is of one partition now; a failure is in the report."""
        return self.copier.copy(partition, now_ms, progress=progress)

    def expire_once(self, now_ms: int) -> list[TierPass]:
        """One pass over every partition in the tier; one that fails is noted, the others continue.

        Those that failed come last, and a store that is down is not asked for all of them. One
        that is being copied is tried again after the others.
        """
        passes = []
        refusals = 0
        tiered = [partition for partition, _ in self._tiered_logs()]
        self._forget_failures(tiered)
        waiting = deque(sorted(tiered, key=self.failures.__contains__))
        busy: set[TopicPartition] = set()
        while waiting and not self._stop.is_set and refusals < UNAVAILABLE_MAX:
            partition = waiting.popleft()
            try:
                with self._patiently(partition, is_last_try=partition in busy) as is_free:
                    if is_free:
                        passes.append(self.expire(partition, now_ms))
                    elif partition not in busy:
                        busy.add(partition)
                        waiting.append(partition)
                        continue
                self.failures.pop(partition, None)
                refusals = 0
            except StoreError as error:
                refusals += isinstance(error, StoreUnavailable)
                self.failures[partition] = str(error)
                logger.warning(
                    "expiry of the cold tier failed, will be tried again",
                    extra={"partition": str(partition), "error": str(error)},
                )
        return passes

    @contextmanager
    def _patiently(self, partition: TopicPartition, *, is_last_try: bool) -> Iterator[bool]:
        """Whether nobody works on a partition, who then waits; a copy of it may take long."""
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
        with tiered.work, tiered.guard("retention"):
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
        """Evicts local segments step by step; rolls the active one where it is due as well."""
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
        """Raises StoreError where `remove` would fail by what the store says now."""
        self.partitions.get(partition).check_removable()

    def remove(self, partition: TopicPartition, now_ms: int) -> int:
        """Takes a partition out of the tier, all its objects; gives how many segments it had.

        From now on nothing of its log is copied, also if this raises: what is gone stays gone, and
        it may be called again. `partitions.end_leaving` lets the log come back.
        """
        tiered = self.partitions.get(partition)
        self.partitions.begin_leaving(tiered.log)
        with tiered.work:
            try:
                removed = tiered.remove_all(now_ms)
            finally:
                # A manifest that was there and is gone would be a loss to who remembers it.
                self.partitions.forget(partition)
        self.failures.pop(partition, None)
        return removed

    def remote_segments(self, partition: TopicPartition) -> RemoteSegments:
        """All remote segments of a partition; raises Unavailable when the store is down."""
        delay_ms = self.settings.replaced_ms
        return read_remote_segments(self.partitions.get(partition), delete_delay_ms=delay_ms)

    def status(self, partition: TopicPartition) -> TierStatus:
        """How the tiers of a partition stand; raises Unavailable when the store is."""
        return observe_tiers(self.partitions.get(partition))

    def measure(self, now_ms: int) -> None:
        """Brings the figures of partitions up to now, by recent manifests.

        A partition that cannot be asked for is noted; a store that is down is asked no second time.
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
        """Ends a round in flight before its next chunk."""
        self._stop.set()

    def close(self) -> None:
        """Ends what is under way; the object store stays open."""
        self.stop()
        self.caches.close()


STEP_BYTES: Final = 1 << 30
"""What is read, compared and evicted between two looks at whether to stop."""


def evict_copied_segments(
    tiered: TieredPartition, retention: LogRetention, now_ms: int
) -> RetentionPlan:
    """Evicts what is due, at most one step of it; returns what was evicted.

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
    check_copied(tiered, manifest, planned.end_offset)
    return replace(planned, segments=tuple(retention.evict(planned.segments, now_ms)))


def _first_step(planned: RetentionPlan) -> RetentionPlan:
    """The first segments, up to the one that reaches the limit of one step."""
    sizes = accumulate(segment.size for segment in planned.segments)
    count = sum(1 for _ in takewhile(lambda size: size < STEP_BYTES, sizes)) + 1
    return replace(planned, segments=planned.segments[:count])
