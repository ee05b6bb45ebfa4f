"""A partition of the cleaner and a compaction run over it.

A run builds the missing key indexes, plans, and then for each group of segments writes the new
segment, records the removal and swaps the segment in.

Invariant  a group is swapped in only after its removal was checked and recorded. The oldest group
           is first, so that a tombstone outlives whatever it deletes. After a failure the time to
           the next attempt doubles, up to an hour. While the object store does not answer, cleaning
           of a tiered log waits a minute at a time: that is not a failure of the log, and its key
           indexes are built meanwhile.
Crash      each swap is complete or undone by the next open; a run cut between two groups leaves a
           log that a later run finishes.
Threads    the holder of the log's `cleaning_lock`, so one run per partition at a time, concurrent
           with appends and reads, and none once the log is being deleted. Any thread may call
           `health`, `waits` and `map_io_errors`.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from varve.cleaning.compaction.cleanable_log import KEPT_FOR_REMOTE, CleanableLog, CleaningBound
from varve.cleaning.compaction.key_plan import ENTRY_BYTES
from varve.cleaning.compaction.plan import CleaningPlan, PlanInput, plan_cleaning, sum_by_reason
from varve.cleaning.compaction.rewrite import (
    DamagedSegment,
    WrittenSegment,
    remove_unfinished,
    write_group,
)
from varve.cleaning.compaction.segment_plan import RunRules, SegmentPlan
from varve.cleaning.key_index.segment_indexes import (
    CLEANING_RETRY,
    SegmentKeyIndexes,
    partition_io,
)
from varve.cleaning.metrics import CleanProgress, CleanReport, PartitionHealth, Progress
from varve.cleaning.removals.removal import Removal, RemovalKind, hex_digest
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.work_budget import WorkBudget
from varve.commit_log import Log
from varve.commit_log.log_directory import LogDirectory
from varve.commit_log.names import LOG
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError, Unavailable, Unbalanced
from varve.foundation.settings import LONG_MAX

logger = logging.getLogger(__name__)


class CleaningStopped(Unavailable):
    """The run was stopped; the log is as it was before its current group."""


@dataclass(frozen=True, slots=True)
class _LogBudget(WorkBudget):
    """The budget of the cleaner; raises CleaningStopped once the log is being deleted."""

    log: Log
    budget: WorkBudget

    def spend(self, size: int) -> None:
        _check_in_service(self.log)
        self.budget.spend(size)


def _check_in_service(log: Log) -> None:
    if log.is_retiring:
        raise CleaningStopped(f"{log.topic_partition} is being deleted, and not cleaned any more")


@dataclass(slots=True)
class PartitionCleaner:
    """The cleaner's state of one log; a thread that works on it holds the log's `cleaning_lock`.

    `budget` is charged for every byte read and written, and may raise to stop the work.
    """

    log: Log
    directory: LogDirectory
    indexes: SegmentKeyIndexes
    removal_log: RemovalLog
    topic_id: bytes
    fs: FileSystem
    clock: Clock
    budget: WorkBudget
    buffer_bytes: int
    error: str | None = None
    failures: int = 0
    retry_ms: int | None = None
    waits_for: str = ""
    store_error: str | None = None
    store_retry_ms: int = 0

    def __post_init__(self) -> None:
        self.budget = _LogBudget(self.log, self.budget)

    @property
    def health(self) -> PartitionHealth:
        return PartitionHealth(
            self.log.topic_partition,
            tuple(self.indexes.holds.values()),
            self.error or self.store_error,
            self.failures,
            self.retry_ms if self.store_error is None else self.store_retry_ms,
            self.waits_for,
        )

    def waits(self, now_ms: int) -> bool:
        """Whether it failed, and the next attempt is not due yet."""
        return self.retry_ms is not None and now_ms < self.retry_ms

    def waits_for_store(self, now_ms: int) -> bool:
        """Whether the object store did not answer, and the next attempt is not due yet."""
        return self.store_error is not None and now_ms < self.store_retry_ms

    def note_unknown_bounds(self, error: StoreError, now_ms: int) -> None:
        self.store_error = f"waits for the object store: {type(error).__name__}: {error}"
        self.store_retry_ms = now_ms + CLEANING_RETRY.first_ms
        logger.warning(
            "%(partition)s: cleaning waits for the object store: %(error)s",
            {"partition": str(self.log.topic_partition), "error": str(error)},
        )

    def note_selection(self, log: CleanableLog) -> None:
        """Clears the error of the object store, and notes which part waits for its copy."""
        self.store_error = None
        self.waits_for = log.blocked_by if log.blocker is CleaningBound.COPY else ""

    def note_failure(self, error: Exception, now_ms: int) -> None:
        """Schedules the next attempt; an unexpected error is logged with its stack."""
        self.failures += 1
        self.error = f"{type(error).__name__}: {error}"
        self.retry_ms = now_ms + CLEANING_RETRY.wait_ms(self.failures)
        logger.warning(
            "%(partition)s: cleaning failed, will be tried again: %(error)s",
            {"partition": str(self.log.topic_partition), "error": str(error)},
            exc_info=None if isinstance(error, StoreError) else error,
        )

    def note_success(self) -> None:
        self.error, self.failures, self.retry_ms = None, 0, None

    @contextmanager
    def try_take(self) -> Iterator[bool]:
        """Takes the lock without waiting; yields False while another thread has it, or no work."""
        lock = self.log.cleaning_lock
        has_lock = lock.acquire(blocking=False)
        try:
            yield has_lock and not self.log.is_retiring
        finally:
            if has_lock:
                lock.release()

    @contextmanager
    def map_io_errors(self, doing: str) -> Iterator[None]:
        """As `partition_io`; after a missing file each key index is verified again.

        Raises CleaningStopped for a log whose directory may be that of another by now.
        """
        _check_in_service(self.log)
        with partition_io(self.directory, doing):
            try:
                yield
            except FileNotFoundError:
                self.indexes.forget()
                raise

    @contextmanager
    def work(self, doing: str) -> Iterator[None]:
        """As `map_io_errors`, for the holder of the lock; a wrong result deletes the key indexes.

        They may be the cause of the wrong result; the next attempt rebuilds them.
        """
        with self.map_io_errors(doing):
            try:
                yield
            except (Corrupt, Unbalanced):
                self.indexes.delete_all()
                raise


@dataclass(slots=True)
class _PhaseBudget(WorkBudget):
    """Reports the progress of one phase of a run, within the budget of the whole."""

    progress: CleanProgress
    budget: WorkBudget
    report: Progress | None

    def spend(self, size: int) -> None:
        if self.report is not None:
            done = min(self.progress.done_bytes + size, self.progress.total_bytes)
            self.progress = replace(self.progress, done_bytes=done)
            self.report(self.progress)
        self.budget.spend(size)


class CompactionRun:
    """One compaction run over a log, for the holder of its `cleaning_lock`."""

    def __init__(
        self,
        partition: PartitionCleaner,
        cleanable: CleanableLog,
        now_ms: int,
        progress: Progress | None = None,
    ) -> None:
        log = partition.log
        self._partition = partition
        self._log = log
        self._indexes = partition.indexes
        self._cleanable = cleanable
        self._now_ms = now_ms
        self._fs = partition.fs
        self._progress = progress
        self._started_ms = partition.clock.now_ms()
        self._closed = [
            segment
            for segment in log.view.closed
            if segment.base_offset < cleanable.first_uncleanable_offset
        ]
        self._by_base = {segment.base_offset: segment for segment in self._closed}
        self._bytes_before = log.size
        self._segments_before = len(log.view)
        self._bytes_written = 0
        self._bytes_read = 0
        self._rewritten: list[SegmentPlan] = []
        self._note = _describe_bounds(cleanable)
        self._was_stopped = False

    def plan(self) -> CleaningPlan[SegmentPlan]:
        """Builds missing key indexes and plans; does not change the log."""
        sources = self._find_sources()
        end, remote_bounds = self._cleanable.first_uncleanable_offset, self._cleanable.remote_bounds
        rules = RunRules(
            now_ms=self._now_ms,
            delete_retention_ms=self._log.settings.delete_retention_ms,
            first_uncleanable_offset=end,
            producers=self._log.active_producers(),
            keep_markers_from_offset=LONG_MAX
            if remote_bounds is None
            else remote_bounds.cleaned_up_to,
        )
        start = self._closed[0].base_offset if self._closed else end
        budget = self._begin_phase(
            "plan", sum(s.keys.entry_count for s in sources if s.keys) * ENTRY_BYTES
        )
        return plan_cleaning(
            sources,
            aborted=self._log.collect_aborted(start, end),
            rules=rules,
            settings=self._log.settings,
            is_forced=self._cleanable.is_forced,
            buffer_bytes=self._partition.buffer_bytes,
            budget=budget,
        )

    def _find_sources(self) -> list[PlanInput]:
        first_dirty_offset = self._cleanable.first_dirty_offset
        indexes = self._indexes
        indexes.forget()
        budget = self._begin_phase("index", sum(segment.size for segment in self._closed))
        bases = [segment.base_offset for segment in self._closed]
        ends = [*bases, self._cleanable.first_uncleanable_offset][1:]
        sources = []
        for segment, end in zip(self._closed, ends, strict=True):
            keys = indexes.ensure(segment, end, self._now_ms, budget)
            # A held segment was not cleaned by earlier runs.
            is_dirty = end > first_dirty_offset or segment.base_offset in indexes.recovered
            sources.append(PlanInput(segment, end, is_dirty, keys))
        return sources

    def _begin_phase(self, phase: str, total: int) -> _PhaseBudget:
        progress = CleanProgress(self._log.topic_partition, phase, 0, total)
        return _PhaseBudget(progress, self._partition.budget, self._progress)

    def preview(self) -> CleanReport:
        """The report of a dry run; builds missing key indexes."""
        with self._partition.work(f"plan of {self._log.topic_partition}"):
            return self._build_report(self.plan(), is_dry_run=True)

    def carry_out(self) -> CleanReport:
        """Cleans the log; a run that stops early says why in its report."""
        name, partition = self._log.topic_partition, self._partition
        with partition.work(f"cleaning of {name}"):
            self._indexes.forget_vanished()
            plan = self.plan()
            self._rewrite(plan)
            if not self._was_stopped:
                partition.directory.write_cleaner_offset(name, self._cleanable.next_first_dirty)
                self._indexes.recovered.clear()
            return self._build_report(plan, is_dry_run=False)

    def _rewrite(self, plan: CleaningPlan[SegmentPlan]) -> None:
        budget = self._begin_phase("copy", 2 * plan.copied_bytes)
        remove_unfinished(self._fs, self._log.directory)
        if plan.groups:
            # The marker that aborted a transaction may be in the active segment and not synced yet.
            # Records removed because of it must not be lost if a crash loses the marker.
            self._log.flush()
        for group in plan.groups:
            if not self._log.settings.is_compacted:
                self._stop("compact was taken out of cleanup.policy")
                break
            try:
                written = self._write(group, budget)
            except DamagedSegment as damage:
                self._hold(group, damage)
                break
            if not self._swap(group, written, plan):
                break

    def _write(self, group: Sequence[SegmentPlan], budget: WorkBudget) -> WrittenSegment:
        return write_group(
            self._fs,
            self._log.directory,
            group,
            settings=self._log.settings,
            topic_id=self._partition.topic_id,
            buffer_bytes=self._partition.buffer_bytes,
            modified_ms=self._fs.info(group[-1].segment.path(LOG)).modified_ms,
            budget=budget,
        )

    def _hold(self, group: Sequence[SegmentPlan], damage: DamagedSegment) -> None:
        for plan in group:
            if plan.segment.base_offset == damage.base_offset:
                segment = self._by_base[plan.segment.base_offset]
                self._indexes.hold(segment, str(damage), self._now_ms)
        self._stop(str(damage))

    def _stop(self, reason: str) -> None:
        self._note = f"stopped: {reason}"
        self._was_stopped = True

    def _swap(
        self, group: Sequence[SegmentPlan], written: WrittenSegment, plan: CleaningPlan[SegmentPlan]
    ) -> bool:
        """Records the group's removal and swaps it in; False when the log changed meanwhile."""
        removal_log = self._partition.removal_log
        old = [self._by_base[segment_plan.segment.base_offset] for segment_plan in group]
        with removal_log.removal_lock:
            if self._log.segments.find(old) is None:  # a removal that was recorded has them
                written.discard(self._fs, self._log.directory)
                self._stop("segments were removed from the log meanwhile")
                return False
            try:
                removal = self._build_removal(group, written, plan, removal_log.next_id())
                removal_log.append(removal)
            except Exception:
                written.discard(self._fs, self._log.directory)
                raise
            # From here on the log owns the files: recovery reads from some of them that a swap
            # was not committed.
            new = self._log.replace_segments(
                old,
                base_offset=written.base_offset,
                size=written.size,
                has_txn_index=written.has_txn_index,
            )
            if new is None:
                self._stop("segments were removed from the log meanwhile")
                return False
            removal_log.mark_done(removal.id)
        self._indexes.add(new, written.header)
        self._bytes_written += written.size
        self._bytes_read += written.bytes_read
        self._rewritten += group
        logger.info(
            "segments compacted",
            extra={
                "partition": str(self._log.topic_partition),
                "segments": len(group),
                "bytes_before": sum(segment_plan.segment.size for segment_plan in group),
                "bytes_after": written.size,
            },
        )
        return True

    def _build_removal(
        self,
        group: Sequence[SegmentPlan],
        written: WrittenSegment,
        plan: CleaningPlan[SegmentPlan],
        id: int,
    ) -> Removal:
        settings = self._log.settings
        return Removal(
            id=id,
            partition=self._log.topic_partition,
            kind=RemovalKind.COMPACTION,
            at_ms=self._now_ms,
            inputs=tuple(segment_plan.summary for segment_plan in group),
            outputs=(written.summary,),
            records=sum_by_reason([segment_plan.records for segment_plan in group]),
            bytes=sum_by_reason([segment_plan.bytes for segment_plan in group]),
            keys_before=hex_digest(*(segment_plan.digest for segment_plan in group)),
            keys_after=hex_digest(written.digest),
            rule=(
                f"cleanup.policy {','.join(settings.cleanup_policy)}: the latest record of each "
                f"key below offset {plan.rules.first_uncleanable_offset}; tombstones and markers "
                f"{_describe_kept_from(plan.rules)}"
                f"delete.retention.ms={settings.delete_retention_ms} after they are first cleaned"
            ),
            end_offset=plan.rules.first_uncleanable_offset,
        )

    def _build_report(self, plan: CleaningPlan[SegmentPlan], *, is_dry_run: bool) -> CleanReport:
        rewritten = (
            [segment_plan for group in plan.groups for segment_plan in group]
            if is_dry_run
            else self._rewritten
        )
        records = sum_by_reason([segment_plan.records for segment_plan in rewritten])
        sizes = sum_by_reason([segment_plan.bytes for segment_plan in rewritten])
        planned = sum(
            segment_plan.planned_bytes - segment_plan.segment.size for segment_plan in rewritten
        )
        merged = len(rewritten) - len(plan.groups)
        return CleanReport(
            partition=self._log.topic_partition,
            is_dry_run=is_dry_run,
            first_dirty_offset=self._cleanable.first_dirty_offset,
            end_offset=self._cleanable.first_uncleanable_offset,
            segments_before=self._segments_before,
            segments_after=self._segments_before - merged if is_dry_run else len(self._log.view),
            segments_rewritten=len(rewritten),
            bytes_before=self._bytes_before,
            bytes_after=self._bytes_before + planned if is_dry_run else self._log.size,
            records=records,
            bytes=sizes,
            left_stale_bytes=plan.left_stale_bytes,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            buffer_utilisation=plan.buffer_utilisation,
            elapsed_ms=self._partition.clock.now_ms() - self._started_ms,
            holds=tuple(self._indexes.holds.values()),
            note=self._note,
            rewritten=tuple(segment_plan.segment.base_offset for segment_plan in rewritten),
        )


def _describe_bounds(cleanable: CleanableLog) -> str:
    """Describes the part that is not cleaned because of the remote tier; empty without a tier."""
    if cleanable.remote_bounds is None:
        return ""
    kept = f"from offset {cleanable.remote_bounds.cleaned_up_to} on are {KEPT_FOR_REMOTE}"
    waits = f"{cleanable.blocked_by}; " if cleanable.blocker is CleaningBound.COPY else ""
    return f"{waits}tombstones and markers {kept}"


def _describe_kept_from(rules: RunRules) -> str:
    if rules.keep_markers_from_offset == LONG_MAX:
        return ""
    return f"below offset {rules.keep_markers_from_offset}, where the remote tier is clean, "
