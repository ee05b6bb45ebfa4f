"""One tiered partition on a disk and an object store that can both break, and what was copied."""

import random
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from tests.support.cleaning_bench import PARTITION, TOPIC_ID, CleaningBench, compacted
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.key_index.key_index import KeyEntry
from varve.cleaning.remote_tier import KeySearch, NoRemoteTier, RemoteBounds
from varve.commit_log import LogSettings, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import INDEX, KEYS, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, log_name
from varve.foundation.worker import StopSignal
from varve.kernels.crc import crc32c_of
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultyObjectStore, ObjectFaultPlan
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.tiering.copier import CopyReport, TierCopier
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.partition import ManifestStores, TieredPartitions
from varve.tiering.settings import TierSettings

KINDS = {"log": LOG, "index": INDEX, "timeindex": TIME_INDEX, "txnindex": TXN_INDEX, "keys": KEYS}


def tiered(**settings: Any) -> LogSettings:
    """Settings of a compacted topic that is copied."""
    return compacted(remote_storage_enable=True, **settings)


@dataclass
class TierBench:
    """A cleaning bench, a bucket, a copier between them, and the bytes of every copied segment."""

    settings: LogSettings = field(default_factory=tiered)
    tier_settings: TierSettings = field(default_factory=TierSettings)
    bucket: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    hot: CleaningBench = field(init=False)
    objects: FaultyObjectStore = field(init=False)
    partitions: TieredPartitions = field(init=False)
    copier: TierCopier = field(init=False)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """By segment id, what the local files held when it was found readable for the first time."""
    starts: int = 0

    def __post_init__(self) -> None:
        self.hot = CleaningBench(settings=self.settings)
        self.connect()

    def connect(self, plan: ObjectFaultPlan | None = None) -> None:
        """A copier as a new process has it."""
        self.starts += 1
        self.objects = FaultyObjectStore(self.bucket, plan)
        self.partitions = TieredPartitions(
            self.hot.store,
            ManifestStores(
                "object",
                self.objects,
                random=random.Random(self.starts),
                wait=lambda wait_ms: None,
                settings=self.tier_settings,
            ),
            clock=self.hot.clock,
            writer="varve",
        )
        self.hot.cleaner = LogCleaner(
            self.hot.store,
            clock=self.hot.clock,
            remote=self,
        )
        self.copier = TierCopier(
            self.partitions,
            cleaner=self.hot.cleaner,
            clock=self.hot.clock,
            stop=StopSignal(),
        )

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        return self.partitions.bounds(partition)

    def find_key(self, partition: TopicPartition, search: KeySearch) -> KeyEntry | None:
        return NoRemoteTier().find_key(partition, search)

    def reopen(self, **settings: Any) -> None:
        self.hot.reopen(**settings)
        self.connect()

    def crash(self, mode: CrashMode = CrashMode.KEEP_ALL, seed: int = 0) -> None:
        self.hot.crash(mode, seed)
        self.connect()

    def on(self, bucket: MemoryObjectStore, disk: FaultyFileSystem | None = None) -> "TierBench":
        """The same partition as a new process finds it in this bucket and on this disk.

        Without a disk the two share the local log.
        """
        bench = copy(self)
        bench.bucket, bench.files = bucket, dict(self.files)
        if disk is not None:
            bench.hot = self.hot.on(disk)
        bench.connect()
        return bench

    def fill(self, *segments: int) -> None:
        """So many records to each segment; every one is closed."""
        for count in segments:
            for number in range(count):
                self.hot.put(f"key-{number}", f"value-{self.hot.log.end_offset}")
            self.hot.roll()

    def copy(self) -> CopyReport:
        """A round of copying; what became readable is compared with the local files at once."""
        local = self.local_files()
        report = self.copier.copy(PARTITION, self.hot.now_ms)
        self.note(local)
        return report

    def local_files(self) -> dict[tuple[int, int], dict[str, bytes]]:
        """What the files of each closed segment hold, by its offsets [base, next)."""
        log, disk = self.hot.log, self.hot.disk
        bases = [segment.base_offset for segment in log.view]
        found = {}
        for segment, end in zip(log.view.closed, bases[1:], strict=True):
            files = {"log": disk.read(segment.path(LOG))[: segment.size]}
            for name, kind in KINDS.items():
                if name != "log" and disk.exists(segment.path(kind)):
                    files[name] = disk.read(segment.path(kind))
            path = f"{log.directory}/{log_name(end, SNAPSHOT)}"
            if disk.exists(path):
                files["snapshot"] = disk.read(path)
            found[segment.base_offset, end] = files
        return found

    def note(self, local: dict[tuple[int, int], dict[str, bytes]]) -> None:
        for segment in self.readable():
            if segment.id not in self.files:
                self.files[segment.id] = local[segment.base_offset, segment.end_offset + 1]

    # What the bucket holds

    @property
    def home(self) -> RemotePath:
        metadata = self.hot.directory.metadata
        assert metadata is not None
        assert metadata.cluster_id is not None
        return RemotePath(
            metadata.cluster_id, PARTITION.topic, encode_topic_id(TOPIC_ID), PARTITION.partition
        )

    def manifests(self, objects: ObjectStore | None = None) -> ObjectManifestStore:
        return ObjectManifestStore(
            objects or self.bucket, self.home, random=random.Random(99), wait=lambda wait_ms: None
        )

    def segments(self) -> list[RemoteSegment]:
        manifests = self.manifests()
        return list(manifests.segments(manifests.load()))

    def readable(self) -> list[RemoteSegment]:
        return [segment for segment in self.segments() if segment.is_readable]

    def check(self) -> None:
        """Byte for byte, without a hole or overlap, and no object that no manifest announces."""
        named = set()
        for segment in self.segments():
            keys = {part.name: self.home.part_key(segment, part.name) for part in segment.parts}
            named |= set(keys.values())
            if not segment.is_readable:
                continue
            for part in segment.parts:
                data = self.bucket.get(keys[part.name])
                assert len(data) == part.size
                assert part.crc32c == crc32c_of(data)
                known = self.files[segment.id].get(part.name)
                assert known is None or known == data, part.name
        objects = {entry.key for entry in self.bucket.list(self.home.segment_folder)}
        assert objects <= named, "an object that no manifest names"
        self.check_offsets()

    def check_offsets(self) -> None:
        readable = self.readable()
        ends = [0, *(segment.end_offset + 1 for segment in readable)]
        assert [segment.base_offset for segment in readable] == ends[:-1]
        assert self.copied_offset() == ends[-1]

    def copied_offset(self) -> int:
        """The first offset that is not copied, by the newest manifest."""
        tiered = self.partitions.get(PARTITION)
        tiered.load()
        return tiered.next_copy_offset
