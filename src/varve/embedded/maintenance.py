"""Background work of an open store: flushes, checkpoints, retention, compaction, remote tier.

Invariant  every part is a `run_once(now_ms)`; threads only call it.
Threads    any; each worker runs its own part, and a failing part does not stop the others.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from varve.cleaning.compaction.cleanable_log import find_cleanable
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.metrics import CleanerMetrics, CleanReport, PartitionHealth, Progress
from varve.cleaning.retention.retention import (
    ExpiredSegment,
    LogRetention,
    RetentionPlan,
    plan_retention,
)
from varve.cleaning.retention.segments import list_segments, read_consistently
from varve.cleaning.settings import CleanerSettings
from varve.commit_log import Log, LogManager, TopicPartition
from varve.embedded.store_tier import StoreTier
from varve.foundation.clock import Clock, RemovalClock
from varve.foundation.errors import Unavailable
from varve.foundation.worker import Worker, WorkerHealth

if TYPE_CHECKING:
    from varve.tiering.tier import TierPass

MAINTENANCE_INTERVAL_MS: Final = 1_000
"""Time between two checks for logs that are due for a flush or a checkpoint."""


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The result of cleaning one partition, or of a dry run.

    `compaction` and `expiry` are None where the topic's policy does not include them, `expiry`
    also when retention removes nothing. `undecided` is set by a dry run: segments that retention
    would remove now, unless compaction rewrites them first. `tier` reports what was evicted from
    the local disk and what expired in the remote tier.
    """

    partition: TopicPartition
    compaction: CleanReport | None
    expiry: RetentionPlan | None
    undecided: tuple[ExpiredSegment, ...] = ()
    tier: "TierPass | None" = None


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The health of a store; it is healthy when no field reports a problem.

    `offline` has log directories as keys, `unreadable`, `retention` and `tier` partitions; each
    value describes the problem. `mirror` describes a problem of a mirrored remote tier, and is
    empty while both object stores are available and in sync. `clock` is set after the clock of the
    machine was set forward, while removals do not follow it. `workers` is empty when the store was
    opened with `maintain` off.
    """

    workers: tuple[WorkerHealth, ...]
    cleaning: tuple[PartitionHealth, ...]
    retention: dict[TopicPartition, str]
    unreadable: dict[TopicPartition, str]
    offline: dict[str, str]
    tier: dict[TopicPartition, str] = field(default_factory=dict)
    mirror: str = ""
    clock: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether no field reports a problem."""
        return (
            all(worker.is_healthy for worker in self.workers)
            and all(partition.is_healthy for partition in self.cleaning)
            and not (self.retention or self.unreadable or self.offline or self.tier)
            and not (self.mirror or self.clock)
        )


class StoreMaintenance:
    """The background work of one open store."""

    def __init__(
        self,
        logs: LogManager,
        *,
        clock: Clock,
        removal_clock: RemovalClock,
        settings: CleanerSettings,
        tier: StoreTier,
    ) -> None:
        self._logs = logs
        self._tier = tier
        self._clock = clock
        self._removal_clock = removal_clock
        self._settings = settings
        self.metrics = CleanerMetrics(clock=clock, store=logs)
        self.cleaner = LogCleaner(
            logs,
            clock=removal_clock,
            settings=settings,
            metrics=self.metrics,
            remote=tier,
        )
        self._retention_due_ms = 0
        self._cleaned: set[TopicPartition] = set()
        self._workers: list[Worker] = []

    def start(self) -> None:
        """Starts the threads."""
        settings = self._settings
        self._retention_due_ms = self._removal_clock.now_ms() + settings.log_initial_task_delay_ms
        tick_ms = min(MAINTENANCE_INTERVAL_MS, settings.log_retention_check_interval_ms)
        self._workers = [
            Worker("varve-maintenance", self._logs.run_once, MAINTENANCE_INTERVAL_MS, self._clock),
            Worker("varve-retention", self._run_retention_when_due, tick_ms, self._removal_clock),
        ]
        for worker in self._workers:
            worker.start()
        self.cleaner.start()
        self._tier.start()

    def _run_retention_when_due(self, now_ms: int) -> None:
        if now_ms >= self._retention_due_ms:
            self._retention_due_ms = now_ms + self._settings.log_retention_check_interval_ms
            self.cleaner.retention.run_once(now_ms)

    def stop(self) -> None:
        """Stops the threads; work in progress ends at its next chunk."""
        with ExitStack() as stack:
            for worker in self._workers:
                stack.callback(worker.stop)
            stack.callback(self.cleaner.stop)
            stack.callback(self._tier.stop)

    def run_once(self, now_ms: int) -> None:
        """One round of everything, in the caller's thread."""
        self._logs.run_once(now_ms)
        self._tier.run_once(now_ms)
        self.cleaner.retention.run_once(now_ms)
        if self._settings.log_cleaner_enable:
            self.cleaner.run_once(now_ms)

    def clean(
        self, partition: TopicPartition, now_ms: int, *, dry_run: bool, progress: Progress | None
    ) -> CleanResult:
        """Applies the cleanup policy of one partition now; raises errors instead of noting them."""
        log = self._logs.get(partition)
        compaction = None
        if log.settings.is_compacted:
            compaction = self.cleaner.clean(partition, now_ms, dry_run=dry_run, progress=progress)
            self._cleaned.add(partition)
        is_tiered = log.settings.remote_storage_enable
        if dry_run:
            tier = self._tier.get().preview(partition, now_ms) if is_tiered else None
            return _preview(log, compaction, tier, now_ms)
        tier = self._tier.get().expire(partition, now_ms) if is_tiered else None
        return CleanResult(partition, compaction, self._expire(log, now_ms), tier=tier)

    def _expire(self, log: Log, now_ms: int) -> RetentionPlan | None:
        retention = self.cleaner.retention
        removed = retention.expire(log, now_ms)
        failure = retention.failures.get(log.topic_partition)
        if failure is not None:
            raise Unavailable(f"{log.topic_partition}: retention failed: {failure}")
        return removed if removed.segments else None

    def measure(self, now_ms: int) -> None:
        """Updates the metrics; removes nothing.

        The metrics of uncleanable partitions have no samples until every partition was cleaned
        once: before that 0 would be a guess.
        """
        logs = [
            find_cleanable(log, directory.cleaner_offset(partition), now_ms)
            for partition, log, directory in self._logs.logs()
            if log.settings.is_compacted and directory.failure is None
        ]
        self._tier.measure(now_ms)
        self.cleaner.observe_selection(logs, now_ms)
        self.metrics.set_rejected(
            {
                log.topic_partition: len(
                    LogRetention(log, self.cleaner.removals.get(log)).plan(now_ms).rejected
                )
                for _, log, _ in self._logs.logs()
                if "delete" in log.settings.cleanup_policy
            }
        )
        if self._cleaned.issuperset(health.partition for health in self.cleaner.health()):
            self.cleaner.observe_health()

    def health(self) -> StoreHealth:
        """The health of the workers, the partitions and the log directories."""
        directories = self._logs.directories
        return StoreHealth(
            workers=(
                *(worker.health() for worker in self._workers),
                *self.cleaner.worker_health(),
                *self._tier.worker_health(),
            ),
            tier=self._tier.failures(),
            mirror=self._tier.mirror_trouble(),
            clock=self._removal_clock.describe_hold(),
            cleaning=tuple(self.cleaner.health()),
            retention=dict(self.cleaner.retention.failures),
            unreadable={
                partition: str(error)
                for directory in directories
                for partition, error in directory.unreadable.items()
            },
            offline={
                log_directory.path: str(log_directory.failure)
                for log_directory in directories
                if log_directory.failure is not None
            },
        )


def _preview(
    log: Log, compaction: CleanReport | None, tier: "TierPass | None", now_ms: int
) -> CleanResult:
    """The combined dry run: retention is certain only for segments compaction does not rewrite."""
    partition = log.topic_partition
    plan = read_consistently(log, partial(_plan_retention, log, tier, now_ms))
    expiry = plan if plan.segments else None
    if compaction is None or not compaction.rewritten:
        return CleanResult(partition, compaction, expiry, tier=tier)
    is_certain = partial(_is_unaffected, compaction)
    if tier is not None:
        moved = tuple(takewhile(is_certain, tier.moved.segments))
        tier = replace(tier, moved=replace(tier.moved, segments=moved))
    if expiry is None:
        return CleanResult(partition, compaction, None, tier=tier)
    certain = list(takewhile(is_certain, expiry.segments))
    undecided = expiry.segments[len(certain) :]
    if undecided:
        expiry = replace(expiry, segments=tuple(certain), rolls_active=False) if certain else None
    return CleanResult(partition, compaction, expiry, undecided, tier)


def _plan_retention(log: Log, tier: "TierPass | None", now_ms: int) -> RetentionPlan:
    """What local retention removes once the tier has expired and evicted its segments."""
    segments = list_segments(log)
    if tier is None:
        return plan_retention(segments, now_ms)
    start = max(segments.log_start_offset, tier.expiry.end_offset or 0)
    evicted = {segment.base_offset for segment in tier.moved.segments}
    remaining = tuple(
        segment_info
        for segment_info in segments.segments
        if segment_info.base_offset not in evicted
    )
    return plan_retention(replace(segments, log_start_offset=start, segments=remaining), now_ms)


def _is_unaffected(compaction: CleanReport, segment: ExpiredSegment) -> bool:
    """Whether retention removes a segment whatever compaction does first."""
    # Compaction shrinks the log, so fewer segments exceed the size limit afterwards.
    return not segment.is_by_size and segment.base_offset not in compaction.rewritten
