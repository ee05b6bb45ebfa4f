"""The address of a bucket with the remote tier of topics, and the topics in it.

Invariant  a `Bucket` is a value without connections, which drivers send to executors; each process
           opens one store per bucket. With a mirror, a write or delete reaches both stores or
           raises.
Threads    any thread; `_lock` guards the open stores.
"""

import random
import threading
from dataclasses import asdict, dataclass
from typing import Protocol

from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import GivenValue
from varve.foundation.topic_records import list_topics
from varve.object_store import (
    MeteredObjectStore,
    ObjectStore,
    RetryingObjectStore,
    open_mirrored,
    open_object_store,
)
from varve.object_store.s3_versions import S3Versions, open_versions
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore

_lock = threading.Lock()
_stores: dict[
    "Bucket", ObjectStore
] = {}  # guarded by _lock; never evicted: a process uses few stores
_metered: list[MeteredObjectStore] = []  # guarded by _lock; the metered stores inside `_stores`


@dataclass(frozen=True, slots=True)
class StoreCount:
    """Requests of all kinds, with retries, and the bytes of objects read and written."""

    requests: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: "StoreCount") -> "StoreCount":
        return StoreCount(
            self.requests + other.requests,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )

    def __sub__(self, other: "StoreCount") -> "StoreCount":
        return StoreCount(
            self.requests - other.requests,
            self.read_bytes - other.read_bytes,
            self.written_bytes - other.written_bytes,
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class BucketAccess(Protocol):
    """The bucket as the tasks of a job use it; sent to other processes."""

    def objects(self) -> ObjectStore: ...
    def manifests(self, remote_path: RemotePath) -> ManifestStore: ...

    def versions(self) -> list[S3Versions | None]:
        """The object versions of each store; None for a store that cannot list them."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket by its URL and settings; `cluster` selects one if it holds several.

    `mirror_url` is a second store that holds the same objects.
    """

    url: str
    settings: tuple[tuple[str, GivenValue], ...] = ()
    cluster: str | None = None
    mirror_url: str | None = None
    mirror_settings: tuple[tuple[str, GivenValue], ...] = ()

    def objects(self) -> ObjectStore:
        """The store, which retries failed requests; the same one for all calls in a process."""
        with _lock:
            if self not in _stores:
                _stores[self] = self._open_store()
            return _stores[self]

    def _open_store(self) -> ObjectStore:
        settings = dict(self.settings)
        if self.mirror_url is not None:
            return open_mirrored(
                self.url,
                self.mirror_url,
                settings=settings,
                second_settings=dict(self.mirror_settings),
                must_exist=True,
                second_must_exist=True,
            )
        metered = MeteredObjectStore(open_object_store(self.url, settings, must_exist=True))
        _metered.append(metered)
        return RetryingObjectStore(metered)

    def manifests(self, remote_path: RemotePath) -> ObjectManifestStore:
        """Opens the manifests of a partition, with its own random source for new ids."""
        pause = threading.Event()
        return ObjectManifestStore(
            self.objects(),
            remote_path,
            random=random.Random(),
            wait=lambda wait_ms: pause.wait(wait_ms / 1000),
        )

    def versions(self) -> list[S3Versions | None]:
        """The object versions of each store; None for a store that cannot list them."""
        versions = [open_versions(self.url, dict(self.settings))]
        if self.mirror_url is not None:
            versions.append(open_versions(self.mirror_url, dict(self.mirror_settings)))
        return versions


def count_requests() -> StoreCount:
    """The requests of this process so far to all stores without a mirror that buckets opened."""
    with _lock:
        usages = [store.usage() for store in _metered]
    counts = (
        StoreCount(sum(usage.requests.values()), usage.read_bytes, usage.written_bytes)
        for usage in usages
    )
    return sum(counts, StoreCount())


# Topics of a bucket


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """A topic in the remote tier, with its partitions in order."""

    cluster: str
    name: str
    topic_id: str
    partitions: tuple[RemotePath, ...]


def find_cluster(bucket: Bucket) -> str:
    """The cluster of the address, or the only one in the bucket."""
    if bucket.cluster is not None:
        return bucket.cluster
    clusters = [directory.strip("/") for directory in bucket.objects().list_directories("")]
    if not clusters:
        raise NotFound(
            f"{bucket.objects().name} holds no cluster yet: nothing was copied there; `varve tier "
            "copy -d DIR` copies the segments that are due"
        )
    if len(clusters) > 1:
        names = ", ".join(clusters)
        raise InvalidRequest(
            f"{bucket.objects().name} holds {len(clusters)} clusters ({names}): select one of them "
            "(--cluster)"
        )
    return clusters[0]


def find_topics(bucket: Bucket) -> list[RemoteTopic]:
    """Every topic of the cluster, by name."""
    cluster = find_cluster(bucket)
    return [read_topic(bucket, cluster, *topic) for topic in _list_topics(bucket, cluster)]


def find_topic(bucket: Bucket, name: str) -> RemoteTopic:
    """Finds a topic by name, or by `NAME.ID` if topics with different ids share the name."""
    cluster = find_cluster(bucket)
    topics = _list_topics(bucket, cluster)
    matching = [topic for topic in topics if name in (topic[0], ".".join(topic))]
    if not matching:
        known = list_topics(name, {topic for topic, _ in topics})
        raise NotFound(f"{bucket.objects().name} holds no topic {name!r:.260}{known}")
    if len(matching) > 1:
        listed = ", ".join(map(".".join, matching))
        raise InvalidRequest(f"{len(matching)} topics have the name {name}: give one of {listed}")
    return read_topic(bucket, cluster, *matching[0])


def _list_topics(bucket: Bucket, cluster: str) -> list[tuple[str, str]]:
    """The names and ids of all topics, sorted, from one listing of the cluster's folders."""
    folders = bucket.objects().list_directories(f"{cluster}/")
    names = [folder.strip("/").rpartition("/")[2].rpartition(".") for folder in folders]
    return sorted((name, topic_id) for name, _, topic_id in names)


def read_topic(bucket: Bucket, cluster: str, name: str, topic_id: str) -> RemoteTopic:
    """Lists the partitions of a topic; none if no segment of it was copied."""
    folders = bucket.objects().list_directories(f"{cluster}/{name}.{topic_id}/")
    names = [folder.strip("/").rpartition("/")[2] for folder in folders]
    numbers = sorted(int(number) for number in names if number.isdigit())
    paths = (RemotePath(cluster, name, topic_id, number) for number in numbers)
    return RemoteTopic(cluster, name, topic_id, tuple(paths))
