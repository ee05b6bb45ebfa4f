"""A store: log directories with topics in them, open in this process.

Crash      a topic is in the table before its partitions are made; see `topic_table`.
Threads    any; `_lock` guards the table and the handles made from it.
"""

import logging
import os
import random as random_module
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from varve.commit_log import LogSettings, LogStore, TopicPartition
from varve.commit_log.names import validate_topic_name
from varve.commit_log.partition_metadata import random_topic_id
from varve.disk import FileSystem, RealFileSystem
from varve.embedded.partition import Partition
from varve.embedded.store_settings import parse_store_settings
from varve.embedded.topic import Topic
from varve.embedded.topic_catalog import TopicCatalog
from varve.embedded.topic_table import TopicEntry, TopicState, TopicTable
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import (
    Closed,
    InconsistentTopicId,
    InvalidRequest,
    NotFound,
    StoreError,
    Unavailable,
)
from varve.foundation.settings import GivenValue, format_value, parse_settings
from varve.foundation.settings import declared as declared_settings
from varve.foundation.worker import Worker

logger = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]

MAINTENANCE_INTERVAL_MS: Final = 1_000
# Each partition keeps two files open; far more than this is a slip of the keyboard.
PARTITION_COUNT_MAX: Final = 10_000


class Store:
    """An open store. Made by `open`; use it as a context manager, or close it."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        settings: Mapping[str, GivenValue],
        fs: FileSystem,
        clock: Clock,
        random: random_module.Random,
    ) -> None:
        self._paths = paths
        self._fs = fs
        self._clock = clock
        self._random = random
        store_settings, self._defaults = parse_store_settings(settings)
        self._topics: dict[str, Topic] = {}  # guarded by _lock
        self._lock = threading.RLock()
        self._is_closed = False
        self._logs = LogStore(
            paths,
            fs=fs,
            clock=clock,
            random=random,
            settings=store_settings,
            topic_settings=self._settings_of,
        )
        self._catalog = TopicCatalog(fs, self._logs.directories)  # guarded by _lock
        self._worker = Worker(
            "varve-maintenance", self._logs.run_once, MAINTENANCE_INTERVAL_MS, clock
        )

    def __repr__(self) -> str:
        return f"<Store {', '.join(self._paths)}{' (closed)' if self._is_closed else ''}>"

    def open(self, *, maintain: bool) -> Self:
        """Opens the directories, finishes what a crash cut, and starts the maintenance."""
        self._catalog.load()
        self._logs.open()
        try:
            self._catalog.check_unchanged()
            self._settle()
        except BaseException:
            self._logs.abandon()
            raise
        if maintain:
            self._worker.start()
        return self

    def _settings_of(self, topic: str) -> LogSettings:
        entry = self._table.topics.get(topic)
        given = {} if entry is None else entry.settings
        return parse_settings(LogSettings, given, f"topic {topic}", base=self._defaults)

    def _settle(self) -> None:
        """Makes the partitions that a crash left out, and removes those it left over."""
        for entry in list(self._table.topics.values()):
            if entry.state is TopicState.READY or not self._catalog.is_complete:
                continue
            try:
                if entry.state is TopicState.CREATING:
                    self._make_partitions(entry)
                else:
                    self._remove_partitions(entry)
            except StoreError as error:
                logger.warning(
                    "topic stays unfinished", extra={"topic": entry.name, "error": str(error)}
                )

    @property
    def _table(self) -> TopicTable:
        return self._catalog.table

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        settings: Mapping[str, GivenValue] | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Makes a topic, by default with one partition and the store's defaults.

        `settings` goes by Kafka's names, e.g. `{"segment.bytes": 1_000_000}`. Raises TopicExists
        when there is one of that name; with `exist_ok` only if it differs from what is asked.
        """
        validate_topic_name(name)
        if partitions is not None and not _is_count(partitions):
            raise InvalidRequest(
                f"topic {name} with {partitions!r:.40} partitions; it needs a whole number from 1 "
                f"to {PARTITION_COUNT_MAX}"
            )
        wanted = _as_texts(settings or {}, f"topic {name}")
        with self._lock:
            self._check_open()
            entry = self._find_entry(name)
            if entry is None:
                entry = TopicEntry(
                    name=name,
                    id=random_topic_id(self._random),
                    partition_count=partitions or 1,
                    settings=wanted,
                    state=TopicState.CREATING,
                )
                self._catalog.write(self._table.with_topics(entry))
            else:
                is_unfinished = entry.state is TopicState.CREATING
                entry.check_same(
                    partitions,
                    None if settings is None else wanted,
                    exist_ok=exist_ok or is_unfinished,
                )
            if entry.state is TopicState.CREATING:
                self._make_partitions(entry)
            return self.topic(name)

    def _make_partitions(self, entry: TopicEntry) -> None:
        assert entry.id is not None
        for number in range(entry.partition_count):
            self._logs.create(TopicPartition(entry.name, number), entry.id)
        self._catalog.write(self._table.with_topics(entry.in_state(TopicState.READY)))

    def topic(self, name: str) -> Topic:
        """A topic by its name; raises NotFound."""
        with self._lock:
            self._check_open()
            entry = self._find_entry(name)
            if entry is None:
                raise NotFound(f"there is no topic {name!r:.260}; create it with create_topic")
            if name not in self._topics:
                self._topics[name] = self._make_topic(entry)
            return self._topics[name]

    def _make_topic(self, entry: TopicEntry) -> Topic:
        return Topic(
            entry.name,
            id=entry.id,
            partition_count=entry.partition_count,
            settings=self._settings_of(entry.name),
            clock=self._clock,
            make_partition=lambda number: self._make_partition(entry, number),
            first_partition=self._random.randrange(entry.partition_count),
        )

    def _make_partition(self, entry: TopicEntry, number: int) -> Partition:
        self._check_open()
        found = self._logs.topic_id(TopicPartition(entry.name, number))
        if found is not None and entry.id is not None and found != entry.id:
            raise InconsistentTopicId(
                f"{entry.name}-{number} belongs to topic id {found}, not {entry.id}; move its "
                "directory away"
            )
        return Partition(entry.name, number, self._logs)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        with self._lock:
            self._check_open()
            return [self.topic(entry.name) for entry in self._entries()]

    def _find_entry(self, name: str) -> TopicEntry | None:
        entry = self._table.topics.get(name)
        if entry is None:
            return self._derived().get(name)
        if entry.state is TopicState.DELETING:
            raise Unavailable(
                f"topic {name} is being deleted and has partitions in a directory that is offline "
                "or cannot be read; mend it and reopen the store"
            )
        return entry

    def _entries(self) -> list[TopicEntry]:
        known = {**self._derived(), **self._table.topics}
        return [
            entry for _, entry in sorted(known.items()) if entry.state is not TopicState.DELETING
        ]

    def _derived(self) -> dict[str, TopicEntry]:
        """Topics that only their partitions' directories tell of, as Kafka leaves them."""
        counts: dict[str, int] = {}
        ids: dict[str, UUID | None] = {}
        for partition in self._logs.partitions:
            topic = partition.topic
            if topic not in self._table.topics:
                counts[topic] = max(counts.get(topic, 0), partition.partition + 1)
                ids[topic] = ids.get(topic) or self._logs.topic_id(partition)
        return {
            name: TopicEntry(name=name, id=ids[name], partition_count=count)
            for name, count in counts.items()
        }

    def delete_topic(self, name: str) -> None:
        """Removes a topic; its files go after `file.delete.delay.ms`."""
        with self._lock:
            topic = self.topic(name)
            entry = self._find_entry(name)
            assert entry is not None
            for partition in self._existing(entry):
                self._logs.get(partition)
            doomed = entry.in_state(TopicState.DELETING)
            self._catalog.write(self._table.with_topics(doomed))
            del self._topics[topic.name]
            self._remove_partitions(doomed)

    def _remove_partitions(self, entry: TopicEntry) -> None:
        for partition in self._existing(entry):
            self._logs.delete(partition)
        if self._catalog.is_complete:
            self._catalog.write(self._table.without(entry.name))

    def _existing(self, entry: TopicEntry) -> list[TopicPartition]:
        return [one for one in self._logs.partitions if one.topic == entry.name]

    @property
    def recovered(self) -> dict[str, list[str]]:
        """By partition, what the open had to cut, drop or rebuild after a crash."""
        return {
            str(partition): log.recovered
            for directory in self._logs.directories
            for partition, log in sorted(directory.logs.items())
            if log.recovered
        }

    def _check_open(self) -> None:
        self._logs.check_process()
        if self._is_closed:
            raise Closed(f"the store {', '.join(self._paths)} was closed; open it again")

    def flush(self) -> None:
        """Brings everything appended so far to the disk."""
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
            self._worker.stop()
        finally:
            self._logs.close()

    def abandon(self) -> None:
        """Lets go of everything without writing, as a killed process would."""
        if self._logs.is_inherited:
            return
        self._is_closed = True
        self._worker.stop()
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
            # What went wrong first is what the caller must see.
            error.add_note(f"and closing the store failed: {failure}")


def open(
    paths: StrPath | Sequence[StrPath],
    *,
    settings: Mapping[str, GivenValue] | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    random: random_module.Random | None = None,
    maintain: bool = True,
) -> Store:
    """Opens a store, or makes an empty one: a directory, or several for several disks.

    `settings` goes by Kafka's names: those of the store, and as `log.segment.bytes` and the like
    the defaults of its topics. `fs`, `clock` and `random` are for tests. Unless `maintain` is off a
    thread flushes, checkpoints and removes what is due, about once a second.

    Raises Locked when another process has a directory open.
    """
    texts = [_path_text(path) for path in _listed(paths)]
    store = Store(
        texts,
        settings=settings or {},
        fs=fs or RealFileSystem(),
        clock=clock or SystemClock(),
        random=random or random_module.Random(),
    )
    return store.open(maintain=maintain)


def _listed(paths: object) -> list[object]:
    if isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike):
        return list(paths)
    return [paths]


def _path_text(path: object) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidRequest(f"log directory {path!r:.80} is no path; give text or a pathlib.Path")
    return text.rstrip("/") or "/"


def _is_count(given: object) -> bool:
    """Another kind of number would be written to the table, and could not be read again."""
    return type(given) is int and 1 <= given <= PARTITION_COUNT_MAX


def _as_texts(settings: Mapping[str, GivenValue], where: str) -> dict[str, str]:
    """Checked settings as Kafka writes them."""
    parsed = parse_settings(LogSettings, settings, where)
    return {
        one.kafka_name: format_value(getattr(parsed, one.name))
        for one in declared_settings(LogSettings)
        if one.kafka_name in settings
    }
