"""A tiered partition whose keys are looked up in both tiers, as an open store does it."""

from dataclasses import dataclass, field

from tests.support.cleaning_bench import NOW_MS, PARTITION
from tests.support.evictions import evict_local_segments
from tests.support.remote_bench import ListingMeter
from tests.support.tier_bench import TierBench
from varve.cleaning.key_index.key_index import KeyEntry
from varve.cleaning.remote_tier import KeySearch
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Record
from varve.testing import ObjectFaultPlan
from varve.tiering.read.extent_cache import ExtentCache
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.read_pool import ReadPool
from varve.tiering.read.remote_log import ReadCaches, RemoteLog


@dataclass
class RemoteLookupBench(TierBench):
    """`find` gives the latest record of a key; `move` takes copied segments from the disk."""

    pool: ReadPool = field(init=False)
    remote: RemoteLog = field(init=False)
    observed: list[int] = field(default_factory=list)

    def connect(self, plan: ObjectFaultPlan | None = None) -> None:
        super().connect(plan)
        self.pool = ReadPool(threads=2, max_pending=100)
        extents = ExtentCache(limit_bytes=8 << 20)
        memory = MemoryFileSystem(ManualClock(NOW_MS))
        indexes = IndexCache(memory, "cache", self.objects, pool=self.pool, limit_bytes=1 << 20)
        self.remote = RemoteLog(
            self.home,
            self.manifests(self.objects),
            ReadCaches(self.objects, self.hot.clock, self.pool, extents, indexes),
            read_ahead_max_bytes=1 << 16,
            refresh_ms=60_000,
            meter=ListingMeter(self.observed),
            local=self.hot.log,
        )
        self.hot.log.attach_remote(self.remote)

    def find_key(self, partition: TopicPartition, search: KeySearch) -> KeyEntry | None:
        assert partition == PARTITION
        return self.remote.find_key(search)

    def move(self, before_offset: int) -> None:
        log = self.hot.log
        evict_local_segments(
            log, before_offset, self.hot.now_ms, self.hot.cleaner.removals.get(log)
        )

    def find(self, key: str) -> Record | None:
        return self.hot.cleaner.find_key(PARTITION, key.encode(), self.hot.now_ms)

    def find_value(self, key: str) -> bytes | None:
        """None for a key that was deleted, and for one that never was."""
        found = self.find(key)
        return None if found is None else found.value
