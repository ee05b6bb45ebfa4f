"""Answers about a store's removals: why is this still here, and what will a policy remove.

Invariant  no record and no setting changes; key indexes are built where they are missing.
Threads    any.
"""

from collections.abc import Mapping
from contextlib import suppress

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.explain.explain import ExplainContext
from varve.cleaning.remote_tier import RemoteBounds
from varve.cleaning.retention.forecast import Forecast, forecast
from varve.cleaning.retention.segments import RemoteSegments
from varve.commit_log import Log, LogManager, LogSettings, TopicPartition
from varve.embedded.store_tier import StoreTier
from varve.foundation.errors import StoreError, Unavailable
from varve.foundation.settings import GivenValue, parse_settings
from varve.records import Record


class Insight:
    """Explains and forecasts the partitions of one store."""

    def __init__(self, logs: LogManager, cleaner: LogCleaner, tier: StoreTier) -> None:
        self._logs = logs
        self._cleaner = cleaner
        self._tier = tier

    def forecast(self, log: Log, now_ms: int, settings: Mapping[str, GivenValue]) -> Forecast:
        """What a partition's policy removes and when, or would with some settings changed.

        Raises Unavailable for a tiered one whose object storage does not answer.
        """
        # What is not compacted now has no plan; what it would lose then nobody has counted.
        stale = self._stale_bytes(log, now_ms) if log.settings.is_compacted else None
        return forecast(
            log,
            now_ms,
            overrides=settings,
            stale_bytes=None if stale is None else sum(stale.values()),
            remote=self._remote_segments(log, settings),
        )

    def _remote_segments(
        self, log: Log, settings: Mapping[str, GivenValue]
    ) -> RemoteSegments | None:
        """Those of a tiered log; an empty list for one that the settings would make tiered."""
        if log.settings.remote_storage_enable:
            return self._tier.get().remote_segments(log.topic_partition)
        where = f"the forecast of {log.topic_partition}"
        tried = parse_settings(LogSettings, settings, where, base=log.settings)
        if not tried.remote_storage_enable:
            return None
        return RemoteSegments((), log.log_start_offset, 0, self._tier.delete_delay_ms)

    def context(self, log: Log, now_ms: int) -> ExplainContext:
        """What is known of a partition; while object storage is down, without that part."""
        partition = log.topic_partition
        directory = self._logs.directory_of(partition)
        # The plan reads every segment, so that damaged ones are known as uncleanable behind it.
        stale = self._stale_bytes(log, now_ms) if log.settings.is_compacted else None
        holds = [
            hold
            for health in self._cleaner.health()
            if health.partition == partition
            for hold in health.holds
        ]

        def find_latest(key: bytes, below: int) -> Record | None:
            return self._cleaner.find_key(partition, key, now_ms, below=below)

        remote = None
        with suppress(Unavailable):
            remote = self._remote_segments(log, {})
        return ExplainContext(
            first_dirty_offset=None if directory is None else directory.cleaner_offset(partition),
            remote=remote,
            is_remote_unavailable=remote is None and log.settings.remote_storage_enable,
            holds=holds,
            stale_bytes=stale or {},
            find_latest=find_latest,
            remote_bounds=self._find_bounds(partition),
        )

    def _find_bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        """None also while object storage is down: what it keeps is then unknown."""
        with suppress(Unavailable):
            return self._tier.bounds(partition)
        return None

    def _stale_bytes(self, log: Log, now_ms: int) -> dict[int, int] | None:
        """Stale bytes by base offset; None when no plan can be made."""
        with suppress(StoreError):
            plan = self._cleaner.plan(log.topic_partition, now_ms)
            return {
                segment_plan.segment.base_offset: segment_plan.stale_bytes
                for segment_plan in plan.segments
            }
        return None
