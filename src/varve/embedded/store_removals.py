"""Removals of records in a store: clean, audit, explain and forecast.

Modules for audit, explain and forecast are imported on first use: a store that only appends and
reads does not load them.

Invariant  audit, explain and forecast change no record and no setting; missing key indexes are
           built.
Threads    any.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from varve.cleaning.metrics import Progress
from varve.cleaning.remote_tier import RemoteBounds
from varve.cleaning.retention.segments import RemoteSegments
from varve.commit_log import Log, LogManager, LogSettings, TopicPartition
from varve.disk import FileSystem
from varve.embedded.maintenance import CleanResult, StoreMaintenance
from varve.embedded.store_tier import StoreTier
from varve.embedded.topic import Topic
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError, Unavailable
from varve.foundation.settings import GivenValue, check_mapping, parse_settings
from varve.foundation.topic_records import check_int
from varve.records import Record

if TYPE_CHECKING:
    from varve.cleaning.explain import ExplainContext
    from varve.cleaning.explanation import RecordExplanation, SegmentExplanation
    from varve.cleaning.removals.audit import AuditReport
    from varve.cleaning.retention.forecast import Forecast


class StoreRemovals(ABC):
    """The part of a store that cleans and explains; `Store` adds topics, appends and reads."""

    def __init__(
        self,
        logs: LogManager,
        maintenance: StoreMaintenance,
        tier: StoreTier,
        *,
        fs: FileSystem,
        clock: Clock,
    ) -> None:
        self._logs = logs
        self._maintenance = maintenance
        self._tier = tier
        self._fs = fs
        self._clock = clock

    @abstractmethod
    def topic(self, name: str) -> Topic:
        """A topic by its name; raises NotFound."""

    @abstractmethod
    def topics(self) -> list[Topic]:
        """All topics, by name."""

    def clean(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        roll: bool = False,
        dry_run: bool = False,
        at_once: bool = False,
        progress: Progress | None = None,
    ) -> list[CleanResult]:
        """Applies compaction and retention now to a topic, a partition, or all topics.

        Compaction ignores the dirty ratio. It skips the active segment unless `roll` closes it
        first. Replaced files are deleted after `file.delete.delay.ms`, or now with `at_once`, which
        is only safe while no thread reads. A dry run changes nothing but builds missing key
        indexes. `progress` is called for every chunk; if it raises, the run stops and no record is
        lost.
        """
        partitions = self.partitions(topic, partition)
        now_ms = self._clock.now_ms()
        if roll and not dry_run:
            for topic_partition in partitions:
                self._logs.get(topic_partition).roll()
        cleaned = [
            self._maintenance.clean(topic_partition, now_ms, dry_run=dry_run, progress=progress)
            for topic_partition in partitions
        ]
        if at_once:
            self._logs.delete_expired_files()
        return cleaned

    def partitions(
        self, topic: str | None = None, partition: int | None = None
    ) -> list[TopicPartition]:
        """All partitions, those of a topic, or one of them, ordered by topic and number."""
        if topic is None:
            return [
                TopicPartition(known_topic.name, number)
                for known_topic in self.topics()
                for number in range(known_topic.partition_count)
            ]
        chosen = self.topic(topic)
        numbers = range(chosen.partition_count)
        if partition is not None:
            numbers = range(chosen.partition(partition).number, partition + 1)
        return [TopicPartition(topic, number) for number in numbers]

    def audit(
        self, topic: str | None = None, partition: int | None = None, *, deep: bool = False
    ) -> "list[AuditReport]":
        """Checks the removal log of each partition, and the segments on disk against it.

        With `deep` also the keys of all records.
        """
        from varve.cleaning.removals.audit import audit_partition

        logs = [
            self._logs.get(topic_partition) for topic_partition in self.partitions(topic, partition)
        ]
        return [audit_partition(self._fs, log.directory, deep=deep) for log in logs]

    def explain(self, topic: str, partition: int | None = None) -> "list[SegmentExplanation]":
        """Why the segments of a topic, or of one of its partitions, have not been removed."""
        from varve.cleaning.explain import explain_log

        now_ms = self._clock.now_ms()
        return [
            explanation
            for log in map(self._logs.get, self.partitions(topic, partition))
            for explanation in explain_log(log, now_ms, self._explain_context(log, now_ms))
        ]

    def explain_offset(
        self, topic: str, *, offset: int, partition: int | None = None
    ) -> "RecordExplanation":
        """Which rules keep a record and until when, or that it was removed."""
        from varve.cleaning.explain import explain_offset

        offset = check_int(offset, "offset")
        log, now_ms = self.topic(topic).partition(partition).log, self._clock.now_ms()
        return explain_offset(log, offset, now_ms, self._explain_context(log, now_ms))

    def explain_key(
        self, topic: str, *, key: bytes | str, partition: int | None = None
    ) -> "RecordExplanation | None":
        """Which rules keep the latest record of a key; None when there is no record of the key."""
        from varve.cleaning.explain import explain_key

        chosen = self.topic(topic)
        data = chosen._check_key(key)
        number = chosen.partition_for(data) if partition is None else partition
        log, now_ms = chosen.partition(number).log, self._clock.now_ms()
        return explain_key(log, data, now_ms, self._explain_context(log, now_ms))

    def forecast(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        settings: Mapping[str, GivenValue] | None = None,
    ) -> "list[Forecast]":
        """What retention will delete and when, and what compaction would free, by partition.

        `settings` replace the topic's own for the forecast; nothing is changed. Raises Unavailable
        for a tiered partition whose object storage does not answer.
        """
        settings = {} if settings is None else settings
        check_mapping(settings, "the forecast")
        now_ms = self._clock.now_ms()
        return [
            self._forecast(self._logs.get(topic_partition), now_ms, settings)
            for topic_partition in self.partitions(topic, partition)
        ]

    def _forecast(self, log: Log, now_ms: int, settings: Mapping[str, GivenValue]) -> "Forecast":
        from varve.cleaning.retention.forecast import forecast

        # A topic that is not compacted has no plan, so its stale bytes are unknown.
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
        """The remote segments of a tiered log; none for one that `settings` would make tiered."""
        if log.settings.remote_storage_enable:
            return self._tier.get().remote_segments(log.topic_partition)
        where = f"the forecast of {log.topic_partition}"
        forecast_settings = parse_settings(LogSettings, settings, where, base=log.settings)
        if not forecast_settings.remote_storage_enable:
            return None
        return RemoteSegments((), log.log_start_offset, 0, self._tier.delete_delay_ms)

    def _explain_context(self, log: Log, now_ms: int) -> "ExplainContext":
        """The facts about a partition; without the remote part while object storage is down."""
        from varve.cleaning.explain import ExplainContext

        partition = log.topic_partition
        directory = self._logs.directory_of(partition)
        # The plan reads every segment, so that damaged ones are known to be held after it.
        stale = self._stale_bytes(log, now_ms) if log.settings.is_compacted else None
        holds = [
            hold
            for health in self._maintenance.cleaner.health()
            if health.partition == partition
            for hold in health.holds
        ]

        def find_latest(key: bytes, below: int) -> Record | None:
            return self._maintenance.cleaner.find_key(partition, key, now_ms, below=below)

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
        """The bounds of the remote tier; None without one, and while object storage is down."""
        with suppress(Unavailable):
            return self._tier.bounds(partition)
        return None

    def _stale_bytes(self, log: Log, now_ms: int) -> dict[int, int] | None:
        """Stale bytes by base offset; None when the planning fails."""
        with suppress(StoreError):
            plan = self._maintenance.cleaner.plan(log.topic_partition, now_ms)
            return {
                segment_plan.segment.base_offset: segment_plan.stale_bytes
                for segment_plan in plan.segments
            }
        return None
