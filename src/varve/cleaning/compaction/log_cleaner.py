"""The log cleaner: selects compacted logs that are due, and cleans them.

Invariant  a partition is worked on by one thread at a time. A failure stays with its partition: it
           shows in `health` and is retried with exponential backoff, without a restart. Only
           an I/O error of the log's own files takes the directory offline.
Threads    any; `_lock` guards the table of partitions, `cleaning_lock` of each log its work.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from varve.cleaning.compaction.cleanable_log import CleanableLog, find_cleanable
from varve.cleaning.compaction.plan import CleaningPlan
from varve.cleaning.compaction.run import CleaningStopped, CompactionRun, PartitionCleaner
from varve.cleaning.compaction.segment_plan import SegmentPlan
from varve.cleaning.key_index.key_index import NO_TOPIC_ID, SegmentKeys
from varve.cleaning.key_index.lookup import KeyLookup
from varve.cleaning.key_index.segment_indexes import SegmentKeyIndexes
from varve.cleaning.metrics import CleanerMetrics, CleanReport, PartitionHealth, Progress
from varve.cleaning.remote_tier import NoRemoteTier, RemoteBounds, RemoteTier
from varve.cleaning.removals.removal_log import RemovalLogs
from varve.cleaning.retention.retention import Retention
from varve.cleaning.settings import CleanerSettings
from varve.cleaning.work_budget import Throttle
from varve.commit_log import Log, LogManager, Segment, TopicPartition
from varve.commit_log.log_directory import LogDirectory
from varve.foundation.clock import Clock
from varve.foundation.errors import PolicyViolation, StoreError, Unavailable
from varve.foundation.worker import Worker, WorkerHealth
from varve.records import Record


class _CleanerBudget(Throttle):
    """The rate of all cleaner threads; raises CleaningStopped once the cleaner stops."""

    def __init__(self, bytes_per_second: float, clock: Clock, stopping: threading.Event) -> None:
        super().__init__(bytes_per_second, clock, lambda wait_ms: stopping.wait(wait_ms / 1000))
        self._stopping = stopping

    def spend(self, size: int) -> None:
        if self._stopping.is_set():
            raise CleaningStopped("cleaning was stopped; the next run continues from there")
        super().spend(size)


class LogCleaner:
    """The cleaner of one store. `run_once` cleans the logs that are due; `start` starts threads."""

    def __init__(
        self,
        store: LogManager,
        *,
        clock: Clock,
        settings: CleanerSettings | None = None,
        metrics: CleanerMetrics | None = None,
        remote: RemoteTier | None = None,
    ) -> None:
        self._store = store
        self.remote = remote or NoRemoteTier()
        self._clock = clock
        self._settings = settings or CleanerSettings()
        self.metrics = metrics or CleanerMetrics(clock=clock, store=store)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, PartitionCleaner] = {}  # guarded by _lock
        self._workers: list[Worker] = []
        self._budget = _CleanerBudget(
            self._settings.log_cleaner_io_max_bytes_per_second, clock, self._stopping
        )
        self.removals = RemovalLogs(store)
        self.retention = Retention(store, self.removals, self.metrics)

    def start(self) -> None:
        """Starts `log.cleaner.threads` threads, unless `log.cleaner.enable` is off."""
        if not self._settings.log_cleaner_enable:
            return
        for number in range(self._settings.log_cleaner_threads):
            worker = Worker(
                f"varve-cleaner-{number}",
                partial(self._run_thread, number),
                max(self._settings.log_cleaner_backoff_ms, 1),
                self._clock,
            )
            self._workers.append(worker.start())

    def stop(self) -> None:
        """Stops the threads; a run in progress ends at its next chunk, and nothing is lost."""
        self._stopping.set()
        with ExitStack() as stack:
            for worker in self._workers:
                stack.callback(worker.stop)

    def _run_thread(self, number: int, now_ms: int) -> None:
        if number == 0:
            self.run_once(now_ms)
        else:
            self._clean_due(now_ms, number)

    def run_once(self, now_ms: int) -> list[CleanReport]:
        """Builds missing key indexes, cleans due logs, and applies retention to compacted logs."""
        self.build_indexes(now_ms)
        reports = self._clean_due(now_ms, 0)
        self._expire_compacted(now_ms)
        self.observe_health()
        return reports

    def _clean_due(self, now_ms: int, thread: int) -> list[CleanReport]:
        reports: list[CleanReport] = []
        tried: set[TopicPartition] = set()
        while not self._stopping.is_set():
            partition = self._pick(now_ms, tried)
            if partition is None:
                return reports
            tried.add(partition.log.topic_partition)
            try:
                report = self._run(partition, now_ms)
            finally:
                partition.log.cleaning_lock.release()
            if report is not None:
                reports.append(report)
                self.metrics.observe_clean(report, thread=thread)
        return reports

    def _pick(self, now_ms: int, tried: set[TopicPartition]) -> PartitionCleaner | None:
        """The most urgent partition that is not busy, with `cleaning_lock` acquired."""
        logs: list[CleanableLog] = []
        recovered: list[PartitionCleaner] = []
        by_name: dict[TopicPartition, PartitionCleaner] = {}
        for partition in self._compacted():
            cleanable = self._judge(partition, now_ms)
            if cleanable is None:
                continue
            logs.append(cleanable)
            by_name[cleanable.partition] = partition
            if cleanable.is_due:
                continue
            if partition.indexes.needs_run(now_ms):
                recovered.append(partition)
            else:
                partition.note_success()
        self.observe_selection(logs, now_ms)
        due = sorted(
            (log for log in logs if log.is_due), key=lambda log: log.priority, reverse=True
        )
        for partition in [*(by_name[log.partition] for log in due), *recovered]:
            is_tried = partition.log.topic_partition in tried
            if not is_tried and partition.log.cleaning_lock.acquire(blocking=False):
                return partition
        return None

    def observe_selection(self, logs: Sequence[CleanableLog], now_ms: int) -> None:
        """Updates the metrics of how dirty the logs are."""
        self.metrics.observe_selection(
            now_ms=now_ms,
            max_dirty_ratio=max((log.ratio for log in logs), default=0.0),
            max_delay_ms=max((log.delay_ms for log in logs), default=0),
        )

    def _judge(self, partition: PartitionCleaner, now_ms: int) -> CleanableLog | None:
        """How dirty its log is; None while it waits after a failure, or for the object store."""
        if partition.waits(now_ms) or partition.waits_for_store(now_ms):
            return None
        try:
            remote_bounds = self.remote.bounds(partition.log.topic_partition)
        except StoreError as error:
            partition.note_unknown_bounds(error, now_ms)
            return None
        try:
            return self._select(partition, remote_bounds, now_ms)
        except Exception as error:
            partition.note_failure(error, now_ms)
            return None

    def _compacted(self) -> list[PartitionCleaner]:
        partitions = {
            name: self._cleaner_of(name, log, directory)
            for name, log, directory in self._store.logs()
            if log.settings.is_compacted and directory.failure is None
        }
        with self._lock:
            for name in set(self._partitions) - {name for name, _, _ in self._store.logs()}:
                del self._partitions[name]
        return list(partitions.values())

    def _cleaner_of(
        self, name: TopicPartition, log: Log, directory: LogDirectory
    ) -> PartitionCleaner:
        with self._lock:
            cached = self._partitions.get(name)
            if cached is not None and cached.log is log:
                return cached
            topic_id = self._store.topic_id(name)
            key = NO_TOPIC_ID if topic_id is None else topic_id.bytes
            partition = PartitionCleaner(
                log,
                directory,
                SegmentKeyIndexes(
                    self._store.fs, log, topic_id=key, buffer_bytes=self._buffer_bytes
                ),
                self.removals.get(log),
                key,
                self._store.fs,
                self._clock,
                self._budget,
                self._buffer_bytes,
            )
            self._partitions[name] = partition
            return partition

    @property
    def _buffer_bytes(self) -> int:
        """The planning memory of one thread."""
        settings = self._settings
        share = settings.log_cleaner_dedupe_buffer_size // max(settings.log_cleaner_threads, 1)
        return int(share * settings.log_cleaner_io_buffer_load_factor)

    def _select(
        self, partition: PartitionCleaner, remote_bounds: RemoteBounds | None, now_ms: int
    ) -> CleanableLog:
        name, directory = partition.log.topic_partition, partition.directory
        with partition.map_io_errors(f"selection of {name}"):
            log = find_cleanable(
                partition.log, directory.cleaner_offset(name), now_ms, remote_bounds=remote_bounds
            )
            if log.is_corrected:
                directory.write_cleaner_offset(name, log.first_dirty_offset)
        partition.note_selection(log)
        return log

    def _run(self, partition: PartitionCleaner, now_ms: int) -> CleanReport | None:
        """One run that is due; a failure is noted and retried later.

        Selects again: another thread may have cleaned the log since it was picked.
        """
        cleanable = self._judge(partition, now_ms)
        if cleanable is None:
            return None
        try:
            report = CompactionRun(partition, cleanable, now_ms).carry_out()
        except CleaningStopped:
            return None
        except Exception as error:
            partition.note_failure(error, now_ms)
            return None
        partition.note_success()
        return report

    def clean(
        self,
        partition: TopicPartition,
        now_ms: int,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CleanReport:
        """Cleans one partition now, whatever its dirty ratio; raises errors instead of noting them.

        A dry run only builds missing key indexes.
        """
        with self._take(partition) as cleaner:
            run = self._new_run(cleaner, now_ms, progress)
            if dry_run:
                return run.preview()
            report = run.carry_out()
            cleaner.note_success()
            self.metrics.observe_clean(report)
            return report

    def plan(self, partition: TopicPartition, now_ms: int) -> CleaningPlan[SegmentPlan]:
        """Plans a run without changing the log; builds missing key indexes."""
        with self._take(partition) as cleaner:
            run = self._new_run(cleaner, now_ms)
            with cleaner.work(f"plan of {partition}"):
                return run.plan()

    def _new_run(
        self, partition: PartitionCleaner, now_ms: int, progress: Progress | None = None
    ) -> CompactionRun:
        """A run whatever the dirty ratio; raises PolicyViolation."""
        log = partition.log
        if not log.settings.is_compacted:
            raise PolicyViolation(
                f"{log.topic_partition}: only topics with compact in cleanup.policy are compacted; "
                f"it is {','.join(log.settings.cleanup_policy)}"
            )
        cleanable = self._select(partition, self.remote.bounds(log.topic_partition), now_ms)
        return CompactionRun(partition, cleanable, now_ms, progress)

    def ensure_keys(
        self, partition: TopicPartition, segment: Segment, next_offset: int, now_ms: int
    ) -> SegmentKeys | None:
        """The key index of a segment without open transactions, built if missing; None while held.

        `next_offset` is where the next segment begins.
        """
        with self._take(partition) as cleaner, cleaner.work(f"key index of {partition}"):
            return cleaner.indexes.ensure(segment, next_offset, now_ms, cleaner.budget)

    def find_key(
        self, partition: TopicPartition, key: bytes, now_ms: int, *, below: int | None = None
    ) -> Record | None:
        """The latest committed record of a key, perhaps a tombstone; None when there is none.

        `below` excludes segments whose base offset is at or above it.
        """
        cleaner = self._get_cleaner(partition)
        with cleaner.try_take() as may_build:
            lookup = KeyLookup(
                log=cleaner.log,
                indexes=cleaner.indexes,
                topic_id=cleaner.topic_id,
                clock=self._clock,
                may_build=may_build,
                remote=self.remote,
            )
            return lookup.find(key, now_ms, cleaner.budget, below=below)

    def _get_cleaner(self, partition: TopicPartition) -> PartitionCleaner:
        log = self._store.get(partition)
        directory = self._store.directory_of(partition)
        if directory is None:
            raise Unavailable(f"{partition} is no longer in the store")
        return self._cleaner_of(partition, log, directory)

    @contextmanager
    def _take(self, partition: TopicPartition) -> Iterator[PartitionCleaner]:
        """Exclusive use of a partition, once a run in progress has ended."""
        cleaner = self._get_cleaner(partition)
        with cleaner.log.cleaning_lock:
            yield cleaner

    def build_indexes(self, now_ms: int) -> int:
        """Builds the key indexes of closed segments without open transactions; returns how many."""
        built = 0
        for partition in self._compacted():
            if partition.waits(now_ms):
                continue
            with partition.try_take() as is_free:
                if not is_free:
                    continue
                try:
                    with partition.work("key indexes"):
                        built += self._build_indexes(partition, now_ms)
                except CleaningStopped:
                    return built
                except Exception as error:
                    partition.note_failure(error, now_ms)
        return built

    def _build_indexes(self, partition: PartitionCleaner, now_ms: int) -> int:
        log, indexes = partition.log, partition.indexes
        indexes.forget_vanished()
        # One view: a roll between two would give the last segment a wrong end.
        stable, view = log.last_stable_offset, log.view
        ends = [segment.base_offset for segment in view][1:]
        built = 0
        for segment, end in zip(view.closed, ends, strict=True):
            if end <= stable and indexes.find(segment, end) is None:
                built += indexes.ensure(segment, end, now_ms, partition.budget) is not None
        return built

    def _expire_compacted(self, now_ms: int) -> None:
        for partition in self._compacted():
            with partition.try_take() as is_free:
                if is_free:
                    self.retention.expire(partition.log, now_ms)

    def health(self) -> list[PartitionHealth]:
        """The health of each compacted partition."""
        return [partition.health for partition in self._compacted()]

    def observe_health(self) -> None:
        """Updates the metrics of partitions, by log directory, and of threads."""
        by_path: dict[str, list[PartitionHealth]] = {
            directory.path: [] for directory in self._store.directories
        }
        for partition in self._compacted():
            by_path[partition.directory.path].append(partition.health)
        dead = sum(not worker.is_running for worker in self.worker_health())
        self.metrics.set_health(by_path, dead_threads=dead)

    def worker_health(self) -> list[WorkerHealth]:
        """The health of the cleaner threads."""
        return [worker.health() for worker in self._workers]
