"""A partition in the remote tier: its log, its manifest, who writes to both, and how it leaves.

Invariant  there is one per open log; what it remembers the manifest knows too.
Crash      a partition that leaves: its segments first become unreadable, then its objects are
           deleted, the newest manifest last: while that is there a repeated removal finds the rest.
Threads    any; `TieredPartitions` hands out the same one to all. No copy or expiry of a partition
           may run while it is removed.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from uuid import UUID

from varve.cleaning.key_index.segment_indexes import is_partition_failure, partition_failure
from varve.cleaning.remote_tier import RemoteBounds
from varve.commit_log import Log, LogManager, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.log_directory import LogDirectory
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, StoreError, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.copy.copied_offset import find_copied_offset
from varve.tiering.copy.segment_upload import SegmentCopier, latest_epoch
from varve.tiering.manifest.commit import ManifestEdit
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.metadata.backends import ManifestStores
from varve.tiering.metrics import TierMetrics
from varve.tiering.partition_lease import find_lease

RECENT_MS: Final = 600_000
"""How long a manifest counts as recent: what other processes commit is seen by then."""

_RETIRE_INTERVAL_MS: Final = 3_600_000


@dataclass(slots=True)
class TieredPartition:
    """One partition in both tiers.

    `manifest` and `copied_offset` are the last ones known, None before that. Who changes something
    in the cold tier holds `work`. `may_be_new` says whether one without a manifest may be one that
    was never copied.
    """

    log: Log
    directory: LogDirectory
    path: RemotePath
    manifests: ManifestStore
    segments: SegmentCopier
    writer: str
    objects: ObjectStore
    fs: FileSystem
    work: threading.RLock = field(default_factory=threading.RLock)
    manifest: Manifest | None = None
    loaded_ms: int = 0
    retired_ms: int = 0
    copied_offset: int | None = None
    may_be_new: bool = True

    def recent(self, now_ms: int) -> Manifest:
        """The last manifest known; loaded where there is none, or only an old one.

        For decisions that an older one makes late, not wrong: it saves a request every time.
        """
        if self.manifest is None or not 0 <= now_ms - self.loaded_ms < RECENT_MS:
            self.load()
            self.loaded_ms = now_ms
        assert self.manifest is not None
        return self.manifest

    def load(self) -> Manifest:
        """The newest manifest; sets the log start and the copied offset."""
        manifest = self.manifests.load()
        if not self.log.is_start_known and (manifest.version or self.may_be_new):
            self.log.raise_log_start(self._find_log_start(manifest))
        self._check_start(manifest)
        self.copied_offset = find_copied_offset(self.manifests, manifest, self.log)
        self.manifest = manifest
        return manifest

    def _find_log_start(self, manifest: Manifest) -> int:
        """Where the log starts, when its checkpoint does not tell: with what is in either tier."""
        local_start = self.log.local_start_offset
        remote = self.manifests.segments(manifest, from_offset=manifest.log_start_offset)
        first = next((segment for segment in remote if segment.is_readable), None)
        if first is None:
            return max(local_start, manifest.log_start_offset)
        return max(min(first.base_offset, local_start), manifest.log_start_offset)

    def _check_start(self, manifest: Manifest) -> None:
        """Raises Corrupt when the cold tier does not reach to the local part of the log."""
        start, local_start = self.log.log_start_offset, self.log.local_start_offset
        if start >= local_start or manifest.highest_offset + 1 >= local_start:
            return
        where = f"the cold tier has no segment of {self.path.prefix}"
        checks = "check varve.tier.url"
        if not self.log.is_start_known:
            checks = f"{checks} and the checkpoint of log starts"
        if manifest.readable_count:
            where = f"the cold tier ends with offset {manifest.highest_offset}"
            checks = "run `varve tier fsck`"
        raise Corrupt(
            f"{self.log.topic_partition}: the log starts at offset {start} and its local part at "
            f"{local_start}, but {where}: the bucket may be unmounted, emptied or another one; "
            f"{checks}, and put back what was there. Only what is gone for good is given up, with "
            f"`varve log delete-records --before {local_start}` (of a compacted topic by "
            "remote.storage.enable=false)"
        )

    def commit(self, change: ManifestEdit, now_ms: int) -> Manifest:
        """Commits a change in the name of the log's latest leader epoch."""
        self.manifest = self.manifests.commit(
            change, leader_epoch=latest_epoch(self.log), writer=self.writer, now_ms=now_ms
        )
        return self.manifest

    def remove(
        self, segments: Sequence[RemoteSegment], now_ms: int, *, only_unreadable: bool = True
    ) -> list[RemoteSegment]:
        """See ManifestStore.remove; commits in the name of the log's latest leader epoch."""
        removed = self.manifests.remove(
            segments,
            leader_epoch=latest_epoch(self.log),
            writer=self.writer,
            now_ms=now_ms,
            only_unreadable=only_unreadable,
        )
        self.manifest = self.manifests.find_known() or self.manifest
        return removed

    def is_abandoned(self, segment: RemoteSegment, now_ms: int) -> bool:
        """Whether nobody writes an announced segment any more; may read the lease of a job."""
        if not segment.is_abandoned(now_ms):
            return False
        lease = find_lease(self.objects, self.path)
        return lease is None or segment.is_abandoned(now_ms, renewed_ms=lease.at_ms)

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Turns I/O errors into ours while files of the log are read or removed.

        A missing file says that the log changed meanwhile. An error of a derived file (a key index)
        fails this partition alone, other errors take the log directory offline.
        """
        at = f"{doing} of {self.log.topic_partition}"
        with self.directory.health.io(at):
            try:
                yield
            except FileNotFoundError as error:
                raise Unavailable(
                    f"{at}: {error.filename} left the log meanwhile; the next round sees what is "
                    "there"
                ) from error
            except OSError as error:
                if not is_partition_failure(error):
                    raise
                raise partition_failure(error, at) from error

    def retire_versions(self, now_ms: int, retention_ms: int) -> None:
        """Lets old versions of the manifest go, once in a while: it has to list them all."""
        if not 0 <= now_ms - self.retired_ms < _RETIRE_INTERVAL_MS:
            self.manifests.retire_versions(now_ms=now_ms, retention_ms=retention_ms)
            self.retired_ms = now_ms


def get_copied_offset(tiered: TieredPartition) -> int:
    """Where the next copy begins, once the manifest was looked at."""
    offset = tiered.copied_offset
    return tiered.log.log_start_offset if offset is None else offset


class TieredPartitions:
    """The partitions of one store, created when first asked for.

    Unless the tier `may_be_new`, something was copied to it before: an empty one is then an error.
    """

    def __init__(
        self,
        store: LogManager,
        manifests: ManifestStores,
        *,
        clock: Clock,
        writer: str,
        metrics: TierMetrics | None = None,
        may_be_new: bool = True,
    ) -> None:
        self._may_be_new = may_be_new
        self.metrics = metrics or TierMetrics()
        self.store = store
        self.objects = manifests.objects
        self.settings = manifests.settings
        self.clock = clock
        self._writer = writer
        self._manifests = manifests
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, TieredPartition] = {}  # guarded by _lock
        self._leaving: dict[TopicPartition, Log] = {}  # guarded by _lock

    def get(self, partition: TopicPartition) -> TieredPartition:
        """Raises Unavailable for a partition that left the store, InvalidRequest without its id."""
        log = self.store.get(partition)
        directory = self.store.directory_of(partition)
        if directory is None:
            raise Unavailable(f"{partition} is no longer in the store")
        with self._lock:
            known = self._known.get(partition)
            if known is None or known.log is not log:
                known = self._make(partition, log, directory)
                self._known[partition] = known
            return known

    def begin_leaving(self, log: Log) -> None:
        """From now on nothing is copied of a log, and none of it expires: it leaves the tier."""
        served = {one: log for one, log, _ in self.store.logs()}
        with self._lock:
            gone = [one for one, left in self._leaving.items() if served.get(one) is not left]
            for partition in gone:
                del self._leaving[partition]
            self._leaving[log.topic_partition] = log

    def end_leaving(self, log: Log) -> None:
        """For when a log stays in the tier after all, or comes back to it."""
        with self._lock:
            self._leaving.pop(log.topic_partition, None)

    def is_leaving(self, log: Log) -> bool:
        with self._lock:
            return self._leaving.get(log.topic_partition) is log

    def is_current(self, tiered: TieredPartition) -> bool:
        """Whether a partition is in the tier as it was handed out, and stays there."""
        partition = tiered.log.topic_partition
        with self._lock:
            is_leaving = self._leaving.get(partition) is tiered.log
            return self._known.get(partition) is tiered and not is_leaving

    def forget(self, partition: TopicPartition) -> None:
        """Its remote part is gone, and may begin again."""
        with self._lock:
            self._known.pop(partition, None)
        self.metrics.forget(partition)

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        """What local cleaning keeps to, by a recent manifest; None for a topic that is not tiered.

        An older manifest gives bounds that are safe, only further behind. Where nothing is copied
        any more nothing waits for it. Raises StoreError when the store cannot tell.
        """
        log = self.store.get(partition)
        if not log.settings.remote_storage_enable:
            return None
        tiered = self.get(partition)
        manifest = tiered.recent(self.clock.now_ms())
        copied_offset = log.end_offset
        if log.settings.copies_to_tier:
            copied_offset = get_copied_offset(tiered)
        return RemoteBounds(copied_offset=copied_offset, cleaned_up_to=manifest.cleaned_up_to)

    @contextmanager
    def counting_removal(
        self, tiered: TieredPartition, segments: Sequence[RemoteSegment]
    ) -> Iterator[None]:
        """Counts the removal of segments' objects, as done or failed."""
        partition = tiered.log.topic_partition
        try:
            yield
        except StoreError:
            for _ in segments:
                self.metrics.observe_delete_error(partition)
            raise
        for segment in segments:
            self.metrics.observe_delete(partition, segment.size)

    def _make(
        self, partition: TopicPartition, log: Log, directory: LogDirectory
    ) -> TieredPartition:
        path = self._path(partition, directory)
        manifests = self._manifests.open(path)
        segments = SegmentCopier(
            self.objects,
            manifests,
            path,
            fs=self.store.fs,
            random=self._manifests.random,
            writer=self._writer,
            replaced_ms=self.settings.replaced_ms,
        )
        return TieredPartition(
            log,
            directory,
            path,
            manifests,
            segments,
            self._writer,
            self.objects,
            self.store.fs,
            may_be_new=self._may_be_new,
        )

    def _path(self, partition: TopicPartition, directory: LogDirectory) -> RemotePath:
        cluster = None if directory.metadata is None else directory.metadata.cluster_id
        return get_remote_path(partition, directory.topic_ids.get(partition), cluster)


def get_remote_path(
    partition: TopicPartition, topic_id: UUID | None, cluster: str | None
) -> RemotePath:
    """Where a partition's objects are; raises InvalidRequest when its ids are not known."""
    if topic_id is None or cluster is None:
        missing = "topic id" if topic_id is None else "cluster id"
        raise InvalidRequest(
            f"{partition}: its {missing} is not known, and names its objects in the store: "
            "open the directory with the process that made it, or create the topic again"
        )
    return RemotePath(cluster, partition.topic, encode_topic_id(topic_id), partition.partition)


logger = logging.getLogger(__name__)

_SEGMENTS_MAX: Final = 256
_KEYS_MAX: Final = 1000


def check_removable(partitions: TieredPartitions, tiered: TieredPartition) -> None:
    """Raises StoreError where the store could not be asked to remove a partition, or refuses it.

    Where there is something to remove, an object is written and deleted: a store may well be read
    and not be written to.
    """
    if tiered.manifests.load().version:
        probe = tiered.path.removal_probe_key
        partitions.objects.put(probe, b"")
        partitions.objects.delete([probe])


def remove_partition(partitions: TieredPartitions, tiered: TieredPartition, now_ms: int) -> int:
    """Removes every object of a partition; gives how many segments it had."""
    try:
        removed = _remove_segments(partitions, tiered, now_ms)
        _remove_objects(partitions, tiered)
    finally:
        # A manifest that was there and is gone would be a loss to who remembers it.
        partitions.forget(tiered.log.topic_partition)
    logger.info(
        "partition left the cold tier",
        extra={"partition": str(tiered.log.topic_partition), "segments": removed},
    )
    return removed


def _remove_segments(partitions: TieredPartitions, tiered: TieredPartition, now_ms: int) -> int:
    removed = 0
    while True:
        manifest = tiered.manifests.load()
        segments = list(islice(tiered.manifests.segments(manifest), _SEGMENTS_MAX))
        if not segments:
            return removed
        with partitions.counting_removal(tiered, segments):
            tiered.remove(segments, now_ms, only_unreadable=False)
        removed += len(segments)


def _remove_objects(partitions: TieredPartitions, tiered: TieredPartition) -> None:
    path = tiered.path
    in_chain = path.manifest_folder
    others = (key for key in _keys(partitions, path.prefix) if not key.startswith(in_chain))
    _delete(partitions, others)
    # In their order, the oldest version first: the newest stays to the end.
    _delete(partitions, _keys(partitions, in_chain))


def _keys(partitions: TieredPartitions, prefix: str) -> Iterator[str]:
    return (info.key for info in partitions.objects.list(prefix))


def _delete(partitions: TieredPartitions, keys: Iterator[str]) -> None:
    while chunk := list(islice(keys, _KEYS_MAX)):
        partitions.objects.delete(chunk)
