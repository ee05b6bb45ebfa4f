"""Segments that leave the local disk because object storage holds them: on record first, then gone.

Invariant  no record is removed: an entry of the kind `moved` explains why segments are no longer
           here, so that an audit can tell them from lost ones.
Crash      before the entry is durable nothing went; after it the entry tells of segments that may
           still be there, which the next move takes with an entry of their own.
Threads    any; the evidence file lets one removal happen at a time.
"""

import logging
from collections.abc import Sequence

from varve.cleaning.removals.removal import Reason, Removal, RemovalKind, count_segment
from varve.cleaning.removals.removal_log import RemovalLog
from varve.commit_log import Log
from varve.commit_log.log_state import NO_ROOM
from varve.commit_log.segment import Segment
from varve.foundation.errors import InvalidRequest

logger = logging.getLogger(__name__)


def eviction_record(log: Log, now_ms: int, segments: Sequence[Segment], id: int) -> Removal:
    """The balance of closed segments that are about to leave the local disk, oldest first.

    `id` comes from `EvidenceFile.next_id`. Reads the segments, to count their records.
    """
    counted = [count_segment(segment) for segment in segments]
    settings, figures = log.settings, tuple(one.figure for one in counted)
    limits = (
        f"object storage holds them; local.retention.ms={settings.local_limit_ms}, "
        f"local.retention.bytes={settings.local_limit_bytes}"
    )
    return Removal(
        id=id,
        partition=log.topic_partition,
        kind=RemovalKind.EVICTION,
        at_ms=now_ms,
        inputs=figures,
        outputs=(),
        records={Reason.EVICTED: sum(figure.records for figure in figures)},
        bytes={Reason.EVICTED: sum(figure.size for figure in figures)},
        rule="; ".join([limits, *(one.damage for one in counted if one.damage)]),
        end_offset=figures[-1].next_offset if figures else log.local_start_offset,
    )


def evict_local_segments(
    log: Log, before_offset: int, now_ms: int, evidence: RemovalLog
) -> list[Segment]:
    """Drops the local segments before an offset, where one begins; gives those that went.

    The caller knows that object storage holds them. Raises OSError, and nothing went, when the
    evidence cannot be written; but on a full disk, which only this frees, it is written after them.
    """
    with evidence.removal:
        segments = [one for one in log.view.closed if one.base_offset < before_offset]
        if not segments:
            return []
        balance = eviction_record(log, now_ms, segments, evidence.next_id())
        is_recorded = _record(evidence, balance)
        try:
            dropped = log.drop_local_segments_before(before_offset, now_ms=now_ms)
        except InvalidRequest:
            # No segment begins there any more: the log was truncated.
            return []
        is_recorded = is_recorded or _record(evidence, balance)
        if dropped == segments and is_recorded:
            evidence.mark_done(balance.id)
    if dropped:
        logger.info(
            "segments left the local disk",
            extra={
                "partition": str(log.topic_partition),
                "segments": len(dropped),
                "bytes": sum(segment.size for segment in dropped),
                "local_start_offset": log.local_start_offset,
            },
        )
    return dropped


def _record(evidence: RemovalLog, balance: Removal) -> bool:
    """Whether there was room for it."""
    try:
        evidence.append(balance)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning(
            "no room to record what leaves the local disk",
            extra={"partition": str(balance.partition), "before_offset": balance.end_offset},
        )
        return False
    return True
