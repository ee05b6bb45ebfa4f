"""All reads of one store from its cold tier: by offset, by time and by key, through shared caches.

Invariant  a read takes its thread, its memory and its share of the rate from what is set aside for
           cold reads, so that nobody who reads what is local waits for it.
Threads    any; `_lock` guards who reads which partition.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from varve.cleaning.key_index.key_index import KeyEntry
from varve.cleaning.work_budget import Throttle
from varve.commit_log import TopicPartition
from varve.commit_log.remote_log import RemoteLogReader
from varve.foundation.clock import Clock
from varve.tiering.partition import TieredPartition, TieredPartitions
from varve.tiering.read.extent_cache import ExtentCache
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.key_lookup import RemoteKeyLookup
from varve.tiering.read.object_file import ExtentSource
from varve.tiering.read.read_pool import ReadPool
from varve.tiering.read.remote_log import MeteredRemoteLog, RemoteLog

_REFRESH_MS: Final = 30_000
"""How old a manifest may be that is read by: what was replaced since stays for a grace time."""


@dataclass(frozen=True, slots=True)
class _Readers:
    """Who reads one partition."""

    tiered: TieredPartition
    side: RemoteLogReader
    keys: RemoteKeyLookup


class RemoteReaders:
    """The readers of the partitions of one store; `close` ends their threads.

    `cache_directory` is for indexes, on the local disk.
    """

    def __init__(
        self,
        partitions: TieredPartitions,
        *,
        clock: Clock,
        cache_directory: str,
        wait: Callable[[float], object],
    ) -> None:
        settings = partitions.settings
        self._partitions = partitions
        self._metrics = partitions.metrics
        self._clock = clock
        self._wait = wait
        self.pool = ReadPool(
            threads=settings.remote_log_reader_threads,
            max_pending=settings.remote_log_reader_max_pending_tasks,
        )
        self.extents = ExtentCache(limit_bytes=settings.varve_tier_cache_bytes)
        self.indexes = IndexCache(
            partitions.store.fs,
            cache_directory,
            partitions.objects,
            pool=self.pool,
            limit_bytes=settings.remote_log_index_file_cache_total_size_bytes,
        )
        self.indexes.load()
        self._throttle = Throttle(
            settings.remote_log_manager_fetch_max_bytes_per_second, clock, self._wait_for_rate
        )
        self._lock = threading.Lock()
        self._readers: dict[TopicPartition, _Readers] = {}  # guarded by _lock

    def side_of(self, partition: TopicPartition) -> RemoteLogReader:
        """What reads the part of a log that is only in the cold tier."""
        return self._get(partition).side

    def find_key(
        self,
        partition: TopicPartition,
        hash: tuple[int, int],
        *,
        topic_id: bytes,
        start_offset: int,
        end_offset: int,
    ) -> KeyEntry | None:
        """The latest record of a key hash in [start, end); see `cleaning.lookup.FindCold`."""
        return self._get(partition).keys.find(
            hash, topic_id=topic_id, start_offset=start_offset, end_offset=end_offset
        )

    def forget(self, partition: TopicPartition) -> None:
        """For when its cold part is gone."""
        with self._lock:
            self._readers.pop(partition, None)

    def _get(self, partition: TopicPartition) -> _Readers:
        tiered = self._partitions.get(partition)
        if not tiered.log.is_start_known:
            tiered.load()  # what lies before the log start is not asked of the tier
        with self._lock:
            known = self._readers.get(partition)
            if known is None or known.tiered is not tiered:
                known = self._readers[partition] = self._make(tiered)
            return known

    def _make(self, tiered: TieredPartition) -> _Readers:
        partition, objects = tiered.log.topic_partition, self._partitions.objects

        def observe(size: int) -> None:
            self._metrics.observe_fetch(partition, size)
            self._throttle.pace(size)

        reader = RemoteLog(
            tiered.home,
            objects,
            tiered.manifests,
            indexes=self.indexes,
            extents=self.extents,
            pool=self.pool,
            read_ahead_max_bytes=self._partitions.settings.varve_tier_read_ahead_max_bytes,
            clock=self._clock,
            refresh_ms=_REFRESH_MS,
            observe=observe,
        )
        keys = RemoteKeyLookup(
            tiered.log,
            tiered.home,
            tiered.manifests,
            source=ExtentSource(
                objects, self.extents, self.pool, clock=self._clock, observe=observe
            ),
            indexes=self.indexes,
            clock=self._clock,
            refresh_ms=_REFRESH_MS,
        )
        return _Readers(tiered, MeteredRemoteLog(reader, partition, self._metrics), keys)

    def _wait_for_rate(self, wait_ms: float) -> None:
        self._metrics.observe_fetch_throttle(wait_ms)
        self._wait(wait_ms)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.indexes.close)
            stack.callback(self.pool.close)
