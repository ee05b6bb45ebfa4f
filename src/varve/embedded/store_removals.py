"""What a store does and tells about removals: clean, audit, explain and forecast.

Threads    any.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from varve.cleaning.report import Progress
from varve.commit_log import LogManager, TopicPartition
from varve.disk import FileSystem
from varve.embedded.maintenance import Cleaned, StoreMaintenance
from varve.embedded.store_tier import StoreTier
from varve.embedded.topic import Topic
from varve.foundation.clock import Clock
from varve.foundation.settings import GivenValue

if TYPE_CHECKING:
    from varve.cleaning.explain.explanation import RecordExplanation, SegmentExplanation
    from varve.cleaning.removals.audit import AuditReport
    from varve.cleaning.retention.forecast import Forecast
    from varve.embedded.insight import Insight


class StoreRemovals(ABC):
    """The part of a store that looks after what is to go; the store itself knows the topics."""

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
    ) -> list[Cleaned]:
        """Compacts and expires now what the policies of some partitions, or of all, remove.

        Compaction does not wait for the dirty ratio; it leaves the active segment alone, which
        `roll` closes first. Replaced files go after `file.delete.delay.ms`, or with `at_once` now,
        for when no thread is reading. A dry run tells what would be done and changes nothing, but
        that key indexes are built where they are missing. `progress` is called for every chunk, and
        what it raises ends the run with nothing lost.
        """
        chosen = self.partitions(topic, partition)
        now_ms = self._clock.now_ms()
        if roll and not dry_run:
            for topic_partition in chosen:
                self._logs.get(topic_partition).roll()
        cleaned = [
            self._maintenance.clean(topic_partition, now_ms, dry_run=dry_run, progress=progress)
            for topic_partition in chosen
        ]
        if at_once:
            self._logs.delete_expired_files()
        return cleaned

    def partitions(
        self, topic: str | None = None, partition: int | None = None
    ) -> list[TopicPartition]:
        """The partitions of all topics, of one, or the one that is named, by topic and number."""
        if topic is None:
            return [
                TopicPartition(every.name, number)
                for every in self.topics()
                for number in range(every.partition_count)
            ]
        found = self.topic(topic)
        numbers = range(found.partition_count)
        if partition is not None:
            numbers = range(found.partition(partition).number, partition + 1)
        return [TopicPartition(topic, number) for number in numbers]

    def audit(
        self, topic: str | None = None, partition: int | None = None, *, deep: bool = False
    ) -> "list[AuditReport]":
        """Checks what is on record of every removal against itself and against the disk.

        With `deep` the keys of all records are read as well.
        """
        from varve.cleaning.removals.audit import audit_partition

        logs = [
            self._logs.get(topic_partition) for topic_partition in self.partitions(topic, partition)
        ]
        return [audit_partition(self._fs, log.directory, deep=deep) for log in logs]

    def _insight(self) -> "Insight":
        # A store that is only written to and read does not wait for what this imports.
        from varve.embedded.insight import Insight

        return Insight(self._logs, self._maintenance.cleaner, self._tier)

    def explain(self, topic: str, partition: int | None = None) -> "list[SegmentExplanation]":
        """Why the segments of a topic, or of one of its partitions, are still here."""
        from varve.cleaning.explain.explain import explain_log

        now_ms, insight = self._clock.now_ms(), self._insight()
        return [
            explanation
            for log in map(self._logs.get, self.partitions(topic, partition))
            for explanation in explain_log(log, now_ms, insight.context(log, now_ms))
        ]

    def explain_offset(
        self, topic: str, offset: int, partition: int | None = None
    ) -> "RecordExplanation":
        """Why a record is still here, what keeps it and until when; or that it is gone."""
        from varve.cleaning.explain.explain import explain_offset

        log, now_ms = self.topic(topic).partition(partition).log, self._clock.now_ms()
        return explain_offset(log, offset, now_ms, self._insight().context(log, now_ms))

    def explain_key(
        self, topic: str, key: bytes | str, partition: int | None = None
    ) -> "RecordExplanation | None":
        """Why the latest record of a key is still here; None when there is none."""
        from varve.cleaning.explain.explain import explain_key

        data = key.encode() if isinstance(key, str) else key
        found = self.topic(topic)
        number = found.partition_for(data) if partition is None else partition
        log, now_ms = found.partition(number).log, self._clock.now_ms()
        return explain_key(log, data, now_ms, self._insight().context(log, now_ms))

    def forecast(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        settings: Mapping[str, GivenValue] | None = None,
    ) -> "list[Forecast]":
        """What retention will delete and when, and what compaction would free, by partition.

        `settings` are tried in place of the topic's own; nothing is changed.
        """
        now_ms, insight = self._clock.now_ms(), self._insight()
        return [
            insight.forecast(self._logs.get(topic_partition), now_ms, settings or {})
            for topic_partition in self.partitions(topic, partition)
        ]
