"""Keeps the table of topics in every log directory.

Invariant  the newest table found counts, and is written to every live directory.
Crash      a directory that missed a write has an older version, which the others outvote.
Threads    one at a time, under the store's lock.
"""

import errno
from collections.abc import Sequence
from dataclasses import replace

from varve.commit_log import LogDirectory
from varve.disk import FileSystem, write_atomically
from varve.embedded.lost_settings import find_lost_settings
from varve.embedded.topic_table import (
    TOPICS_FILE,
    TopicTable,
    decode_topics,
    encode_topics,
    newest,
)
from varve.foundation.errors import DirectoryOffline, DiskFull, Unavailable


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
                directory.take_offline(
                    DirectoryOffline(f"{path}: {error.strerror}; mend the disk and reopen")
                )
        if not self._live:
            raise DirectoryOffline("no log directory is online to keep the table of topics")
        self.table = table
