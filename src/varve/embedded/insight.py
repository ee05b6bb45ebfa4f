"""Answers about a store's removals: why is this still here, and what will a policy let go.

Invariant  no record and no setting changes; key indexes are built where they are missing.
Threads    any.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from varve.cleaning.compaction.cleanable_log import RemoteBounds
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.explain import (
    LatestRecord,
    PartitionContext,
    explain_key,
    explain_log,
    explain_offset,
)
from varve.cleaning.explanation import RecordExplanation, RecordState, SegmentExplanation
from varve.cleaning.forecast import Forecast, forecast
from varve.cleaning.log_facts import read_consistently
from varve.commit_log import Log, LogSettings, LogStore, TopicPartition
from varve.embedded.cold_tier import ColdTier
from varve.foundation.errors import StoreError, Unavailable
from varve.foundation.settings import GivenValue


class Insight:
    """Explains and forecasts the partitions of one store."""

    def __init__(self, logs: LogStore, cleaner: LogCleaner, tier: ColdTier) -> None:
        self._logs = logs
        self._cleaner = cleaner
        self._tier = tier

    def explain_segments(self, partition: TopicPartition, now_ms: int) -> list[SegmentExplanation]:
        """Why each segment of a partition is still here, in both tiers.

        What only the object store can tell is said to be unknown while it is down.
        """
        log = self._logs.get(partition)
        local = explain_log(log, now_ms, self._knowledge(log, now_ms))
        return self._with_tiers(log, local, now_ms)

    def _with_tiers(
        self, log: Log, local: list[SegmentExplanation], now_ms: int
    ) -> list[SegmentExplanation]:
        if not log.settings.remote_storage_enable:
            return local
        from varve.tiering.cold_explain import explain_tiers, explain_unknown
        from varve.tiering.cold_forecast import look_at

        try:
            look = look_at(self._tier.get(), log.topic_partition)
        except Unavailable:
            return explain_unknown(local)
        return read_consistently(log, lambda: explain_tiers(log, local, look, now_ms))

    def explain_offset(
        self, partition: TopicPartition, offset: int, now_ms: int
    ) -> RecordExplanation:
        """Why the record with an offset is still here, or that it is not."""
        log = self._logs.get(partition)
        known = self._knowledge(log, now_ms)
        return self._in_tiers(log, explain_offset(log, offset, now_ms, known), known)

    def _in_tiers(
        self, log: Log, record: RecordExplanation, known: PartitionContext
    ) -> RecordExplanation:
        """The record with its segment as both tiers have it, and with what replaces a cold one."""
        if not log.settings.remote_storage_enable or record.offset < log.log_start_offset:
            return record
        own = [] if record.segment is None else [record.segment]
        segments = self._with_tiers(log, own, record.now_ms)
        segment = next(
            (
                one
                for one in segments
                if one.base_offset <= record.offset < one.next_offset and one.place.is_readable
            ),
            record.segment,
        )
        replaced_by = record.superseded_by
        is_cold = record.state is RecordState.COLD and log.settings.is_compacted
        if is_cold and record.key is not None and known.find_latest is not None:
            latest = known.find_latest(record.key, log.end_offset)
            if latest is not None and latest.offset > record.offset:
                replaced_by = latest.offset
        return replace(record, segment=segment, superseded_by=replaced_by)

    def explain_key(
        self, partition: TopicPartition, key: bytes, now_ms: int
    ) -> RecordExplanation | None:
        """Why the newest record of a key is still here; None when there is none."""
        log = self._logs.get(partition)
        known = self._knowledge(log, now_ms)
        found = explain_key(log, key, now_ms, known)
        return None if found is None else self._in_tiers(log, found, known)

    def forecast(
        self, partition: TopicPartition, now_ms: int, settings: Mapping[str, GivenValue]
    ) -> Forecast:
        """What a partition's policy lets go and when, or would with some settings changed.

        Raises Unavailable for one in the cold tier whose object store cannot tell now.
        """
        log = self._logs.get(partition)
        # What is not compacted now has no plan; what it would lose then nobody has counted.
        stale = self._stale_bytes(log, now_ms) if log.settings.is_compacted else None

        def sum_stale(log: Log, settings: LogSettings) -> int | None:
            return None if stale is None else sum(stale.values())

        found = forecast(log, now_ms, overrides=settings, stale_bytes=sum_stale)
        if not (log.settings.remote_storage_enable or found.settings.remote_storage_enable):
            return found
        from varve.tiering.cold_forecast import ColdLook, forecast_tiers, look_at

        look = ColdLook((), log.log_start_offset, 0, self._tier.grace_ms)
        if log.settings.remote_storage_enable:
            look = look_at(self._tier.get(), partition)
        rows, cold = read_consistently(
            log, lambda: forecast_tiers(log, look, found.settings, now_ms)
        )
        return replace(found, rows=rows, cold=cold)

    def _knowledge(self, log: Log, now_ms: int) -> PartitionContext:
        partition = log.topic_partition
        directory = self._logs.directory_of(partition)
        # The plan looks at every segment, so that damaged ones are known as held behind it.
        stale = self._stale_bytes(log, now_ms) if log.settings.is_compacted else None
        holds = [
            hold
            for health in self._cleaner.health()
            if health.partition == partition
            for hold in health.holds
        ]

        def find_latest(key: bytes, below: int) -> LatestRecord | None:
            found = self._cleaner.find_key(partition, key, now_ms, below=below)
            return None if found is None else LatestRecord(found.offset, found.value is None)

        return PartitionContext(
            first_dirty_offset=None if directory is None else directory.cleaner_offset(partition),
            holds=holds,
            stale_bytes=None if stale is None else stale.get,
            find_latest=find_latest,
            border=self._find_border(partition),
        )

    def _find_border(self, partition: TopicPartition) -> RemoteBounds | None:
        """None also while the object store is down: what it keeps is then not told."""
        with suppress(Unavailable):
            return self._cleaner.border(partition)
        return None

    def _stale_bytes(self, log: Log, now_ms: int) -> dict[int, int] | None:
        """Stale bytes by base offset; None when no plan can be made."""
        with suppress(StoreError):
            plan = self._cleaner.plan(log.topic_partition, now_ms)
            return {one.segment.base_offset: one.stale_bytes for one in plan.segments}
        return None
