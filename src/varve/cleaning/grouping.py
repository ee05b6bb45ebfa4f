"""Which segments of a run are written as one.

Invariant  a group fits into one segment, as far as can be foreseen. Each byte is copied for the
           sake of its neighbours a number of times that grows with the logarithm of their count.
           Where segments leave the local disk one by one for the cold tier each stays alone: joined
           with a younger one it would stay as long as that.
"""

from collections.abc import Sequence
from typing import Final

from varve.cleaning.segment_plan import SegmentPlan
from varve.commit_log import LogSettings
from varve.commit_log.offset_index import RELATIVE_OFFSET_MAX
from varve.commit_log.settings import INT_MAX

Group = tuple[SegmentPlan, ...]

SMALL_SEGMENTS_MIN: Final = 8
"""From so many on, segments that need no rewrite are joined for their number alone."""
_INDEX_ENTRY_BYTES: Final = 12
"""Of the time index, the larger of the two."""


def group_segments(
    plans: Sequence[SegmentPlan], chosen: set[int], settings: LogSettings
) -> list[Group]:
    """The groups among segments that follow each other, oldest first.

    A segment that is not chosen joins one that is only if it is no larger than what it joins: so
    a small one is copied seldom, and a large one never for the sake of its neighbours.
    """
    groups: list[list[SegmentPlan]] = []
    for plan in plans:
        if not groups or not _joins(groups[-1], plan, chosen, settings):
            groups.append([])
        groups[-1].append(plan)
    found: list[Group] = []
    idle: list[SegmentPlan] = []
    for group in groups:
        if not _is_chosen(group, chosen):
            idle += group
            continue
        found += _join_small(idle, settings)
        idle = []
        found.append(tuple(group))
    return found + _join_small(idle, settings)


def _is_chosen(group: Sequence[SegmentPlan], chosen: set[int]) -> bool:
    return any(plan.segment.base_offset in chosen for plan in group)


def _joins(
    group: Sequence[SegmentPlan], plan: SegmentPlan, chosen: set[int], settings: LogSettings
) -> bool:
    size = _planned_bytes(group)
    is_chosen = plan.segment.base_offset in chosen
    if not _is_chosen(group, chosen) and not (is_chosen and size <= plan.planned_bytes):
        return False
    if not is_chosen and plan.planned_bytes > size:
        return False
    return _fits(group, plan, settings)


def _fits(group: Sequence[SegmentPlan], plan: SegmentPlan, settings: LogSettings) -> bool:
    size = _planned_bytes(group) + plan.planned_bytes
    if size > settings.segment_bytes or settings.has_local_limit:
        return False
    # Positions have 31 bits, and what is planned is an estimate.
    if sum(one.segment.size for one in (*group, plan)) > INT_MAX:
        return False
    if plan.next_offset - 1 - group[0].segment.base_offset > RELATIVE_OFFSET_MAX:
        return False
    entries = size // max(settings.index_interval_bytes, 1) + 1
    return entries * _INDEX_ENTRY_BYTES <= settings.segment_index_bytes


def _join_small(plans: Sequence[SegmentPlan], settings: LogSettings) -> list[Group]:
    """Groups among segments of which none is chosen, where many would fit into one."""
    groups: list[Group] = []
    run: list[SegmentPlan] = []
    for plan in plans:
        if run and not _fits(run, plan, settings):
            groups += _without_large(run)
            run = []
        run.append(plan)
    return groups + _without_large(run)


def _without_large(run: Sequence[SegmentPlan]) -> list[Group]:
    """The run, or what of it lies around a segment that is larger than all the others."""
    if len(run) < SMALL_SEGMENTS_MIN:
        return []
    sizes = [plan.planned_bytes for plan in run]
    largest = max(range(len(run)), key=sizes.__getitem__)
    if 2 * sizes[largest] <= sum(sizes):
        return [tuple(run)]
    return [*_without_large(run[:largest]), *_without_large(run[largest + 1 :])]


def _planned_bytes(group: Sequence[SegmentPlan]) -> int:
    return sum(plan.planned_bytes for plan in group)
