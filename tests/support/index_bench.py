"""Segments with indexes in an object store that counts and fails, and a disk for their cache."""

from dataclasses import replace

from tests.support.remote_builder import HOME, make_segment
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.kernels.crc import crc32c_of
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultyObjectStore
from varve.testing.faulty_disk import FaultyFileSystem
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.read_pool import ReadPool

DIRECTORY = f"/data/{REMOTE_INDEX_CACHE_DIRECTORY}"
KINDS = ("index", "timeindex", "txnindex")
ABORTED = 1
"""The number of the segment that holds aborted transactions."""

Index = OffsetIndex | TimeIndex | TransactionIndex


class IndexBench:
    """Segments in a store that counts and fails, and a disk for the cache."""

    def __init__(self, segment_count: int = 4) -> None:
        self.bucket = MemoryObjectStore()
        self.files: dict[str, dict[str, bytes]] = {}
        self.segments = [self._put(number) for number in range(segment_count)]
        self.objects = FaultyObjectStore(self.bucket)
        self.clock = ManualClock()
        self.disk = FaultyFileSystem(self.clock)
        self.pool = ReadPool(threads=16, max_pending=100)

    def _put(self, number: int) -> RemoteSegment:
        segment = make_segment(number, SegmentState.COPY_FINISHED)
        files = _make_indexes(segment, entry_count=3 + number, has_aborted=number == ABORTED)
        self.files[segment.id] = files
        named = {kind: data for kind, data in files.items() if data}
        parts = tuple(ObjectPart(kind, len(data), crc32c_of(data)) for kind, data in named.items())
        for kind, data in named.items():
            self.bucket.put(HOME.part_key(segment, kind), data)
        return replace(segment, parts=parts)

    def open(
        self,
        *,
        limit_bytes: int = 1 << 20,
        memory_bytes: int = 1 << 20,
        disk: FileSystem | None = None,
        objects: ObjectStore | None = None,
    ) -> IndexCache:
        return IndexCache(
            disk or self.disk,
            DIRECTORY,
            objects or self.objects,
            pool=self.pool,
            limit_bytes=limit_bytes,
            memory_bytes=memory_bytes,
        )

    def size(self, segment: RemoteSegment, *kinds: str) -> int:
        """The bytes of some kinds of index, or of all."""
        return sum(len(self.files[segment.id][kind]) for kind in kinds or KINDS)

    def check(self, segment: RemoteSegment, kind: str, index: Index) -> None:
        assert index.encode() == self.files[segment.id][kind]

    def use(self, cache: IndexCache, segment: RemoteSegment, *kinds: str) -> None:
        """Asks for some kinds of index, or for all; they are those that were copied."""
        for kind in kinds or KINDS:
            self.check(segment, kind, get_index(cache, segment, kind))

    def damage(self, segment: RemoteSegment, kind: str, data: bytes) -> None:
        self.bucket.put(HOME.part_key(segment, kind), data)


def get_index(cache: IndexCache, segment: RemoteSegment, kind: str) -> Index:
    if kind == "index":
        return cache.offset_index(HOME, segment)
    return (cache.time_index if kind == "timeindex" else cache.txn_index)(HOME, segment)


def _make_indexes(
    segment: RemoteSegment, *, entry_count: int, has_aborted: bool
) -> dict[str, bytes]:
    base = segment.base_offset
    offsets, times = OffsetIndex(base, 800), TimeIndex(base, 1200)
    aborted = TransactionIndex(base)
    for entry in range(entry_count):
        offsets.append(base + 5 * entry + 4, 200 * entry)
        times.append(1_000 + entry, base + 5 * entry + 4)
    if has_aborted:
        aborted.append(AbortedTransaction(7, base + 3, base + 40, base + 41))
        aborted.append(AbortedTransaction(8, base + 9, base + 50, base + 51))
    contents = (offsets.encode(), times.encode(), aborted.encode())
    return dict(zip(KINDS, contents, strict=True))


def file_name(segment: RemoteSegment, kind: str) -> str:
    return f"{segment.base_offset}_{segment.id}.{kind}"


def file_path(segment: RemoteSegment, kind: str) -> str:
    return f"{DIRECTORY}/{file_name(segment, kind)}"


def overwrite(fs: FileSystem, path: str, data: bytes) -> None:
    with fs.open_writable(path) as file:
        file.truncate(0)
        file.write_at(0, data)
