"""How any process reaches a cold tier: what a driver sends to its executors.

Invariant  an address is a value without connections; the stores opened by it are kept, one per
           process and address.
Threads    any; `_lock` guards the stores that are open.
"""

import random
import threading
from dataclasses import dataclass

from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import GivenValue
from varve.jobs.store_count import StoreCount
from varve.object_store import (
    MeteredObjectStore,
    ObjectStore,
    RetryingObjectStore,
    open_object_store,
)
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ObjectManifestStore

_lock = threading.Lock()
_open: dict["TierAddress", ObjectStore] = {}  # guarded by _lock; a process talks to few stores
_measured: list[MeteredObjectStore] = []  # guarded by _lock; those below the ones that are open


@dataclass(frozen=True, slots=True)
class TierAddress:
    """A bucket, what its store must be told, and the cluster in it if there are several."""

    url: str
    settings: tuple[tuple[str, GivenValue], ...] = ()
    cluster: str | None = None

    def open(self) -> ObjectStore:
        """The store, with failed requests repeated; the same one for every call in a process."""
        with _lock:
            if self not in _open:
                measured = MeteredObjectStore(
                    open_object_store(self.url, dict(self.settings), must_exist=True)
                )
                _measured.append(measured)
                _open[self] = RetryingObjectStore(measured)
            return _open[self]


def count_requests() -> StoreCount:
    """What this process has asked so far of all stores that were opened by addresses."""
    with _lock:
        usages = [store.usage() for store in _measured]
    counts = (
        StoreCount(sum(one.requests.values()), one.read_bytes, one.written_bytes) for one in usages
    )
    return sum(counts, StoreCount())


@dataclass(frozen=True, slots=True)
class ColdTopic:
    """A topic in the cold tier, and its partitions by number."""

    name: str
    topic_id: str
    partitions: tuple[RemotePath, ...]


def find_cluster(address: TierAddress) -> str:
    """The cluster that is named, or the only one in the bucket."""
    if address.cluster is not None:
        return address.cluster
    found = [one.strip("/") for one in address.open().list_directories("")]
    if not found:
        raise NotFound(
            f"{address.open().name} holds no cluster yet: nothing was copied there; `varve tier "
            "copy DIR` copies what is due"
        )
    if len(found) > 1:
        known = ", ".join(found)
        raise InvalidRequest(
            f"{address.open().name} holds {len(found)} clusters ({known}): name the one that is "
            "meant"
        )
    return found[0]


def find_topics(address: TierAddress) -> list[ColdTopic]:
    """Every topic of the cluster, by name."""
    cluster = find_cluster(address)
    folders = address.open().list_directories(f"{cluster}/")
    return sorted(
        (_read_topic(address, cluster, folder) for folder in folders),
        key=lambda topic: (topic.name, topic.topic_id),
    )


def find_topic(address: TierAddress, name: str) -> ColdTopic:
    """A topic by its name, or by name and id as `NAME.ID` where a name was used twice."""
    topics = find_topics(address)
    found = [one for one in topics if name in (one.name, f"{one.name}.{one.topic_id}")]
    if not found:
        known = ", ".join(one.name for one in topics) or "none"
        raise NotFound(f"{address.open().name} holds no topic {name!r:.260} (topics: {known:.400})")
    if len(found) > 1:
        names = ", ".join(f"{one.name}.{one.topic_id}" for one in found)
        raise InvalidRequest(f"{len(found)} topics were called {name}: write one of {names}")
    return found[0]


def open_manifests(address: TierAddress, home: RemotePath) -> ObjectManifestStore:
    """The manifest of a partition; each opening has ids of its own."""
    pause = threading.Event()
    return ObjectManifestStore(
        address.open(),
        home,
        random=random.Random(),
        wait=lambda wait_ms: pause.wait(wait_ms / 1000),
    )


def _read_topic(address: TierAddress, cluster: str, folder: str) -> ColdTopic:
    name, _, topic_id = folder.strip("/").rpartition("/")[2].rpartition(".")
    numbers = [one.strip("/").rpartition("/")[2] for one in address.open().list_directories(folder)]
    homes = sorted(
        (
            RemotePath(cluster, name, topic_id, int(number))
            for number in numbers
            if number.isdigit()
        ),
        key=lambda home: home.partition,
    )
    return ColdTopic(name, topic_id, tuple(homes))
