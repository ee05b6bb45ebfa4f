"""The metrics of the remote tier, with the names of Kafka's equivalents.

Counters are per topic as in Kafka; lags and sizes are per partition. Times are in seconds, as usual
in Prometheus.

Invariant  requests count those that failed, too; lags and sizes are the last known, and
           a forgotten partition shows none.
Threads    any; `_lock` guards the gauges of partitions, and updates that depend on the old value.
"""

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from varve.commit_log import TopicPartition
from varve.foundation.metrics import Metric, MetricTable, counter, declared_metrics, gauge
from varve.object_store import metering
from varve.tiering.read.extent_cache import CacheUsage
from varve.tiering.read.read_pool import ReadPool
from varve.tiering.read.remote_log import ReadCaches

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

_TOPIC: Final = "kafka.server:type=BrokerTopicMetrics,name="
_READER: Final = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="
_THROTTLE: Final = "kafka.server:type=RemoteLogManager,name="
_BY_TOPIC: Final = ("topic",)
_BY_PARTITION: Final = ("topic", "partition")
_BY_CACHE: Final = ("cache",)

COPY_BYTES = counter(
    "varve_tier_copy_bytes_total",
    "Bytes of segments copied to object storage, without their indexes.",
    unit="bytes",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteCopyBytesPerSec",
)
COPY_REQUESTS = counter(
    "varve_tier_copy_requests_total",
    "Segments whose copy was tried.",
    unit="segments",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteCopyRequestsPerSec",
)
COPY_ERRORS = counter(
    "varve_tier_copy_errors_total",
    "Segments whose copy failed; each is tried again.",
    unit="segments",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteCopyErrorsPerSec",
)
FETCH_BYTES = counter(
    "varve_tier_fetch_bytes_total",
    "Bytes read from object storage for readers, also ahead of them.",
    unit="bytes",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteFetchBytesPerSec",
)
FETCH_REQUESTS = counter(
    "varve_tier_fetch_requests_total",
    "Reads from object storage for readers, also ahead of them.",
    unit="reads",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteFetchRequestsPerSec",
)
FETCH_ERRORS = counter(
    "varve_tier_fetch_errors_total",
    "Reads from object storage that failed, excluding out-of-range offsets.",
    unit="reads",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteFetchErrorsPerSec",
)
DELETE_BYTES = counter(
    "varve_tier_delete_bytes_total",
    "Bytes of segments deleted from object storage, without their indexes.",
    unit="bytes",
    labels=_BY_TOPIC,
)
DELETE_REQUESTS = counter(
    "varve_tier_delete_requests_total",
    "Segments whose deletion from object storage was tried.",
    unit="segments",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteDeleteRequestsPerSec",
)
DELETE_ERRORS = counter(
    "varve_tier_delete_errors_total",
    "Segments whose deletion from object storage failed; each is tried again.",
    unit="segments",
    labels=_BY_TOPIC,
    kafka_name=f"{_TOPIC}RemoteDeleteErrorsPerSec",
)
COPY_LAG_BYTES = gauge(
    "varve_tier_copy_lag_bytes",
    "Bytes of closed segments that wait to be copied.",
    unit="bytes",
    labels=_BY_PARTITION,
    kafka_name=f"{_TOPIC}RemoteCopyLagBytes",
)
COPY_LAG_SEGMENTS = gauge(
    "varve_tier_copy_lag_segments",
    "Closed segments that wait to be copied.",
    unit="segments",
    labels=_BY_PARTITION,
    kafka_name=f"{_TOPIC}RemoteCopyLagSegments",
)
DELETE_LAG_BYTES = gauge(
    "varve_tier_delete_lag_bytes",
    "Bytes of segments in object storage that are to be deleted and still exist.",
    unit="bytes",
    labels=_BY_PARTITION,
    kafka_name=f"{_TOPIC}RemoteDeleteLagBytes",
)
DELETE_LAG_SEGMENTS = gauge(
    "varve_tier_delete_lag_segments",
    "Segments in object storage that are to be deleted and still exist.",
    unit="segments",
    labels=_BY_PARTITION,
    kafka_name=f"{_TOPIC}RemoteDeleteLagSegments",
)
SEGMENTS = gauge(
    "varve_tier_segments",
    "Segments that the manifest lists, in any state.",
    unit="segments",
    labels=_BY_PARTITION,
    kafka_name=f"{_TOPIC}RemoteLogMetadataCount",
)
SIZE = gauge(
    "varve_tier_size_bytes",
    "Bytes of the segments in object storage, without their indexes.",
    unit="bytes",
    labels=_BY_PARTITION,
    kafka_name=f"{_TOPIC}RemoteLogSizeBytes",
)
READER_QUEUE = gauge(
    "varve_tier_reader_queue",
    "Reads from object storage that wait for a thread.",
    unit="reads",
    kafka_name=f"{_READER}RemoteLogReaderTaskQueueSize",
)
READER_IDLE = gauge(
    "varve_tier_reader_idle_percent",
    "Share of remote.log.reader.threads with nothing to do at this moment; Kafka's is 0 to 1.",
    unit="percent",
    kafka_name=f"{_READER}RemoteLogReaderAvgIdlePercent",
)
CACHE_HITS = counter(
    "varve_tier_cache_hits_total",
    "Answers that needed no request: indexes of a segment (index), pieces of its data (extent).",
    unit="answers",
    labels=_BY_CACHE,
)
CACHE_MISSES = counter(
    "varve_tier_cache_misses_total",
    "Answers that had to be fetched from object storage.",
    unit="answers",
    labels=_BY_CACHE,
)
CACHE_EVICTED = counter(
    "varve_tier_cache_evicted_total",
    "Entries evicted from a cache to make room.",
    unit="entries",
    labels=_BY_CACHE,
)
CACHE_BYTES = gauge(
    "varve_tier_cache_bytes",
    "Bytes held by a cache: index on the local disk, extent in memory.",
    unit="bytes",
    labels=_BY_CACHE,
)
CACHE_LIMIT = gauge(
    "varve_tier_cache_limit_bytes",
    "Most bytes that a cache may hold.",
    unit="bytes",
    labels=_BY_CACHE,
)
COPY_THROTTLED = counter(
    "varve_tier_copy_throttled_total",
    "Waits for remote.log.manager.copy.max.bytes.per.second.",
    unit="waits",
)
COPY_THROTTLE_TIME = counter(
    "varve_tier_copy_throttle_seconds_total",
    "Time of those waits.",
    unit="seconds",
    kafka_name=f"{_THROTTLE}remote-copy-throttle-time-avg",
)
COPY_THROTTLE_MAX = gauge(
    "varve_tier_copy_throttle_max_seconds",
    "The longest of those waits since the start.",
    unit="seconds",
    kafka_name=f"{_THROTTLE}remote-copy-throttle-time-max",
)
FETCH_THROTTLED = counter(
    "varve_tier_fetch_throttled_total",
    "Waits for remote.log.manager.fetch.max.bytes.per.second.",
    unit="waits",
)
FETCH_THROTTLE_TIME = counter(
    "varve_tier_fetch_throttle_seconds_total",
    "Time of those waits.",
    unit="seconds",
    kafka_name=f"{_THROTTLE}remote-fetch-throttle-time-avg",
)
FETCH_THROTTLE_MAX = gauge(
    "varve_tier_fetch_throttle_max_seconds",
    "The longest of those waits since the start.",
    unit="seconds",
    kafka_name=f"{_THROTTLE}remote-fetch-throttle-time-max",
)


class TierOperation(NamedTuple):
    """The counters of one kind of operation on object storage."""

    requests: Metric
    bytes: Metric
    errors: Metric


COPY: Final = TierOperation(COPY_REQUESTS, COPY_BYTES, COPY_ERRORS)
FETCH: Final = TierOperation(FETCH_REQUESTS, FETCH_BYTES, FETCH_ERRORS)
DELETE: Final = TierOperation(DELETE_REQUESTS, DELETE_BYTES, DELETE_ERRORS)


class TierQuota(NamedTuple):
    """The metrics of waits for a quota."""

    waits: Metric
    seconds: Metric
    longest: Metric


COPY_QUOTA: Final = TierQuota(COPY_THROTTLED, COPY_THROTTLE_TIME, COPY_THROTTLE_MAX)
FETCH_QUOTA: Final = TierQuota(FETCH_THROTTLED, FETCH_THROTTLE_TIME, FETCH_THROTTLE_MAX)

_PARTITION_GAUGES: Final = (
    COPY_LAG_BYTES,
    COPY_LAG_SEGMENTS,
    DELETE_LAG_BYTES,
    DELETE_LAG_SEGMENTS,
    SEGMENTS,
    SIZE,
)


class TierMetrics:
    """The metrics of one store's tier; a collector for a registry.

    `caches` are read when metrics are collected; None without remote reads. `stores` are the
    metrics of the object stores that the tier was opened with.
    """

    def __init__(
        self, *, caches: ReadCaches | None = None, stores: MetricTable | None = None
    ) -> None:
        self.stores = stores or MetricTable(declared_metrics(metering))
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self.table.set(READER_IDLE, 100)
        self._caches = caches
        self._lock = threading.Lock()
        self._gauges: dict[Metric, dict[tuple[str, ...], float]] = {
            metric: {} for metric in _PARTITION_GAUGES
        }  # guarded by _lock

    # Counters

    def observe(self, operation: TierOperation, partition: TopicPartition, bytes: int) -> None:
        """A segment was copied or deleted, or a read from object storage succeeded."""
        self.table.add(operation.requests, 1, partition.topic)
        self.table.add(operation.bytes, bytes, partition.topic)

    def observe_error(self, operation: TierOperation, partition: TopicPartition) -> None:
        """A copy, deletion or read failed; an out-of-range read is not counted."""
        self.table.add(operation.requests, 1, partition.topic)
        self.table.add(operation.errors, 1, partition.topic)

    def observe_throttle(self, quota: TierQuota, wait_ms: float) -> None:
        """Copying or a read waited for its quota."""
        self.table.add(quota.waits, 1)
        self.table.add(quota.seconds, wait_ms / 1000)
        with self._lock:
            longest = max(self.table.value(quota.longest), wait_ms / 1000)
            self.table.set(quota.longest, longest)

    # Gauges of partitions

    def set_lag(self, partition: TopicPartition, *, bytes: int, segments: int) -> None:
        """Segments that wait to be copied; 0 where copying is disabled."""
        self._set(partition, {COPY_LAG_BYTES: bytes, COPY_LAG_SEGMENTS: segments})

    def set_delete_lag(self, partition: TopicPartition, *, bytes: int, segments: int) -> None:
        """Segments whose deletion has started, and whose objects still exist."""
        self._set(partition, {DELETE_LAG_BYTES: bytes, DELETE_LAG_SEGMENTS: segments})

    def set_remote(self, partition: TopicPartition, *, bytes: int, segments: int) -> None:
        """The size of a partition in the remote tier."""
        self._set(partition, {SIZE: bytes, SEGMENTS: segments})

    def _set(self, partition: TopicPartition, values: dict[Metric, int]) -> None:
        labels = _labels(partition)
        with self._lock:
            for metric, value in values.items():
                self._gauges[metric][labels] = value
                self.table.set(metric, value, *labels)

    def forget(self, partition: TopicPartition) -> None:
        """Drops the gauges of a partition that left the tier; counters of its topic stay."""
        labels = _labels(partition)
        with self._lock:
            for metric, cells in self._gauges.items():
                if cells.pop(labels, None) is not None:
                    self.table.replace(metric, cells)

    # Collection

    def collect(self) -> "Iterator[Family]":
        """Called by prometheus_client."""
        if self._caches is not None:
            self._set_pool(self._caches.pool)
            self._set_cache("index", self._caches.indexes.usage())
            self._set_cache("extent", self._caches.extents.usage())
        yield from self.table.collect()
        yield from self.stores.collect()

    def _set_pool(self, pool: ReadPool) -> None:
        self.table.set(READER_QUEUE, pool.pending_count)
        idle = pool.thread_count - pool.active_count
        self.table.set(READER_IDLE, 100 * idle / pool.thread_count)

    def _set_cache(self, name: str, usage: CacheUsage) -> None:
        """Raises the counters to the cache's totals, unless a later update came first."""
        totals = {CACHE_HITS: usage.hits, CACHE_MISSES: usage.misses, CACHE_EVICTED: usage.evicted}
        with self._lock:
            for metric, total in totals.items():
                self.table.add(metric, max(0, total - self.table.value(metric, name)), name)
        self.table.set(CACHE_BYTES, usage.held_bytes, name)
        self.table.set(CACHE_LIMIT, usage.limit_bytes, name)


def _labels(partition: TopicPartition) -> tuple[str, ...]:
    return partition.topic, str(partition.partition)
