"""Answers about a store's removals: why is this still here, and what will a policy let go.

Invariant  no record and no setting changes; key indexes are built where they are missing.
Threads    any.
"""

from collections.abc import Mapping
from contextlib import suppress

from varve.cleaning.cleaner import Cleaner
from varve.cleaning.explain import (
    Knowledge,
    LatestRecord,
    explain_key,
    explain_offset,
    explain_segment,
)
from varve.cleaning.explanation import RecordExplanation, SegmentExplanation
from varve.cleaning.forecast import Forecast, forecast
from varve.commit_log import Log, LogSettings, LogStore, TopicPartition
from varve.foundation.errors import StoreError
from varve.foundation.settings import GivenValue


class Insight:
    """Explains and forecasts the partitions of one store."""

    def __init__(self, logs: LogStore, cleaner: Cleaner) -> None:
        self._logs = logs
        self._cleaner = cleaner

    def explain_segments(self, partition: TopicPartition, now_ms: int) -> list[SegmentExplanation]:
        """Why each segment of a partition is still here."""
        log = self._logs.get(partition)
        known = self._knowledge(log, now_ms)
        return [explain_segment(log, segment.base_offset, now_ms, known) for segment in log.view]

    def explain_offset(
        self, partition: TopicPartition, offset: int, now_ms: int
    ) -> RecordExplanation:
        """Why the record with an offset is still here, or that it is not."""
        log = self._logs.get(partition)
        return explain_offset(log, offset, now_ms, self._knowledge(log, now_ms))

    def explain_key(
        self, partition: TopicPartition, key: bytes, now_ms: int
    ) -> RecordExplanation | None:
        """Why the newest record of a key is still here; None when there is none."""
        log = self._logs.get(partition)
        return explain_key(log, key, now_ms, self._knowledge(log, now_ms))

    def forecast(
        self, partition: TopicPartition, now_ms: int, settings: Mapping[str, GivenValue]
    ) -> Forecast:
        """What a partition's policy lets go and when, or would with some settings changed."""
        log = self._logs.get(partition)
        # What is not compacted now has no plan; what it would lose then nobody has counted.
        stale = self._stale_bytes(log, now_ms) if log.settings.is_compacted else None

        def sum_stale(log: Log, settings: LogSettings) -> int | None:
            return None if stale is None else sum(stale.values())

        return forecast(log, now_ms, overrides=settings, stale_bytes=sum_stale)

    def _knowledge(self, log: Log, now_ms: int) -> Knowledge:
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

        return Knowledge(
            first_dirty=None if directory is None else directory.cleaner_offset(partition),
            holds=holds,
            stale_bytes=None if stale is None else stale.get,
            find_latest=find_latest,
        )

    def _stale_bytes(self, log: Log, now_ms: int) -> dict[int, int] | None:
        """Stale bytes by base offset; None when no plan can be made."""
        with suppress(StoreError):
            plan = self._cleaner.plan(log.topic_partition, now_ms)
            return {one.segment.base_offset: one.stale_bytes for one in plan.segments}
        return None
