"""What a cleaning run over one partition will do: which segments are rewritten, and in what groups.

Invariant  a segment cleaned for the first time is cleaned completely. One that was cleaned before
           is rewritten when enough of it is stale, or when one of its records was deleted by a
           tombstone: a tombstone goes only when nothing it deletes is left before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from varve.cleaning.balance import Reason
from varve.cleaning.grouping import group_segments
from varve.cleaning.input_segment import InputSegment
from varve.cleaning.key_index import NO_HORIZON, Table
from varve.cleaning.key_plan import ALL_HASHES, HashRange, KeyPlan, lay_out_bits, plan_keys
from varve.cleaning.segment_keys import SegmentKeys
from varve.cleaning.segment_plan import (
    RunRules,
    SegmentPlan,
    count_by_reason,
    decide_batches,
    estimate_size,
    keep_control_records,
    mark_expired,
    stamped_markers_size,
)
from varve.cleaning.transactions import MarkVerdicts, TransactionTracker
from varve.commit_log import LogSettings
from varve.commit_log.txn_index import AbortedTransaction
from varve.kernels.key_merge import Tally


@dataclass(frozen=True, slots=True)
class Source:
    """A segment of the run; without a key index it is held: left alone, and so is what follows
    from it.
    """

    segment: InputSegment
    next_offset: int
    is_dirty: bool
    keys: SegmentKeys | None


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The segments of a run as planned, and the groups among them that are to be rewritten."""

    segments: tuple[SegmentPlan, ...]
    groups: tuple[tuple[SegmentPlan, ...], ...]
    rules: RunRules
    range_count: int
    buffer_utilisation: float

    @property
    def stale_bytes(self) -> int:
        return sum(plan.stale_bytes for plan in self.segments)

    @property
    def left_stale_bytes(self) -> int:
        """What is stale, but in segments not worth rewriting yet."""
        rewritten = {plan.segment.base_offset for group in self.groups for plan in group}
        return sum(
            plan.stale_bytes for plan in self.segments if plan.segment.base_offset not in rewritten
        )

    @property
    def copied_bytes(self) -> int:
        """About how much carrying it out reads."""
        return sum(plan.planned_bytes for group in self.groups for plan in group)


def make_plan(
    sources: Sequence[Source],
    *,
    aborted: Sequence[AbortedTransaction],
    rules: RunRules,
    settings: LogSettings,
    is_forced: bool,
    buffer_bytes: int,
    pace: Callable[[int], None],
) -> CleaningPlan:
    """Plans over the segments of a run, oldest first.

    `is_forced` rewrites whatever is stale, be it ever so little.
    """
    latest = find_latest(sources, rules=rules, buffer_bytes=buffer_bytes, pace=pace)
    return complete_plan(
        sources, latest, aborted=aborted, rules=rules, settings=settings, is_forced=is_forced
    )


def find_latest(
    sources: Sequence[Source],
    *,
    rules: RunRules,
    buffer_bytes: int,
    pace: Callable[[int], None],
    hashes: HashRange = ALL_HASHES,
) -> KeyPlan:
    """Which records are the latest of their keys, of those whose hashes lie in a range.

    The outcomes of ranges that make up all hashes may be merged (`key_plan.merge_plans`).
    """
    known = [source for source in sources if source.keys is not None]
    return plan_keys(
        [source.keys for source in known if source.keys is not None],
        buffer_bytes=buffer_bytes,
        expired=_find_expired(known, rules, first_held_offset(sources, rules)),
        pace=pace,
        hashes=hashes,
    )


def first_held_offset(sources: Sequence[Source], rules: RunRules) -> int:
    """Where the first held segment begins; the end of the run when none is."""
    return min(
        (source.segment.base_offset for source in sources if source.keys is None),
        default=rules.first_uncleanable,
    )


def complete_plan(
    sources: Sequence[Source],
    latest: KeyPlan,
    *,
    aborted: Sequence[AbortedTransaction],
    rules: RunRules,
    settings: LogSettings,
    is_forced: bool,
) -> CleaningPlan:
    """The plan, once the latest records of all keys are known."""
    known = [source for source in sources if source.keys is not None]
    first_held = first_held_offset(sources, rules)
    transactions = _Transactions(aborted, first_held, rules.kept_from)
    plans = [
        _plan_segment(source, latest, number, transactions, rules)
        for number, source in enumerate(known)
    ]
    chosen = {plan.segment.base_offset for plan in plans if _is_worth(plan, settings, is_forced)}
    groups = [
        group for run in _runs(sources, plans) for group in group_segments(run, chosen, settings)
    ]
    return CleaningPlan(
        tuple(plans), tuple(groups), rules, latest.range_count, latest.buffer_utilisation
    )


def _find_expired(
    sources: Sequence[Source], rules: RunRules, first_held: int
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bits of the records in batches past their horizon.

    Behind a held segment none expires: what it deletes may still stand there. Nor does one that is
    kept for the cold tier.
    """
    known = [source.keys for source in sources if source.keys is not None]
    starts, size = lay_out_bits([keys.record_count for keys in known])
    bits = np.zeros(size, np.uint8)
    for keys, start in zip(known, starts.tolist(), strict=True):
        horizon = keys.header.earliest_horizon
        if horizon == NO_HORIZON or horizon > rules.now_ms:
            continue
        if keys.base_offset >= min(first_held, rules.kept_from):
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


class _Transactions:
    """Judges the marks of a run's segments, oldest first.

    Behind a held segment everything stays: a transaction may have its records in there.
    """

    def __init__(
        self, aborted: Sequence[AbortedTransaction], first_held: int, kept_from: int
    ) -> None:
        self._aborted = aborted
        self._first_held = first_held
        self._tracker = TransactionTracker(aborted, kept_from)

    def judge(self, source: Source, batches: Table, marks: Table) -> MarkVerdicts:
        base_offset = source.segment.base_offset
        if base_offset < self._first_held:
            return self._tracker.walk(base_offset, batches, marks)
        decided_here = [
            one for one in self._aborted if base_offset <= one.last_offset < source.next_offset
        ]
        return MarkVerdicts(np.zeros(len(marks), np.bool_), decided_here)


def _plan_segment(
    source: Source, latest: KeyPlan, number: int, transactions: _Transactions, rules: RunRules
) -> SegmentPlan:
    keys = source.keys
    assert keys is not None
    base_offset = source.segment.base_offset
    with keys.open() as index:
        batches, marks = index.batches(), index.marks()
    verdicts = transactions.judge(source, batches, marks)
    keep = latest.bits_of(number, latest.keep)
    tombstones = latest.bits_of(number, latest.tombstones)
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
    tally = {column: latest.tally(number, column) for column in Tally}
    records, bytes = count_by_reason(keys.header, batches, decisions, tally)
    return SegmentPlan(
        segment=source.segment,
        next_offset=source.next_offset,
        keys=keys,
        is_dirty=source.is_dirty,
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


def _is_worth(plan: SegmentPlan, settings: LogSettings, is_forced: bool) -> bool:
    if not plan.is_changed:
        return False
    return (
        plan.is_dirty
        or is_forced
        or plan.deleted > 0
        or plan.gain_share >= settings.min_stale_ratio
    )


def _runs(sources: Sequence[Source], plans: Sequence[SegmentPlan]) -> list[list[SegmentPlan]]:
    """The planned segments that follow each other; a held one parts them."""
    by_base = {plan.segment.base_offset: plan for plan in plans}
    runs: list[list[SegmentPlan]] = [[]]
    for source in sources:
        plan = by_base.get(source.segment.base_offset)
        if plan is None:
            runs.append([])
        else:
            runs[-1].append(plan)
    return runs


def sum_by_reason(counts: Sequence[dict[Reason, int]]) -> dict[Reason, int]:
    """Counts of several segments as one, without the reasons that took nothing."""
    total: dict[Reason, int] = {}
    for one in counts:
        for reason, count in one.items():
            if count or reason is Reason.KEPT:
                total[reason] = total.get(reason, 0) + count
    return total
