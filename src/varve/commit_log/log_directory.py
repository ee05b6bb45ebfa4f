"""One log directory: the partitions on one disk, their checkpoints and the directory's health.

Layout     `.lock`, `meta.properties`, the checkpoint files, `<topic>-<partition>/`.
           docs/reference/formats/directory.md
Invariant  a failure takes this directory's partitions offline and no others; its checkpoints are
           no longer written. A partition that cannot be loaded is in `unreadable` with its error.
Crash      `.kafka_cleanshutdown` is removed, durably, before anything is loaded. A new partition's
           topic id is in its file whole or not at all; until its directory is synced any of its
           files may be missing, and creating it again restores them.
Threads    `_lock` guards the maps; it is taken under no log's lock, and nothing here takes a log's
           lock while holding it.
"""

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Final, TypeVar
from uuid import UUID

from varve.commit_log.directory_files import (
    DirectoryMetadata,
    decode_meta_properties,
    decode_partition_metadata,
    encode_meta_properties,
    encode_partition_metadata,
    random_id_text,
    random_topic_id,
)
from varve.commit_log.health import DirectoryHealth
from varve.commit_log.log import Log
from varve.commit_log.log_loader import LoadRequest
from varve.commit_log.log_reader import RemoteLogReaders
from varve.commit_log.names import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_DIRECTORY,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REMOTE_INDEX_CACHE_DIRECTORY,
    DirectoryState,
    PartitionDirectory,
    TopicPartition,
    delete_directory_name,
    parse_partition_directory,
    random_directory_id,
)
from varve.commit_log.offset_checkpoints import DirectoryCheckpoints
from varve.commit_log.segment import SegmentFiles
from varve.commit_log.settings import LogSettings, StoreSettings
from varve.disk import (
    TEMPORARY_SUFFIX,
    File,
    FileSystem,
    Lock,
    make_durable_directory,
    write_atomically,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    InconsistentClusterId,
    InconsistentTopicId,
    StoreError,
)

logger = logging.getLogger(__name__)

_NOT_PARTITIONS = (CLUSTER_METADATA_DIRECTORY, REMOTE_INDEX_CACHE_DIRECTORY)
LOG_CHECKPOINTS: Final = (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, HIGH_WATERMARK_FILE)
"""Those that hold a value of each log."""
_RECOVERY_POINT: Final = attrgetter("recovery_point_on_disk")
_LOG_START: Final = attrgetter("log_start_on_disk")
_HIGH_WATERMARK: Final = attrgetter("high_watermark")
_NODE_ID = 1
_CLEAN_SHUTDOWN: Final = b'{"version":0,"brokerEpoch":-1}'
_SEQUENTIAL_SYNCS_MAX: Final = 4  # several threads sync a larger number of files
_SYNC_THREADS: Final = 8
"""They wait for the disk, which syncs several files at once, and use little CPU time."""

T = TypeVar("T")
R = TypeVar("R")


class LogDirectory:
    """The partitions of one disk. `open` before use, `close` after."""

    def __init__(
        self,
        path: str,
        *,
        files: SegmentFiles,
        settings: StoreSettings,
        topic_settings: Callable[[str], LogSettings],
        clock: Clock,
        random: random.Random,
        is_alone: bool = True,
    ) -> None:
        self.path = path
        self._files = files
        self._fs: FileSystem = files.fs
        self._settings = settings
        self._topic_settings = topic_settings
        self._clock = clock
        self._random = random
        self._is_alone = is_alone
        # Set before `open`; each log that is opened gets its remote reader from here.
        self.remote_readers: RemoteLogReaders | None = None
        self._lock = threading.RLock()
        self._directory_lock: Lock | None = None
        self._was_clean = False
        self._pending_deletions: list[tuple[int, str]] = []  # guarded by _lock
        self.metadata: DirectoryMetadata | None = None
        self.logs: dict[TopicPartition, Log] = {}  # guarded by _lock
        self.topic_ids: dict[TopicPartition, UUID] = {}  # guarded by _lock
        self.unreadable: dict[TopicPartition, StoreError] = {}  # guarded by _lock
        self.health = DirectoryHealth(path)
        self.checkpoints = DirectoryCheckpoints(self._fs, self.health, hosted=self)

    def __contains__(self, partition: object) -> bool:
        return partition in self.logs or partition in self.unreadable

    @property
    def failure(self) -> StoreError | None:
        """Why the directory is offline; None while it is online."""
        return self.health.failure

    def open(self, cluster_id: str | None = None) -> None:
        """Locks the directory and loads its partitions.

        A new directory gets the cluster id, a random one if None. Raises Locked when another
        process has the directory, InconsistentClusterId when it belongs to another cluster.
        """
        if self._fs.exists(self.path):
            # Before anything is written: raises Corrupt if other directories are in this one.
            list(self._partition_directories())
        make_durable_directory(self._fs, self.path)
        self._directory_lock = self._fs.lock(f"{self.path}/{LOCK_FILE}")
        try:
            self._open_locked_directory(cluster_id)
        except BaseException:
            self._directory_lock.release()
            raise

    def describe_owner(self, program: str, address: str) -> None:
        """Names a server in the error that other processes get which open the directory."""
        if self._directory_lock is not None:
            self._directory_lock.describe_owner(program, address)

    def _partition_directories(self) -> Iterator[tuple[str, PartitionDirectory]]:
        """Raises Corrupt for a directory that is not named like a partition's."""
        for entry in self._fs.scan(self.path):
            if entry.is_directory and entry.name not in _NOT_PARTITIONS:
                yield f"{self.path}/{entry.name}", parse_partition_directory(entry.name)

    def _open_locked_directory(self, cluster_id: str | None) -> None:
        self.metadata = self.read_metadata() or self._make_metadata(cluster_id)
        stored = self.metadata.cluster_id
        if stored is not None and cluster_id is not None and stored != cluster_id:
            raise InconsistentClusterId(
                f"{self.path}/{META_PROPERTIES_FILE} says cluster.id {stored}, not {cluster_id}; "
                "open the directories of one cluster together"
            )
        self._was_clean = self._remove_clean_shutdown_file()
        if not self._was_clean:
            # A killed process may have renamed a checkpoint without syncing the directory. A power
            # loss must not revert what is read from it now, such as a log start offset.
            self._fs.sync_directory(self.path)
        partitions = self._find_partitions()
        for checkpoint in self.checkpoints:
            checkpoint.load()
        self._map("varve-load", self._load, partitions)
        for topic_partition, log in self.logs.items():
            self.checkpoints.cleaner_offsets.lower(topic_partition, log.end_offset)

    def _map(self, name: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results in the order of the items; one alone needs no thread of its own."""
        if len(items) <= 1:
            return [work(item) for item in items]
        threads = self._settings.num_recovery_threads_per_data_dir
        with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
            return list(pool.map(work, items))

    def read_metadata(self) -> DirectoryMetadata | None:
        """The owner of the directory; None when it is new."""
        path = f"{self.path}/{META_PROPERTIES_FILE}"
        if not self._fs.exists(path):
            return None
        return decode_meta_properties(self._fs.read(path), where=path)

    def _make_metadata(self, cluster_id: str | None) -> DirectoryMetadata:
        metadata = DirectoryMetadata(
            cluster_id=cluster_id or random_id_text(self._random),
            node_id=_NODE_ID,
            directory_id=random_topic_id(self._random),
        )
        path = f"{self.path}/{META_PROPERTIES_FILE}"
        write_atomically(self._fs, path, encode_meta_properties(metadata))
        return metadata

    def _remove_clean_shutdown_file(self) -> bool:
        path = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
        if not self._fs.exists(path):
            return False
        self._fs.remove(path)
        self._fs.sync_directory(self.path)
        return True

    def _find_partitions(self) -> list[TopicPartition]:
        partitions = []
        for path, directory in self._partition_directories():
            if directory.state is DirectoryState.ACTIVE:
                partitions.append(directory.topic_partition)
            elif directory.state is DirectoryState.DELETE:
                self._pending_deletions.append((self._clock.now_ms(), path))
        return partitions

    def _load(self, topic_partition: TopicPartition) -> None:
        path = f"{self.path}/{topic_partition}/{PARTITION_METADATA_FILE}"
        topic_id = None
        try:
            with contextlib.suppress(FileNotFoundError):
                topic_id = decode_partition_metadata(self._fs.read(path), where=path)
            log = self._open_log(topic_partition, self._topic_settings(topic_partition.topic))
        except StoreError as error:
            logger.warning(
                "%(partition)s: partition cannot be loaded: %(error)s",
                {"partition": str(topic_partition), "error": str(error)},
            )
            with self._lock:
                self.unreadable[topic_partition] = error
            return
        with self._lock:
            self.logs[topic_partition] = log
            if topic_id is not None:
                self.topic_ids[topic_partition] = topic_id

    def _open_log(
        self, topic_partition: TopicPartition, settings: LogSettings, *, is_new: bool = False
    ) -> Log:
        checkpoints = self.checkpoints
        log_start_offset = checkpoints.log_starts.find(topic_partition)
        request = LoadRequest(
            files=self._files,
            directory=f"{self.path}/{topic_partition}",
            topic_partition=topic_partition,
            settings=settings,
            clock=self._clock,
            random=self._random,
            clean=self._was_clean,
            recovery_point=checkpoints.recovery_points.find(topic_partition) or 0,
            log_start_offset=log_start_offset or 0,
            is_start_known=log_start_offset is not None,
            is_new=is_new,
            producer_expiration_ms=self._settings.producer_id_expiration_ms,
        )
        log = Log.open(
            request,
            high_watermark=checkpoints.high_watermarks.find(topic_partition) or 0,
            is_alone=self._is_alone,
            checkpoints=checkpoints,
        )
        if self.remote_readers is not None:
            log.attach_remote(self.remote_readers.remote_reader(topic_partition))
        return log

    def create(self, topic_partition: TopicPartition, topic_id: UUID) -> Log:
        """Creates a partition's directory and opens its empty log; durable on return."""
        [log] = self.create_all([topic_partition], {topic_partition.topic: topic_id})
        return log

    def create_all(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> list[Log]:
        """Creates missing partitions; existing ones get their topic's id if they have none.

        One caller at a time. After an OSError none of the missing partitions exists.
        """
        self.health.check_online()
        with self._lock:
            missing = [
                partition
                for partition in partitions
                if not self._adopt_existing_locked(partition, topic_ids[partition.topic])
            ]
        if missing:
            for checkpoint in self.checkpoints:
                # Entries of deleted partitions must not apply to new ones of the same name.
                checkpoint.forget(missing)
            self._create_missing(missing, topic_ids)
        return [self.logs[partition] for partition in partitions]

    def _adopt_existing_locked(self, topic_partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether the partition exists; gives it the topic id if it has none."""
        stored_id = self.topic_ids.get(topic_partition)
        if stored_id is not None and stored_id != topic_id:
            raise InconsistentTopicId(
                f"{self.path}/{topic_partition} belongs to topic id {stored_id}, not {topic_id}; "
                "move it away or use its topic"
            )
        if topic_partition in self.logs and stored_id is None:
            self._write_topic_id(topic_partition, topic_id)
        return topic_partition in self.logs

    def _create_missing(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> None:
        """Publishes the logs only when all files are synced, so that no append comes before."""
        ids = {partition: topic_ids[partition.topic] for partition in partitions}
        by_path = {f"{self.path}/{partition}": id for partition, id in ids.items()}
        new = _NewPartitions(self._fs, self.path, by_path)
        topics = {partition.topic for partition in partitions}
        settings = {topic: self._topic_settings(topic) for topic in topics}
        logs: dict[TopicPartition, Log] = {}
        try:
            new.write()
            for partition in partitions:
                own = settings[partition.topic]
                logs[partition] = self._open_log(partition, own, is_new=True)
            new.sync()
        except OSError:
            for log in logs.values():
                log.abandon()
            new.undo()
            raise
        with self._lock:
            self.logs.update(logs)
            self.topic_ids.update(ids)

    def _write_topic_id(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        path = f"{self.path}/{topic_partition}/{PARTITION_METADATA_FILE}"
        write_atomically(self._fs, path, encode_partition_metadata(topic_id))
        self.topic_ids[topic_partition] = topic_id

    def delete(self, *topic_partitions: TopicPartition) -> None:
        """Removes partitions from service; their files are removed after `file.delete.delay.ms`.

        All of them share one sync of the directory.
        """
        self.health.check_online()
        pending: list[tuple[int, str]] = []
        try:
            for partition in topic_partitions:
                self._rename_for_deletion(partition, pending)
        finally:
            # No file may be removed while a crash could still undo the rename.
            self._fs.sync_directory(self.path)
            with self._lock:
                self._pending_deletions += pending
        self.checkpoints.cleaner_offsets.forget(topic_partitions)
        self.write_checkpoints()

    def _rename_for_deletion(
        self, topic_partition: TopicPartition, pending: list[tuple[int, str]]
    ) -> None:
        """Closes the log and renames its directory; adds (due time, new path) to `pending`."""
        log = self.logs[topic_partition]
        log.retire()
        with self._lock:
            if self.logs.get(topic_partition) is not log:
                return
            name = delete_directory_name(topic_partition, random_directory_id(self._random))
            self._fs.rename(log.directory, f"{self.path}/{name}")
            del self.logs[topic_partition]
            self.topic_ids.pop(topic_partition, None)
            due_ms = self._clock.now_ms() + log.settings.file_delete_delay_ms
            pending.append((due_ms, f"{self.path}/{name}"))

    def write_checkpoints(self, files: Collection[str] = LOG_CHECKPOINTS) -> None:
        """Writes the checkpoints, or some of them, with the values of all logs."""
        checkpoints = self.checkpoints
        for file, checkpoint, value_of in (
            (RECOVERY_POINT_FILE, checkpoints.recovery_points, _RECOVERY_POINT),
            (LOG_START_OFFSET_FILE, checkpoints.log_starts, _LOG_START),
            (HIGH_WATERMARK_FILE, checkpoints.high_watermarks, _HIGH_WATERMARK),
        ):
            if file in files:
                checkpoint.replace(self._values(value_of))

    def _values(
        self, value_of: Callable[[Log], int | None]
    ) -> Iterator[tuple[TopicPartition, int | None]]:
        """Takes the list of logs at the first `next`, which a checkpoint calls under its lock."""
        for log in list(self.logs.values()):
            yield log.topic_partition, value_of(log)

    def cleaner_offset(self, partition: TopicPartition) -> int | None:
        """The offset up to which the partition is clean; None before the first cleaning."""
        return self.checkpoints.cleaner_offsets.find(partition)

    def write_cleaner_offset(self, partition: TopicPartition, offset: int) -> None:
        """Records the offset up to which the partition is clean; durable on return."""
        self.health.check_online()
        with self.health.io(f"checkpoint of the cleaner, {partition}"):
            self.checkpoints.cleaner_offsets.write(partition, offset)

    def delete_expired_files(self, now_ms: int) -> None:
        """Removes the directories of deleted partitions whose deletion delay has passed."""
        with self._lock:
            due = [path for due_ms, path in self._pending_deletions if due_ms <= now_ms]
            self._pending_deletions = [
                entry for entry in self._pending_deletions if entry[0] > now_ms
            ]
        for path in due:
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove_tree(path)

    def close(self) -> None:
        """Closes every log, and writes `.kafka_cleanshutdown` if all of them were synced."""
        outcomes = self._map("varve-close", _close_log, list(self.logs.values()))
        errors = [error for error in outcomes if error is not None]
        try:
            if self.failure is None and not errors:
                self.write_checkpoints()
                if self._was_clean or not self.unreadable:
                    path = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
                    write_atomically(self._fs, path, _CLEAN_SHUTDOWN)
        finally:
            if self._directory_lock is not None:
                self._directory_lock.release()
        if errors:
            raise errors[0]

    def abandon(self) -> None:
        """Closes everything without writing, as a killed process would."""
        for log in list(self.logs.values()):
            log.abandon()
        if self._directory_lock is not None:
            self._directory_lock.release()


def _close_log(log: Log) -> StoreError | None:
    try:
        log.close()
    except StoreError as error:
        log.abandon()
        return error
    return None


class _NewPartitions:
    """The directories of new partitions, created many at a time.

    Several threads sync at once, so that the disk can combine their writes.
    """

    def __init__(self, fs: FileSystem, parent: str, topic_ids: Mapping[str, UUID]) -> None:
        """`topic_ids` are those of the partitions by the paths of their directories."""
        self._fs = fs
        self._parent = parent
        self._topic_ids = topic_ids
        self._directories = directories = list(topic_ids)
        self._new = {directory for directory in directories if not fs.exists(directory)}

    def write(self) -> None:
        """Creates the directories, each with the id of its topic in it."""
        paths = [f"{directory}/{PARTITION_METADATA_FILE}" for directory in self._directories]
        with contextlib.ExitStack() as stack:
            files = []
            for (directory, id), path in zip(self._topic_ids.items(), paths, strict=True):
                self._fs.make_directory(directory)
                data = encode_partition_metadata(id)
                files.append(stack.enter_context(self._write_temporary(path, data)))
            _for_each(lambda file: file.sync(), files)
        for path in paths:
            self._fs.rename(path + TEMPORARY_SUFFIX, path)

    def _write_temporary(self, path: str, data: bytes) -> File:
        file = self._fs.open_writable(path + TEMPORARY_SUFFIX)
        try:
            if file.size():
                file.truncate(0)
            file.write_at(0, data)
        except BaseException:
            file.close()
            raise
        return file

    def sync(self) -> None:
        """Syncs the directories and their parent."""
        _for_each(self._fs.sync_directory, self._directories)
        self._fs.sync_directory(self._parent)

    def undo(self) -> None:
        """Removes the new directories, ignoring errors.

        Another log directory may get the partition, which must not be in both.
        """
        for directory in self._directories:
            with contextlib.suppress(OSError):
                if directory in self._new:
                    self._fs.remove_tree(directory)
                else:
                    self._fs.remove(f"{directory}/{PARTITION_METADATA_FILE}{TEMPORARY_SUFFIX}")


def _for_each(work: Callable[[T], None], items: Sequence[T]) -> None:
    if len(items) <= _SEQUENTIAL_SYNCS_MAX:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(_SYNC_THREADS, "varve-make") as pool:
        list(pool.map(work, items))
