"""The shared resources of remote reads: threads, memory, and local disk for indexes.

Invariant  remote reads use only these threads and this memory, so that local reads never wait for
           object storage.
Threads    any.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.object_store import ObjectStore
from varve.tiering.read.extent_cache import ExtentCache
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.read_pool import ReadPool
from varve.tiering.settings import TierSettings


@dataclass(frozen=True, slots=True)
class ReadCaches(Closing):
    """The caches over one object store; `close` ends their threads, not the store."""

    objects: ObjectStore
    clock: Clock
    pool: ReadPool
    extents: ExtentCache
    indexes: IndexCache

    @classmethod
    def open(
        cls,
        objects: ObjectStore,
        clock: Clock,
        settings: TierSettings,
        *,
        fs: FileSystem | None = None,
        directory: str = "indexes",
    ) -> Self:
        """Caches as large as the settings say; indexes are kept in memory without a file system."""
        pool = ReadPool(
            threads=settings.remote_log_reader_threads,
            max_pending=settings.remote_log_reader_max_pending_tasks,
        )
        indexes = IndexCache(
            fs or MemoryFileSystem(clock),
            directory,
            objects,
            pool=pool,
            limit_bytes=settings.remote_log_index_file_cache_total_size_bytes,
        )
        indexes.load()
        extents = ExtentCache(limit_bytes=settings.varve_tier_cache_bytes)
        return cls(objects, clock, pool, extents, indexes)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.indexes.close)
            stack.callback(self.pool.close)
