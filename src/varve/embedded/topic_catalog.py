"""Keeps the table of topics in every log directory, and finds tiered topics that it lacks.

The table says which topics are tiered. Where a topic is in no table, its removal log still shows
that segments were evicted to object storage.

Invariant  the newest table found counts, and is written to every live directory.
Crash      a directory that missed a write has an older version, which the others outvote.
Threads    one at a time, under the store's lock.
"""

import errno
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from varve.cleaning.removals.removal import RemovalKind
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, read_removal_log
from varve.commit_log import LogDirectory
from varve.commit_log.names import (
    LOG,
    LOG_START_OFFSET_FILE,
    DirectoryState,
    TopicPartition,
    parse_file_name,
    parse_partition_directory,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem, write_atomically
from varve.embedded.topic_table import (
    TOPICS_FILE,
    TopicTable,
    decode_topics,
    encode_topics,
    newest,
)
from varve.foundation.errors import DirectoryOffline, DiskFull, StoreError, Unavailable


class TopicCatalog:
    """The table of topics of some directories."""

    def __init__(self, fs: FileSystem, directories: Sequence[LogDirectory]) -> None:
        self._fs = fs
        self._directories = directories
        self.table = TopicTable()
        self._lost: frozenset[str] = frozenset()

    @property
    def lost(self) -> set[str]:
        """The topics with a part in the cold tier that the table does not have."""
        return {topic for topic in self._lost if topic not in self.table.topics}

    @property
    def is_complete(self) -> bool:
        """Whether every directory is online."""
        return len(self._live) == len(self._directories)

    @property
    def _live(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def load(self) -> None:
        """Reads the newest table; raises Corrupt where one cannot be understood."""
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

        A full disk refuses the change; its version is used up, since some may have it.
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
                    DirectoryOffline(f"{path}: {error.strerror}; mend the disk and reopen")
                )
        if not self._live:
            raise DirectoryOffline("no log directory is online to keep the table of topics")
        self.table = table


def find_lost_settings(
    fs: FileSystem, directories: Sequence[str], known: Collection[str]
) -> frozenset[str]:
    """The topics that are not among the known ones and have a part in the cold tier.

    A directory that cannot be read, or a file in it, tells of none: who opens it says why.
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


def lost_settings_message(topic: str) -> str:
    """The remedy for such a topic."""
    return (
        f"the settings of {topic} are lost, {TOPICS_FILE} does not have it; a part of it is in the "
        "cold tier, where it is still read, and nothing of it expires: give its settings again "
        f"with `varve log configure {topic} remote.storage.enable=true NAME=VALUE ...`"
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
    """Whether the local part begins where segments left it, and the log starts before that."""
    if not fs.exists(f"{directory}/{REMOVAL_LOG_FILE}"):
        return False
    entries = read_removal_log(fs, directory).entries
    moved = [
        removal_entry.removal
        for removal_entry in entries
        if removal_entry.removal.kind is RemovalKind.EVICTION
    ]
    names = [parse_file_name(entry.name) for entry in fs.scan(directory)]
    bases = [name.offset for name in names if name and name.kind == LOG and not name.state]
    if not moved or not bases:
        return False
    first = min(bases)
    return moved[-1].end_offset >= first and (log_start is None or log_start < first)
