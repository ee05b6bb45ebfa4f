"""Why is this segment, record or key still here, which rule keeps it, and when can it go?

Invariant  nothing is changed. An answer is true for the moment it was asked: what is appended or
           decided later may keep a record longer, or let it go earlier where a block has no time.
Threads    any; no lock. Each answer is made on facts taken once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from varve.cleaning.compaction.cleanable_log import KEPT_FOR_REMOTE, judge_cleanable
from varve.cleaning.explain.both_tiers import explain_both_tiers, removal_path, without_remote
from varve.cleaning.explain.explanation import (
    COMPACTION,
    RETENTION,
    Blocker,
    RecordExplanation,
    RecordState,
    RemovalPath,
    SegmentExplanation,
)
from varve.cleaning.explain.segment_blockers import SegmentBlockers
from varve.cleaning.key_index.segment_indexes import UncleanableSegment
from varve.cleaning.remote_tier import RemoteBounds
from varve.cleaning.retention.forecast import forecast_log
from varve.cleaning.retention.rules import BlockingRule, RetentionLimits
from varve.cleaning.retention.segments import (
    RemoteSegments,
    SegmentInfo,
    list_segments,
    read_consistently,
)
from varve.commit_log import Isolation, Log
from varve.foundation.errors import OffsetOutOfRange, Unavailable
from varve.records import Batch, BatchHeader


class LatestRecord(NamedTuple):
    """The newest record of a key."""

    offset: int
    is_tombstone: bool


class FindLatest(Protocol):
    """Looks up the newest record of a key among the segments before an offset.

    `below` is the base offset of a segment or the log end. Gives None when there is none.
    """

    def __call__(self, key: bytes, below: int) -> LatestRecord | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainContext:
    """What others know of a partition: the cleaner's checkpoint, holds, indexes.

    `stale_bytes` gives, by base offset, how much of a segment is stale; None where unknown.
    Without `find_latest` nobody can tell whether a record is the newest of its key. `remote_bounds`
    are None for a log that is not tiered.
    """

    first_dirty_offset: int | None = None
    remote: RemoteSegments | None = None
    is_remote_unavailable: bool = False
    holds: Sequence[UncleanableSegment] = ()
    stale_bytes: Callable[[int], int | None] | None = None
    find_latest: FindLatest | None = None
    remote_bounds: RemoteBounds | None = None


NOTHING_KNOWN = ExplainContext()


def explain_log(
    log: Log, now_ms: int, known: ExplainContext = NOTHING_KNOWN
) -> list[SegmentExplanation]:
    """Why each segment of a log is still here, oldest first."""
    return read_consistently(log, lambda: _Explainer(log, now_ms, known).all_segments())


def explain_offset(
    log: Log, offset: int, now_ms: int, known: ExplainContext = NOTHING_KNOWN
) -> RecordExplanation:
    """Why the record with an offset is still here; raises OffsetOutOfRange beyond the log end."""
    if not 0 <= offset < log.end_offset:
        start, end = log.log_start_offset, log.end_offset
        held = f"the log holds {start} to {end - 1}; ask for one of these"
        if start == end:
            held = f"the log is empty, and the next record gets {end}"
        raise OffsetOutOfRange(f"{log.topic_partition}: no record has offset {offset}: {held}")
    return read_consistently(log, lambda: _Explainer(log, now_ms, known).record_in_tiers(offset))


def explain_key(
    log: Log, key: bytes, now_ms: int, known: ExplainContext
) -> RecordExplanation | None:
    """Why the newest record of a key is still here; None when the log has none of that key."""
    if known.find_latest is None:
        return None
    latest = known.find_latest(key, log.end_offset)
    return None if latest is None else explain_offset(log, latest.offset, now_ms, known)


class _Explainer:
    """Answers on one set of facts."""

    def __init__(self, log: Log, now_ms: int, known: ExplainContext) -> None:
        self._log = log
        self._now_ms = now_ms
        self._known = known
        self._segments = list_segments(log)
        self._is_compacted = self._segments.settings.is_compacted
        self._cleanable = judge_cleanable(
            self._segments, known.first_dirty_offset, now_ms, known.remote_bounds
        )
        self._forecast = {row.base_offset: row for row in forecast_log(self._segments, now_ms)}
        self._blocks = SegmentBlockers(
            facts=self._segments,
            cleanable=self._cleanable,
            now_ms=now_ms,
            holds=known.holds,
            stale_bytes=known.stale_bytes or (lambda base_offset: None),
            find_producer=self._find_producer,
        )

    def all_segments(self) -> list[SegmentExplanation]:
        """Those of both tiers, oldest first."""
        local = [self._explain(segment) for segment in self._segments.segments]
        return self._with_remote(local)

    def _with_remote(self, local: list[SegmentExplanation]) -> list[SegmentExplanation]:
        if self._known.is_remote_unavailable:
            return without_remote(local)
        if self._known.remote is None:
            return local
        return explain_both_tiers(self._segments, local, self._known.remote, self._now_ms)

    def _explain(self, segment: SegmentInfo) -> SegmentExplanation:
        times = segment.times()
        compaction = stale_bytes = None
        if self._is_compacted:
            stale_bytes = self._blocks.stale_bytes(segment.base_offset)
            compaction = RemovalPath.behind(COMPACTION, self._blocks.find(segment), self._now_ms)
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
            retention=removal_path(RETENTION, self._forecast[segment.base_offset]),
            compaction=compaction,
            dirty_ratio=self._cleanable.ratio if self._is_compacted else None,
            stale_bytes=stale_bytes,
        )

    def _find_producer(self, offset: int) -> int | None:
        opener = _read_batch(self._log, offset)
        return opener.header.producer_id if opener else None

    def record_in_tiers(self, offset: int) -> RecordExplanation:
        """The record with its segment as both tiers have it, and what supersedes a remote one."""
        record = self.record(offset)
        settings = self._segments.settings
        if not settings.remote_storage_enable or offset < self._segments.log_start_offset:
            return record
        segment = next(
            (
                explanation
                for explanation in self._with_remote(
                    [] if record.segment is None else [record.segment]
                )
                if explanation.base_offset <= offset < explanation.next_offset
                and explanation.place.is_readable
            ),
            record.segment,
        )
        superseded_by = record.superseded_by
        is_remote = record.state is RecordState.REMOTE and settings.is_compacted
        if is_remote and record.key is not None and self._known.find_latest is not None:
            latest = self._known.find_latest(record.key, self._segments.end_offset)
            if latest is not None and latest.offset > offset:
                superseded_by = latest.offset
        return replace(record, segment=segment, superseded_by=superseded_by)

    def record(self, offset: int) -> RecordExplanation:
        facts = self._segments
        segment = facts.find_segment(offset)
        explained = self._explain(segment) if segment.base_offset <= offset else None
        if offset < facts.log_start_offset:
            return self._answer(offset, RecordState.BELOW_LOG_START, explained)
        if explained is None:
            return self._explain_remote(offset)
        record = _read_record(self._log, offset)
        if record is None:
            return self._answer(offset, RecordState.REMOVED, explained)
        return self._explain_record(record, explained)

    def _explain_remote(self, offset: int) -> RecordExplanation:
        """What the cold tier shows of an offset; only where it is, when it cannot be read now."""
        try:
            record = _read_record(self._log, offset)
        except Unavailable:
            return self._answer(offset, RecordState.REMOTE, None)
        if record is None:
            return self._answer(offset, RecordState.REMOVED, None)
        return replace(
            self._answer(offset, RecordState.REMOTE, None),
            key=record.key,
            timestamp=record.timestamp,
            is_tombstone=record.is_tombstone,
            producer_id=record.header.producer_id if record.header.has_producer_id else None,
        )

    def _answer(
        self, offset: int, state: RecordState, segment: SegmentExplanation | None
    ) -> RecordExplanation:
        return RecordExplanation(
            partition=self._segments.partition,
            now_ms=self._now_ms,
            offset=offset,
            state=state,
            segment=segment,
        )

    def _explain_record(
        self, record: "_FoundRecord", explained: SegmentExplanation
    ) -> RecordExplanation:
        state, latest, blocks = RecordState.PLAIN, None, None
        if self._is_compacted:
            state, latest, blocks = self._judge(record, explained)
        header = record.header
        return RecordExplanation(
            partition=self._segments.partition,
            now_ms=self._now_ms,
            offset=record.offset,
            state=state,
            key=record.key,
            timestamp=record.timestamp,
            is_tombstone=record.is_tombstone,
            producer_id=header.producer_id if header.has_producer_id else None,
            delete_horizon_ms=header.delete_horizon_ms,
            superseded_by=latest.offset if latest else None,
            compaction=None
            if blocks is None
            else RemovalPath.behind(COMPACTION, blocks, self._now_ms),
            segment=explained,
        )

    def _judge(
        self, record: "_FoundRecord", explained: SegmentExplanation
    ) -> tuple[RecordState, LatestRecord | None, list[Blocker]]:
        """What a record is, which later one replaces it, and what keeps it."""
        header = record.header
        own = list(explained.compaction.blocks) if explained.compaction else []
        if header.is_control:
            blocks = [*own, self._marker(header), *self._remote(header)]
            return RecordState.CONTROL, None, blocks
        if header.is_transactional and record.offset >= self._segments.last_stable_offset:
            return RecordState.UNDECIDED, None, own
        if header.is_transactional and self._is_aborted(record):
            return RecordState.ABORTED, None, own
        if record.key is None:
            return RecordState.NO_KEY, None, own
        if self._known.find_latest is None:
            text = "whether a later record has its key was not looked up"
            return RecordState.UNKNOWN, None, [*own, Blocker(BlockingRule.UNKNOWN, text)]
        latest = self._find_later(record, self._known.find_latest)
        if latest is not None:
            return RecordState.SUPERSEDED, latest, self._until_replaced(own, latest)
        if record.is_tombstone:
            blocks = [*own, self._horizon(header, own), *self._remote(header)]
            return RecordState.TOMBSTONE, None, blocks
        newest = Blocker(BlockingRule.NEWEST_VALUE, "no later record has its key")
        return RecordState.NEWEST, None, [newest]

    def _is_aborted(self, record: "_FoundRecord") -> bool:
        return any(
            transaction.producer_id == record.header.producer_id
            and transaction.first_offset <= record.offset <= transaction.last_offset
            for transaction in self._log.aborted_transactions()
        )

    def _find_later(self, record: "_FoundRecord", find: FindLatest) -> LatestRecord | None:
        """A later record of the same key: one that cleaning may see, before one it may not."""
        assert record.key is not None
        for below in (self._cleanable.first_uncleanable_offset, self._segments.end_offset):
            latest = find(record.key, below)
            if latest is not None and latest.offset > record.offset:
                return latest
        return None

    def _until_replaced(self, own: list[Blocker], latest: LatestRecord) -> list[Blocker]:
        """A delete is carried out whatever the share; the later record must be cleanable itself."""
        blocks = [
            blocker
            for blocker in own
            if not (latest.is_tombstone and blocker.rule is BlockingRule.STALE_SHARE)
        ]
        later = self._segments.find_segment(latest.offset)
        if later.base_offset < self._cleanable.first_uncleanable_offset:
            return blocks
        known = {block.rule for block in blocks}
        return blocks + [
            Blocker(
                blocker.rule,
                f"offset {latest.offset} replaces it, but: {blocker.text}",
                blocker.until_ms,
            )
            for blocker in self._blocks.find(later)
            if blocker.rule not in known
        ]

    def _marker(self, header: BatchHeader) -> Blocker:
        return Blocker(
            BlockingRule.MARKER,
            "a marker stays until all records of its transaction are gone, and then for "
            f"delete.retention.ms={self._segments.settings.delete_retention_ms}",
            header.delete_horizon_ms,
        )

    def _remote(self, header: BatchHeader) -> list[Blocker]:
        remote_bounds = self._known.remote_bounds
        if remote_bounds is None or header.last_offset < remote_bounds.cleaned_up_to:
            return []
        text = f"{KEPT_FOR_REMOTE}, which is clean up to offset {remote_bounds.cleaned_up_to}"
        return [Blocker(BlockingRule.REMOTE_TIER, text)]

    def _horizon(self, header: BatchHeader, own: list[Blocker]) -> Blocker:
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
            "has not been",
            None if cleaned_ms is None else cleaned_ms + wait_ms,
        )


@dataclass(frozen=True, slots=True)
class _FoundRecord:
    offset: int
    header: BatchHeader
    key: bytes | None
    is_tombstone: bool
    timestamp: int


def _read_batch(log: Log, offset: int) -> Batch | None:
    """The batch that spans an offset; None where compaction left a hole."""
    fetched = log.read(start_offset=offset, max_bytes=1, isolation=Isolation.LOG_END)
    if not len(fetched.data):
        return None
    batch = Batch(fetched.data, where=f"{log.topic_partition} at offset {offset}")
    return batch if batch.header.base_offset <= offset else None


def _read_record(log: Log, offset: int) -> _FoundRecord | None:
    batch = _read_batch(log, offset)
    if batch is None:
        return None
    columns = batch.columns()
    rows = np.flatnonzero(columns.offsets == offset)
    if not rows.size:
        return None
    row, is_control = int(rows[0]), batch.header.is_control
    return _FoundRecord(
        offset=offset,
        header=batch.header,
        key=None if is_control else columns.key(row),
        is_tombstone=not is_control and columns.value(row) is None,
        timestamp=int(columns.timestamps[row]),
    )
