"""A tiered partition: its log and its manifests, and the removal of both from the remote tier.

Invariant  there is one instance per open log; its state can be rebuilt from the manifest.
Invariant  offsets before the copied offset are in readable segments of the log's own history,
           except those that were below the log start when their copy was due.
Crash      a removal makes the segments unreadable first, then deletes the objects, the newest
           manifest last: while that exists a repeated removal finds the rest.
Threads    any; `TieredPartitions` returns the same instance to all threads. No copy or expiry of a
           partition may run while it is removed.
"""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

from varve.cleaning.remote_tier import RemoteBounds
from varve.commit_log import Log, LogManager, Segment, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.log_directory import LogDirectory
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, InvalidSetting, StoreError, Unavailable
from varve.foundation.plugins import PluginRegistry
from varve.object_store import ObjectStore
from varve.tiering.manifest.commit import ManifestEdit
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import PageCache
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, SegmentState, is_in_lineage
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore
from varve.tiering.metrics import DELETE, TierMetrics
from varve.tiering.partition_lease import find_lease
from varve.tiering.read.remote_log import RemoteLog
from varve.tiering.settings import TierSettings

if TYPE_CHECKING:
    from varve.tiering.metadata.topic import MetadataTopic

logger = logging.getLogger(__name__)

ManifestBackend = Callable[["ManifestStores", RemotePath], ManifestStore]
"""Opens the manifest store of a partition."""


def _open_in_objects(stores: "ManifestStores", path: RemotePath) -> ManifestStore:
    return ObjectManifestStore(
        stores.objects,
        path,
        random=stores.random,
        wait=stores.wait,
        cache=stores.pages,
        grace_ms=stores.settings.varve_tier_grace_ms,
    )


def _open_in_topic(stores: "ManifestStores", path: RemotePath) -> ManifestStore:
    # Kafka's messages take a moment to compile: only tiers with this backend load them.
    from varve.tiering.metadata.topic_manifest_store import TopicManifestStore

    assert stores.topic is not None
    return TopicManifestStore(stores.topic, stores.objects, path)


BACKENDS: Final[PluginRegistry[ManifestBackend]] = PluginRegistry(
    kind="varve.tier.metadata",
    group="varve.manifest_stores",
    built_in={"object": _open_in_objects, "topic": _open_in_topic},
)
"""What varve.tier.metadata names: manifests beside the segments, or events in Kafka's topic
__remote_log_metadata; other names are entry points, each a `ManifestBackend`."""


class ManifestStores:
    """Opens the manifest store of each partition of one tier.

    `wait` sleeps for milliseconds. `topic` is required by the backend `topic`.
    """

    def __init__(
        self,
        backend: str,
        objects: ObjectStore,
        *,
        random: random.Random,
        wait: Callable[[float], object],
        settings: TierSettings,
        topic: "MetadataTopic | None" = None,
    ) -> None:
        self.objects = objects
        self.random = random
        self.wait = wait
        self.settings = settings
        self.topic = topic
        self.pages = PageCache()
        try:
            self._plugin = BACKENDS.get(backend)
        except InvalidRequest as error:
            raise InvalidSetting(str(error)) from error
        if backend == "topic" and topic is None:
            raise InvalidSetting(
                "varve.tier.metadata is topic, but this store has no topic "
                "__remote_log_metadata: use object"
            )

    def open(self, path: RemotePath) -> ManifestStore:
        return self._plugin(self, path)


RECENT_MS: Final = 600_000
"""How long a cached manifest is used: the delay until commits of other processes are seen."""

_RETIRE_INTERVAL_MS: Final = 3_600_000
"""Time between two retirements of old versions, which list all of them."""
_SEGMENTS_MAX: Final = 256
_REMOVAL_ROUNDS_MAX: Final = 5
"""How often a removal lists what other programs wrote meanwhile; without a manifest they end."""
"""Segments removed in one commit."""


@dataclass(slots=True)
class TieredPartition:
    """One partition in both tiers.

    `manifest` and `copied_offset` are the last known ones, None before the first load. A thread
    that changes the remote tier holds `work`. `replaced_retention_ms` is how long the
    objects of a replaced segment stay. Without `may_be_new` a missing manifest is an error, as
    segments were copied before. `remote` is the reader, None before the first read.
    """

    log: Log
    directory: LogDirectory
    path: RemotePath
    manifests: ManifestStore
    objects: ObjectStore
    fs: FileSystem
    random: random.Random
    metrics: TierMetrics
    writer: str
    replaced_retention_ms: int
    manifest_retention_ms: int
    work: threading.RLock = field(default_factory=threading.RLock)
    manifest: Manifest | None = None
    loaded_ms: int = 0
    retired_ms: int = 0
    copied_offset: int | None = None
    may_be_new: bool = True
    remote: RemoteLog | None = None

    @property
    def next_copy_offset(self) -> int:
        """Where the next copy begins; the log start offset before the first load."""
        offset = self.copied_offset
        return self.log.log_start_offset if offset is None else offset

    def recent(self, now_ms: int) -> Manifest:
        """The cached manifest, loaded if it is missing or too old.

        For decisions that an older manifest only delays; saves a request.
        """
        if self.manifest is None or not 0 <= now_ms - self.loaded_ms < RECENT_MS:
            self.load()
            self.loaded_ms = now_ms
        assert self.manifest is not None
        return self.manifest

    def load(self) -> Manifest:
        """Loads the newest manifest; sets the log start and the copied offset."""
        manifest = self.manifests.load()
        if not self.log.is_start_known and (manifest.version or self.may_be_new):
            self.log.raise_log_start(self._find_log_start(manifest))
        self._check_start(manifest)
        self.copied_offset = self._find_copied_offset(manifest)
        self.manifest = manifest
        return manifest

    def _find_log_start(self, manifest: Manifest) -> int:
        """The log start without a checkpoint: the first offset in either tier."""
        local_start = self.log.local_start_offset
        readable = self.manifests.readable(manifest, from_offset=manifest.log_start_offset)
        first = next(readable, None)
        if first is None:
            return max(local_start, manifest.log_start_offset)
        return max(min(first.base_offset, local_start), manifest.log_start_offset)

    def _check_start(self, manifest: Manifest) -> None:
        """Raises Corrupt when the remote tier ends before the local log start."""
        start, local_start = self.log.log_start_offset, self.log.local_start_offset
        if start >= local_start or manifest.highest_offset + 1 >= local_start:
            return
        where = f"the remote tier has no segment of {self.path.prefix}"
        checks = "check varve.tier.url"
        if not self.log.is_start_known:
            checks = f"{checks} and the checkpoint of log starts"
        if manifest.readable_count:
            where = f"the remote tier ends with offset {manifest.highest_offset}"
            checks = "run `varve tier fsck`"
        raise Corrupt(
            f"{self.log.topic_partition}: the log starts at offset {start} and its local part at "
            f"{local_start}, but {where}: the bucket may be unmounted, emptied or another one; "
            f"{checks}, and restore the objects. Give up records only if they are lost, with "
            f"`varve topic delete-records --before {local_start}` (for a compacted topic with "
            "remote.storage.enable=false)"
        )

    def _find_copied_offset(self, manifest: Manifest) -> int:
        """The first offset that is not copied; at least the log start offset.

        Raises Corrupt when the log ends before what was copied of its own latest epoch.
        """
        log, highest = self.log, manifest.highest_offset
        if highest < 0:
            return log.log_start_offset
        newest = self.manifests.find(manifest, highest)
        if newest is not None and is_in_lineage(newest, log.epochs, log_end_offset=log.end_offset):
            return max(highest + 1, log.log_start_offset)
        return max(self._align(manifest, self._find_shared_end(manifest)), log.log_start_offset)

    def _align(self, manifest: Manifest, offset: int) -> int:
        """The offset, or an earlier one from which whole local segments replace remote ones.

        A truncation may have cut the log inside what one remote segment holds: its first records
        are copied again, with the borders that the log has now.
        """
        log = self.log
        while True:
            closed = find_closed(log, offset)
            start = closed[0][0].base_offset if closed else log.view.active.base_offset
            before = self.manifests.find(manifest, start - 1) if start > 0 else None
            if before is None or before.end_offset < start:
                return offset
            if before.base_offset < log.local_start_offset:
                return offset  # its first records are remote only: copying says so
            offset = before.base_offset

    def _find_shared_end(self, manifest: Manifest) -> int:
        """Where the log and the copied segments diverge: by the latest common epoch, as in Kafka.

        Reads every page, but is called only after a truncation of the log.
        """
        highest_by_epoch: dict[int, int] = {}
        for segment in self.manifests.readable(manifest):
            ends = [start - 1 for _, start in segment.epochs[1:]] + [segment.end_offset]
            for (epoch, _), end_offset in zip(segment.epochs, ends, strict=True):
                previous = highest_by_epoch.get(epoch, -1)
                highest_by_epoch[epoch] = max(previous, end_offset)
        epoch_end, is_latest = self.log.end_offset, True
        for epoch, start in reversed(self.log.epochs):
            highest = highest_by_epoch.get(epoch)
            if highest is not None:
                if is_latest and highest >= epoch_end:
                    raise Corrupt(
                        f"{self.log.topic_partition}: the log ends at offset {epoch_end}, but "
                        f"offsets up to {highest} of its leader epoch {epoch} were copied to "
                        "object storage: the local log has lost records. Nothing is copied, so "
                        "that the good copy stays; restore the partition from it with `varve tier "
                        "restore`"
                    )
                return min(highest + 1, epoch_end)
            epoch_end, is_latest = start, False
        return 0

    def commit(self, change: ManifestEdit, now_ms: int) -> Manifest:
        """Commits a change with the log's latest leader epoch."""
        self.manifest = self.manifests.commit(
            change, leader_epoch=self._latest_epoch, writer=self.writer, now_ms=now_ms
        )
        return self.manifest

    def remove(
        self, segments: Sequence[RemoteSegment], now_ms: int, *, only_unreadable: bool = True
    ) -> list[RemoteSegment]:
        """See ManifestStore.remove; commits with the log's latest leader epoch."""
        partition = self.log.topic_partition
        try:
            removed = self.manifests.remove(
                segments,
                leader_epoch=self._latest_epoch,
                writer=self.writer,
                now_ms=now_ms,
                only_unreadable=only_unreadable,
            )
        except StoreError:
            for _ in segments:
                self.metrics.observe_error(DELETE, partition)
            raise
        for segment in segments:
            self.metrics.observe(DELETE, partition, segment.size)
        self.manifest = self.manifests.find_known() or self.manifest
        return removed

    @property
    def _latest_epoch(self) -> int | None:
        """The leader epoch that the log's process commits in; None before the first record."""
        return self.log.epochs[-1].epoch if self.log.epochs else None

    def is_abandoned(self, segment: RemoteSegment, now_ms: int) -> bool:
        """Whether the writer of an announced segment has given up; may read the lease of a job."""
        if not segment.is_abandoned(now_ms):
            return False
        lease = find_lease(self.objects, self.path)
        return lease is None or segment.is_abandoned(now_ms, renewed_ms=lease.at_ms)

    def retire_versions(self, now_ms: int) -> None:
        """Removes old manifest versions, at most once per `_RETIRE_INTERVAL_MS`."""
        if not 0 <= now_ms - self.retired_ms < _RETIRE_INTERVAL_MS:
            self.manifests.retire_versions(now_ms=now_ms, retention_ms=self.manifest_retention_ms)
            self.retired_ms = now_ms

    # Metrics

    def record_copy_lag(self) -> None:
        """Sets the copy lag metrics; 0 for a topic that is not copied."""
        log = self.log
        uncopied = find_closed(log, self.next_copy_offset) if log.settings.copies_to_tier else []
        size = sum(segment.size for segment, _ in uncopied)
        self.metrics.set_lag(log.topic_partition, bytes=size, segments=len(uncopied))

    def record_remote_size(self) -> None:
        """Sets the metrics of remote size and delete lag, by the last known manifest."""
        manifest, partition = self.manifest, self.log.topic_partition
        if manifest is None:
            return
        deleting = [
            segment
            for segment in self.manifests.pending(manifest)
            if segment.state is SegmentState.DELETE_STARTED
        ]
        self.metrics.set_remote(
            partition, bytes=manifest.log_bytes, segments=manifest.segment_count
        )
        self.metrics.set_delete_lag(
            partition, bytes=sum(segment.size for segment in deleting), segments=len(deleting)
        )

    # Leaving the tier

    def check_removable(self) -> None:
        """Raises StoreError when the objects of the partition cannot be deleted.

        Writes and deletes a probe object if there are objects: read access alone is not enough.
        """
        if self.manifests.load().version:
            probe = self.path.removal_probe_key
            self.objects.put(probe, b"")
            self.objects.delete([probe])

    def remove_all(self, now_ms: int) -> int:
        """Removes every object of the partition; returns how many segments it had."""
        removed = self._remove_segments(now_ms)
        versions = self.path.manifest_folder
        for _ in range(_REMOVAL_ROUNDS_MAX):
            keys = [info.key for info in self.objects.list(self.path.prefix)]
            if not keys:
                break
            self.objects.delete([key for key in keys if not key.startswith(versions)])
            # In key order, so the newest version is deleted last.
            self.objects.delete([info.key for info in self.objects.list(versions)])
        logger.info(
            "partition removed from the remote tier",
            extra={"partition": str(self.log.topic_partition), "segments": removed},
        )
        return removed

    def _remove_segments(self, now_ms: int) -> int:
        removed = 0
        while True:
            listed = self.manifests.segments(self.manifests.load())
            segments = list(islice(listed, _SEGMENTS_MAX))
            if not segments:
                return removed
            self.remove(segments, now_ms, only_unreadable=False)
            removed += len(segments)


def find_closed(log: Log, from_offset: int) -> list[tuple[Segment, int]]:
    """The closed segments that end after an offset, each with the offset of the next one."""
    view = log.view
    ends = [segment.base_offset for segment in view.closed[1:]] + [view.active.base_offset]
    return [
        (segment, end) for segment, end in zip(view.closed, ends, strict=False) if end > from_offset
    ]


class TieredPartitions:
    """The tiered partitions of one store, created on first use.

    Without `may_be_new` something was copied before, so an empty tier is an error.
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
        self._tiered: dict[TopicPartition, TieredPartition] = {}  # guarded by _lock
        self._leaving: dict[TopicPartition, Log] = {}  # guarded by _lock

    def get(self, partition: TopicPartition) -> TieredPartition:
        """Raises Unavailable for a partition that left the store, InvalidRequest without its id."""
        log = self.store.get(partition)
        directory = self.store.directory_of(partition)
        if directory is None:
            raise Unavailable(f"{partition} is no longer in the store")
        with self._lock:
            tiered = self._tiered.get(partition)
            if tiered is None or tiered.log is not log:
                tiered = self._create(partition, log, directory)
                self._tiered[partition] = tiered
            return tiered

    def begin_leaving(self, log: Log) -> None:
        """Stops copies and expiry of a log that leaves the tier."""
        served = {partition: log for partition, log, _ in self.store.logs()}
        with self._lock:
            closed = [name for name, left in self._leaving.items() if served.get(name) is not left]
            for partition in closed:
                del self._leaving[partition]
            self._leaving[log.topic_partition] = log

    def end_leaving(self, log: Log) -> None:
        """Resumes copies and expiry of a log that stays in the tier or returns to it."""
        with self._lock:
            self._leaving.pop(log.topic_partition, None)

    def is_leaving(self, log: Log) -> bool:
        with self._lock:
            return self._leaving.get(log.topic_partition) is log

    def is_current(self, tiered: TieredPartition) -> bool:
        """Whether an instance is the current one of its partition, and does not leave the tier."""
        partition = tiered.log.topic_partition
        with self._lock:
            is_leaving = self._leaving.get(partition) is tiered.log
            return self._tiered.get(partition) is tiered and not is_leaving

    def forget(self, partition: TopicPartition) -> None:
        """Drops the state of a partition whose objects were removed."""
        with self._lock:
            self._tiered.pop(partition, None)
        self.metrics.forget(partition)

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        """The bounds of local cleaning by a recent manifest; None for a topic that is not tiered.

        Bounds of an older manifest are lower, thus safe. Without copies to the tier, local cleaning
        waits for none. Raises StoreError when the store does not answer, Unavailable when the
        partition is being removed from it.
        """
        log = self.store.get(partition)
        if not log.settings.remote_storage_enable:
            return None
        tiered = self.get(partition)
        try:
            manifest = tiered.recent(self.clock.now_ms())
        except Corrupt as error:
            if not self.is_leaving(log):
                raise
            raise Unavailable(
                f"{partition} is being removed from the remote tier: it is cleaned when that is "
                "done; if it was interrupted, repeat it"
            ) from error
        copied_offset = log.end_offset
        if log.settings.copies_to_tier:
            copied_offset = tiered.next_copy_offset
        return RemoteBounds(copied_offset=copied_offset, cleaned_up_to=manifest.cleaned_up_to)

    def _create(
        self, partition: TopicPartition, log: Log, directory: LogDirectory
    ) -> TieredPartition:
        cluster = None if directory.metadata is None else directory.metadata.cluster_id
        path = get_remote_path(partition, directory.topic_ids.get(partition), cluster)
        return TieredPartition(
            log=log,
            directory=directory,
            path=path,
            manifests=self._manifests.open(path),
            objects=self.objects,
            fs=self.store.fs,
            random=self._manifests.random,
            metrics=self.metrics,
            writer=self._writer,
            replaced_retention_ms=self.settings.replaced_retention_ms,
            manifest_retention_ms=self.settings.varve_tier_manifest_retention_ms,
            may_be_new=self._may_be_new,
        )


def get_remote_path(
    partition: TopicPartition, topic_id: UUID | None, cluster: str | None
) -> RemotePath:
    """The path of a partition's objects; raises InvalidRequest without topic or cluster id."""
    if topic_id is None or cluster is None:
        missing = "topic id" if topic_id is None else "cluster id"
        raise InvalidRequest(
            f"{partition}: its {missing} is not known, and is part of the keys of its objects: "
            "open the directory with the process that created it, or create the topic again"
        )
    return RemotePath(cluster, partition.topic, encode_topic_id(topic_id), partition.partition)
