"""The remote tier of a log directory that is not opened: its objects and manifests, and a restore.

Invariant  an OfflineTier reads only, takes no lock, and a store may have the directory open. A
           restore never changes a partition that exists. The topic table gets the topic only with
           settings, and the directory remembers the object store only after a restore of the newest
           state, so that copying continues there and never from a part of it.
Crash      a second restore continues, see `varve.tiering.restore`.
Threads    a restore holds the lock of the log directory.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from varve.commit_log import LogManager, LogSettings, TopicPartition
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import parse_partition_directory
from varve.disk import FileSystem, write_atomically
from varve.embedded.tier_location import (
    DEFAULT_METADATA,
    TierLocation,
    check_object_manifests,
    read_location,
    remember_location,
)
from varve.embedded.topic_table import (
    TOPICS_FILE,
    TopicEntry,
    TopicTable,
    decode_topics,
    encode_topics,
)
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.foundation.errors import InconsistentTopicId, InvalidRequest
from varve.foundation.settings import parse_settings
from varve.object_store import ObjectStore, RetryingObjectStore, open_object_store
from varve.object_store.opening import normal_url
from varve.tiering.manifest.paths import (
    RemotePath,
    choose_cluster,
    choose_partitions,
    list_partitions,
)
from varve.tiering.manifest.store import ObjectManifestStore, open_manifests
from varve.tiering.partition import get_remote_path
from varve.tiering.restore import (
    RestorePlan,
    RestoreReport,
    hold_log_directory,
    plan_restore,
    read_cluster,
    restore_partition,
)


class OfflineTier(Closing):
    """The object store of a log directory's remote tier.

    Raises InvalidRequest when the directory has no remote tier, or when its manifests are not in
    the object store.
    """

    def __init__(self, fs: FileSystem, directory: str, store_settings: Mapping[str, str]) -> None:
        location = read_location(fs, directory)
        if location is None:
            raise InvalidRequest(f"{directory} has no remote tier: nothing was copied from it")
        check_object_manifests(location, directory)
        self._cluster = read_cluster(fs, directory)
        self.objects = RetryingObjectStore(
            open_object_store(location.url, store_settings, must_exist=True)
        )

    def open_manifests(
        self, partition: TopicPartition, topic_id: UUID | None
    ) -> ObjectManifestStore:
        """The manifests of a partition; those of one that was never copied are empty."""
        return open_manifests(self.objects, get_remote_path(partition, topic_id, self._cluster))

    def close(self) -> None:
        self.objects.close()


# Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """What is restored: by default the newest state of all partitions.

    `version` or `time_ms` choose an older manifest, `until_offset` only earlier records. `settings`
    are those of a topic that the directory does not know.
    """

    topic: str
    partition: int | None = None
    cluster: str | None = None
    topic_id: str | None = None
    version: int | None = None
    time_ms: int | None = None
    until_offset: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_newest(self) -> bool:
        """Whether nothing newer is left in the object store."""
        return self.version is None and self.time_ms is None and self.until_offset is None


class TopicRestore:
    """A planned restore; raises NotFound or InvalidRequest for a topic that is not there."""

    def __init__(self, objects: ObjectStore, url: str, request: RestoreRequest) -> None:
        parse_settings(LogSettings, request.settings, f"topic {request.topic}")
        self._objects = objects
        self._url = url
        self._request = request
        self.cluster = choose_cluster(objects, request.cluster)
        self._paths = choose_partitions(
            list_partitions(objects, self.cluster),
            topic=request.topic,
            topic_id=request.topic_id,
            partition=request.partition,
        )
        self._plans = [self._plan(path) for path in self._paths]

    @property
    def topic_id(self) -> str:
        """The id of the topic, as its objects have it."""
        return self._paths[0].topic_id

    @property
    def stored_bytes(self) -> int:
        return sum(plan.stored_bytes for plan in self._plans)

    def _plan(self, path: RemotePath) -> RestorePlan:
        request = self._request
        manifests = open_manifests(self._objects, path)
        if request.version is None and request.time_ms is None:
            manifest = manifests.load()
        else:
            manifest = manifests.at(version=request.version, time_ms=request.time_ms)
        return plan_restore(manifests, manifest, until_offset=request.until_offset)

    def run(
        self,
        fs: FileSystem,
        directory: str,
        *,
        clock: Clock,
        workers: int,
        advance: Callable[[int], None],
    ) -> Iterator[RestoreReport]:
        """A report for each restored partition; raises Locked when the directory is in use."""
        with hold_log_directory(fs, directory, cluster=self.cluster):
            table = _read_table(fs, directory, self._paths[0])
            for plan in self._plans:
                yield restore_partition(
                    self._objects,
                    plan,
                    fs,
                    directory,
                    clock=clock,
                    workers=workers,
                    advance=advance,
                )
            if self._request.settings and self._request.topic not in table.topics:
                _write_topic(fs, directory, table, self._paths, self._request.settings)
            if self._request.is_newest:
                self._remember_store(fs, directory, clock)

    def _remember_store(self, fs: FileSystem, directory: str, clock: Clock) -> None:
        """Not for another cluster, whose objects have other names."""
        if read_location(fs, directory) is None and read_cluster(fs, directory) == self.cluster:
            logs = LogManager([directory], fs=fs, clock=clock, random=random.Random())
            location = TierLocation(normal_url(self._url), DEFAULT_METADATA)
            remember_location(fs, logs.directories, location)


def check_restore_directory(fs: FileSystem, path: str) -> None:
    """Raises InvalidRequest or Corrupt for a directory that no store could open afterwards."""
    if not fs.exists(path):
        return
    if not fs.info(path).is_directory:
        raise InvalidRequest(f"{path} is not a directory; name a log directory, or a new one")
    for entry in fs.scan(path):
        if entry.is_directory:
            parse_partition_directory(entry.name)


def _read_table(fs: FileSystem, directory: str, remote: RemotePath) -> TopicTable:
    """The topic table; raises InconsistentTopicId when it has another topic of the name."""
    file = f"{directory}/{TOPICS_FILE}"
    table = decode_topics(fs.read(file), where=file) if fs.exists(file) else TopicTable()
    entry = table.topics.get(remote.topic)
    remote_id = decode_topic_id(remote.topic_id, f"{remote}")
    if entry is not None and entry.id not in (None, remote_id):
        raise InconsistentTopicId(
            f"{file} has a topic {remote.topic} with id {entry.id}, the remote tier one with "
            f"{remote_id}: restore into another log directory"
        )
    return table


def _write_topic(
    fs: FileSystem,
    directory: str,
    table: TopicTable,
    paths: Sequence[RemotePath],
    settings: Mapping[str, str],
) -> None:
    entry = TopicEntry(
        name=paths[0].topic,
        id=decode_topic_id(paths[0].topic_id),
        partition_count=max(path.partition for path in paths) + 1,
        settings=dict(settings),
    )
    write_atomically(fs, f"{directory}/{TOPICS_FILE}", encode_topics(table.with_topics(entry)))
