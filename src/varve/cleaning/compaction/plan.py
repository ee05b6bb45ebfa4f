"""Plans a cleaning run over one partition: which segments are rewritten, and in what groups.

Invariant  a segment cleaned for the first time is cleaned completely. One that was cleaned before
           is rewritten when enough of it is stale, or when one of its records was deleted by a
           tombstone: a tombstone is removed only when nothing it deletes is left before it.
           A group fits into one segment by its estimated size. Merging n small segments over
           many runs copies a byte O(log n) times. Segments are not merged where
           `local.retention.*` evicts them: merged with a younger one, a segment would stay on the
           local disk as long as that one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Generic, TypeVar

import numpy as np

from varve.cleaning.compaction.key_plan import (
    ALL_HASHES,
    Bits,
    HashRange,
    KeyPlan,
    lay_out_bits,
    plan_keys,
)
from varve.cleaning.compaction.segment_plan import (
    RunRules,
    SegmentFigures,
    SegmentPlan,
    TransactionTracker,
    count_by_reason,
    decide_batches,
    estimate_size,
    keep_control_records,
    mark_expired,
    stamped_markers_size,
    summarize_input,
)
from varve.cleaning.key_index.key_index import NO_HORIZON, InputSegment, SegmentKeys
from varve.cleaning.removals.removal import Reason
from varve.cleaning.work_budget import WorkBudget
from varve.commit_log import LogSettings
from varve.commit_log.settings import INT_MAX
from varve.commit_log.sparse_index import RELATIVE_OFFSET_MAX
from varve.commit_log.transaction_index import AbortedTransaction
from varve.kernels.key_merge import Tally

P = TypeVar("P", bound=SegmentFigures)

SMALL_SEGMENTS_MIN: Final = 8
"""From this many small segments on, they are merged even if none needs a rewrite."""
_INDEX_ENTRY_BYTES: Final = 12
"""The entry size of the time index, which is the larger of the two sparse indexes."""


def group_segments(
    plans: Sequence[P], chosen: set[int], settings: LogSettings
) -> list[tuple[P, ...]]:
    """Groups consecutive segments for the rewrite, oldest first.

    A segment that is not chosen joins a group only if it is no larger than the group. So a small
    segment is rarely copied again, and a large one is never copied only to merge its neighbours.
    """
    groups: list[list[P]] = []
    for plan in plans:
        if not groups or not _joins(groups[-1], plan, chosen, settings):
            groups.append([])
        groups[-1].append(plan)
    chosen_groups: list[tuple[P, ...]] = []
    idle: list[P] = []
    for group in groups:
        if not _is_chosen(group, chosen):
            idle += group
            continue
        chosen_groups += _join_small(idle, settings)
        idle = []
        chosen_groups.append(tuple(group))
    return chosen_groups + _join_small(idle, settings)


def _is_chosen(group: Sequence[P], chosen: set[int]) -> bool:
    return any(plan.base_offset in chosen for plan in group)


def _joins(group: Sequence[P], plan: P, chosen: set[int], settings: LogSettings) -> bool:
    size = _planned_bytes(group)
    is_chosen = plan.base_offset in chosen
    if not _is_chosen(group, chosen) and not (is_chosen and size <= plan.planned_bytes):
        return False
    if not is_chosen and plan.planned_bytes > size:
        return False
    return _fits(group, plan, settings)


def _fits(group: Sequence[P], plan: P, settings: LogSettings) -> bool:
    size = _planned_bytes(group) + plan.planned_bytes
    if size > settings.segment_bytes or settings.has_local_limit:
        return False
    # Positions have 31 bits, and the planned size is only an estimate.
    if sum(segment.size for segment in (*group, plan)) > INT_MAX:
        return False
    if plan.next_offset - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX:
        return False
    entries = size // max(settings.index_interval_bytes, 1) + 1
    return entries * _INDEX_ENTRY_BYTES <= settings.segment_index_bytes


def _join_small(plans: Sequence[P], settings: LogSettings) -> list[tuple[P, ...]]:
    """Groups of consecutive small segments that are merged although none of them is chosen."""
    groups: list[tuple[P, ...]] = []
    run: list[P] = []
    for plan in plans:
        if run and not _fits(run, plan, settings):
            groups += _without_large(run)
            run = []
        run.append(plan)
    return groups + _without_large(run)


def _without_large(run: Sequence[P]) -> list[tuple[P, ...]]:
    """The run, or its parts on both sides of a segment larger than all the others together.

    Of a short run only consecutive empty segments are merged, which copies nothing.
    """
    if len(run) < SMALL_SEGMENTS_MIN:
        by_size = groupby(run, key=lambda plan: plan.size)
        empty = [tuple(plans) for size, plans in by_size if size == 0]
        return [plans for plans in empty if len(plans) > 1]
    sizes = [plan.planned_bytes for plan in run]
    largest = max(range(len(run)), key=sizes.__getitem__)
    if 2 * sizes[largest] <= sum(sizes):
        return [tuple(run)]
    return [*_without_large(run[:largest]), *_without_large(run[largest + 1 :])]


def _planned_bytes(group: Sequence[P]) -> int:
    return sum(plan.planned_bytes for plan in group)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A segment of the run; one without a key index is held and not cleaned."""

    segment: InputSegment
    next_offset: int
    is_dirty: bool
    keys: SegmentKeys | None


@dataclass(frozen=True, slots=True)
class CleaningPlan(Generic[P]):
    """The plans of all segments of a run, and the groups of them that are rewritten."""

    segments: tuple[P, ...]
    groups: tuple[tuple[P, ...], ...]
    rules: RunRules
    range_count: int = 1
    buffer_utilisation: float = 0.0

    @property
    def stale_bytes(self) -> int:
        return sum(plan.stale_bytes for plan in self.segments)

    @property
    def left_stale_bytes(self) -> int:
        """The stale bytes in segments that are not worth rewriting yet."""
        rewritten = {plan.base_offset for group in self.groups for plan in group}
        return sum(plan.stale_bytes for plan in self.segments if plan.base_offset not in rewritten)

    @property
    def copied_bytes(self) -> int:
        """An estimate of the bytes that the rewrite copies."""
        return sum(plan.planned_bytes for group in self.groups for plan in group)


def plan_cleaning(
    sources: Sequence[PlanInput],
    *,
    aborted: Sequence[AbortedTransaction],
    rules: RunRules,
    settings: LogSettings,
    is_forced: bool,
    buffer_bytes: int,
    budget: WorkBudget,
) -> CleaningPlan[SegmentPlan]:
    """Plans over the segments of a run, oldest first.

    `is_forced` rewrites every segment that a rewrite would change.
    """
    latest = find_latest_records(sources, rules=rules, buffer_bytes=buffer_bytes, budget=budget)
    indexed = [source for source in sources if source.keys is not None]
    transactions = track_transactions(sources, aborted, rules)
    plans = [
        plan_segment(
            source,
            keep=latest.bits_of(number, latest.keep),
            tombstones=latest.bits_of(number, latest.tombstones),
            tally={column: latest.tally(number, column) for column in Tally},
            transactions=transactions,
            rules=rules,
        )
        for number, source in enumerate(indexed)
    ]
    groups = choose_groups(sources, plans, settings=settings, is_forced=is_forced)
    return CleaningPlan(
        tuple(plans), tuple(groups), rules, latest.range_count, latest.buffer_utilisation
    )


def find_latest_records(
    sources: Sequence[PlanInput],
    *,
    rules: RunRules,
    buffer_bytes: int,
    budget: WorkBudget,
    hashes: HashRange = ALL_HASHES,
) -> KeyPlan:
    """Finds the latest record of each key whose hash is in the range.

    The plans of disjoint ranges that cover all hashes add up to the plan of all hashes: combine the
    bitmaps with OR, and sum the counts.
    """
    indexed = [source for source in sources if source.keys is not None]
    return plan_keys(
        [source.keys for source in indexed if source.keys is not None],
        buffer_bytes=buffer_bytes,
        expired=_find_expired(indexed, rules, first_held_offset(sources, rules)),
        budget=budget,
        hashes=hashes,
    )


def first_held_offset(sources: Sequence[PlanInput], rules: RunRules) -> int:
    """The base offset of the first held segment; the end of the run without one."""
    return min(
        (source.segment.base_offset for source in sources if source.keys is None),
        default=rules.first_uncleanable_offset,
    )


def choose_groups(
    sources: Sequence[PlanInput], plans: Sequence[P], *, settings: LogSettings, is_forced: bool
) -> list[tuple[P, ...]]:
    """The groups to rewrite; `sources` are all segments of the run, `plans` those planned."""
    chosen = {plan.base_offset for plan in plans if _is_worth_rewriting(plan, settings, is_forced)}
    return [
        group
        for run in _split_at_held(sources, plans)
        for group in group_segments(run, chosen, settings)
    ]


def _find_expired(sources: Sequence[PlanInput], rules: RunRules, first_held: int) -> Bits:
    """Bits of the records in batches past their delete horizon.

    Nothing after a held segment expires: that segment may hold records that a tombstone deletes.
    Nor does a record that is kept for the remote tier.
    """
    indexed = [source.keys for source in sources if source.keys is not None]
    starts, size = lay_out_bits([keys.record_count for keys in indexed])
    bits = np.zeros(size, np.uint8)
    for keys, start in zip(indexed, starts.tolist(), strict=True):
        horizon = keys.header.earliest_horizon
        if horizon == NO_HORIZON or horizon > rules.now_ms:
            continue
        if keys.base_offset >= min(first_held, rules.keep_markers_from_offset):
            continue
        end = start // 8 + (keys.record_count + 7) // 8
        with keys.open() as index:
            mark_expired(
                index.batches(),
                bits[start // 8 : end],
                base_offset=keys.base_offset,
                rules=rules,
            )
    return bits


def track_transactions(
    sources: Sequence[PlanInput], aborted: Sequence[AbortedTransaction], rules: RunRules
) -> TransactionTracker:
    """A tracker for the transactions of a run."""
    first_held = first_held_offset(sources, rules)
    return TransactionTracker(aborted, rules.keep_markers_from_offset, first_held)


def plan_segment(
    source: PlanInput,
    *,
    keep: Bits,
    tombstones: Bits,
    tally: Mapping[Tally, int],
    transactions: TransactionTracker,
    rules: RunRules,
) -> SegmentPlan:
    """Plans one segment from the bitmap of its latest records.

    Adds the control records that stay to `keep`.
    """
    keys = source.keys
    assert keys is not None
    base_offset = source.segment.base_offset
    with keys.open() as index:
        batches, marks = index.batches(), index.marks()
    verdicts = transactions.judge(base_offset, source.next_offset, batches, marks)
    keep_control_records(batches, marks, verdicts.discardable, keep, now_ms=rules.now_ms)
    decisions = decide_batches(
        batches,
        marks,
        base_offset=base_offset,
        keep=keep,
        tombstones=tombstones,
        discardable=verdicts.discardable,
        rules=rules,
    )
    records, bytes = count_by_reason(keys.header, batches, decisions, tally)
    return SegmentPlan(
        base_offset=base_offset,
        size=source.segment.size,
        next_offset=source.next_offset,
        is_dirty=source.is_dirty,
        summary=summarize_input(source.segment, keys.header),
        segment=source.segment,
        keys=keys,
        keep=keep,
        tombstones=tombstones,
        discardable=verdicts.discardable,
        aborted_kept=verdicts.aborted_kept,
        records=records,
        bytes=bytes,
        deleted=tally[Tally.DELETED],
        digest=(tally[Tally.DIGEST_HIGH], tally[Tally.DIGEST_LOW]),
        planned_bytes=estimate_size(keys.header, batches, decisions, tally),
        stamped_bytes=stamped_markers_size(batches, decisions),
        is_changed=decisions.changes_anything,
        rules=rules,
    )


def _is_worth_rewriting(plan: SegmentFigures, settings: LogSettings, is_forced: bool) -> bool:
    if not plan.is_changed:
        return False
    return (
        plan.is_dirty
        or is_forced
        or plan.deleted > 0
        or plan.gain_share >= settings.min_stale_ratio
    )


def _split_at_held(sources: Sequence[PlanInput], plans: Sequence[P]) -> list[list[P]]:
    """The planned segments, split where a held segment lies between them."""
    by_base = {plan.base_offset: plan for plan in plans}
    runs: list[list[P]] = [[]]
    for source in sources:
        plan = by_base.get(source.segment.base_offset)
        if plan is None:
            runs.append([])
        else:
            runs[-1].append(plan)
    return runs


def sum_by_reason(counts: Sequence[dict[Reason, int]]) -> dict[Reason, int]:
    """The sum over several segments, without the reasons that removed nothing."""
    total: dict[Reason, int] = {}
    for by_reason in counts:
        for reason, count in by_reason.items():
            if count or reason is Reason.KEPT:
                total[reason] = total.get(reason, 0) + count
    return total
