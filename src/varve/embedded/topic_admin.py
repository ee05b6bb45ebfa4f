"""Creates, alters and deletes the topics of a store.

Crash      a topic is in the table before its partitions are created or added, and leaves the
           table after they are deleted; see `topic_table`. Topics that are created or deleted
           together share these writes, and a crash completes each of them.
Threads    one at a time, under the store's lock.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final
from uuid import UUID

from varve.commit_log import Log, LogManager, LogSettings, TopicPartition
from varve.commit_log.directory_files import random_topic_id
from varve.commit_log.names import validate_topic_name
from varve.embedded.store_settings import ParsedSettings
from varve.embedded.store_tier import StoreTier
from varve.embedded.topic_table import (
    TopicCatalog,
    TopicEntry,
    TopicState,
    TopicTable,
    lost_settings_message,
)
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    InvalidSetting,
    NotFound,
    StoreError,
    Unavailable,
)
from varve.foundation.settings import (
    GivenValue,
    declared,
    format_value,
    parse_settings,
    parse_values,
)
from varve.wire.messages.state_records import METADATA_TOPIC

logger = logging.getLogger(__name__)

# Each partition keeps two files open; a larger count is most likely a typing error.
PARTITION_COUNT_MAX: Final = 10_000

_TIERED: Final = "remote.storage.enable"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created, with settings by Kafka's names."""

    name: str
    partition_count: int
    settings: Mapping[str, GivenValue]


class TopicAdmin:
    """The topics of one store: their entries in the topic table, and their partitions."""

    def __init__(
        self,
        catalog: TopicCatalog,
        logs: LogManager,
        *,
        settings: ParsedSettings,
        random: Random,
        tier: StoreTier,
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._opened_defaults = settings.defaults
        self._foreign = settings.foreign
        self._random = random
        self._tier = tier

    @property
    def _table(self) -> TopicTable:
        return self._catalog.table

    def settings_of(self, topic: str) -> LogSettings:
        """The topic's own settings over the store's defaults."""
        entry = self._table.topics.get(topic)
        own = self._settings_without_table(topic) if entry is None else entry.settings
        return _parse_stored(own, f"topic {topic}", self.defaults)

    def _settings_without_table(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic without a table entry; one with remote segments stays tiered."""
        if topic not in self._catalog.lost:
            return self._foreign
        return {**self._foreign, _TIERED: "true"}

    @property
    def lost(self) -> set[str]:
        """The topics whose settings are lost although the remote tier has segments of them."""
        return self._catalog.lost

    @property
    def defaults(self) -> LogSettings:
        """The settings of a topic that has none of its own."""
        altered = self._table.defaults
        if not altered:
            return self._opened_defaults
        return _parse_stored(altered, "the defaults of topics", self._opened_defaults)

    def _parse_defaults(self, settings: Mapping[str, str]) -> LogSettings:
        return parse_settings(
            LogSettings, settings, "the defaults of topics", base=self._opened_defaults
        )

    @property
    def given_defaults(self) -> Mapping[str, str]:
        """The defaults that were altered at run time."""
        return self._table.defaults

    def _parse(self, topic: str, settings: Mapping[str, str]) -> LogSettings:
        return parse_settings(LogSettings, settings, f"topic {topic}", base=self.defaults)

    def finish_interrupted(self) -> None:
        """Completes the creations, growths and deletions that a crash interrupted."""
        for entry in list(self._table.topics.values()):
            if entry.state is TopicState.READY or not self._catalog.is_complete:
                continue
            try:
                if entry.state is TopicState.DELETING:
                    logger.info("resuming the deletion of a topic", extra={"topic": entry.name})
                    self._remove_partitions([entry])
                else:
                    self._complete([entry])
            except StoreError as error:
                logger.warning(
                    "%(topic)s: creation or deletion of a topic is still incomplete: %(error)s",
                    {"topic": entry.name, "error": str(error)},
                )

    def create(
        self,
        name: str,
        *,
        partition_count: int | None,
        settings: Mapping[str, GivenValue] | None,
        exist_ok: bool,
    ) -> None:
        """Creates a topic; raises TopicExists when it exists and differs, or without `exist_ok`."""
        entry = self._plan(name, partition_count, settings, exist_ok=exist_ok)
        if entry.state is TopicState.CREATING:
            self._complete([entry])

    def create_all(self, topics: Sequence[NewTopic]) -> list[StoreError | None]:
        """Creates topics of different names, which share their syncs; each has its own error."""
        outcomes: dict[str, StoreError | None] = {}
        planned: list[TopicEntry] = []
        for topic in topics:
            try:
                entry = self._plan(topic.name, topic.partition_count, topic.settings)
            except StoreError as error:
                outcomes[topic.name] = error
            else:
                planned.append(entry)
        outcomes |= _each(self._complete, planned)
        return [outcomes[topic.name] for topic in topics]

    def _plan(
        self,
        name: str,
        partition_count: int | None,
        settings: Mapping[str, GivenValue] | None,
        *,
        exist_ok: bool = False,
    ) -> TopicEntry:
        """The topic to be created, or the existing one; raises what speaks against it."""
        validate_topic_name(name)
        if partition_count is not None and not _is_count(partition_count):
            raise InvalidRequest(
                f"topic {name} with {partition_count!r:.40} partitions; give a whole number "
                f"from 1 to {PARTITION_COUNT_MAX}"
            )
        texts = _as_texts(settings or {}, f"topic {name}")
        is_tiered = self._parse(name, texts).remote_storage_enable
        if is_tiered and name == METADATA_TOPIC:
            raise InvalidSetting(
                f"topic {name} holds the tier's metadata, so it cannot be tiered: leave "
                "out remote.storage.enable"
            )
        entry = self.find(name)
        if entry is not None:
            is_interrupted = entry.state is TopicState.CREATING
            entry.check_same(
                partition_count,
                None if settings is None else texts,
                exist_ok=exist_ok or is_interrupted,
            )
            return entry
        if is_tiered:
            self._tier.prepare(self, name)
        return TopicEntry(
            name=name,
            id=random_topic_id(self._random),
            partition_count=partition_count or 1,
            settings=texts,
            state=TopicState.CREATING,
        )

    def _complete(self, entries: Sequence[TopicEntry]) -> None:
        """Creates planned topics; several are in the table before the first partition is made."""
        new = [entry for entry in entries if entry.name not in self._table.topics]
        if new:
            self._catalog.write(self._table.with_topics(*new))
        self._create_partitions(entries)

    def _create_partitions(
        self, entries: Sequence[TopicEntry], *, start: int = 0, is_new: bool = True
    ) -> None:
        """The partitions of topics from a number on."""
        ids: dict[str, UUID] = {}
        partitions: list[TopicPartition] = []
        for entry in entries:
            assert entry.id is not None
            ids[entry.name] = entry.id
            numbers = range(start, entry.partition_count)
            partitions += [TopicPartition(entry.name, number) for number in numbers]
        self._logs.create_all(partitions, ids, is_new=is_new)
        ready = [entry.in_state(TopicState.READY) for entry in entries]
        self._catalog.write(self._table.with_topics(*ready))
        self._tier.start_when_tiered()

    def add_partitions(self, name: str, count: int) -> TopicEntry:
        """Adds partitions up to `count`; completes an earlier addition that was interrupted."""
        _check_not_internal(name, "given more partitions")
        entry = self.get(name)
        is_interrupted = entry.state is not TopicState.READY
        current_count = entry.partition_count
        if (
            not _is_count(count)
            or count < current_count
            or (count == current_count and not is_interrupted)
        ):
            raise InvalidRequest(
                f"topic {name} has {current_count} partitions and cannot have {count!r:.40}: "
                f"partitions are only added; give a whole number from {current_count + 1} to "
                f"{PARTITION_COUNT_MAX}"
            )
        grown = replace(
            entry,
            id=entry.id or random_topic_id(self._random),
            partition_count=count,
            state=TopicState.GROWING,
        )
        self._catalog.write(self._table.with_topics(grown))
        # Partitions of an interrupted growth may be in a directory that is offline now.
        start = 0 if is_interrupted else current_count
        self._create_partitions([grown], start=start, is_new=not is_interrupted)
        return self.get(name)

    def alter_defaults(self, settings: Mapping[str, GivenValue | None]) -> None:
        """Alters the defaults of all topics, durably and in their open logs; None resets one."""
        changed = {key: value for key, value in settings.items() if value is not None}
        texts = _as_texts(changed, "the defaults of topics")
        kept = {key: text for key, text in self.given_defaults.items() if key not in settings}
        altered = {**kept, **texts}
        base = self._parse_defaults(altered)
        parsed = {
            entry.name: parse_settings(
                LogSettings, entry.settings, f"topic {entry.name}", base=base
            )
            for entry in self.entries()
        }
        self._catalog.write(self._table.with_defaults(altered))
        for partition, log, _ in self._logs.logs():
            if partition.topic in parsed:
                log.configure(parsed[partition.topic])

    def alter(self, name: str, settings: Mapping[str, GivenValue | None]) -> LogSettings:
        """Alters the settings of a topic, durably and in its open logs; None resets one."""
        changed = {key: value for key, value in settings.items() if value is not None}
        texts = _as_texts(changed, f"topic {name}")
        names = [declaration.kafka_name for declaration in declared(LogSettings)]
        for key in settings:
            if key not in names:
                # Raises InvalidSetting, with a similar name as the suggestion.
                parse_settings(LogSettings, {key: ""}, f"topic {name}")
        _check_not_internal(name, "altered")
        if name in self.lost and _TIERED not in settings:
            raise InvalidRequest(lost_settings_message(name))
        entry = self.get(name)
        kept = {key: text for key, text in entry.settings.items() if key not in settings}
        altered = replace(entry, settings={**kept, **texts})
        parsed = self._parse(name, altered.settings)
        logs = [self._logs.get(partition) for partition in self.partitions_of(name)]
        self._enter_or_leave_tier(name, logs, self.settings_of(name), parsed)
        try:
            self._catalog.write(self._table.with_topics(altered))
        except BaseException:
            self._tier.stay(logs)
            raise
        for log in logs:
            log.configure(parsed)
        self._tier.start_when_tiered()
        return parsed

    def _enter_or_leave_tier(
        self, name: str, logs: Sequence[Log], old: LogSettings, new: LogSettings
    ) -> None:
        if new.remote_storage_enable and not old.remote_storage_enable:
            self._tier.prepare(self, name)
            self._tier.enter(logs)
        if old.remote_storage_enable and not new.remote_storage_enable:
            if not new.remote_log_delete_on_disable:
                raise InvalidSetting(
                    f"topic {name}: remote.storage.enable=false deletes what is only in object "
                    "storage: set remote.log.delete.on.disable=true with it to agree, or set "
                    "remote.log.copy.disable=true to copy nothing more and keep what is there"
                )
            self._tier.leave(logs)

    def delete(self, name: str, *, at_once: bool) -> None:
        """Deletes a topic; its files are deleted after a delay, or now with `at_once`.

        Resumes an interrupted deletion. A new one first checks that the object store can delete
        the topic: where it cannot, nothing has changed.
        """
        self._remove([self._plan_deletion(name)])
        if at_once:
            self._logs.delete_expired_files()

    def delete_all(self, names: Sequence[str]) -> list[StoreError | None]:
        """Deletes topics of different names, which share their syncs; each has its own error."""
        outcomes: dict[str, StoreError | None] = {}
        planned: list[TopicEntry] = []
        for name in names:
            try:
                planned.append(self._plan_deletion(name))
            except StoreError as error:
                outcomes[name] = error
        outcomes |= _each(self._remove, planned)
        return [outcomes[name] for name in names]

    def _plan_deletion(self, name: str) -> TopicEntry:
        """The topic as it is while it is deleted; raises what speaks against that."""
        _check_not_internal(name, "deleted")
        listed = self._table.topics.get(name)
        is_resumed = listed is not None and listed.state is TopicState.DELETING
        entry = listed if listed is not None and is_resumed else self.get(name)
        for partition in self.partitions_of(name):
            if self._logs.get(partition).settings.remote_storage_enable and not is_resumed:
                self._tier.check_removable(partition)
        return entry.in_state(TopicState.DELETING)

    def _remove(self, entries: Sequence[TopicEntry]) -> None:
        try:
            self._catalog.write(self._table.with_topics(*entries))
        except DiskFull:
            if len(entries) > 1:
                raise  # each is tried alone
            self._free_local_partitions(entries[0].name)
            self._catalog.write(self._table.with_topics(*entries))
        try:
            self._remove_partitions(entries)
        except StoreError as error:
            names = ", ".join(entry.name for entry in entries)
            raise type(error)(
                f"topic {names} is out of service and half deleted, and goes for good when it is "
                f"deleted again or the store reopened: {error}"
            ) from error

    def _free_local_partitions(self, name: str) -> None:
        """Deletes the files of a topic at once: on a full disk they take the place of its entry.

        A crash before the entry is written leaves the topic without records.
        """
        with contextlib.suppress(DiskFull):  # of checkpoints, which are written again
            self._logs.delete(
                *(
                    partition
                    for partition in self.partitions_of(name)
                    if not self._logs.get(partition).settings.remote_storage_enable
                )
            )
        self._logs.delete_expired_files()

    def _remove_partitions(self, entries: Sequence[TopicEntry]) -> None:
        names = {entry.name for entry in entries}
        local = []
        for partition in self._logs.partitions:
            if partition.topic not in names:
                continue
            if self._logs.get(partition).settings.remote_storage_enable:
                self._tier.remove(partition)
                self._logs.delete(partition)
            else:
                local.append(partition)
        self._logs.delete(*local)
        if self._catalog.is_complete:
            self._catalog.write(self._table.without(*names))

    def partitions_of(self, name: str) -> list[TopicPartition]:
        """The partitions of a topic that exist."""
        return [partition for partition in self._logs.partitions if partition.topic == name]

    def get(self, name: str) -> TopicEntry:
        """A topic by its name; raises NotFound."""
        entry = self.find(name)
        if entry is None:
            raise NotFound(
                f"there is no topic {name!r:.260}; `varve topic create` or store.create_topic "
                "creates it"
            )
        return entry

    def find(self, name: str) -> TopicEntry | None:
        """A topic by its name; raises Unavailable for one that is being deleted."""
        entry = self._table.topics.get(name)
        if entry is None:
            return self._derived().get(name)
        if entry.state is TopicState.DELETING:
            raise Unavailable(
                f"topic {name} is being deleted: some of it is in a directory that is offline or "
                "cannot be read, or in an object store that does not answer; delete it again when "
                "that is repaired, or reopen the store"
            )
        return entry

    def entries(self) -> list[TopicEntry]:
        """All topics, by name."""
        by_name = {**self._derived(), **self._table.topics}
        return [
            entry for _, entry in sorted(by_name.items()) if entry.state is not TopicState.DELETING
        ]

    def deleting(self) -> list[str]:
        """The topics whose deletion could not be finished, by name."""
        topics = sorted(self._table.topics.items())
        return [name for name, entry in topics if entry.state is TopicState.DELETING]

    def _derived(self) -> dict[str, TopicEntry]:
        """Topics that exist only as partition directories, as Kafka writes them."""
        counts: dict[str, int] = {}
        ids: dict[str, UUID | None] = {}
        for partition in self._logs.partitions:
            topic = partition.topic
            if topic not in self._table.topics:
                counts[topic] = max(counts.get(topic, 0), partition.partition + 1)
                ids[topic] = ids.get(topic) or self._logs.topic_id(partition)
        return {
            name: TopicEntry(
                name=name,
                id=ids[name],
                partition_count=count,
                settings=self._settings_without_table(name),
            )
            for name, count in counts.items()
        }


def _each(
    work: Callable[[Sequence[TopicEntry]], None], entries: Sequence[TopicEntry]
) -> dict[str, StoreError | None]:
    """Does the work for all topics at once, or where that fails for one after the other; the error
    of each by its name."""
    outcomes: dict[str, StoreError | None] = {entry.name: None for entry in entries}
    if len(entries) > 1:
        with contextlib.suppress(StoreError):
            work(entries)
            return outcomes
    for entry in entries:
        try:
            work([entry])
        except StoreError as error:
            outcomes[entry.name] = error
    return outcomes


def _check_not_internal(name: str, operation: str) -> None:
    if name == METADATA_TOPIC:
        raise InvalidRequest(
            f"topic {name} holds the tier's metadata; it cannot be {operation}: without it all "
            "that is only in object storage would be lost"
        )


_CONTRADICTORY: Final = (
    "min_compaction_lag_ms",
    "max_compaction_lag_ms",
    "local_retention_ms",
    "local_retention_bytes",
    "varve_job_snapshot_interval_ms",
    "varve_job_table_interval_ms",
)
"""Settings that other settings may rule out. At their built-in defaults none does, and no record
leaves a topic earlier."""


def _parse_stored(own: Mapping[str, str], where: str, base: LogSettings) -> LogSettings:
    """Stored settings over defaults, which may have changed since and contradict them now.

    A store opens all the same: its own settings count before defaults, as far as they fit.
    """
    try:
        return parse_settings(LogSettings, own, where, base=base)
    except InvalidSetting as error:
        extra = {"settings": where, "error": str(error)}
        logger.warning("stored settings contradict the defaults", extra=extra)
    values = parse_values(LogSettings, own, where)
    neutral = {name: getattr(LogSettings(), name) for name in _CONTRADICTORY}
    with contextlib.suppress(InvalidSetting):
        return replace(base, **{**neutral, **values})
    return replace(base, **{**values, **neutral})


def _is_count(value: object) -> bool:
    """Whether a value is a partition count; a table with another type could not be read back."""
    return type(value) is int and 1 <= value <= PARTITION_COUNT_MAX


def _as_texts(settings: Mapping[str, GivenValue], where: str) -> dict[str, str]:
    """Validates settings and formats their values as Kafka does."""
    parsed = parse_values(LogSettings, settings, where)
    return {
        declaration.kafka_name: format_value(parsed[declaration.name])
        for declaration in declared(LogSettings)
        if declaration.kafka_name in settings
    }
