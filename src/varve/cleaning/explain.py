"""Explains which rules keep a segment, record or key, and when it can be removed.

Invariant  read-only. An explanation holds for the moment of the call: later appends and decisions
           may keep a record longer, or remove it earlier where a blocker has no time.
Threads    any; no lock. Each explanation is based on one snapshot of the facts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from varve.cleaning.compaction.cleanable_log import KEPT_FOR_REMOTE, judge_cleanable
from varve.cleaning.explanation import (
    COMPACTION,
    LOCAL_RETENTION,
    RETENTION,
    Blocker,
    RecordExplanation,
    RecordState,
    RemovalPath,
    SegmentBlockers,
    SegmentExplanation,
    read_batch,
)
from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.remote_tier import RemoteBounds
from varve.cleaning.retention.forecast import (
    covering_row,
    forecast_evictions,
    forecast_log,
    forecast_remote,
)
from varve.cleaning.retention.rules import BlockingRule, Due, RetentionLimits
from varve.cleaning.retention.segments import (
    RemoteSegmentInfo,
    RemoteSegments,
    SegmentInfo,
    SegmentList,
    SegmentLocation,
    list_segments,
    read_consistently,
)
from varve.commit_log import Log
from varve.foundation.errors import OffsetOutOfRange, Unavailable
from varve.records import BatchHeader, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainContext:
    """Facts about a partition that its log does not have: from the cleaner and the remote tier.

    `stale_bytes` has the stale bytes of segments, by base offset, where they are known.
    `find_latest` looks up the newest record of a key among the segments that begin before an
    offset; without it the newest record of a key is unknown. `remote_bounds` are None for a log
    that is not tiered.
    """

    first_dirty_offset: int | None = None
    remote: RemoteSegments | None = None
    is_remote_unavailable: bool = False
    holds: Sequence[HeldSegment] = ()
    stale_bytes: Mapping[int, int] = field(default_factory=dict)
    find_latest: Callable[[bytes, int], Record | None] | None = None
    remote_bounds: RemoteBounds | None = None


EMPTY_CONTEXT = ExplainContext()


def explain_log(
    log: Log, now_ms: int, context: ExplainContext = EMPTY_CONTEXT
) -> list[SegmentExplanation]:
    """Why each segment of a log is still here, of both tiers, oldest first."""
    return read_consistently(log, lambda: _Explainer(log, now_ms, context).all_segments())


def explain_offset(
    log: Log, offset: int, now_ms: int, context: ExplainContext = EMPTY_CONTEXT
) -> RecordExplanation:
    """Why the record with an offset is still here; raises OffsetOutOfRange beyond the log end."""
    if not 0 <= offset < log.end_offset:
        start, end = log.log_start_offset, log.end_offset
        remedy = f"the log holds {start} to {end - 1}; use one of these"
        if start == end:
            remedy = f"the log is empty, and the next record gets {end}"
        raise OffsetOutOfRange(f"{log.topic_partition}: no record has offset {offset}: {remedy}")
    return read_consistently(log, lambda: _Explainer(log, now_ms, context).record(offset))


def explain_key(
    log: Log, key: bytes, now_ms: int, context: ExplainContext
) -> RecordExplanation | None:
    """Why the newest record of a key is still here; None when the log has none of that key."""
    if context.find_latest is None:
        return None
    latest = context.find_latest(key, log.end_offset)
    return None if latest is None else explain_offset(log, latest.offset, now_ms, context)


class _RetainedSegment(NamedTuple):
    """A segment of either tier, how it expires, and how it is evicted from the local disk."""

    info: SegmentInfo
    retention: RemovalPath
    local: RemovalPath | None = None

    def holds(self, offset: int) -> bool:
        info = self.info
        return info.base_offset <= offset < info.next_offset and info.location.is_readable


def _retained_segments(
    log: SegmentList, context: ExplainContext, now_ms: int
) -> list[_RetainedSegment]:
    """The segments of both tiers, oldest first, each with its forecast."""
    if context.is_remote_unavailable:
        text = "object storage does not respond; `varve tier status` shows why"
        blocks = (Blocker(BlockingRule.REMOTE_TIER, text),)
        paths = (RemovalPath(by, None, blocks) for by in (RETENTION, LOCAL_RETENTION))
        retention, local = paths
        return [_RetainedSegment(info, retention, local) for info in log.segments]
    expiries = {row.segment.base_offset: row for row in forecast_log(log, now_ms)}
    if context.remote is None:
        return [
            _RetainedSegment(info, _path(RETENTION, expiries[info.base_offset]))
            for info in log.segments
        ]
    rows = forecast_remote(log, context.remote, now_ms)
    retained = [
        _RetainedSegment(row.segment, _remote_retention(row))
        for row in rows
        if row.segment.is_remote and row.segment.location is not SegmentLocation.BOTH
    ]
    if log.settings.copies_to_tier:
        for eviction in forecast_evictions(log, context.remote.end_offset, now_ms):
            cover = covering_row(rows, eviction.segment)
            expiry = cover or expiries[eviction.segment.base_offset]
            retained.append(_retained_local(eviction, expiry, context.remote.end_offset))
    else:
        retained += [
            _RetainedSegment(row.segment, _path(RETENTION, row)) for row in expiries.values()
        ]
    return sorted(retained, key=lambda each: (each.info.base_offset, each.info.next_offset))


def _retained_local(
    eviction: Due[SegmentInfo], expiry: Due[SegmentInfo], copied_offset: int
) -> _RetainedSegment:
    """A local segment of a log that is copied."""
    local, retention = _path(LOCAL_RETENTION, eviction), _path(RETENTION, expiry)
    if eviction.blocked_by is BlockingRule.COPY:
        # A segment that is not copied cannot expire either.
        retention = RemovalPath(RETENTION, None, local.blocks)
    info = eviction.segment
    if info.next_offset <= copied_offset:
        info = replace(info, location=SegmentLocation.BOTH)
    return _RetainedSegment(info, retention, local)


def _path(by: str, row: Due[SegmentInfo]) -> RemovalPath:
    if row.blocked_by is None:
        return RemovalPath(by, row.when_ms, ())
    return RemovalPath(by, row.when_ms, (Blocker(row.blocked_by, row.rule, row.when_ms),))


def _remote_retention(row: Due[SegmentInfo]) -> RemovalPath:
    if row.segment.location is SegmentLocation.LEAVING:
        blocker = Blocker(BlockingRule.GRACE, row.rule, row.deleted_ms)
        return RemovalPath(RETENTION, row.deleted_ms, (blocker,))
    if row.segment.location is SegmentLocation.COPYING:
        return RemovalPath(RETENTION, None, (Blocker(BlockingRule.COPY, row.rule),))
    return _path(RETENTION, row)


class _StoredRecord(NamedTuple):
    """A record and the header of its batch; the record of a control batch has no key."""

    header: BatchHeader
    record: Record

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def is_tombstone(self) -> bool:
        return not self.header.is_control and self.record.value is None


class _Explainer:
    """Explains the segments and records of a log from one snapshot of the facts."""

    def __init__(self, log: Log, now_ms: int, context: ExplainContext) -> None:
        self._log = log
        self._now_ms = now_ms
        self._context = context
        self._segments = list_segments(log)
        self._is_compacted = self._segments.settings.is_compacted
        self._cleanable = judge_cleanable(
            self._segments, context.first_dirty_offset, now_ms, context.remote_bounds
        )
        self._retained = _retained_segments(self._segments, context, now_ms)
        self._blockers = SegmentBlockers(
            log=log,
            segments=self._segments,
            cleanable=self._cleanable,
            now_ms=now_ms,
            holds=context.holds,
            stale_bytes=context.stale_bytes,
        )

    def all_segments(self) -> list[SegmentExplanation]:
        """The segments of both tiers, oldest first."""
        return [self._explain(retained) for retained in self._retained]

    def _explain(self, retained: _RetainedSegment) -> SegmentExplanation:
        segment = retained.info
        times = segment.times()
        dirty_ratio = self._cleanable.ratio if self._is_compacted else None
        stale_bytes = self._context.stale_bytes.get(segment.base_offset)
        if isinstance(segment, RemoteSegmentInfo):
            dirty_ratio, stale_bytes = None, segment.stale_bytes
        return SegmentExplanation(
            partition=self._segments.partition,
            now_ms=self._now_ms,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            size=segment.size,
            is_active=segment.is_active,
            max_timestamp=times.max_timestamp,
            first_append_ms=times.first_append_ms,
            last_append_ms=times.last_append_ms,
            age_from=RetentionLimits.total(self._segments.settings).timestamp(times),
            retention=retained.retention,
            compaction=self._compaction(segment),
            dirty_ratio=dirty_ratio,
            stale_bytes=stale_bytes,
            location=segment.location,
            local=retained.local,
        )

    def _compaction(self, segment: SegmentInfo) -> RemovalPath | None:
        if not self._is_compacted or not segment.location.is_readable:
            return None
        if not segment.is_remote:
            return RemovalPath.behind(COMPACTION, self._blockers.find(segment), self._now_ms)
        assert self._context.remote is not None
        text = (
            "the cleaner works on the local disk alone; the remote log is compacted up to offset "
            f"{self._context.remote.clean_offset}"
        )
        return RemovalPath(COMPACTION, None, (Blocker(BlockingRule.REMOTE_TIER, text),))

    def record(self, offset: int) -> RecordExplanation:
        segment = next(
            (self._explain(retained) for retained in self._retained if retained.holds(offset)), None
        )
        is_local = offset >= self._segments.segments[0].base_offset
        if offset < self._segments.log_start_offset:
            return self._new_explanation(offset, RecordState.BELOW_LOG_START, segment)
        try:
            stored = _read_record(self._log, offset)
        except Unavailable:
            if is_local:
                raise
            return self._new_explanation(offset, RecordState.REMOTE, segment)
        if stored is None:
            return self._new_explanation(offset, RecordState.REMOVED, segment)
        if not is_local:
            end_offset = self._segments.end_offset
            latest = self._find_later(stored, end_offset) if self._is_compacted else None
            return self._new_explanation(offset, RecordState.REMOTE, segment, stored, latest)
        state, latest, compaction = RecordState.PLAIN, None, None
        if self._is_compacted:
            state, latest, blocks = self._judge(stored)
            compaction = RemovalPath.behind(COMPACTION, blocks, self._now_ms)
        return replace(
            self._new_explanation(offset, state, segment, stored, latest),
            delete_horizon_ms=stored.header.delete_horizon_ms,
            compaction=compaction,
        )

    def _new_explanation(
        self,
        offset: int,
        state: RecordState,
        segment: SegmentExplanation | None,
        stored: _StoredRecord | None = None,
        latest: Record | None = None,
    ) -> RecordExplanation:
        explanation = RecordExplanation(
            partition=self._segments.partition,
            now_ms=self._now_ms,
            offset=offset,
            state=state,
            segment=segment,
        )
        if stored is None:
            return explanation
        header = stored.header
        return replace(
            explanation,
            key=stored.record.key,
            timestamp=stored.record.timestamp,
            is_tombstone=stored.is_tombstone,
            producer_id=header.producer_id if header.has_producer_id else None,
            superseded_by=latest.offset if latest else None,
        )

    def _judge(self, stored: _StoredRecord) -> tuple[RecordState, Record | None, list[Blocker]]:
        """The state of a local record, the later record that replaces it, and what keeps it."""
        header = stored.header
        own = self._blockers.find(self._segments.find_segment(stored.offset))
        if header.is_control:
            return (
                RecordState.CONTROL,
                None,
                [*own, self._marker_blocker(header), *self._remote_blockers(header)],
            )
        if header.is_transactional and stored.offset >= self._segments.last_stable_offset:
            return RecordState.UNDECIDED, None, own
        if header.is_transactional and self._is_aborted(stored):
            return RecordState.ABORTED, None, own
        if stored.record.key is None:
            return RecordState.NO_KEY, None, own
        if self._context.find_latest is None:
            text = "whether a later record has its key was not looked up"
            return RecordState.UNKNOWN, None, [*own, Blocker(BlockingRule.UNKNOWN, text)]
        # A later record that cleaning can see decides before one that it cannot see yet.
        bounds = self._cleanable.first_uncleanable_offset, self._segments.end_offset
        latest = self._find_later(stored, *bounds)
        if latest is not None:
            return RecordState.SUPERSEDED, latest, self._superseded_blockers(own, latest)
        if stored.is_tombstone:
            blocks = [*own, self._horizon_blocker(header, own), *self._remote_blockers(header)]
            return RecordState.TOMBSTONE, None, blocks
        newest = Blocker(BlockingRule.NEWEST_VALUE, "no later record has its key")
        return RecordState.NEWEST, None, [newest]

    def _is_aborted(self, stored: _StoredRecord) -> bool:
        return any(
            transaction.producer_id == stored.header.producer_id
            and transaction.first_offset <= stored.offset <= transaction.last_offset
            for transaction in self._log.aborted_transactions()
        )

    def _find_later(self, stored: _StoredRecord, *bounds: int) -> Record | None:
        """A later record of the same key, from the segments before the first bound that has one."""
        key, find_latest = stored.record.key, self._context.find_latest
        if key is None or find_latest is None:
            return None
        for below in bounds:
            latest = find_latest(key, below)
            if latest is not None and latest.offset > stored.offset:
                return latest
        return None

    def _superseded_blockers(self, own: list[Blocker], latest: Record) -> list[Blocker]:
        """The blockers of a superseded record: its own, and those of the record that replaces it.

        A tombstone is applied whatever the stale share of the segment.
        """
        blocks = [
            blocker
            for blocker in own
            if not (latest.value is None and blocker.rule is BlockingRule.STALE_SHARE)
        ]
        later = self._segments.find_segment(latest.offset)
        if later.base_offset < self._cleanable.first_uncleanable_offset:
            return blocks
        own_rules = {block.rule for block in blocks}
        return blocks + [
            Blocker(
                blocker.rule,
                f"offset {latest.offset} replaces it, but: {blocker.text}",
                blocker.until_ms,
            )
            for blocker in self._blockers.find(later)
            if blocker.rule not in own_rules
        ]

    def _marker_blocker(self, header: BatchHeader) -> Blocker:
        return Blocker(
            BlockingRule.MARKER,
            "a marker stays until all records of its transaction are gone, and then for "
            f"delete.retention.ms={self._segments.settings.delete_retention_ms}",
            header.delete_horizon_ms,
        )

    def _remote_blockers(self, header: BatchHeader) -> list[Blocker]:
        remote_bounds = self._context.remote_bounds
        if remote_bounds is None or header.last_offset < remote_bounds.cleaned_up_to:
            return []
        text = f"{KEPT_FOR_REMOTE}, which is clean up to offset {remote_bounds.cleaned_up_to}"
        return [Blocker(BlockingRule.REMOTE_TIER, text)]

    def _horizon_blocker(self, header: BatchHeader, own: list[Blocker]) -> Blocker:
        wait_ms = self._segments.settings.delete_retention_ms
        if header.delete_horizon_ms is not None:
            return Blocker(
                BlockingRule.DELETE_HORIZON,
                f"a tombstone stays for delete.retention.ms={wait_ms} after its first cleaning",
                header.delete_horizon_ms,
            )
        cleaned_ms = RemovalPath.behind(COMPACTION, own, self._now_ms).earliest_ms
        return Blocker(
            BlockingRule.DELETE_HORIZON,
            f"a tombstone stays for delete.retention.ms={wait_ms} after its first cleaning, which "
            "has not happened yet",
            None if cleaned_ms is None else cleaned_ms + wait_ms,
        )


def _read_record(log: Log, offset: int) -> _StoredRecord | None:
    batch = read_batch(log, offset)
    for record in batch.records() if batch is not None else ():
        if record.offset == offset:
            assert batch is not None
            key = None if batch.header.is_control else record.key
            return _StoredRecord(batch.header, replace(record, key=key))
    return None
