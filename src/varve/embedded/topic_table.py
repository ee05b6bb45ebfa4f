"""The topics of a store and their settings, kept in every log directory.

The table records which topics are tiered. For a topic that is in no table, the removal log still
shows that segments were evicted to object storage.

Layout     `varve-topics.json`: format, version, and by name each topic's id, partition count,
           settings and state; defaults that were altered at run time.
           docs/reference/formats/directory.md
Invariant  the version rises with every change; the highest version counts, and is written to
           every live directory.
Crash      written to a temporary file that is renamed. A topic is `creating`
           before its partitions are created, `growing` before some are added, and `deleting` before
           they are deleted, so that the next open completes an interrupted change. A directory that
           missed a write has an older version, which is ignored.
Threads    one at a time, under the store's lock.
"""

import errno
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from varve.cleaning.removals.removal import RemovalKind
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, read_removal_log
from varve.commit_log import LogDirectory, LogSettings, TopicPartition
from varve.commit_log.directory_files import decode_topic_id, encode_topic_id
from varve.commit_log.names import (
    LOG,
    LOG_START_OFFSET_FILE,
    PARTITION_MAX,
    DirectoryState,
    parse_file_name,
    parse_partition_directory,
    validate_topic_name,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    DiskFull,
    StoreError,
    TopicExists,
    Unavailable,
    UnsupportedFormat,
)
from varve.foundation.settings import parse_values
from varve.foundation.topic_handle import check_same_topic

TOPICS_FILE: Final = "varve-topics.json"
FORMAT: Final = 1


class TopicState(StrEnum):
    """The lifecycle of a topic."""

    CREATING = "creating"
    READY = "ready"
    GROWING = "growing"
    """In service; some of its partitions may not exist yet."""
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic; `id` is None where no partition has one, `settings` are the topic's own."""

    name: str
    id: UUID | None
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)
    state: TopicState = TopicState.READY

    def in_state(self, state: TopicState) -> "TopicEntry":
        return replace(self, state=state)

    def check_same(
        self, partition_count: int | None, settings: Mapping[str, str] | None, *, exist_ok: bool
    ) -> None:
        """Raises TopicExists without `exist_ok`, or if the topic differs; None matches anything."""
        if not exist_ok:
            raise TopicExists(
                f"topic {self.name} exists already; use it or choose another name "
                "(create_topic takes it as it is with exist_ok=True; alter_topic changes settings)"
            )
        check_same_topic(
            self.name, (self.partition_count, self.settings), (partition_count, settings)
        )


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All topics at one version; version 0 stands for a missing file."""

    version: int = 0
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Settings of topics without their own, altered while the store was open."""

    def with_topics(self, *entries: TopicEntry) -> "TopicTable":
        """The next version, with these entries put in or replaced."""
        topics = {**self.topics, **{entry.name: entry for entry in entries}}
        return replace(self, version=self.version + 1, topics=topics)

    def without(self, *names: str) -> "TopicTable":
        """The next version, without these topics."""
        kept = {key: entry for key, entry in self.topics.items() if key not in names}
        return replace(self, version=self.version + 1, topics=kept)

    def with_defaults(self, defaults: Mapping[str, str]) -> "TopicTable":
        """The next version, with these settings for all topics."""
        return replace(self, version=self.version + 1, defaults=defaults)


def newest(tables: Iterable[TopicTable]) -> TopicTable:
    """The table with the highest version; an empty one when there is none."""
    return max(tables, key=lambda table: table.version, default=TopicTable())


def encode_topics(table: TopicTable) -> bytes:
    """The document of `varve-topics.json`."""
    topics = {
        entry.name: {
            "id": None if entry.id is None else encode_topic_id(entry.id),
            "partitions": entry.partition_count,
            "settings": dict(sorted(entry.settings.items())),
            "state": entry.state.value,
        }
        for _, entry in sorted(table.topics.items())
    }
    document: dict[str, Any] = {"format": FORMAT, "version": table.version, "topics": topics}
    if table.defaults:
        document["defaults"] = dict(sorted(table.defaults.items()))
    return (json.dumps(document, indent=1) + "\n").encode()


def decode_topics(data: bytes, where: str = TOPICS_FILE) -> TopicTable:
    """Decodes a table; raises Corrupt with the field that breaks the format."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise TypeError("the top level is not an object")
        if document.get("format") != FORMAT:
            raise UnsupportedFormat(
                f"{where}: format {document.get('format')!r:.40}, only {FORMAT} is known; "
                "open the store with a newer varve"
            )
        version = _check_integer(document["version"], 1, 2**63 - 1)
        entries = [_decode_entry(name, item, where) for name, item in document["topics"].items()]
        defaults = _decode_settings(document.get("defaults", {}), f"{where}, defaults")
    except StoreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{where}: not a table of topics ({type(error).__name__}: {error!s:.80}); "
            "restore it, or remove it to open the topics with default settings"
        ) from error
    return TopicTable(version, {entry.name: entry for entry in entries}, defaults)


def _decode_entry(name: str, item: Any, where: str) -> TopicEntry:
    validate_topic_name(name)
    id = item["id"]
    settings = _decode_settings(item["settings"], f"{where}, topic {name}")
    return TopicEntry(
        name=name,
        id=None if id is None else decode_topic_id(str(id), f"{where}: topic {name}"),
        partition_count=_check_integer(item["partitions"], 1, PARTITION_MAX),
        settings=settings,
        state=TopicState(item["state"]),
    )


def _decode_settings(items: Any, where: str) -> dict[str, str]:
    settings = {str(key): str(value) for key, value in items.items()}
    # Whether they fit together depends on the defaults, which may have changed since.
    parse_values(LogSettings, settings, where)
    return settings


def _check_integer(value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{value!r:.40} is not a whole number from {low} to {high}")
    return value


class TopicCatalog:
    """The topic table of a store, read from and written to its log directories."""

    def __init__(self, fs: FileSystem, directories: Sequence[LogDirectory]) -> None:
        self._fs = fs
        self._directories = directories
        self.table = TopicTable()
        self._lost: frozenset[str] = frozenset()

    @property
    def lost(self) -> set[str]:
        """The topics with remote segments that are not in the table."""
        return {topic for topic in self._lost if topic not in self.table.topics}

    @property
    def is_complete(self) -> bool:
        """Whether every directory is online."""
        return len(self._live) == len(self._directories)

    @property
    def _live(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def load(self) -> None:
        """Reads the newest table; raises Corrupt for one that cannot be decoded."""
        self.table = self._read()
        paths = [directory.path for directory in self._directories]
        self._lost = find_lost_settings(self._fs, paths, self.table.topics)

    def check_unchanged(self) -> None:
        """Raises Unavailable when another process wrote since `load`, before the locks."""
        if self._read().version != self.table.version:
            raise Unavailable(
                f"{TOPICS_FILE} of {self._directories[0].path} changed while the store was opened; "
                "open it again"
            )

    def _read(self) -> TopicTable:
        tables = []
        for directory in self._directories:
            path = f"{directory.path}/{TOPICS_FILE}"
            try:
                tables.append(decode_topics(self._fs.read(path), where=path))
            except OSError as error:  # missing, or its directory goes offline
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise Unavailable(
                        f"{path}: {error.strerror}; raise the limit on open files (ulimit -n) and "
                        "open it again"
                    ) from error
        return newest(tables)

    def write(self, table: TopicTable) -> None:
        """Writes the table to every live directory; one that fails goes offline.

        A full disk refuses the change; its version is not used again, as a directory may have it.
        """
        self.table = replace(self.table, version=table.version)
        data = encode_topics(table)
        for directory in self._live:
            path = f"{directory.path}/{TOPICS_FILE}"
            try:
                write_atomically(self._fs, path, data)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(f"{path}: {error.strerror}; free some space") from error
                directory.health.fail(
                    DirectoryOffline(
                        f"{path}: {error.strerror}; repair the disk and reopen the store"
                    )
                )
        if not self._live:
            raise DirectoryOffline("no log directory is online to keep the table of topics")
        self.table = table


def find_lost_settings(
    fs: FileSystem, directories: Sequence[str], known: Collection[str]
) -> frozenset[str]:
    """The topics with remote segments that are not among the `known` ones.

    A directory or file that cannot be read counts as empty: opening it reports the error.
    """
    lost: set[str] = set()
    for directory in directories:
        with suppress(OSError, StoreError):
            starts = _read_starts(fs, directory)
            for entry in fs.scan(directory):
                partition = _find_partition(entry.name) if entry.is_directory else None
                if partition is None or partition.topic in known or partition.topic in lost:
                    continue
                path = f"{directory}/{entry.name}"
                if _has_remote_part(fs, path, starts.get(partition)):
                    lost.add(partition.topic)
    return frozenset(lost)


def read_newest_table(fs: FileSystem, directories: Sequence[str]) -> TopicTable:
    """The newest table of log directories that need not be open; an empty one without a file."""
    paths = [f"{directory}/{TOPICS_FILE}" for directory in directories]
    return newest(decode_topics(fs.read(path), where=path) for path in paths if fs.exists(path))


def lost_settings_message(topic: str) -> str:
    """The message for a topic with remote segments whose settings are lost."""
    return (
        f"the settings of {topic} are lost, {TOPICS_FILE} does not have it; a part of it is in the "
        "remote tier, where it is still read, and nothing of it expires: give its settings again "
        f"with `varve topic alter {topic} --set remote.storage.enable=true --set NAME=VALUE ...`"
    )


def _find_partition(name: str) -> TopicPartition | None:
    with suppress(StoreError):
        directory = parse_partition_directory(name)
        return directory.topic_partition if directory.state is DirectoryState.ACTIVE else None
    return None


def _read_starts(fs: FileSystem, directory: str) -> dict[TopicPartition, int]:
    path = f"{directory}/{LOG_START_OFFSET_FILE}"
    return decode_offsets(fs.read(path), where=path) if fs.exists(path) else {}


def _has_remote_part(fs: FileSystem, directory: str, log_start: int | None) -> bool:
    """Whether the log starts before its first_local local segment because segments were evicted."""
    if not fs.exists(f"{directory}/{REMOVAL_LOG_FILE}"):
        return False
    entries = read_removal_log(fs, directory).entries
    evictions = [
        removal_entry.removal
        for removal_entry in entries
        if removal_entry.removal.kind is RemovalKind.EVICTION
    ]
    names = [parse_file_name(entry.name) for entry in fs.scan(directory)]
    bases = [name.offset for name in names if name and name.kind == LOG and not name.state]
    if not evictions or not bases:
        return False
    first_local = min(bases)
    return evictions[-1].end_offset >= first_local and (
        log_start is None or log_start < first_local
    )


def find_tiered_topics(fs: FileSystem, directory: str) -> set[str]:
    """The topics of a log directory that have a remote tier."""
    path = f"{directory}/{TOPICS_FILE}"
    table = decode_topics(fs.read(path), path).topics if fs.exists(path) else {}
    enabled = {
        name
        for name, entry in table.items()
        if parse_values(LogSettings, entry.settings, f"topic {name}").get("remote_storage_enable")
    }
    return enabled | find_lost_settings(fs, [directory], table)
