"""Evicts local segments whatever the limits say."""

from varve.cleaning.removals.removal import Reason
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.retention.retention import ExpiredSegment, LogRetention
from varve.cleaning.retention.rules import Due
from varve.cleaning.retention.segments import list_segments
from varve.commit_log import Log


def evict_local_segments(
    log: Log, before_offset: int, now_ms: int, removals: RemovalLog
) -> list[ExpiredSegment]:
    """Drops the closed local segments that begin before an offset; returns those."""
    segments = [
        Due(one, now_ms, Reason.EVICTED, "a test")
        for one in list_segments(log).segments[:-1]
        if one.base_offset < before_offset
    ]
    return LogRetention(log, removals).evict(segments, now_ms)
