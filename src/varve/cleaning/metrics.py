"""What cleaning reports: its runs, the health of partitions, and metrics with Kafka's equivalents.

Percentages stay percentages, as in Kafka; times are in seconds, as usual in Prometheus.

Invariant  metrics of the last cleaning are the maximum over the last run of each thread; 0 before
           the first run.
Threads    any; `_lock` guards the last cleanings.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from varve.cleaning.removals.removal import Reason
from varve.commit_log import Log, LogManager, TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.metrics import Metric, MetricTable, counter, declared_metrics, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
from dataclasses import dataclass, field

from varve.cleaning.key_index.segment_indexes import HeldSegment


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The health of cleaning for one partition.

    `error` is the last failure of a run, or of the object store whose bounds the run needs.
    `waits_for` is set while a part of the log waits for its copy to object storage, which is not an
    error.
    """

    partition: TopicPartition
    holds: tuple[HeldSegment, ...] = ()
    error: str | None = None
    failures: int = 0
    retry_ms: int | None = None
    waits_for: str = ""

    @property
    def is_healthy(self) -> bool:
        return not self.holds and self.error is None

    @property
    def bytes_held(self) -> int:
        return sum(hold.bytes_held for hold in self.holds)


@dataclass(frozen=True, slots=True)
class CleanProgress:
    """The progress of a run: `phase` is index, plan or copy."""

    partition: TopicPartition
    phase: str
    done_bytes: int
    total_bytes: int


Progress = Callable[[CleanProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """One run over one partition.

    `records` and `bytes` go by reason and count the rewritten segments only; what was not worth
    rewriting is in `left_stale_bytes`. `rewritten` has the base offsets of those segments. A dry
    run has planned figures and changed nothing.
    """

    partition: TopicPartition
    is_dry_run: bool
    first_dirty_offset: int
    end_offset: int
    segments_before: int
    segments_after: int
    segments_rewritten: int
    bytes_before: int
    bytes_after: int
    records: dict[Reason, int] = field(default_factory=dict)
    bytes: dict[Reason, int] = field(default_factory=dict)
    left_stale_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    buffer_utilisation: float = 0.0
    elapsed_ms: int = 0
    holds: tuple[HeldSegment, ...] = ()
    note: str = ""
    rewritten: tuple[int, ...] = ()


_CLEANER: Final = "kafka.log:type=LogCleaner,name="
_MANAGER: Final = "kafka.log:type=LogCleanerManager,name="
_LOG: Final = "kafka.log:type=Log,name="
_PARTITION: Final = ("topic", "partition")

MAX_DIRTY_PERCENT = gauge(
    "varve_cleaner_max_dirty_percent",
    "The highest dirty ratio of any partition when the cleaner last chose what to clean.",
    unit="percent",
    kafka_name=f"{_MANAGER}max-dirty-percent",
)
MAX_COMPACTION_DELAY = gauge(
    "varve_cleaner_max_compaction_delay_seconds",
    "By how much max.compaction.lag.ms was exceeded at most when the cleaner last chose.",
    unit="seconds",
    kafka_name=f"{_CLEANER}max-compaction-delay-secs",
)
TIME_SINCE_LAST_RUN = gauge(
    "varve_cleaner_time_since_last_run_seconds",
    "Time since the cleaner last chose what to clean; since the start when it never did.",
    unit="seconds",
    kafka_name=f"{_MANAGER}time-since-last-run-ms",
)
RECOPY_PERCENT = gauge(
    "varve_cleaner_recopy_percent",
    "Bytes written by bytes read, over the last cleaning of each thread.",
    unit="percent",
    kafka_name=f"{_CLEANER}cleaner-recopy-percent",
)
MAX_CLEAN_TIME = gauge(
    "varve_cleaner_max_clean_time_seconds",
    "The longest of the last cleanings of each thread.",
    unit="seconds",
    kafka_name=f"{_CLEANER}max-clean-time-secs",
)
MAX_BUFFER_UTILISATION = gauge(
    "varve_cleaner_max_buffer_utilization_percent",
    "How full the planning buffer was at most in the last cleaning of each thread; keys beyond it "
    "are planned in a further pass.",
    unit="percent",
    kafka_name=f"{_CLEANER}max-buffer-utilization-percent",
)
DEAD_THREADS = gauge(
    "varve_cleaner_dead_threads",
    "Cleaner threads that should run and do not.",
    unit="threads",
    kafka_name=f"{_CLEANER}DeadThreadCount",
)
UNCLEANABLE_PARTITIONS = gauge(
    "varve_cleaner_uncleanable_partitions",
    "Partitions with a segment that is held because it is damaged, or whose last run failed; both "
    "are tried again.",
    unit="partitions",
    labels=("log_directory",),
    kafka_name=f"{_MANAGER}uncleanable-partitions-count",
)
UNCLEANABLE_BYTES = gauge(
    "varve_cleaner_uncleanable_bytes",
    "Bytes of the segments that are held because they are damaged.",
    unit="bytes",
    labels=("log_directory",),
    kafka_name=f"{_MANAGER}uncleanable-bytes",
)
CLEANINGS = counter(
    "varve_cleaner_cleanings_total",
    "Partitions cleaned.",
    unit="cleanings",
)
READ_BYTES = counter(
    "varve_cleaner_read_bytes_total",
    "Bytes read by cleaning.",
    unit="bytes",
    kafka_name="kafka.utils:type=Throttler,name=cleaner-io",
)
WRITTEN_BYTES = counter(
    "varve_cleaner_written_bytes_total",
    "Bytes written by cleaning.",
    unit="bytes",
    kafka_name="kafka.utils:type=Throttler,name=cleaner-io",
)
REMOVED_RECORDS = counter(
    "varve_cleaner_removed_records_total",
    "Records that compaction removed, by reason.",
    unit="records",
    labels=("reason",),
)
LEFT_STALE_BYTES = gauge(
    "varve_cleaner_left_stale_bytes",
    "Bytes of superseded records that the last cleaning left, in segments not worth a rewrite.",
    unit="bytes",
    labels=_PARTITION,
)
NO_KEY_RECORDS = counter(
    "varve_cleaner_no_key_records_total",
    "Records without a key that compaction met and removed; appends of such are refused.",
    unit="records",
    kafka_name="kafka.server:type=BrokerTopicMetrics,name=NoKeyCompactedTopicRecordsPerSec",
)
RETENTION_DELETED_BYTES = counter(
    "varve_retention_deleted_bytes_total",
    "Bytes of segments that retention deleted, by reason.",
    unit="bytes",
    labels=("reason",),
)
RETENTION_DELETED_SEGMENTS = counter(
    "varve_retention_deleted_segments_total",
    "Segments that retention deleted, by reason.",
    unit="segments",
    labels=("reason",),
)
REJECTED_TIMESTAMPS = gauge(
    "varve_retention_rejected_timestamps",
    "Segments whose largest record timestamp retention.time rejects, so that their age counts from "
    "the append.",
    unit="segments",
    labels=_PARTITION,
)
SEGMENTS = gauge(
    "varve_log_segments",
    "Segments of a partition.",
    unit="segments",
    labels=_PARTITION,
    kafka_name=f"{_LOG}NumLogSegments",
)
LOG_START_OFFSET = gauge(
    "varve_log_start_offset",
    "The first offset that can be read.",
    unit="offset",
    labels=_PARTITION,
    kafka_name=f"{_LOG}LogStartOffset",
)
LOG_END_OFFSET = gauge(
    "varve_log_end_offset",
    "The offset that the next record gets.",
    unit="offset",
    labels=_PARTITION,
    kafka_name=f"{_LOG}LogEndOffset",
)
LOG_SIZE = gauge(
    "varve_log_size_bytes",
    "Bytes of a partition's data files.",
    unit="bytes",
    labels=_PARTITION,
    kafka_name=f"{_LOG}Size",
)


class CleanerMetrics:
    """The metrics of cleaning and retention of one store; a prometheus_client collector.

    The size and offsets of the partitions of `store` are looked up when metrics are collected.
    """

    def __init__(self, *, clock: Clock, store: LogManager) -> None:
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self._last_reports: dict[int, CleanReport] = {}  # guarded by _lock
        self._left_stale: dict[TopicPartition, int] = {}  # guarded by _lock
        self._last_run_ms = clock.now_ms()

    def observe_selection(
        self, *, now_ms: int, max_dirty_ratio: float, max_delay_ms: int = 0
    ) -> None:
        """Records a selection of the cleaner: the largest dirty ratio and delay."""
        self._last_run_ms = now_ms
        self.table.set(MAX_DIRTY_PERCENT, 100 * max_dirty_ratio)
        self.table.set(MAX_COMPACTION_DELAY, max_delay_ms / 1000)

    def observe_clean(self, report: CleanReport, *, thread: int = 0) -> None:
        """Records a run; a dry run is not counted."""
        if report.is_dry_run:
            return
        with self._lock:
            self._last_reports[thread] = report
            self._left_stale[report.partition] = report.left_stale_bytes
            reports = list(self._last_reports.values())
        table = self.table
        read = sum(clean_report.bytes_read for clean_report in reports)
        written = sum(clean_report.bytes_written for clean_report in reports)
        table.set(RECOPY_PERCENT, 100 * written / read if read else 0)
        table.set(MAX_CLEAN_TIME, max(clean_report.elapsed_ms for clean_report in reports) / 1000)
        table.set(
            MAX_BUFFER_UTILISATION,
            100 * max(clean_report.buffer_utilisation for clean_report in reports),
        )
        table.add(CLEANINGS, 1)
        table.add(READ_BYTES, report.bytes_read)
        table.add(WRITTEN_BYTES, report.bytes_written)
        table.add(NO_KEY_RECORDS, report.records.get(Reason.NO_KEY, 0))
        table.set(LEFT_STALE_BYTES, report.left_stale_bytes, *_labels(report.partition))
        for reason, count in report.records.items():
            if reason is not Reason.KEPT:
                table.add(REMOVED_RECORDS, count, reason.value)

    def observe_expiry(self, reason: Reason, size: int) -> None:
        """Retention deleted a segment."""
        self.table.add(RETENTION_DELETED_SEGMENTS, 1, reason.value)
        self.table.add(RETENTION_DELETED_BYTES, size, reason.value)

    def set_rejected(self, counts: Mapping[TopicPartition, int]) -> None:
        """How many segments of each partition have a timestamp that was rejected."""
        self.table.replace(
            REJECTED_TIMESTAMPS,
            {_labels(partition): float(count) for partition, count in counts.items()},
        )

    def set_health(
        self, health: Mapping[str, Sequence[PartitionHealth]], *, dead_threads: int = 0
    ) -> None:
        """Sets the health by log directory; a directory without a problem has 0."""
        self.table.set(DEAD_THREADS, dead_threads)
        self.table.replace(
            UNCLEANABLE_PARTITIONS,
            {
                (path,): float(sum(not partition_health.is_healthy for partition_health in healths))
                for path, healths in health.items()
            },
        )
        self.table.replace(
            UNCLEANABLE_BYTES,
            {
                (path,): float(sum(partition_health.bytes_held for partition_health in healths))
                for path, healths in health.items()
            },
        )

    def collect(self) -> "Iterator[Family]":
        """Called by prometheus_client."""
        since_ms = max(0, self._clock.now_ms() - self._last_run_ms)
        self.table.set(TIME_SINCE_LAST_RUN, since_ms / 1000)
        logs = [log for _, log, _ in self._store.logs()]
        self._show_left_stale({log.topic_partition for log in logs})
        self._replace(SEGMENTS, logs, lambda log: len(log.view))
        self._replace(LOG_START_OFFSET, logs, lambda log: log.log_start_offset)
        self._replace(LOG_END_OFFSET, logs, lambda log: log.end_offset)
        self._replace(LOG_SIZE, logs, lambda log: log.size)
        return self.table.collect()

    def _show_left_stale(self, partitions: set[TopicPartition]) -> None:
        """Sets the stale bytes left, without the partitions of deleted topics."""
        with self._lock:
            for deleted in self._left_stale.keys() - partitions:
                del self._left_stale[deleted]
            values = {
                _labels(partition): float(size) for partition, size in self._left_stale.items()
            }
        self.table.replace(LEFT_STALE_BYTES, values)

    def _replace(self, metric: Metric, logs: Sequence[Log], value_of: Callable[[Log], int]) -> None:
        values = {_labels(log.topic_partition): float(value_of(log)) for log in logs}
        self.table.replace(metric, values)


def _labels(partition: TopicPartition) -> tuple[str, ...]:
    return partition.topic, str(partition.partition)
