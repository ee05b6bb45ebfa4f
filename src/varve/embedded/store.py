"""A store: log directories with topics in them, open in this process.

Crash      a topic is in the table before its partitions are created; see `topic_table`. Altered
           settings are on disk before they take effect.
Threads    any; `_lock` guards the topic handles. A thread that changes topics holds `_changes`
           throughout, takes it before `_lock`, and may wait for the object store under it.
"""

import os
import random as random_module
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from varve.cleaning.metrics import CleanerMetrics
from varve.commit_log import LogDirectory, LogManager, LogSettings, TopicPartition
from varve.disk import FileSystem, RealFileSystem
from varve.embedded.maintenance import StoreHealth, StoreMaintenance
from varve.embedded.partition import Partition
from varve.embedded.store_removals import StoreRemovals
from varve.embedded.store_settings import ParsedSettings, parse_store_settings
from varve.embedded.store_tier import StoreTier
from varve.embedded.tier_location import check_cluster_id_known
from varve.embedded.tier_opening import TierOpening
from varve.embedded.topic import Topic
from varve.embedded.topic_admin import NewTopic, TopicAdmin
from varve.embedded.topic_table import TopicCatalog, TopicEntry, lost_settings_message
from varve.foundation.clock import Clock, RemovalClock, SystemClock
from varve.foundation.errors import (
    Closed,
    InconsistentTopicId,
    InvalidRequest,
    InvalidSetting,
    StoreError,
)
from varve.foundation.settings import GivenValue, check_mapping, declared, expand_units
from varve.foundation.topic_records import check_int, check_list, check_text
from varve.records import Record

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from varve.object_store import ObjectStore
    from varve.tiering.tier import Tier


class StoreMetrics:
    """The metrics of a store, as a collector of prometheus_client."""

    def __init__(self, cleaner: CleanerMetrics, tier: StoreTier) -> None:
        self._cleaner = cleaner
        self._tier = tier

    def collect(self) -> "Iterator[Family]":
        """Called by prometheus_client."""
        yield from self._cleaner.collect()
        tier = self._tier.metrics()
        if tier is not None:
            yield from tier.collect()


class Store(StoreRemovals):
    """An open store, returned by `open`; use it as a context manager, or close it."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        settings: Mapping[str, GivenValue],
        fs: FileSystem,
        clock: Clock,
        random: random_module.Random,
        objects: "ObjectStore | None" = None,
    ) -> None:
        self._paths = paths
        self._random = random
        parsed = parse_store_settings(settings)
        self._settings = parsed
        self._topics: dict[str, Topic] = {}  # guarded by _lock
        self._lock = threading.RLock()
        self._changes = threading.RLock()
        self._is_closed = False
        logs = LogManager(
            paths,
            fs=fs,
            clock=clock,
            random=random,
            settings=parsed.store,
            topic_settings=lambda topic: self._admin.settings_of(topic),
        )
        removal_clock = RemovalClock(
            clock,
            jump_max_ms=parsed.cleaner.varve_retention_clock_jump_max_ms,
            hold_ms=parsed.cleaner.varve_retention_clock_hold_ms,
        )
        opening = TierOpening(logs, clock, random, parsed, objects)
        self._tier = StoreTier(opening, removal_clock)
        logs.attach_remote(self._tier)
        self._catalog = TopicCatalog(fs, logs.directories)
        self._admin = TopicAdmin(
            self._catalog, logs, settings=parsed, random=random, tier=self._tier
        )  # changes under _changes
        maintenance = StoreMaintenance(
            logs,
            clock=clock,
            removal_clock=removal_clock,
            settings=parsed.cleaner,
            tier=self._tier,
        )
        self._tier.cleaner = maintenance.cleaner
        self._metrics = StoreMetrics(maintenance.metrics, self._tier)
        super().__init__(logs, maintenance, self._tier, fs=fs, clock=clock)

    def __repr__(self) -> str:
        return f"<Store {', '.join(self._paths)}{' (closed)' if self._is_closed else ''}>"

    def open(self, *, maintain: bool) -> Self:
        """Opens the directories, completes interrupted changes, and starts background work."""
        check_cluster_id_known(self._fs, [directory.path for directory in self._logs.directories])
        self._catalog.load()
        self._logs.open()
        try:
            self._catalog.check_unchanged()
            self._admin.finish_interrupted()
            if self._tier.is_tiered:
                self._tier.prepare(self._admin)
        except BaseException:
            self._tier.stop()
            self._logs.abandon()
            raise
        if maintain:
            self._maintenance.start()
        return self

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        settings: Mapping[str, GivenValue] | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Creates a topic, by default with one partition and the store's defaults.

        `settings` has Kafka's names, e.g. `{"segment.bytes": 1_000_000}`. Raises TopicExists when
        the topic exists; with `exist_ok` only if its partitions or settings differ.
        """
        if settings is not None:
            settings = expand_units(settings, f"topic {name!r:.80}")
        with self._changes:
            self._check_open()
            self._admin.create(
                name, partition_count=partitions, settings=settings, exist_ok=exist_ok
            )
            return self.topic(name)

    def create_topics(self, topics: Sequence[NewTopic]) -> list[Topic | StoreError]:
        """Creates topics of different names, which share their syncs.

        A `varve.embedded.topic_admin.NewTopic` has a name, a partition count and settings. Returns
        for each the topic, or the error for which it was not created.
        """
        topics = check_list(topics, NewTopic, what="topics")
        with self._changes:
            self._check_open()
            outcomes = self._admin.create_all(topics)
            return [
                self.topic(topic.name) if error is None else error
                for topic, error in zip(topics, outcomes, strict=True)
            ]

    def topic(self, name: str) -> Topic:
        """A topic by its name; raises NotFound."""
        name = check_text(name, "topic")
        with self._lock:
            self._check_open()
            return self._handle_locked(self._admin.get(name))

    def _handle_locked(self, entry: TopicEntry) -> Topic:
        if entry.name not in self._topics:
            settings = self._admin.settings_of(entry.name)
            self._topics[entry.name] = Topic(
                self,
                entry,
                settings,
                clock=self._clock,
                first_partition=self._random.randrange(entry.partition_count),
            )
        return self._topics[entry.name]

    def _get_partition(self, topic: Topic, number: int) -> Partition:
        """For `Topic`; raises InconsistentTopicId if the directory belongs to another topic id."""
        self._check_open()
        topic_id = self._logs.topic_id(TopicPartition(topic.name, number))
        if topic_id is not None and topic.id is not None and topic_id != topic.id:
            entry = self._admin.find(topic.name)
            if entry is not None and entry.id == topic_id:
                raise InconsistentTopicId(
                    f"topic {topic.name} was deleted and created again since this Topic was "
                    f"returned: get the new one with store.topic({topic.name!r})"
                )
            raise InconsistentTopicId(
                f"{topic.name}-{number} belongs to topic id {topic_id}, not {topic.id}; move its "
                "directory away"
            )
        return Partition(topic.name, number, self._logs)

    def _find_record(self, partition: TopicPartition, key: bytes) -> Record | None:
        """For `Topic`."""
        return self._maintenance.cleaner.find_key(partition, key, self._clock.now_ms())

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        with self._lock:
            self._check_open()
            return [self._handle_locked(entry) for entry in self._admin.entries()]

    def alter_topic(self, name: str, settings: Mapping[str, GivenValue | None]) -> Topic:
        """Alters settings of a topic with immediate effect; None resets one to the default.

        Other settings stay. Raises InvalidSetting, and then nothing has changed.
        """
        settings = expand_units(settings, f"topic {name!r:.80}")
        with self._changes:
            topic = self.topic(name)
            topic.settings = self._admin.alter(name, settings)
            return topic

    def add_partitions(self, name: str, count: int) -> Topic:
        """Adds empty partitions up to `count`; existing handles of the topic see them too.

        Existing records stay in their partitions; new records of a key may go to another partition
        than before. Raises InvalidRequest unless `count` exceeds the current number.
        """
        with self._changes:
            topic = self.topic(name)
            entry = self._admin.add_partitions(name, count)
            topic.id, topic.partition_count = entry.id, entry.partition_count
            return topic

    def given_settings(self, name: str) -> Mapping[str, str]:
        """The settings of the topic itself, without defaults, by Kafka's names; raises NotFound."""
        self._check_open()
        return self._admin.get(check_text(name, "topic")).settings

    @property
    def settings(self) -> ParsedSettings:
        """The settings the store was opened with."""
        return self._settings

    @property
    def topic_defaults(self) -> LogSettings:
        """The settings of a topic that has none of its own."""
        return self._admin.defaults

    @property
    def altered_defaults(self) -> Mapping[str, str]:
        """The defaults that `alter_defaults` set, by topic setting names."""
        return self._admin.given_defaults

    def alter_defaults(self, settings: Mapping[str, GivenValue | None]) -> None:
        """Alters the defaults of all topics, durably and with immediate effect.

        Uses topic setting names; None resets one to what the store was opened with. Raises
        InvalidSetting for a setting without a store-wide default, and then nothing has changed.
        """
        check_mapping(settings, "the defaults of topics")
        single = [
            declaration.kafka_name
            for declaration in declared(LogSettings)
            if not declaration.broker_name
        ]
        for name in settings:
            if name in single:
                raise InvalidSetting(f"{name} is a setting of one topic: give it with alter_topic")
        with self._changes:
            self._check_open()
            self._admin.alter_defaults(settings)
            for topic in self.topics():
                topic.settings = self._admin.settings_of(topic.name)

    def delete_topic(self, name: str, *, at_once: bool = False) -> None:
        """Deletes a topic; its files are deleted after `file.delete.delay.ms`.

        With `at_once` they are deleted now, with all files that wait for their deletion, which is
        only safe while no thread reads. For a tiered topic the object store is checked first: if it
        cannot delete, nothing has changed. If it or a directory fails later, the topic is out of
        service (see `deleting`); call this again to continue.
        """
        name = check_text(name, "topic")
        with self._changes:
            self._check_open()
            self._admin.delete(name, at_once=at_once)
            with self._lock:
                self._topics.pop(name, None)

    def delete_topics(self, names: Sequence[str]) -> list[StoreError | None]:
        """Deletes topics of different names, which share their syncs; the error of each, or None.

        As with `delete_topic`, files are deleted after `file.delete.delay.ms`.
        """
        names = check_list(names, str, what="names")
        with self._changes:
            self._check_open()
            outcomes = self._admin.delete_all(names)
            with self._lock:
                for name, error in zip(names, outcomes, strict=True):
                    if error is None:
                        self._topics.pop(name, None)
            return outcomes

    def deleting(self) -> list[str]:
        """The names of topics whose deletion is not complete."""
        self._check_open()
        return self._admin.deleting()

    @property
    def recovered(self) -> dict[str, list[str]]:
        """What the open cut, dropped or rebuilt after a crash, by partition; and the topics whose
        settings are lost, with the remedy."""
        recovered = {
            str(partition): log.recovered
            for directory in self._logs.directories
            for partition, log in sorted(directory.logs.items())
            if log.recovered
        }
        return recovered | {
            topic: [lost_settings_message(topic)] for topic in sorted(self._admin.lost)
        }

    @property
    def cluster_id(self) -> str:
        """The cluster id in the log directories and in the remote tier; empty when unknown."""
        online = (
            directory.metadata for directory in self._logs.directories if directory.failure is None
        )
        return next(
            (metadata.cluster_id for metadata in online if metadata and metadata.cluster_id), ""
        )

    @property
    def directories(self) -> list[LogDirectory]:
        """All log directories, including those that are offline."""
        return self._logs.directories

    @property
    def fs(self) -> FileSystem:
        """The file system of the directories."""
        return self._fs

    def _check_open(self) -> None:
        self._logs.check_process()
        if self._is_closed:
            raise Closed(f"the store {', '.join(self._paths)} was closed; open it again")

    def run_once(self, now_ms: int | None = None) -> None:
        """One round of all background work, as of the given time.

        For tests, and for programs that opened the store with `maintain` off.
        """
        self._check_open()
        now_ms = self._clock.now_ms() if now_ms is None else check_int(now_ms, "now_ms")
        self._maintenance.run_once(now_ms)

    def health(self) -> StoreHealth:
        """The health of the background work, the partitions and the log directories."""
        self._check_open()
        return self._maintenance.health()

    def measure(self) -> None:
        """Updates `metrics` without cleaning anything."""
        self._check_open()
        self._maintenance.measure(self._clock.now_ms())

    @property
    def metrics(self) -> StoreMetrics:
        """The store's metrics, to be registered with a prometheus_client registry."""
        return self._metrics

    @property
    def tier(self) -> "Tier":
        """The remote tier: copies, expiry and status of its partitions, on request.

        Raises Unavailable when its object store cannot be opened now.
        """
        self._check_open()
        return self._tier.get()

    def producer(self, transactional_id: str) -> NoReturn:
        """Raises InvalidRequest: a store has no transaction coordinator, `Cluster.producer` has."""
        self._check_open()
        raise InvalidRequest(
            f"transactional_id {transactional_id!r:.80}: a store has no transaction coordinator; "
            f"run `varve serve -d {':'.join(self._paths)}` and use "
            'varve.connect("localhost:9092").producer(...)'
        )

    def flush(self) -> None:
        """Syncs everything appended so far to disk."""
        for topic in self.topics():
            topic.flush()

    def close(self) -> None:
        """Flushes and closes everything; closing twice is harmless.

        A forked child has nothing to close.
        """
        if self._logs.is_inherited:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            self._maintenance.stop()
        finally:
            # A thread that changes a topic may still write to the directories.
            with self._changes:
                self._logs.close()

    def abandon(self) -> None:
        """Closes everything without writing, as a killed process would."""
        if self._logs.is_inherited:
            return
        self._is_closed = True
        self._maintenance.stop()
        self._logs.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StoreError as failure:
            if error is None:
                raise
            # The caller must see the first error.
            error.add_note(f"and closing the store failed: {failure}")


StrPath = str | os.PathLike[str]


def open(
    paths: StrPath | Sequence[StrPath],
    *,
    settings: Mapping[str, GivenValue] | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    random: random_module.Random | None = None,
    maintain: bool = True,
    objects: "ObjectStore | None" = None,
) -> Store:
    """Opens a store in one directory or, for several disks, in several; creates missing ones.

    `settings` has Kafka's broker names: settings of the store, and defaults of its topics such as
    `log.segment.bytes`. Unless `maintain` is off, threads flush and checkpoint, delete segments
    past their retention, compact logs that are due, and copy topics with `remote.storage.enable`
    to the remote tier at `varve.tier.url`. `fs`, `clock`, `random` and `objects`, which replaces
    that URL, are for tests.

    Raises Locked when another process has a directory open.
    """
    texts = [_path_text(path) for path in _to_list(paths)]
    store = Store(
        texts,
        settings={} if settings is None else settings,
        fs=fs or RealFileSystem(),
        clock=clock or SystemClock(),
        random=random or random_module.Random(),
        objects=objects,
    )
    return store.open(maintain=maintain)


def _to_list(paths: object) -> list[object]:
    if isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike):
        return list(paths)
    return [paths]


def _path_text(path: object) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text or not _is_encodable(text):
        raise InvalidRequest(f"log directory {path!r:.80} is not a path; use a str or Path")
    return text.rstrip("/") or "/"


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
