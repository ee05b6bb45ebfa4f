"""The cleaner's figures, by Kafka's rules for them."""

import dataclasses
import random
from collections.abc import Iterator
from uuid import UUID

import pytest

from varve.cleaning import metrics as declared
from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.metrics import CleanerMetrics, CleanReport, PartitionHealth
from varve.cleaning.removals.removal import Reason
from varve.commit_log import LogManager, TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.metrics import declared_metrics, exposition
from varve.records import Record, build_batch

PARTITION = TopicPartition("orders", 0)
KAFKA_NAMES = {
    "max-buffer-utilization-percent",
    "cleaner-recopy-percent",
    "max-clean-time-secs",
    "max-compaction-delay-secs",
    "DeadThreadCount",
    "uncleanable-partitions-count",
    "uncleanable-bytes",
    "max-dirty-percent",
    "time-since-last-run-ms",
    "cleaner-io",
    "NumLogSegments",
    "LogStartOffset",
    "LogEndOffset",
    "Size",
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[LogManager]:
    fs = MemoryFileSystem(clock)
    with LogManager(["/data"], fs=fs, clock=clock, random=random.Random(1)) as store:
        store.create(PARTITION, UUID(int=7))
        yield store


@pytest.fixture
def metrics(clock: ManualClock, store: LogManager) -> CleanerMetrics:
    return CleanerMetrics(clock=clock, store=store)


def _report(**changes: object) -> CleanReport:
    report = CleanReport(
        partition=PARTITION,
        is_dry_run=False,
        first_dirty_offset=0,
        end_offset=100,
        segments_before=3,
        segments_after=1,
        segments_rewritten=3,
        bytes_before=1000,
        bytes_after=250,
        records={Reason.KEPT: 20, Reason.SUPERSEDED: 70, Reason.NO_KEY: 10},
        bytes_read=1000,
        bytes_written=250,
        buffer_utilisation=0.5,
        elapsed_ms=1500,
        left_stale_bytes=33,
    )
    return dataclasses.replace(report, **changes)  # type: ignore[arg-type]  # test shorthand


def test_every_metric_of_kafkas_cleaner_is_mapped() -> None:
    mapped = {one.kafka_name.rpartition("name=")[2] for one in declared_metrics(declared)}
    assert mapped >= KAFKA_NAMES


def test_names_are_given_once() -> None:
    names = [one.name for one in declared_metrics(declared)]
    assert len(names) == len(set(names)) > 15


def test_a_cleaning_shows_its_share_time_and_buffer(metrics: CleanerMetrics) -> None:
    metrics.observe_clean(_report())
    table = metrics.table
    assert table.value(declared.RECOPY_PERCENT) == 25
    assert table.value(declared.MAX_CLEAN_TIME) == 1.5
    assert table.value(declared.MAX_BUFFER_UTILISATION) == 50
    assert table.value(declared.REMOVED_RECORDS, Reason.SUPERSEDED) == 70
    assert table.value(declared.NO_KEY_RECORDS) == 10
    assert table.value(declared.LEFT_STALE_BYTES, "orders", "0") == 33


def test_maxima_are_over_the_last_cleaning_of_each_thread(metrics: CleanerMetrics) -> None:
    metrics.observe_clean(_report(elapsed_ms=9000, bytes_written=1000), thread=1)
    metrics.observe_clean(_report(elapsed_ms=4000), thread=2)
    assert metrics.table.value(declared.MAX_CLEAN_TIME) == 9
    assert metrics.table.value(declared.RECOPY_PERCENT) == 62.5
    metrics.observe_clean(_report(elapsed_ms=1000), thread=1)
    assert metrics.table.value(declared.MAX_CLEAN_TIME) == 4
    assert metrics.table.value(declared.CLEANINGS) == 3


def test_a_dry_run_counts_for_nothing(metrics: CleanerMetrics) -> None:
    metrics.observe_clean(_report(is_dry_run=True))
    assert metrics.table.value(declared.CLEANINGS) == 0
    assert metrics.table.value(declared.MAX_CLEAN_TIME) == 0


def test_stale_bytes_of_a_deleted_topic_are_not_shown(
    metrics: CleanerMetrics, store: LogManager
) -> None:
    metrics.observe_clean(_report(left_stale_bytes=40))
    assert 'varve_cleaner_left_stale_bytes{partition="0",topic="orders"} 40.0\n' in exposition(
        metrics
    )
    store.delete(PARTITION)
    assert "varve_cleaner_left_stale_bytes{" not in exposition(metrics)


def test_a_selection_shows_ratio_delay_and_the_time_since(
    metrics: CleanerMetrics, clock: ManualClock
) -> None:
    clock.advance(2_000)
    assert "varve_cleaner_time_since_last_run_seconds 2.0\n" in exposition(metrics)
    metrics.observe_selection(now_ms=clock.now_ms(), max_dirty_ratio=0.75, max_delay_ms=1500)
    clock.advance(500)
    text = exposition(metrics)
    assert "varve_cleaner_time_since_last_run_seconds 0.5\n" in text
    assert "varve_cleaner_max_dirty_percent 75.0\n" in text
    assert "varve_cleaner_max_compaction_delay_seconds 1.5\n" in text


def test_health_is_told_by_directory_and_forgotten_when_it_heals(metrics: CleanerMetrics) -> None:
    hold = HeldSegment(0, 500, None, "broken", since_ms=0, attempts=1, retry_ms=0)
    sick = PartitionHealth(PARTITION, holds=(hold,))
    failed = PartitionHealth(TopicPartition("orders", 1), error="boom")
    metrics.set_health({"/a": [sick, failed], "/b": []}, dead_threads=1)
    text = exposition(metrics)
    assert 'varve_cleaner_uncleanable_partitions{log_directory="/a"} 2.0\n' in text
    assert 'varve_cleaner_uncleanable_bytes{log_directory="/a"} 500.0\n' in text
    assert 'varve_cleaner_uncleanable_partitions{log_directory="/b"} 0.0\n' in text
    assert "varve_cleaner_dead_threads 1.0\n" in text
    metrics.set_health({"/a": [], "/b": []})
    assert 'varve_cleaner_uncleanable_bytes{log_directory="/a"} 0.0\n' in exposition(metrics)


def test_retention_counts_by_reason(metrics: CleanerMetrics) -> None:
    metrics.observe_expiry(Reason.EXPIRED_TIME, 400)
    metrics.observe_expiry(Reason.EXPIRED_TIME, 300)
    metrics.observe_expiry(Reason.EXPIRED_TIME, 300)
    metrics.set_rejected({PARTITION: 4})
    text = exposition(metrics)
    assert 'deleted_bytes_total{reason="older than retention.ms"} 1000.0\n' in text
    assert 'deleted_segments_total{reason="older than retention.ms"} 3.0\n' in text
    assert 'varve_retention_rejected_timestamps{partition="0",topic="orders"} 4.0\n' in text


def test_partitions_are_looked_up_when_somebody_asks(
    metrics: CleanerMetrics, store: LogManager
) -> None:
    batch = build_batch([Record(key=b"k", value=b"v", timestamp=1)])
    store.get(PARTITION).append(batch)
    store.get(PARTITION).roll()
    text = exposition(metrics)
    assert 'varve_log_segments{partition="0",topic="orders"} 2.0\n' in text
    assert 'varve_log_end_offset{partition="0",topic="orders"} 1.0\n' in text
    assert 'varve_log_start_offset{partition="0",topic="orders"} 0.0\n' in text
    size = float(store.get(PARTITION).size)
    assert f'varve_log_size_bytes{{partition="0",topic="orders"}} {size}\n' in text
    store.delete(PARTITION)
    assert 'topic="orders"' not in exposition(metrics)
