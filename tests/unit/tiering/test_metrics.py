"""The cold tier's figures, by Kafka's rules for them."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from varve.cleaning import metrics as cleaning
from varve.commit_log import TopicPartition
from varve.foundation.metrics import declared_metrics, exposition
from varve.object_store import metering as object_store
from varve.tiering import metrics as declared
from varve.tiering.metrics import COPY, COPY_QUOTA, DELETE, FETCH, FETCH_QUOTA, TierMetrics
from varve.tiering.read.extent_cache import CacheUsage
from varve.tiering.read.remote_log import ReadCaches

ORDERS = TopicPartition("orders", 0)
OTHER_ORDERS = TopicPartition("orders", 1)
PAYMENTS = TopicPartition("payments", 0)
KAFKA_NAMES = {
    "RemoteCopyBytesPerSec",
    "RemoteCopyRequestsPerSec",
    "RemoteCopyErrorsPerSec",
    "RemoteFetchBytesPerSec",
    "RemoteFetchRequestsPerSec",
    "RemoteFetchErrorsPerSec",
    "RemoteDeleteRequestsPerSec",
    "RemoteDeleteErrorsPerSec",
    "RemoteCopyLagBytes",
    "RemoteCopyLagSegments",
    "RemoteDeleteLagBytes",
    "RemoteDeleteLagSegments",
    "RemoteLogMetadataCount",
    "RemoteLogSizeBytes",
    "RemoteLogReaderTaskQueueSize",
    "RemoteLogReaderAvgIdlePercent",
    "remote-copy-throttle-time-avg",
    "remote-copy-throttle-time-max",
    "remote-fetch-throttle-time-avg",
    "remote-fetch-throttle-time-max",
}


@dataclass
class Pool:
    thread_count: int
    active_count: int
    pending_count: int


@dataclass
class Cache:
    """Gives the usages in turn, the last one for ever."""

    usages: list[CacheUsage]

    def usage(self) -> CacheUsage:
        return self.usages.pop(0) if len(self.usages) > 1 else self.usages[0]


def make_caches(pool: Pool, *usages: CacheUsage) -> ReadCaches:
    fakes = SimpleNamespace(pool=pool, indexes=Cache([*usages]), extents=Cache([*usages]))
    return cast(ReadCaches, fakes)


IDLE = Pool(thread_count=10, active_count=0, pending_count=0)


@pytest.fixture
def metrics() -> TierMetrics:
    return TierMetrics()


def test_the_metrics_of_kafkas_tier_are_mapped() -> None:
    mapped = {one.kafka_name.rpartition("name=")[2] for one in declared_metrics(declared)}
    assert mapped - {""} == KAFKA_NAMES


def test_names_are_given_once_in_all_rooms() -> None:
    rooms = (cleaning, object_store, declared)
    names = [one.name for room in rooms for one in declared_metrics(room)]
    assert len(names) == len(set(names))
    assert all(one.name.startswith("varve_tier_") for one in declared_metrics(declared))


def test_what_failed_was_requested_too(metrics: TierMetrics) -> None:
    metrics.observe(COPY, ORDERS, 1_000)
    metrics.observe_error(COPY, ORDERS)
    metrics.observe_error(FETCH, ORDERS)
    metrics.observe_error(DELETE, ORDERS)
    table = metrics.table
    assert table.value(declared.COPY_REQUESTS, "orders") == 2
    assert table.value(declared.COPY_ERRORS, "orders") == 1
    assert table.value(declared.COPY_BYTES, "orders") == 1_000
    assert table.value(declared.FETCH_REQUESTS, "orders") == 1
    assert table.value(declared.FETCH_ERRORS, "orders") == 1
    assert table.value(declared.DELETE_REQUESTS, "orders") == 1
    assert table.value(declared.DELETE_ERRORS, "orders") == 1


def test_a_forgotten_partition_shows_nothing_and_others_stay(metrics: TierMetrics) -> None:
    for partition in (ORDERS, PAYMENTS):
        metrics.set_lag(partition, bytes=10, segments=1)
        metrics.set_remote(partition, bytes=20, segments=2)
    metrics.observe(COPY, ORDERS, 5)
    metrics.forget(ORDERS)
    metrics.forget(OTHER_ORDERS)
    text = exposition(metrics)
    assert 'partition="0",topic="orders"' not in text
    assert 'varve_tier_size_bytes{partition="0",topic="payments"} 20.0\n' in text
    assert 'varve_tier_copy_bytes_total{topic="orders"} 5.0\n' in text


def test_throttle_times_are_summed_and_the_longest_is_kept(metrics: TierMetrics) -> None:
    for wait_ms in (250, 1_500, 500):
        metrics.observe_throttle(COPY_QUOTA, wait_ms)
    metrics.observe_throttle(FETCH_QUOTA, 100)
    table = metrics.table
    assert table.value(declared.COPY_THROTTLED) == 3
    assert table.value(declared.COPY_THROTTLE_TIME) == 2.25
    assert table.value(declared.COPY_THROTTLE_MAX) == 1.5
    assert table.value(declared.FETCH_THROTTLED) == 1
    assert table.value(declared.FETCH_THROTTLE_TIME) == 0.1
    assert table.value(declared.FETCH_THROTTLE_MAX) == 0.1


def test_caches_and_the_pool_are_asked_when_somebody_collects() -> None:
    pool = Pool(thread_count=10, active_count=10, pending_count=4)
    later = CacheUsage(9, 2, 2, 300, 1_000)
    caches = make_caches(pool, CacheUsage(5, 2, 1, 700, 1_000), later)
    metrics = TierMetrics(caches=caches)
    text = exposition(metrics)
    assert "varve_tier_reader_queue 4.0\n" in text
    assert "varve_tier_reader_idle_percent 0.0\n" in text
    assert 'varve_tier_cache_hits_total{cache="extent"} 5.0\n' in text
    pool.active_count, pool.pending_count = 3, 0
    exposition(metrics)
    text = exposition(metrics)
    assert "varve_tier_reader_queue 0.0\n" in text
    assert "varve_tier_reader_idle_percent 70.0\n" in text
    assert 'varve_tier_cache_hits_total{cache="index"} 9.0\n' in text
    assert 'varve_tier_cache_misses_total{cache="index"} 2.0\n' in text
    assert 'varve_tier_cache_evicted_total{cache="index"} 2.0\n' in text
    assert 'varve_tier_cache_bytes{cache="index"} 300.0\n' in text
    assert 'varve_tier_cache_limit_bytes{cache="index"} 1000.0\n' in text


def test_a_tier_that_reads_nothing_is_idle_and_has_no_caches(metrics: TierMetrics) -> None:
    text = exposition(metrics)
    assert "cache=" not in text
    assert "varve_tier_reader_idle_percent 100.0\n" in text


def test_a_cache_that_told_more_before_lowers_no_counter() -> None:
    usages = (CacheUsage(9, 8, 7, 1, 1), CacheUsage(5, 4, 3, 1, 1))
    metrics = TierMetrics(caches=make_caches(IDLE, *usages))
    exposition(metrics)
    exposition(metrics)
    assert metrics.table.value(declared.CACHE_HITS, "extent") == 9


def test_threads_count_and_collect_at_once() -> None:
    metrics = TierMetrics(caches=make_caches(IDLE, CacheUsage(50, 40, 30, 20, 10)))

    def work(partition: TopicPartition) -> None:
        for number in range(200):
            metrics.observe(FETCH, partition, 1)
            metrics.set_remote(partition, bytes=number, segments=number)
            if number % 50 == 49:
                exposition(metrics)

    threads = [
        threading.Thread(target=work, args=(partition,)) for partition in (ORDERS, OTHER_ORDERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.table.value(declared.FETCH_BYTES, "orders") == 400
    assert metrics.table.value(declared.CACHE_HITS, "index") == 50
