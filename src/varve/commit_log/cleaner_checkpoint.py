"""Up to which offset each partition of a log directory is clean.

Layout     `cleaner-offset-checkpoint`: lines `topic partition offset`. docs/formats/checkpoints.md
Invariant  an entry never reaches beyond its log: it is lowered, durably, before the log is cut, and
           removed with the partition.
Crash      replaced whole; one that lags makes the next cleaning look at more than it must.
Threads    one lock around the entries and the file.
"""

import threading
from collections.abc import Callable, Collection

from varve.commit_log.checkpoints import encode_offsets
from varve.commit_log.names import CLEANER_OFFSET_FILE, TopicPartition
from varve.disk import FileSystem, write_atomically


class CleanerCheckpoint:
    """The checkpoint of one log directory; `hosted` tells which partitions it holds now."""

    def __init__(
        self, fs: FileSystem, directory: str, hosted: Callable[[], Collection[TopicPartition]]
    ) -> None:
        self._fs = fs
        self._path = f"{directory}/{CLEANER_OFFSET_FILE}"
        self._hosted = hosted
        self._lock = threading.Lock()
        self._offsets: dict[TopicPartition, int] = {}  # guarded by _lock

    def take(self, offsets: dict[TopicPartition, int]) -> None:
        """What the file said when the directory was opened."""
        with self._lock:
            self._offsets = dict(offsets)

    def find(self, partition: TopicPartition) -> int | None:
        with self._lock:
            return self._offsets.get(partition)

    def write(self, partition: TopicPartition, offset: int) -> None:
        """On disk when it returns; entries of partitions that are not here any more go."""
        with self._lock:
            self._write_locked({**self._offsets, partition: offset})

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lowers an entry that reaches beyond the offset, durably."""
        with self._lock:
            if self._offsets.get(partition, offset) > offset:
                self._write_locked({**self._offsets, partition: offset})

    def forget(self, partition: TopicPartition) -> None:
        with self._lock:
            if partition in self._offsets:
                rest = {one: at for one, at in self._offsets.items() if one != partition}
                self._write_locked(rest)

    def _write_locked(self, offsets: dict[TopicPartition, int]) -> None:
        hosted = self._hosted()
        offsets = {one: offset for one, offset in offsets.items() if one in hosted}
        write_atomically(self._fs, self._path, encode_offsets(offsets))
        self._offsets = offsets
