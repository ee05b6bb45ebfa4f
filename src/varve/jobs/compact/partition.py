"""Compacts the remote segments of one partition, stage by stage.

1. The run takes the lease, deletes leftovers of earlier runs and reads the manifest.
2. One task per segment verifies its key index, or builds a missing one.
3. One task per range of hashes finds the latest records; the driver adds up the counts.
4. One task per few segments plans which records each keeps; the driver forms groups.
5. One task per group rewrites it as one segment and uploads it under an announced id.
6. The driver checks and stores the balances, and one manifest commit makes the groups readable.

If the data of a segment is damaged, the groups before it are committed, and another pass skips the
damaged segment.

Invariant  only the last step changes what readers see, in one commit. The driver's memory grows
           with the number of segments, not with the number of records.
Crash      before the last step readers see the old segments. The next run deletes announced
           segments and the work area of the plan.
Threads    one on the driver; the runner decides where tasks run.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final, TypeVar

from varve.cleaning.compaction.key_plan import ENTRY_BYTES, Integers
from varve.cleaning.compaction.plan import (
    CleaningPlan,
    PlanInput,
    choose_groups,
    first_held_offset,
    track_transactions,
)
from varve.cleaning.compaction.segment_plan import RunRules, SegmentFigures
from varve.cleaning.key_index.key_index import KeyIndexHeader
from varve.commit_log import TopicPartition
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError
from varve.jobs.compact import cleanable
from varve.jobs.compact.commit import (
    CompactCommit,
    WrittenGroup,
    add_key_indexes,
    balance_group,
    encode_evidence,
)
from varve.jobs.compact.result import PartitionResult, StageTime
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.compact.tasks import (
    WRITER,
    IndexTask,
    JudgedSegment,
    PassInputs,
    RangeInputs,
    RangeTask,
    RewriteTask,
    SegmentsTask,
    make_sources,
)
from varve.jobs.key_plans import RangeFold, WorkArea, cut_hashes, plan_area, remove_left_work
from varve.jobs.source.record_blocks import aborted_within
from varve.jobs.tasks import Stage, Stages, TaskError, get_result, pack_by_size, try_stage
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import TierFiles, only_keys, open_files
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import KEYS_PART, Epochs, RemoteSegment
from varve.tiering.partition_lease import HeldLease, hold_lease

T = TypeVar("T")

PASSES_MAX: Final = 8
"""Passes over a partition; each later one skips the segments found to be damaged before."""
_TASK_PLAN_BYTES: Final = 32 << 20
"""Approximate size of the batch tables and bits that one task plans segments with."""
_TASK_SEGMENTS: Final = 64
"""Segments that one task plans: each costs some small requests, whatever its size."""


@dataclass
class PartitionCompaction:
    """One run over one partition; `job_id` names its evidence.

    `history` are the leader epochs of the local log, None if they are unknown.
    """

    partition: RemotePath
    bucket: BucketAccess
    settings: CompactSettings
    _: KW_ONLY
    clock: Clock
    random: random.Random
    job_id: str
    history: Epochs | None = None

    def __post_init__(self) -> None:
        self._now_ms = self.clock.now_ms()
        self._manifests = self.bucket.manifests(self.partition)
        self._topic_id = decode_topic_id(self.partition.topic_id).bytes
        self._result = PartitionResult(path=self.partition)
        self._lease: HeldLease | None = None
        self._is_work_stored = False
        self._is_cut = False  # whether damage ended the current pass early

    def stages(self) -> Stages[PartitionResult]:
        """Runs all stages; a StoreError is in the result."""
        try:
            if self.settings.is_dry_run:
                yield from self._run(0)
            else:
                yield from self._run_leased()
        except StoreError as error:
            self._result.error = str(error)
        return self._result

    def _run_leased(self) -> Stages[None]:
        """Runs all passes while holding the lease of the partition."""
        with hold_lease(
            self.bucket.objects(),
            self.partition,
            self.job_id,
            clock=self.clock,
            takes_over=self.settings.takes_over,
        ) as self._lease:
            for number in range(PASSES_MAX):
                held_count = len(self._result.held)
                yield from self._run(number)
                if len(self._result.held) == held_count or not self._is_cut:
                    break

    def _run(self, number: int) -> Stages[None]:
        """Runs one pass; if damage ends it early, another pass skips the damaged segment."""
        manifest = self._manifests.load() if self.settings.is_dry_run else self._sweep()
        self._is_cut = False
        self._result.add_manifest(manifest, is_first=number == 0)
        chain = cleanable.find_chain(manifest, self._manifests.segments(manifest), self.history)
        if not chain:
            self._result.add_note("the partition has no remote segments")
            return
        last_epoch = chain[-1].epochs[-1][0]
        if self.history is None and manifest.leader_epoch > last_epoch:
            self._result.add_note(
                f"a leader of epoch {manifest.leader_epoch} has written the manifest, but the "
                f"remote segments end at epoch {last_epoch}: the offset where the log was "
                "truncated is unknown; wait for the next copy, or give the log directory (--dir)"
            )
            return
        if chain[-1].end_offset < manifest.highest_offset:
            self._result.add_note(
                f"segments from offset {chain[-1].end_offset + 1} on are not compacted: there is "
                "a gap, or the log has truncated them"
            )
        with open_files(self.bucket.objects, self.partition, chain) as files:
            log = self.settings.log
            scope = cleanable.find_scope(self.partition, manifest, chain, files, log, self._now_ms)
            if not self._is_due(scope):
                return
            aborted = cleanable.read_aborted(
                self.partition, chain, files, end_offset=scope.end_offset
            )
            rules = RunRules(
                now_ms=self._now_ms,
                delete_retention_ms=log.delete_retention_ms,
                first_uncleanable_offset=scope.end_offset,
                producers=cleanable.read_producers(self.partition, chain[-1], files),
            )
        scope, headers = yield from self._index(scope, aborted)
        area = WorkArea(self.bucket.objects, f"{self.partition.work_folder}{self.job_id}/{number}/")
        try:
            plan, groups, clean_end = yield from self._clean(
                _Pass(scope, headers, tuple(aborted), rules, area)
            )
        finally:
            self._remove_work(area)
        if self.settings.is_dry_run:
            return
        if len(groups) < len(plan.groups):
            clean_end = min(clean_end, plan.groups[len(groups)][0].base_offset)
        evidence_id = f"{self.job_id}-{number}" if number else self.job_id
        self._commit(scope, plan, groups, clean_end, evidence_id)

    def _clean(
        self, run: "_Pass"
    ) -> Stages[tuple[CleaningPlan[SegmentFigures], list[WrittenGroup], int]]:
        """Returns the plan, the written groups, and the end offset of the clean part."""
        segments, inputs = yield from self._find_latest(run)
        plan, clean_end = yield from self._plan(run, segments, inputs)
        if self.settings.is_dry_run:
            self._result.add_plan(plan, self.bucket.objects().name)
            return plan, [], clean_end
        groups = yield from self._rewrite(plan, segments, inputs)
        return plan, groups, clean_end

    def _remove_work(self, area: WorkArea) -> None:
        """Removes the work area; if the store fails, the next run removes it."""
        if self._is_work_stored:
            with suppress(StoreError):
                area.remove(self.bucket.objects())

    def _sweep(self) -> Manifest:
        manifest = self._manifests.load()
        leftovers = cleanable.find_leftovers(self._manifests, manifest, now_ms=self._now_ms)
        removed = self._manifests.remove(
            leftovers, leader_epoch=None, writer=WRITER, now_ms=self._now_ms
        )
        self._result.swept += len(removed)
        remove_left_work(self.bucket.objects(), self.partition.work_folder, now_ms=self._now_ms)
        return self._manifests.load() if leftovers else manifest

    def _is_due(self, scope: cleanable.Scope) -> bool:
        state = scope.cleanable
        if scope.blocked_by:
            self._result.add_note(scope.blocked_by)
        if not scope.segments:
            self._result.add_note("no segment may be compacted yet")
            return False
        if not state.is_due and not self.settings.is_forced:
            self._result.add_note(
                f"not due: the dirty ratio is {state.ratio:.3f}, min.cleanable.dirty.ratio is "
                f"{state.min_ratio}"
            )
            return False
        return True

    # Stages

    def _run_stage(self, stage: Stage[T]) -> Stages[list[T | TaskError]]:
        began_ms = self.clock.now_ms()
        if self._lease is not None:
            self._lease.renew()
        outcomes = yield from try_stage(stage)
        elapsed_ms = self.clock.now_ms() - began_ms
        self._result.stages.append(StageTime(stage.name, len(stage.tasks), elapsed_ms))
        return outcomes

    def _index(
        self, scope: cleanable.Scope, aborted: Sequence[AbortedTransaction]
    ) -> Stages[tuple[cleanable.Scope, tuple[KeyIndexHeader | None, ...]]]:
        """Returns the scope with new key indexes, and the key index header of each segment.

        The header is None for a held segment.
        """
        tasks = [
            IndexTask(
                self.bucket,
                self.partition,
                segment,
                aborted_within(
                    aborted, start_offset=segment.base_offset, end_offset=segment.end_offset + 1
                ),
                self._topic_id,
                self.settings.buffer_bytes,
                self.settings.is_dry_run,
            )
            for segment in scope.segments
            if segment.base_offset not in self._result.held
        ]
        outcomes = yield from self._run_stage(Stage("index", tasks))
        headers: dict[int, KeyIndexHeader] = {}
        segments: dict[str, RemoteSegment] = {}
        for task, outcome in zip(tasks, outcomes, strict=True):
            segment = task.segment
            if self._result.is_damage(outcome, segment.base_offset):
                continue
            if outcome is None:
                self._result.add_note(
                    f"segment {segment.base_offset} has no key index yet and is not in the plan: "
                    f"a run builds the index from its {segment.size} bytes"
                )
                continue
            indexed = get_result(outcome)
            assert indexed is not None
            headers[segment.base_offset] = indexed.header
            if indexed.part is not None:
                others = tuple(part for part in segment.parts if part.name != KEYS_PART)
                segments[segment.id] = replace(
                    segment, parts=(*others, indexed.part), key_count=indexed.header.entry_count
                )
        add_key_indexes(self._manifests, segments, now_ms=self._now_ms)
        chain = tuple(segments.get(segment.id, segment) for segment in scope.chain)
        return cleanable.Scope(chain, scope.cleanable), tuple(
            headers.get(segment.base_offset) for segment in scope.segments
        )

    def _find_latest(self, run: "_Pass") -> Stages[tuple[list[JudgedSegment], PassInputs]]:
        """Returns the planned segments with their counts, and the shared inputs of later tasks."""
        slim = tuple(only_keys(segment) for segment in run.scope.segments)
        headers = [header for header in run.headers if header is not None]
        entries = sum(header.entry_count for header in headers)
        ranges = cut_hashes(-(-entries * ENTRY_BYTES // self.settings.range_bytes))
        index_bytes = sum(header.file_size for header in headers)
        tasks = [
            RangeTask(number, hashes, index_bytes // len(ranges))
            for number, hashes in enumerate(ranges)
        ]
        record_counts = [header.record_count for header in headers]
        area = plan_area(
            run.area, record_count=sum(record_counts), inline_bytes=self.settings.inline_bytes
        )
        self._is_work_stored = area is not None
        inputs = RangeInputs(
            self.bucket,
            self.partition,
            slim,
            run.headers,
            run.rules,
            self.settings.buffer_bytes,
            area,
        )
        fold = RangeFold(record_counts, area)
        yield from self._run_stage(Stage("plan", tasks, inputs, fold))
        latest = fold.result()
        return self._judge(run, latest.tallies), PassInputs(
            self.bucket,
            self.partition,
            run.rules,
            latest.bits,
            self.settings.grouping,
            self._topic_id,
            self.settings.buffer_bytes,
            self._now_ms,
        )

    def _judge(self, run: "_Pass", tallies: Integers) -> list[JudgedSegment]:
        """Tracks the transactions through all planned segments, in offset order."""
        judged: list[JudgedSegment] = []
        with open_files(self.bucket.objects, self.partition, run.scope.segments) as files:
            sources = run.sources(self.partition, files)
            transactions = track_transactions(sources, run.aborted, run.rules)
            for segment, source in zip(run.scope.segments, sources, strict=True):
                if source.keys is None:
                    continue
                judged.append(
                    JudgedSegment(
                        segment,
                        source.keys.header,
                        source.is_dirty,
                        tallies[len(judged)],
                        transactions.fork(source.segment.base_offset, source.next_offset),
                    )
                )
                if source.keys.header.mark_count:
                    with source.keys.open() as index:
                        batches, marks = index.batches(), index.marks()
                    transactions.judge(
                        source.segment.base_offset, source.next_offset, batches, marks
                    )
        return judged

    def _plan(
        self, run: "_Pass", segments: Sequence[JudgedSegment], inputs: PassInputs
    ) -> Stages[tuple[CleaningPlan[SegmentFigures], int]]:
        """Returns the plan, and the end offset of the clean part after it."""
        tasks = []
        slim = (replace(segment, segment=only_keys(segment.segment)) for segment in segments)
        first = 0
        for packed in pack_by_size(
            slim,
            lambda segment: segment.plan_bytes,
            target_bytes=_TASK_PLAN_BYTES,
            max_items=_TASK_SEGMENTS,
        ):
            tasks.append(SegmentsTask(first, tuple(packed)))
            first += len(packed)
        outcomes = yield from self._run_stage(Stage("segments", tasks, inputs))
        figures = [
            segment_figures for outcome in outcomes for segment_figures in get_result(outcome)
        ]
        with open_files(self.bucket.objects, self.partition, run.scope.segments) as files:
            sources = run.sources(self.partition, files)
        groups = choose_groups(
            sources,
            figures,
            settings=self.settings.grouping,
            is_forced=self.settings.is_forced or run.scope.cleanable.is_forced,
        )
        plan = CleaningPlan(tuple(figures), tuple(groups), run.rules)
        return plan, first_held_offset(sources, run.rules)

    def _rewrite(
        self,
        plan: CleaningPlan[SegmentFigures],
        segments: Sequence[JudgedSegment],
        inputs: PassInputs,
    ) -> Stages[list[WrittenGroup]]:
        """Returns the written groups up to the first one with a damaged segment."""
        numbers = {segment.segment.base_offset: number for number, segment in enumerate(segments)}
        tasks = []
        for group in plan.groups:
            first = numbers[group[0].base_offset]
            members = tuple(segments[first : first + len(group)])
            tasks.append(RewriteTask(new_id(self.random), first, members))
        outcomes = yield from self._run_stage(Stage("rewrite", tasks, inputs))
        done: list[WrittenGroup] = []
        for task, group, outcome in zip(tasks, plan.groups, outcomes, strict=True):
            if self._result.is_damage(outcome):
                self._is_cut = True
                break
            done.append(WrittenGroup(task.inputs, group, get_result(outcome)))
        self._result.voided_groups += len(tasks) - len(done)
        return done

    # Commit

    def _commit(
        self,
        scope: cleanable.Scope,
        plan: CleaningPlan[SegmentFigures],
        groups: Sequence[WrittenGroup],
        clean_end: int,
        evidence_id: str,
    ) -> None:
        topic_partition = TopicPartition(self.partition.topic, self.partition.partition)
        balances = [
            balance_group(
                group,
                id=number,
                partition=topic_partition,
                rules=plan.rules,
                settings=self.settings.log,
            )
            for number, group in enumerate(groups, 1)
        ]
        if balances:
            key = self.partition.evidence_key(evidence_id)
            self.bucket.objects().put(key, encode_evidence(self.job_id, balances))
        rewritten = {segment.base_offset for group in groups for segment in group.inputs}
        ids = {segment.base_offset: segment.id for segment in scope.segments}
        commit = CompactCommit(
            self._manifests,
            groups,
            stale={
                ids[figures.base_offset]: figures.stale_bytes
                for figures in plan.segments
                if figures.base_offset not in rewritten
            },
            clean_end=clean_end,
            start_offset=scope.segments[0].base_offset,
            end_offset=clean_end,
            now_ms=self._now_ms,
            replaced_retention_ms=self.settings.replaced_retention_ms,
        )
        self._result.add_manifest(commit.run())
        self._result.add_commit(commit)


@dataclass(frozen=True, slots=True)
class _Pass:
    """The inputs of one pass, with the key index headers of its segments."""

    scope: cleanable.Scope
    headers: tuple[KeyIndexHeader | None, ...]
    aborted: tuple[AbortedTransaction, ...]
    rules: RunRules
    area: WorkArea

    def sources(self, partition: RemotePath, files: TierFiles) -> list[PlanInput]:
        return make_sources(
            partition,
            self.scope.segments,
            self.headers,
            files,
            first_dirty_offset=self.scope.cleanable.first_dirty_offset,
        )
