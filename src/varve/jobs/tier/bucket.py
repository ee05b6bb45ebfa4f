"""A bucket that holds the remote tier of topics: what a driver sends to its executors.

Invariant  a bucket is a value without connections; the stores opened by it are kept, one per
           process and bucket. With a mirror, what is written and deleted reaches both stores, or
           it raises.
Threads    any; `_lock` guards the stores that are open.
"""

import random
import threading
from dataclasses import asdict, dataclass
from typing import Protocol

from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import GivenValue
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
_stores: dict["Bucket", ObjectStore] = {}  # guarded by _lock; a process talks to few stores
_metered: list[MeteredObjectStore] = []  # guarded by _lock; those below the ones that are open


@dataclass(frozen=True, slots=True)
class StoreCount:
    """Requests of every kind, each attempt counted, and the bytes of objects."""

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
    """What the tasks of a job need of a bucket; it travels to other processes."""

    def objects(self) -> ObjectStore: ...
    def manifests(self, home: RemotePath) -> ManifestStore: ...

    def versions(self) -> list[S3Versions | None]:
        """Of each store the versions that it keeps; None where they cannot be asked for."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket by its URL, the settings of its store, and the cluster in it if there are several.

    `mirror_url` is a second store that holds the same objects.
    """

    url: str
    settings: tuple[tuple[str, GivenValue], ...] = ()
    cluster: str | None = None
    mirror_url: str | None = None
    mirror_settings: tuple[tuple[str, GivenValue], ...] = ()

    def objects(self) -> ObjectStore:
        """The store, with failed requests repeated; the same one for every call in a process."""
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

    def manifests(self, home: RemotePath) -> ObjectManifestStore:
        """The manifest of a partition; each opening has ids of its own."""
        pause = threading.Event()
        return ObjectManifestStore(
            self.objects(),
            home,
            random=random.Random(),
            wait=lambda wait_ms: pause.wait(wait_ms / 1000),
        )

    def versions(self) -> list[S3Versions | None]:
        """Of each store the versions that it keeps; None where they cannot be asked for."""
        found = [open_versions(self.url, dict(self.settings))]
        if self.mirror_url is not None:
            found.append(open_versions(self.mirror_url, dict(self.mirror_settings)))
        return found


def count_requests() -> StoreCount:
    """What this process has asked so far of all stores that were opened by buckets."""
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
    """A topic in the cold tier, and its partitions by number."""

    cluster: str
    name: str
    topic_id: str
    partitions: tuple[RemotePath, ...]


def find_cluster(bucket: Bucket) -> str:
    """The cluster that is named, or the only one in the bucket."""
    if bucket.cluster is not None:
        return bucket.cluster
    found = [directory.strip("/") for directory in bucket.objects().list_directories("")]
    if not found:
        raise NotFound(
            f"{bucket.objects().name} holds no cluster yet: nothing was copied there; `varve tier "
            "copy DIR` copies what is due"
        )
    if len(found) > 1:
        known = ", ".join(found)
        raise InvalidRequest(
            f"{bucket.objects().name} holds {len(found)} clusters ({known}): name the one that is "
            "meant"
        )
    return found[0]


def find_topics(bucket: Bucket) -> list[RemoteTopic]:
    """Every topic of the cluster, by name."""
    cluster = find_cluster(bucket)
    return [read_topic(bucket, cluster, *names) for names in _list_topics(bucket, cluster)]


def find_topic(bucket: Bucket, name: str) -> RemoteTopic:
    """A topic by its name, or by name and id as `NAME.ID` where a name was used twice."""
    cluster = find_cluster(bucket)
    topics = _list_topics(bucket, cluster)
    matching = [names for names in topics if name in (names[0], ".".join(names))]
    if not matching:
        known = ", ".join(topic for topic, _ in topics) or "none"
        raise NotFound(
            f"{bucket.objects().name} holds no topic {name!r:.260} (topics: {known:.400})"
        )
    if len(matching) > 1:
        listed = ", ".join(map(".".join, matching))
        raise InvalidRequest(f"{len(matching)} topics were called {name}: write one of {listed}")
    return read_topic(bucket, cluster, *matching[0])


def _list_topics(bucket: Bucket, cluster: str) -> list[tuple[str, str]]:
    """The names and ids of all topics, in order, by one list of the cluster's folders."""
    folders = bucket.objects().list_directories(f"{cluster}/")
    names = [folder.strip("/").rpartition("/")[2].rpartition(".") for folder in folders]
    return sorted((name, topic_id) for name, _, topic_id in names)


def read_topic(bucket: Bucket, cluster: str, name: str, topic_id: str) -> RemoteTopic:
    """A topic whose id is known; without partitions where nothing of it was copied."""
    folders = bucket.objects().list_directories(f"{cluster}/{name}.{topic_id}/")
    names = [folder.strip("/").rpartition("/")[2] for folder in folders]
    numbers = sorted(int(number) for number in names if number.isdigit())
    paths = (RemotePath(cluster, name, topic_id, number) for number in numbers)
    return RemoteTopic(cluster, name, topic_id, tuple(paths))
