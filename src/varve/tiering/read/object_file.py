"""Objects of remote segments as files that are only read.

Invariant  an object never changes and has the size its manifest says; one that ends before is
           Corrupt.
Threads    any; nothing is held open.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.time_index import TimeIndex
from varve.commit_log.txn_index import TransactionIndex
from varve.disk import Buffer
from varve.disk.file_system import Closing
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.read.extent_cache import Extent, ExtentCache
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.read_pool import ReadPool


class UnchangingFile(Closing):
    """The half of a `disk.File` that an object has no use for; `path` is its key."""

    __slots__ = ()

    path: str

    def write_at(self, position: int, *buffers: Buffer) -> NoReturn:
        raise self._unchangeable("written")

    def truncate(self, size: int) -> NoReturn:
        raise self._unchangeable("truncated")

    def _unchangeable(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"object {self.path!r} cannot be {what}: objects never change, a new segment has new "
            "ones"
        )

    def sync(self) -> None:
        """An object is durable from the first."""

    def close(self) -> None:
        """Holds nothing open."""


LOG_PART: Final = "log"
LONG_WAIT_MS: Final = 2
"""What takes less is not worth another thread."""

_RECENT_COUNT: Final = 8


class ExtentSource:
    """Gets extents: those held, those on their way, or from the store.

    `observe` is told how many bytes each request to the store brought, in any thread. The store is
    far when none of the last few requests was answered at once: only then does it help to fetch
    ahead in other threads.
    """

    def __init__(
        self,
        objects: ObjectStore,
        extents: ExtentCache,
        pool: ReadPool,
        *,
        clock: Clock,
        observe: Callable[[int], None],
    ) -> None:
        self.name = objects.name
        self._objects = objects
        self._extents = extents
        self._pool = pool
        self._clock = clock
        self._observe = observe
        self._recent_ms: deque[int] = deque(maxlen=_RECENT_COUNT)
        self.is_far = False

    @property
    def is_near(self) -> bool:
        """Whether the store is known to answer at once."""
        return bool(self._recent_ms) and not self.is_far

    @property
    def ahead_max_bytes(self) -> int:
        """What one reader may have fetched ahead: a share, for there are others."""
        return self._extents.limit_bytes // 4

    def claim(self, key: str, start: int, end: int) -> Extent:
        """The extent that holds `start`, to be loaded; a new one reaches to `end` at most."""
        return self._extents.claim(key, start, end)

    def load(self, extent: Extent) -> memoryview:
        """The bytes of a claimed extent, fetched in this thread if nobody has begun."""
        data = extent.data
        if data is not None:
            return data
        if not extent.is_begun:
            try:
                self._pool.run(lambda: self._extents.fill(extent, self._fetch))
            except BaseException:
                self._extents.withdraw(extent)
                raise
        return extent.wait()

    def leave(self, extent: Extent) -> None:
        """Nobody is expected to read an extent again."""
        self._extents.leave(extent)

    def read_ahead(self, key: str, start: int, end: int) -> Extent | None:
        """Lets the extent that holds `start` be fetched; None when there is no room for it now."""
        claimed = self._extents.claim_ahead(key, start, end)
        if claimed is None:
            return None
        extent, is_new = claimed
        if is_new:
            task = self._pool.try_submit(lambda: self._extents.fill(extent, self._fetch))
            if task is None:
                self._extents.withdraw(extent)
                return None
        return extent

    def _fetch(self, key: str, start: int, end: int) -> memoryview:
        begin_ms = self._clock.now_ms()
        data = self._objects.get_range(key, start, end)
        self._recent_ms.append(self._clock.now_ms() - begin_ms)
        self.is_far = min(self._recent_ms) >= LONG_WAIT_MS
        if len(data) != end - start:
            raise Corrupt(
                f"{self.name}: {key!r} ends at {start + len(data)}, the manifest says it goes on "
                f"to {end} at least: put the whole object back, `varve tier fsck` finds such ones"
            )
        self._observe(len(data))
        return data


class ObjectFile(UnchangingFile):
    """A log object as a file to read from; `fetch_bytes` is the least to ask of the store."""

    __slots__ = ("_source", "fetch_bytes", "path", "segment")

    def __init__(
        self, segment: RemoteSegment, key: str, source: ExtentSource, *, fetch_bytes: int
    ) -> None:
        self.segment = segment
        self.path = key
        self.fetch_bytes = fetch_bytes
        self._source = source

    @property
    def store_name(self) -> str:
        return self._source.name

    def size(self) -> int:
        return self.segment.size

    def claim(self, position: int, wanted_bytes: int) -> Extent:
        """The extent that holds a position within the file."""
        end = min(position + max(wanted_bytes, self.fetch_bytes), self.segment.size)
        return self._source.claim(self.path, position, end)

    def load(self, extent: Extent) -> memoryview:
        return self._source.load(extent)

    def view_at(self, position: int, size: int) -> memoryview:
        """The bytes [position, position + size) within the file.

        A view of one extent, or a copy where they lie in several.
        """
        extent = self.claim(position, size)
        if position + size <= extent.end:
            start = position - extent.start
            return self._source.load(extent)[start : start + size]
        joined = bytearray(size)
        self.read_into(position, memoryview(joined))
        return memoryview(joined).toreadonly()

    def read_at(self, position: int, size: int) -> bytes:
        size = min(size, self.segment.size - position)
        return bytes(self.view_at(position, size)) if size > 0 else b""

    def read_into(self, position: int, buffer: memoryview) -> int:
        size = min(len(buffer), self.segment.size - position)
        filled = 0
        while filled < size:
            extent = self.claim(position + filled, size - filled)
            start = position + filled - extent.start
            piece = self._source.load(extent)[start : start + size - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled


class RemoteSegmentView:
    """A cold segment as the functions that read local ones see it."""

    __slots__ = ("_file", "_home", "_indexes")

    def __init__(self, file: ObjectFile, home: RemotePath, indexes: IndexCache) -> None:
        self._file = file
        self._home = home
        self._indexes = indexes

    @property
    def base_offset(self) -> int:
        return self._file.segment.base_offset

    @property
    def size(self) -> int:
        return self._file.segment.size

    @property
    def max_timestamp(self) -> int:
        return self._file.segment.max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        return self.time_index().last[1]

    def file(self) -> ObjectFile:
        return self._file

    def offset_index(self) -> OffsetIndex:
        return self._indexes.offset_index(self._home, self._file.segment)

    def time_index(self) -> TimeIndex:
        return self._indexes.time_index(self._home, self._file.segment)

    def txn_index(self) -> TransactionIndex:
        return self._indexes.txn_index(self._home, self._file.segment)

    def path(self, kind: str) -> str:
        return self._file.path


class PartFile(UnchangingFile):
    """Reads ask the store for whole blocks of `block_bytes`."""

    __slots__ = ("_block_bytes", "_size", "_source", "path")

    def __init__(self, key: str, size: int, source: ExtentSource, *, block_bytes: int) -> None:
        self.path = key
        self._size = size
        self._source = source
        self._block_bytes = block_bytes

    def size(self) -> int:
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        buffer = bytearray(max(min(size, self._size - position), 0))
        self.read_into(position, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, position: int, buffer: memoryview) -> int:
        wanted = max(min(len(buffer), self._size - position), 0)
        filled = 0
        while filled < wanted:
            extent = self._claim(position + filled)
            start = position + filled - extent.start
            piece = self._source.load(extent)[start : start + wanted - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _claim(self, position: int) -> Extent:
        """The extent that holds a position: its block, or the part of it that others left."""
        start = position - position % self._block_bytes
        end = min(start + self._block_bytes, self._size)
        extent = self._source.claim(self.path, start, end)
        while extent.end <= position:
            extent = self._source.claim(self.path, extent.end, end)
        return extent
