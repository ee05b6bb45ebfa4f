"""Lets go of local segments that the cold tier holds, by `local.retention.ms` and `.bytes`.

Invariant  only whole segments from the oldest on that end before the copied offset, which the
           newest manifest told, and that were found in the cold tier (`copy_proof`); the log start
           offset stays, so every record is still read.
Crash      what leaves is on record as moved before the first file goes.
Threads    one per log at a time.
"""

import logging
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Final

from varve.cleaning.log_facts import LogFacts, observe, read_consistently
from varve.cleaning.moved import evict_local_segments
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.retention_rules import ExpiredSegment, Expiry, review
from varve.commit_log import Log, LogSettings
from varve.tiering.copy_proof import check_copied
from varve.tiering.tiered_partition import TieredPartition, get_copied_offset

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 30
"""What is read, compared and let go between two looks at whether to stop."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What left the local disk: the cold tier has it."""

    segments: tuple[ExpiredSegment, ...]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


def find_movable(
    log: Log, copied_offset: int, now_ms: int, settings: LogSettings | None = None
) -> Expiry | None:
    """What the local limits let go now of that which is copied."""
    return read_consistently(
        log, lambda: _review(log, copied_offset, now_ms, settings or log.settings)
    )


def _review(log: Log, copied_offset: int, now_ms: int, settings: LogSettings) -> Expiry | None:
    found = review(observe_local_limits(log, copied_offset, settings), now_ms).expiry
    if found is None:
        return None
    return replace(found, segments=tuple(map(_name_rule, found.segments)))


def observe_local_limits(log: Log, copied_offset: int, settings: LogSettings) -> LogFacts:
    """The local part of a log under its local limits, as if it were a log of its own.

    What is not copied stands as if it lay above the high watermark.
    """
    local = replace(
        settings,
        cleanup_policy=("delete",),
        retention_ms=settings.local_limit_ms,
        retention_bytes=settings.local_limit_bytes,
        local_retention_ms=-2,
        local_retention_bytes=-2,
        remote_storage_enable=False,
    )
    facts = observe(log, local)
    return replace(
        facts,
        high_watermark=min(facts.high_watermark, copied_offset),
        # What lies before the log start goes for good, by the retention of all logs.
        log_start_offset=facts.segments[0].base_offset,
    )


def name_local_rule(rule: str) -> str:
    """A rule of those facts under its own name."""
    return f" {rule}".replace(" retention.", " local.retention.")[1:]


def _name_rule(segment: ExpiredSegment) -> ExpiredSegment:
    return replace(segment, rule=name_local_rule(segment.rule))


def _cut(found: Expiry) -> Expiry:
    """The first segments, up to the one that reaches the limit of one step."""
    sizes = accumulate(one.size for one in found.segments)
    count = sum(1 for _ in takewhile(lambda size: size < STEP_BYTES, sizes)) + 1
    segments = found.segments[:count]
    return replace(found, segments=segments, before_offset=segments[-1].next_offset)


def apply_local_retention(tiered: TieredPartition, now_ms: int, evidence: RemovalLog) -> Moved:
    """Drops what the local limits let go, but only so much that it takes seconds; gives what left.

    Raises StoreError when the cold tier cannot be asked or does not hold it, OSError when the
    evidence cannot be written; nothing went then.
    """
    log = tiered.log
    if find_movable(log, get_copied_offset(tiered), now_ms) is None:
        return Moved(())
    # The log may have been cut, or the tier changed by another, since its manifest was looked at.
    manifest = tiered.load()
    found = find_movable(log, get_copied_offset(tiered), now_ms)
    if found is None:
        return Moved(())
    found = _cut(found)
    check_copied(tiered, manifest, found.before_offset)
    gone = {
        one.base_offset for one in evict_local_segments(log, found.before_offset, now_ms, evidence)
    }
    moved = Moved(tuple(one for one in found.segments if one.base_offset in gone))
    logger.info(
        "segments left the local disk",
        extra={
            "partition": str(log.topic_partition),
            "segments": len(moved.segments),
            "bytes": moved.size,
            "local_start_offset": log.local_start_offset,
        },
    )
    return moved
