"""One tiered topic in an open store, on a disk and an object store that can both fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace

from tests.support.lab import let_no_time_pass
from varve.commit_log import Log, TopicPartition
from varve.embedded import Topic
from varve.foundation.settings import GivenValue
from varve.object_store import MemoryObjectStore
from varve.testing import FaultyObjectStore, VirtualStore
from varve.testing.faulty_disk import FaultyFileSystem
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.partition import TieredPartition
from varve.tiering.tier import Tier, TierPass

PARTITION = TopicPartition("orders", 0)
MINUTE = 60_000
STORE_SETTINGS: dict[str, GivenValue] = {
    "varve.tier.grace.ms": 1_000,
    "varve.tier.manifest.retention.ms": MINUTE,
}
TOPIC_SETTINGS: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "retention.ms": -1,
    "segment.ms": 1 << 40,
    "file.delete.delay.ms": 0,
}


@dataclass
class TieredTopic:
    """A topic of one partition; `fill` closes segments, and nothing else happens by itself."""

    topic_settings: dict[str, GivenValue] = field(default_factory=dict)
    store_settings: dict[str, GivenValue] = field(default_factory=dict)
    bucket: MemoryObjectStore = field(default_factory=MemoryObjectStore)

    def __post_init__(self) -> None:
        self.objects = FaultyObjectStore(self.bucket)
        self.kit = VirtualStore(
            settings={**STORE_SETTINGS, **self.store_settings}, objects=self.objects
        )
        settings = {**TOPIC_SETTINGS, **self.topic_settings}
        self.kit.store.create_topic("orders", settings=settings)
        if settings["remote.storage.enable"]:
            assert self.tier is not None

    def on(self, bucket: MemoryObjectStore, disk: FaultyFileSystem) -> "TieredTopic":
        """The same topic as a new process finds it in this bucket and on this disk."""
        other = copy(self)
        other.bucket, other.objects = bucket, FaultyObjectStore(bucket)
        other.kit = copy(self.kit)
        other.kit.objects, other.kit._memory = other.objects, disk
        other.kit._open()
        return other

    @property
    def disk(self) -> FaultyFileSystem:
        disk = self.kit.fs
        assert isinstance(disk, FaultyFileSystem)
        return disk

    @property
    def topic(self) -> Topic:
        return self.kit.store.topic("orders")

    @property
    def log(self) -> Log:
        return self.topic.partition(0).log

    @property
    def tier(self) -> Tier:
        return let_no_time_pass(self.kit.store.tier)

    @property
    def tiered(self) -> TieredPartition:
        return self.tier.partitions.get(PARTITION)

    def fill(self, *counts: int, size: int = 100) -> None:
        """So many records to each segment, a minute between them; every segment is closed."""
        for count in counts:
            for _ in range(count):
                key = f"{self.log.end_offset}"
                self.topic.append(key=key, value=bytes(size), timestamp_ms=self.kit.now_ms)
            self.log.roll()
            self.kit.advance(minutes=1)

    def copy(self) -> None:
        report = self.tier.copy(PARTITION, self.kit.now_ms)
        assert report.error is None, report.error

    def expire(self) -> TierPass:
        return self.tier.expire(PARTITION, self.kit.now_ms)

    def move(self, before_offset: int) -> None:
        """Lets segments go from the local disk, whatever the limits say."""
        self.log.drop_local_segments_before(before_offset, now_ms=self.kit.now_ms)

    def alter(self, **settings: GivenValue | None) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.kit.store.alter_topic("orders", named)

    def offsets(self) -> list[int]:
        """What a reader sees from the log start on."""
        return [record.offset for record in self.topic.read()]

    def bases(self) -> list[int]:
        """Where the local segments begin."""
        return [segment.base_offset for segment in self.log.view]

    def manifest(self) -> Manifest:
        return self.tiered.manifests.load()

    def remote(self) -> list[RemoteSegment]:
        """All segments that the manifest lists."""
        return list(self.tiered.manifests.segments(self.manifest()))

    def remote_bases(self) -> list[int]:
        return [one.base_offset for one in self.remote() if one.is_readable]

    def lose(self, base_offset: int) -> None:
        """Takes a cold segment off the manifest, as no part of varve ever would."""
        (lost,) = [one for one in self.remote() if one.base_offset == base_offset]

        def change(manifest: Manifest) -> Manifest:
            return manifest.start_delete([lost.id], at_ms=self.kit.now_ms)

        self.tiered.commit(change, self.kit.now_ms)
        self.tiered.commit(lambda manifest: manifest.forget([lost.id]), self.kit.now_ms)

    def object_keys(self, folder: str = "") -> list[str]:
        return [info.key for info in self.bucket.list(folder)]

    @contextmanager
    def down(self) -> Iterator[None]:
        """While the object store answers nothing."""
        self.objects.go_down()
        try:
            yield
        finally:
            self.objects.come_up()

    def requests(self) -> int:
        return len(self.objects.trace)

    def close(self) -> None:
        self.kit.close()


def with_crc(segment: RemoteSegment, crc32c: int) -> RemoteSegment:
    """A segment whose log object is said to have another checksum."""
    parts = [p._replace(crc32c=crc32c) if p.name == "log" else p for p in segment.parts]
    return replace(segment, parts=tuple(parts))
