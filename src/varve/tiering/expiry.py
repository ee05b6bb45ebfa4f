"""Expires what a partition keeps in the cold tier, and takes objects away whose time has come.

Invariant  the log start offset is raised on the local disk before a segment is taken out of
           reading, and objects go only after the manifest says that they do: whoever finds the work
           half done repeats it and loses nothing.
Crash      what went is told by a balance among the evidence in the store before the manifest lets
           go of it; one whose segments are still listed was not carried out.
Threads    one per partition at a time.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from varve.cleaning.balance import Balance, BalanceKind, Reason, SegmentFigure
from varve.cleaning.balance_json import encode_balance
from varve.commit_log import Log
from varve.tiering.cold_segment import ABANDONED_MS, ColdSegment, SegmentState
from varve.tiering.expiry_rules import ColdLogFacts, ExpiredColdSegment, find_expired
from varve.tiering.manifest import Manifest
from varve.tiering.tiered_partition import TieredPartition, TieredPartitions

logger = logging.getLogger(__name__)

_SEGMENTS_MAX: Final = 256
"""Segments let go in one commit: those of long histories are in pages, which it writes anew."""


@dataclass(frozen=True, slots=True)
class ColdExpiry:
    """What one pass let go of a partition, and how many segments' objects it took away."""

    expired: tuple[ExpiredColdSegment, ...] = ()
    removed_count: int = 0

    @property
    def size(self) -> int:
        return sum(one.segment.size for one in self.expired)

    @property
    def end_offset(self) -> int | None:
        """Where the log begins when these are gone; None where none are."""
        return self.expired[-1].segment.end_offset + 1 if self.expired else None


def observe_cold(tiered: TieredPartition, manifest: Manifest) -> ColdLogFacts:
    """What expiry must know of a log: the local part counts from where the cold one ends."""
    log = tiered.log
    copied = tiered.copied_offset or 0
    local_bytes = sum(one.size for one in log.view if one.base_offset >= copied)
    return ColdLogFacts(
        settings=log.settings,
        epochs=log.epochs,
        log_start_offset=log.log_start_offset,
        end_offset=log.end_offset,
        total_bytes=manifest.log_bytes - _count_foreign(tiered, manifest, copied) + local_bytes,
    )


def _count_foreign(tiered: TieredPartition, manifest: Manifest, copied_offset: int) -> int:
    """Bytes of readable segments behind the copied offset: the log was cut, and has others there.

    They count for no limit, as nothing else must go in their stead.
    """
    if manifest.highest_offset < copied_offset:
        return 0
    behind = tiered.manifests.segments(manifest, from_offset=copied_offset)
    return sum(one.size for one in behind if one.is_readable)


class TierExpiry:
    """Expiry of the cold partitions of one store."""

    def __init__(self, partitions: TieredPartitions) -> None:
        self._partitions = partitions
        self._grace_ms = partitions.settings.varve_tier_grace_ms
        self._retention_ms = partitions.settings.varve_tier_manifest_retention_ms

    def expire(self, tiered: TieredPartition, now_ms: int) -> ColdExpiry:
        """One pass over one partition; raises StoreError, and the next pass goes on."""
        if not self._has_work(tiered, tiered.recent(now_ms), now_ms):
            tiered.retire_versions(now_ms, self._retention_ms)
            return ColdExpiry()
        manifest = tiered.load()
        expired: list[ExpiredColdSegment] = []
        while True:
            facts = observe_cold(tiered, manifest)
            readable = (one for one in tiered.manifests.segments(manifest) if one.is_readable)
            found = list(islice(find_expired(facts, readable, now_ms), _SEGMENTS_MAX))
            if not found:
                break
            manifest = self._let_go(tiered, found, now_ms)
            expired += found
        removed = self._remove_due(tiered, manifest, now_ms)
        tiered.retire_versions(now_ms, self._retention_ms)
        return ColdExpiry(tuple(expired), removed)

    def foresee(self, tiered: TieredPartition, now_ms: int) -> ColdExpiry:
        """What a pass would let go and take away now; nothing changes."""
        manifest = tiered.load()
        readable = (one for one in tiered.manifests.segments(manifest) if one.is_readable)
        expired = tuple(find_expired(observe_cold(tiered, manifest), readable, now_ms))
        pending = tiered.manifests.pending(manifest)
        return ColdExpiry(expired, sum(_is_due(one, tiered.log, now_ms) for one in pending))

    def _has_work(self, tiered: TieredPartition, manifest: Manifest, now_ms: int) -> bool:
        facts = observe_cold(tiered, manifest)
        readable = (one for one in tiered.manifests.segments(manifest) if one.is_readable)
        if next(find_expired(facts, readable, now_ms), None) is not None:
            return True
        pending = tiered.manifests.pending(manifest)
        return any(_is_due(one, tiered.log, now_ms) for one in pending)

    def _let_go(
        self, tiered: TieredPartition, found: Sequence[ExpiredColdSegment], now_ms: int
    ) -> Manifest:
        segments = [one.segment for one in found]
        start, end = segments[0].base_offset, segments[-1].end_offset + 1
        log = tiered.log
        if any(one.reason is not Reason.BELOW_LOG_START for one in found):
            log.raise_log_start(end)
        self._record(tiered, found, now_ms)
        ids = {segment.id for segment in segments}

        def change(manifest: Manifest) -> Manifest:
            near = tiered.manifests.unfold(manifest, start_offset=start, end_offset=end)
            listed = [one.id for one in near.segments if one.id in ids]
            changed = near.start_delete(
                listed, at_ms=now_ms, replaced_until_ms=now_ms + self._grace_ms
            )
            return changed.raise_log_start(log.log_start_offset)

        manifest = tiered.commit(change, now_ms)
        logger.info(
            "cold segments expired",
            extra={
                "partition": str(log.topic_partition),
                "segments": len(segments),
                "bytes": sum(segment.size for segment in segments),
                "log_start_offset": log.log_start_offset,
                "rule": found[-1].rule,
            },
        )
        return manifest

    def _record(
        self, tiered: TieredPartition, found: Sequence[ExpiredColdSegment], now_ms: int
    ) -> None:
        """Puts the balance of what goes beside what stays.

        A repeated pass writes it again under the same key.
        """
        balance = _balance(tiered.log, found, now_ms)
        key = tiered.home.evidence_key(f"expiry-{balance.end_offset:020}-{found[0].segment.id}")
        text = json.dumps(encode_balance(balance), separators=(",", ":"))
        self._partitions.objects.put(key, text.encode())

    def _remove_due(self, tiered: TieredPartition, manifest: Manifest, now_ms: int) -> int:
        """Takes away the objects of segments that went long enough ago.

        Where nothing is copied any more, also those of copies that were never finished.
        """
        due = [
            one for one in tiered.manifests.pending(manifest) if _is_due(one, tiered.log, now_ms)
        ]
        removed = 0
        for start in range(0, len(due), _SEGMENTS_MAX):
            remove_segments(self._partitions, tiered, due[start : start + _SEGMENTS_MAX], now_ms)
            removed += len(due[start : start + _SEGMENTS_MAX])
        return removed


def remove_segments(
    partitions: TieredPartitions,
    tiered: TieredPartition,
    segments: Sequence[ColdSegment],
    now_ms: int,
) -> None:
    """Takes segments out of reading, their objects out of the store, and then off the list."""
    ids = {segment.id for segment in segments}
    start = min(segment.base_offset for segment in segments)
    end = max(segment.end_offset for segment in segments) + 1

    def begin(manifest: Manifest) -> Manifest:
        near = tiered.manifests.unfold(manifest, start_offset=start, end_offset=end)
        return near.start_delete([one.id for one in near.segments if one.id in ids], at_ms=now_ms)

    def finish(manifest: Manifest) -> Manifest:
        near = tiered.manifests.unfold(manifest, start_offset=start, end_offset=end)
        return near.forget(ids)

    keys = [
        tiered.home.part_key(segment, part.name) for segment in segments for part in segment.parts
    ]
    with partitions.counting_removal(tiered, segments):
        if any(one.state is not SegmentState.DELETE_STARTED for one in segments):
            tiered.commit(begin, now_ms)
        partitions.objects.delete(keys)
        tiered.commit(finish, now_ms)


def _is_due(segment: ColdSegment, log: Log, now_ms: int) -> bool:
    if segment.state is SegmentState.COPY_STARTED:
        return not log.settings.copies_to_tier and now_ms - segment.at_ms >= ABANDONED_MS
    return segment.replaced_until_ms is None or segment.replaced_until_ms <= now_ms


def _balance(log: Log, found: Sequence[ExpiredColdSegment], now_ms: int) -> Balance:
    records: Counter[Reason] = Counter()
    sizes: Counter[Reason] = Counter()
    for one in found:
        records[one.reason] += one.segment.record_count
        sizes[one.reason] += one.segment.size
    last = found[-1]
    return Balance(
        id=1,
        partition=log.topic_partition,
        kind=BalanceKind.EXPIRY,
        at_ms=now_ms,
        inputs=tuple(
            SegmentFigure(
                one.segment.base_offset,
                one.segment.end_offset + 1,
                one.segment.size,
                one.segment.record_count,
            )
            for one in found
        ),
        outputs=(),
        records=dict(records),
        bytes=dict(sizes),
        rule=f"segment {last.segment.base_offset} of the cold tier, {last.rule}",
        end_offset=last.segment.end_offset + 1,
    )
