"""The remote logs of one store's partitions, which read through shared caches.

Threads    any; `_lock` guards which partition has which remote log.
"""

import threading
from collections.abc import Callable

from varve.cleaning.work_budget import Throttle
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.tiering.metrics import TierMetrics
from varve.tiering.partition import TieredPartition, TieredPartitions
from varve.tiering.read.extent_cache import FetchMeter
from varve.tiering.read.read_caches import ReadCaches
from varve.tiering.read.remote_log import RemoteLog


class FetchQuota:
    """Keeps all fetches together below remote.log.manager.fetch.max.bytes.per.second."""

    def __init__(
        self,
        bytes_per_second: int,
        metrics: TierMetrics,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._metrics = metrics
        self._wait = wait
        self._throttle = Throttle(bytes_per_second, clock, self._wait_for_rate)

    def spend(self, size: int) -> None:
        self._throttle.spend(size)

    def _wait_for_rate(self, wait_ms: float) -> None:
        self._metrics.observe_fetch_throttle(wait_ms)
        self._wait(wait_ms)


class PartitionFetchMeter(FetchMeter):
    """Counts the fetches of one partition and holds them to the quota."""

    def __init__(self, partition: TopicPartition, metrics: TierMetrics, quota: FetchQuota) -> None:
        super().__init__()
        self._partition = partition
        self._metrics = metrics
        self._quota = quota

    def record_fetch(self, size: int) -> None:
        super().record_fetch(size)
        self._metrics.observe_fetch(self._partition, size)
        self._quota.spend(size)

    def record_failure(self) -> None:
        self._metrics.observe_fetch_error(self._partition)


class RemoteReaders:
    """The remote log of each partition of one store; `wait` sleeps for so many milliseconds."""

    def __init__(
        self, partitions: TieredPartitions, caches: ReadCaches, *, wait: Callable[[float], object]
    ) -> None:
        self.caches = caches
        self._partitions = partitions
        self._quota = FetchQuota(
            partitions.settings.remote_log_manager_fetch_max_bytes_per_second,
            partitions.metrics,
            caches.clock,
            wait,
        )
        self._lock = threading.Lock()
        self._logs: dict[TopicPartition, tuple[TieredPartition, RemoteLog]] = {}  # guarded by _lock

    def get(self, partition: TopicPartition) -> RemoteLog:
        tiered = self._partitions.get(partition)
        if not tiered.log.is_start_known:
            tiered.load()  # nothing before the log start is requested from the tier
        with self._lock:
            known = self._logs.get(partition)
            if known is None or known[0] is not tiered:
                known = self._logs[partition] = (tiered, self._open(tiered))
            return known[1]

    def forget(self, partition: TopicPartition) -> None:
        """The partition has left the tier."""
        with self._lock:
            self._logs.pop(partition, None)

    def _open(self, tiered: TieredPartition) -> RemoteLog:
        settings, metrics = self._partitions.settings, self._partitions.metrics
        return RemoteLog(
            tiered.path,
            tiered.manifests,
            self.caches,
            read_ahead_max_bytes=settings.varve_tier_read_ahead_max_bytes,
            meter=PartitionFetchMeter(tiered.log.topic_partition, metrics, self._quota),
            local=tiered.log,
        )
