"""Evicts local segments that object storage holds, by `local.retention.ms` and `.bytes`.

Invariant  only whole segments from the oldest on that end before the copied offset of the newest
           manifest, and whose copies were compared (`copy_proof`); the log start offset stays, so
           every record is still read. An active segment that is due is rolled, so that it is copied
           by the next round and then evicted or expired.
Crash      an eviction is recorded before the first file is dropped.
Threads    one per log at a time.
"""

from dataclasses import replace
from itertools import accumulate, takewhile
from typing import Final

from varve.cleaning.retention.retention import LogRetention, RetentionPlan
from varve.tiering.copy.history_check import check_copied
from varve.tiering.partition import TieredPartition, get_copied_offset

STEP_BYTES: Final = 1 << 30
"""What is read, compared and evicted between two looks at whether to stop."""


def evict_copied_segments(
    tiered: TieredPartition, retention: LogRetention, now_ms: int
) -> RetentionPlan:
    """Evicts what is due, at most one step of it; returns what was evicted.

    Raises StoreError when object storage does not answer or does not hold a segment, OSError when
    the removal cannot be recorded; nothing is evicted then.
    """
    planned = retention.plan_eviction(get_copied_offset(tiered), now_ms)
    if planned.segments:
        # The log may have been truncated, or the tier changed by another writer, since then.
        manifest = tiered.load()
        planned = _first_step(retention.plan_eviction(get_copied_offset(tiered), now_ms))
    if planned.end_offset is None:
        if planned.rolls_active:
            retention.roll()
        return planned
    check_copied(tiered, manifest, planned.end_offset)
    return replace(planned, segments=tuple(retention.evict(planned.segments, now_ms)))


def _first_step(planned: RetentionPlan) -> RetentionPlan:
    """The first segments, up to the one that reaches the limit of one step."""
    sizes = accumulate(one.size for one in planned.segments)
    count = sum(1 for _ in takewhile(lambda size: size < STEP_BYTES, sizes)) + 1
    return replace(planned, segments=planned.segments[:count])
