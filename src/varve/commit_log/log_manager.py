"""All log directories of one process: finds, creates, deletes and maintains their partitions.

Invariant  a partition is in one directory only; a new one goes to the online directory with the
           fewest. Only the process that opened the directories uses them: a forked child
           shares the lock, and would overwrite what its parent writes.
Threads    any; `run_once` is called by one maintenance worker.
"""

import contextlib
import itertools
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from varve.commit_log.directory_files import random_id_text
from varve.commit_log.health import cannot_open
from varve.commit_log.log import Log
from varve.commit_log.log_directory import LogDirectory
from varve.commit_log.log_reader import RemoteLogReaders
from varve.commit_log.names import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
    validate_topic_name,
)
from varve.commit_log.segment import SegmentFiles
from varve.commit_log.settings import LONG_MAX, LogSettings, StoreSettings
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    Closed,
    Corrupt,
    DirectoryOffline,
    InconsistentClusterId,
    InvalidRequest,
    Locked,
    NotFound,
    StoreError,
    Unavailable,
)

logger = logging.getLogger(__name__)

_PRODUCERS: Final = "producers"
_CREATED_TOGETHER_MAX: Final = 256
"""Partitions that are created and synced together; each keeps one file open meanwhile."""


class LogManager:
    """Opens several log directories and serves their partitions. Use as a context manager."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        fs: FileSystem,
        clock: Clock,
        random: random.Random,
        settings: StoreSettings | None = None,
        topic_settings: Callable[[str], LogSettings] | None = None,
        is_alone: bool = True,
    ) -> None:
        if not paths or len(set(paths)) != len(paths):
            given = ", ".join(paths) or "none"
            raise InvalidRequest(f"the log directories are {given}: name one or more, each once")
        _check_disjoint(fs, paths)
        self._settings = settings or StoreSettings()
        self._clock = clock
        self.fs = fs
        self._random = random
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        files = SegmentFiles(fs)
        defaults = LogSettings()
        self.directories = [
            LogDirectory(
                path,
                files=files,
                settings=self._settings,
                topic_settings=topic_settings or (lambda topic: defaults),
                clock=clock,
                random=random,
                is_alone=is_alone,
            )
            for path in paths
        ]
        self._due_ms: dict[str, int] = {}

    def attach_remote(self, readers: RemoteLogReaders) -> None:
        """Gives every log opened from now on its remote reader; call it before `open`."""
        for directory in self.directories:
            directory.remote_readers = readers

    def open(self) -> "LogManager":
        """Opens every directory; one that fails goes offline.

        Raises if all fail, if another process has a directory open, and if they belong to different
        clusters.
        """
        opened: list[LogDirectory] = []
        cluster_id = self._find_cluster_id() or random_id_text(self._random)
        try:
            for directory in self.directories:
                self._open_directory(directory, cluster_id)
                opened.append(directory)
            self._check_duplicates()
        except BaseException:
            for directory in opened:
                directory.abandon()
            raise
        now_ms = self._clock.now_ms()
        self._due_ms = {name: now_ms + interval for name, interval in self._intervals().items()}
        return self

    def _find_cluster_id(self) -> str | None:
        """The id that the directories carry; None when all are new."""
        ids: dict[str, str] = {}
        for directory in self.directories:
            with contextlib.suppress(OSError):  # opening the directory reports it
                metadata = directory.read_metadata()
                if metadata is not None and metadata.cluster_id is not None:
                    ids.setdefault(metadata.cluster_id, directory.path)
        if len(ids) > 1:
            listed = ", ".join(f"{id} ({where})" for id, where in ids.items())
            raise InconsistentClusterId(
                f"the log directories belong to different clusters: {listed}; "
                "open the directories of one cluster together"
            )
        return next(iter(ids), None)

    def _open_directory(self, directory: LogDirectory, cluster_id: str) -> None:
        try:
            directory.open(cluster_id)
        except OSError as error:
            others = [other for other in self.directories if other is not directory]
            if all(other.failure is not None for other in others):
                raise cannot_open(error, directory.path) from error
            directory.health.fail(cannot_open(error, directory.path))
        except Locked:
            raise
        except StoreError as error:
            raise type(error)(f"log directory {directory.path}: {error}") from error

    def _check_duplicates(self) -> None:
        seen: dict[TopicPartition, str] = {}
        for directory in self.directories:
            for partition in (*directory.logs, *directory.unreadable):
                if partition in seen:
                    raise Corrupt(
                        f"{partition} is in both {seen[partition]} and {directory.path}; "
                        "move one of them away"
                    )
                seen[partition] = directory.path

    def _intervals(self) -> dict[str, int]:
        """How often checkpoints are written and producers expire."""
        settings = self._settings
        return {
            RECOVERY_POINT_FILE: settings.log_flush_offset_checkpoint_interval_ms,
            LOG_START_OFFSET_FILE: settings.log_flush_start_offset_checkpoint_interval_ms,
            HIGH_WATERMARK_FILE: settings.replica_high_watermark_checkpoint_interval_ms,
            _PRODUCERS: settings.producer_id_expiration_check_interval_ms,
        }

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions, including those that cannot be loaded."""
        directories = self.directories
        return sorted(set().union(*(item for d in directories for item in (d.logs, d.unreadable))))

    def directory_of(self, partition: TopicPartition) -> LogDirectory | None:
        for directory in self.directories:
            if partition in directory:
                return directory
        return None

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that opened the directories."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        if self.is_inherited:
            paths = ", ".join(directory.path for directory in self.directories)
            raise Closed(
                f"the store {paths} was opened by process {self._process_id}, of which this is a "
                "fork; use it there, or close it there and open it here"
            )

    def get(self, partition: TopicPartition) -> Log:
        """Raises NotFound, or the error because of which the partition is not served."""
        self.check_process()
        directory = self.directory_of(partition)
        if directory is None:
            offline = [
                log_directory.path
                for log_directory in self.directories
                if log_directory.failure is not None
            ]
            if offline:
                raise Unavailable(
                    f"{partition} is unknown, and may be in {offline}, which is offline"
                )
            raise NotFound(f"there is no partition {partition}; create its topic first")
        directory.health.check_online()
        if partition in directory.unreadable:
            raise directory.unreadable[partition].again()
        log = directory.logs.get(partition)
        if log is None:
            raise NotFound(f"there is no partition {partition}: it was just deleted")
        return log

    def logs(self) -> Iterator[tuple[TopicPartition, Log, LogDirectory]]:
        """The logs of all online directories; each is listed when the iteration reaches it."""
        for directory in self.directories:
            for partition, log in sorted(directory.logs.copy().items()):
                if directory.failure is None:
                    yield partition, log, directory

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        directory = self.directory_of(partition)
        return None if directory is None else directory.topic_ids.get(partition)

    def create(self, partition: TopicPartition, topic_id: UUID, *, is_new: bool = True) -> Log:
        """The partition's log, created if missing; see `create_all`."""
        self.create_all([partition], {partition.topic: topic_id}, is_new=is_new)
        return self.get(partition)

    def create_all(
        self,
        partitions: Sequence[TopicPartition],
        topic_ids: Mapping[str, UUID],
        *,
        is_new: bool = True,
    ) -> None:
        """Creates the missing partitions of topics, which have these ids by their names.

        Each goes to the online directory with the fewest. A directory that fails goes offline and
        the others are tried. Unless `is_new`, none is created while a directory is offline, as it
        may have the partition.
        """
        for topic in {partition.topic for partition in partitions}:
            validate_topic_name(topic)
        self.check_process()
        with self._lock:
            missing = [
                partition
                for partition in partitions
                if not self._has_locked(partition, topic_ids[partition.topic])
            ]
            is_any_offline = any(directory.failure is not None for directory in self.directories)
            if missing and is_any_offline and not is_new:
                raise Unavailable(
                    f"{missing[0]} may be in a log directory that is offline; repair that first"
                )
            for start in range(0, len(missing), _CREATED_TOGETHER_MAX):
                self._create_locked(missing[start : start + _CREATED_TOGETHER_MAX], topic_ids)

    def _has_locked(self, partition: TopicPartition, topic_id: UUID) -> bool:
        existing = self.directory_of(partition)
        if existing is None:
            return False
        if partition in existing.unreadable:
            raise existing.unreadable[partition].again()
        with existing.health.io(f"creation of {partition}"):
            existing.create(partition, topic_id)
        return True

    def _create_locked(self, missing: list[TopicPartition], topic_ids: Mapping[str, UUID]) -> None:
        failure: StoreError = DirectoryOffline(f"no log directory is online to hold {missing[0]}")
        online = [directory for directory in self.directories if directory.failure is None]
        while missing:
            if not online:
                raise failure
            remaining: list[TopicPartition] = []
            for directory, share in _spread(missing, online):
                try:
                    directory.create_all(share, topic_ids)
                except OSError as error:
                    failure = directory.health.failed(error, f"creation of {share[0]}")
                    online.remove(directory)
                    remaining += share
            missing = remaining

    def delete(self, *partitions: TopicPartition) -> None:
        """Removes partitions from service, and their files after a delay."""
        for partition in partitions:
            self.get(partition)
        for directory in self.directories:
            hosted = [partition for partition in partitions if partition in directory.logs]
            if hosted:
                others = "" if len(hosted) == 1 else " …"
                with directory.health.io(f"deletion of {hosted[0]}{others}"):
                    directory.delete(*hosted)

    def run_once(self, now_ms: int) -> None:
        """One round of maintenance: flushes, checkpoints, removals, expiry, each when due."""
        due = {name for name, due_ms in self._due_ms.items() if now_ms >= due_ms}
        for name in due:
            self._due_ms[name] = now_ms + self._intervals()[name]
        for directory in self.directories:
            if directory.failure is None:
                self._maintain(directory, due, now_ms)

    def _maintain(self, directory: LogDirectory, due: set[str], now_ms: int) -> None:
        for log in list(directory.logs.values()):
            with _logged_failures(directory):
                log.maintain(now_ms)
                if _PRODUCERS in due:
                    log.expire_producers(now_ms)
        if directory.failure is not None:
            return
        with _logged_failures(directory), directory.health.io("maintenance"):
            directory.write_checkpoints(due)
            directory.delete_expired_files(now_ms)

    def delete_expired_files(self) -> None:
        """Removes files without waiting for `file.delete.delay.ms`; no reader may use them."""
        for directory in self.directories:
            if directory.failure is None:
                for log in list(directory.logs.values()):
                    log.delete_expired_files(LONG_MAX)
                with directory.health.io("removal of files"):
                    directory.delete_expired_files(LONG_MAX)

    def close(self) -> None:
        """Closes every directory; raises the first error after trying all.

        In a forked child nothing is closed: files and locks are the parent's.
        """
        if self.is_inherited:
            return
        errors: list[StoreError] = []
        for directory in self.directories:
            try:
                with directory.health.io("closing"):
                    directory.close()
            except StoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def abandon(self) -> None:
        """Closes everything without writing, as a killed process would."""
        if self.is_inherited:
            return
        for directory in self.directories:
            directory.abandon()

    def __enter__(self) -> "LogManager":
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close()


@contextlib.contextmanager
def _logged_failures(directory: LogDirectory) -> Iterator[None]:
    """Logs a failure, so that maintenance continues.

    A full disk is retried in the next round, and removing files may free space; every other failure
    has taken the directory offline.
    """
    try:
        yield
    except StoreError as error:
        logger.warning(
            "%(path)s: maintenance failed: %(error)s", {"path": directory.path, "error": str(error)}
        )


def _spread(
    partitions: Sequence[TopicPartition], online: Sequence[LogDirectory]
) -> list[tuple[LogDirectory, list[TopicPartition]]]:
    """Assigns each partition to the directory with the fewest so far."""
    shares: list[list[TopicPartition]] = [[] for _ in online]
    counts = [len(directory.logs) + len(directory.unreadable) for directory in online]
    for partition in partitions:
        fewest = counts.index(min(counts))
        counts[fewest] += 1
        shares[fewest].append(partition)
    return [(directory, share) for directory, share in zip(online, shares, strict=True) if share]


def _check_disjoint(fs: FileSystem, paths: Sequence[str]) -> None:
    """Raises InvalidRequest if a directory is the same as another or lies inside it."""
    resolve = os.path.realpath if isinstance(fs, RealFileSystem) else os.path.abspath
    for path, other in itertools.combinations(paths, 2):
        resolved = resolve(path), resolve(other)
        if os.path.commonpath(resolved) in resolved:
            raise InvalidRequest(
                f"log directories {path} and {other}: one must not be or contain the other, "
                "because it would be read as a partition; name separate directories"
            )
