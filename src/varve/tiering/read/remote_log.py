"""The remote log of a partition: reads object storage by offset, by time and by key.

A read that continues a recent one needs neither manifest nor index. Any other read finds its
segment in the cached manifest and its position in the offset index, except at the base offset of a
segment. When an object is missing, its segment was replaced or expired: the manifest is loaded and
the read is repeated once. Reads with an older manifest are safe, because the objects of a segment
stay for a grace period after it was replaced or expired.

Invariant  a read returns whole batches of one segment, in order, none at or above the limit: a view
           of one extent, or one batch that was joined from several. A batch lies within its object,
           and its offsets within its segment; anything else is Corrupt, with key and position.
Invariant  remote reads use only the threads and the memory of `ReadCaches`, so that local reads
           never wait for object storage.
Threads    any number of readers; no lock is held during a request. One loads the manifest, the
           others continue with the one they have.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final, NoReturn, Self, TypeVar

import numpy as np

from varve.cleaning.key_index.key_index import KeyEntry
from varve.cleaning.remote_tier import KeySearch
from varve.commit_log import Log
from varve.commit_log.log_reader import RemoteRead, RemoteReadRequest
from varve.commit_log.segment_reader import TimestampOffset, find_offset_by_time
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    ObjectNotFound,
    OffsetOutOfRange,
    StoreError,
    StoreUnavailable,
)
from varve.kernels.batch_scan import cut_batches
from varve.object_store import ObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import INDEX_PART, LOG_PART, RemoteSegment
from varve.tiering.manifest.store import ManifestStore, RecentManifest
from varve.tiering.read.extent_cache import ExtentCache, ExtentSource, FetchMeter
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.key_lookup import RemoteKeyLookup
from varve.tiering.read.object_file import LogObjectFile, RemoteSegmentView
from varve.tiering.read.read_ahead import (
    DEFAULT_SIZES,
    ExtentSizes,
    ReadAhead,
    ReadPosition,
    ReadPositions,
)
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


T = TypeVar("T")

REFRESH_MS: Final = 30_000
"""How old the manifest of a read may be."""

_TIME_STEP_BYTES: Final = 256 << 10
_ESTIMATE_ERROR_SHARE: Final = 1024
_ESTIMATE_STEP_BYTES_MAX: Final = 1 << 20
_INDEX_ENTRY_BYTES: Final = 8


class RemoteLog:
    """The remote segments of one partition.

    `local` is the local log that follows, if there is one: transactions may end there.
    """

    def __init__(
        self,
        path: RemotePath,
        manifests: ManifestStore,
        caches: ReadCaches,
        *,
        read_ahead_max_bytes: int,
        refresh_ms: int = REFRESH_MS,
        meter: FetchMeter | None = None,
        local: Log | None = None,
        sizes: ExtentSizes = DEFAULT_SIZES,
    ) -> None:
        self._path = path
        self._store_name = caches.objects.name
        self._clock = caches.clock
        self._indexes = caches.indexes
        self._read_ahead_max_bytes = read_ahead_max_bytes
        self._sizes = sizes
        self._meter = meter or FetchMeter()
        self._manifests = manifests
        self._recent = RecentManifest(manifests, caches.clock, refresh_ms=refresh_ms)
        self._source = ExtentSource(
            caches.objects, caches.extents, caches.pool, clock=caches.clock, meter=self._meter
        )
        self._positions = ReadPositions()
        self._keys = RemoteKeyLookup(
            path=path,
            manifests=manifests,
            recent=self._recent,
            source=self._source,
            indexes=caches.indexes,
            clock=caches.clock,
            local=local,
        )

    def refresh(self) -> Manifest:
        """Loads the newest manifest."""
        return self._recent.refresh()

    def read(self, request: RemoteReadRequest) -> RemoteRead | None:
        if request.max_bytes < 0:
            raise InvalidRequest(
                f"{self._path}: max_bytes is {request.max_bytes}; it must be 0 or more"
            )
        return self._read_consistently(request.start_offset, lambda: self._read(request))

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        return self._read_consistently(
            start_offset, lambda: self._search_time(timestamp, start_offset, end_offset)
        )

    def find_key(self, search: KeySearch) -> KeyEntry | None:
        """The latest record of a key hash, perhaps a tombstone; None without one.

        None also when a remote segment has a later one: compaction removed that from the local log,
        which begins at the end offset, so earlier records are superseded.
        """
        return self._keys.find(search)

    def _read_consistently(self, offset: int, read: Callable[[], T]) -> T:
        """The result of a read, repeated once with the newest manifest if an object is missing."""
        try:
            try:
                return read()
            except ObjectNotFound:
                self._positions.clear()
                self.refresh()
                return read()
        except OffsetOutOfRange:
            raise
        except ObjectNotFound as error:
            self._meter.record_failure()
            raise Corrupt(
                f"{self._path}: offset {offset}: the newest manifest names an object that is not "
                f"there: {error}; `varve tier fsck` lists what is missing"
            ) from error
        except StoreUnavailable as error:
            self._meter.record_failure()
            raise type(error)(
                f"{self._path}: offset {offset} is in the remote tier, and {self._store_name} "
                f"cannot be read now: {error}; try again. What is on the local disk is still served"
            ) from error
        except StoreError:
            self._meter.record_failure()
            raise

    # By offset

    def _read(self, request: RemoteReadRequest) -> RemoteRead | None:
        start = self._positions.find(request.start_offset)
        start = start or self._locate(request.start_offset, request)
        while start is not None:
            segment = start.file.segment
            if start.position < segment.size:
                return self._read_at(start, request)
            start = self._locate(segment.end_offset + 1, request, start.read_ahead)
        return None

    def _read_at(self, start: ReadPosition, request: RemoteReadRequest) -> RemoteRead | None:
        file, position, read_ahead = start
        data, next_offset = self._cut_batches(start, request)
        if next_offset < 0:
            if file.get_batch(position).last_offset >= request.limit_offset:
                return None  # compaction removed all batches of the segment below the limit
            return RemoteRead(data, request.start_offset)
        self._positions.put(
            next_offset,
            ReadPosition(file, position + len(data), read_ahead),
            now_ms=self._clock.now_ms(),
        )
        if request.with_aborted:
            aborted, is_complete = self._collect_aborted(
                file.segment, request.start_offset, next_offset
            )
            return RemoteRead(data, next_offset, aborted, is_complete)
        return RemoteRead(data, next_offset)

    def _cut_batches(self, at: ReadPosition, request: RemoteReadRequest) -> tuple[memoryview, int]:
        """Whole batches from a position on, and the offset after them; -1 when there are none."""
        file, position, read_ahead = at
        extent = file.reserve(position, read_ahead.fetch_bytes(request.max_bytes))
        passed = read_ahead.move_to(file, extent)
        if passed is not None and not self._positions.is_followed(
            read_ahead, request.start_offset, now_ms=self._clock.now_ms()
        ):
            self._source.extents.leave(passed)
        data = extent.data
        if data is None:
            data = self._wait(read_ahead, request, lambda: self._source.load(extent))
        start = position - extent.start
        piece = data[start : start + request.max_bytes]
        end, next_offset = cut_batches(np.frombuffer(piece, np.uint8), request.limit_offset)
        if end == 0:
            size = file.get_batch(position).size
            may_return = size <= request.max_bytes or request.min_one
            if size > len(piece) and may_return:
                if position + size > extent.end:
                    file.reserve(extent.end, read_ahead.fetch_bytes(request.max_bytes))
                piece = self._wait(read_ahead, request, lambda: file.view_at(position, size))
                end, next_offset = cut_batches(np.frombuffer(piece, np.uint8), request.limit_offset)
        if end < 0:
            raise file.not_a_batch(position)
        if end:
            file.check_offsets(position, piece, request.start_offset, next_offset)
            file.check_checksums(position, piece[:end])
        return piece[:end], next_offset

    def _wait(self, read_ahead: ReadAhead, request: RemoteReadRequest, load: Callable[[], T]) -> T:
        """The loaded bytes; records the time of the wait for the read-ahead."""
        begin_ms = self._clock.now_ms()
        loaded = load()
        read_ahead.record_wait(self._clock.now_ms() - begin_ms, request.max_bytes)
        return loaded

    def _locate(
        self, offset: int, request: RemoteReadRequest, read_ahead: ReadAhead | None = None
    ) -> ReadPosition | None:
        """The position of the first batch to read, in the segment that holds an offset."""
        if offset >= request.limit_offset:
            return None
        segment = self._find_segment(offset)
        if segment is None or segment.base_offset > offset:
            self._raise_gap(offset, segment, request)
        file = self._file(segment)
        position = 0
        if request.start_offset > segment.base_offset:
            position = self._find_position(file, request)
        return ReadPosition(file, position, read_ahead or self._read_ahead())

    def _raise_gap(
        self, offset: int, next_segment: RemoteSegment | None, request: RemoteReadRequest
    ) -> NoReturn:
        """A segment covers all its offsets, even those compacted away: a gap is a loss."""
        end = request.limit_offset
        if next_segment is not None:
            end = min(end, next_segment.base_offset)
        raise Corrupt(
            f"{self._path}: offsets {offset} to {end - 1} are in no segment of the remote tier, "
            f"and before those on the local disk: the bucket of {self._store_name} may be "
            "unmounted, emptied or another one, so restore its objects; an older manifest may "
            f"name them, as `varve tier fsck` shows. Continue reading from {end}; give up records "
            f"only if they are lost, with `varve topic delete-records --before {end}`"
        )

    def _find_segment(self, offset: int) -> RemoteSegment | None:
        """The readable segment that holds an offset, else the next one; None at the end.

        If the cached manifest does not have the offset, the newest one is loaded.
        """
        for manifest in (self._recent.get, self._recent.refresh):
            segment = next(self._manifests.readable(manifest(), from_offset=offset), None)
            if segment is not None and segment.base_offset <= offset:
                break
        return segment

    def _find_position(self, file: LogObjectFile, request: RemoteReadRequest) -> int:
        """The position of the first batch that ends at or after the start; else the file's end."""
        self._prefetch_estimate(file, request)
        index = self._indexes.offset_index(self._path, file.segment)
        position = index.lookup(request.start_offset)[1]
        if position < file.segment.size:
            file.reserve(position, self._sizes.first(request.max_bytes) + self._sizes.index_slack)
        return file.find_batch(request.start_offset, position=position)

    def _prefetch_estimate(self, file: LogObjectFile, request: RemoteReadRequest) -> None:
        """Fetches the estimated position in parallel with the offset index.

        The estimate assumes records of equal size. If it is right, a first read takes as long as
        one request. The range includes the index entry, which may be two index steps before. Not
        needed when the index is cached.
        """
        segment = file.segment
        if self._source.is_fast or self._indexes.has_offset_index(segment):
            return
        offsets = segment.end_offset + 1 - segment.base_offset
        middle = segment.size * (request.start_offset - segment.base_offset) // offsets
        error = segment.size // _ESTIMATE_ERROR_SHARE
        step = min(max(self._sizes.index_slack, 2 * _index_step(segment)), _ESTIMATE_STEP_BYTES_MAX)
        end = middle + error + self._sizes.first(request.max_bytes)
        self._source.read_ahead(file.path, max(0, middle - error - step), min(end, segment.size))

    def _file(self, segment: RemoteSegment) -> LogObjectFile:
        key = self._path.part_key(segment, LOG_PART)
        return LogObjectFile(segment, key, self._source, fetch_bytes=self._sizes.first_min)

    def _read_ahead(self) -> ReadAhead:
        return ReadAhead(
            self._source,
            window_max=self._read_ahead_max_bytes,
            sizes=self._sizes,
            next_file=self._find_next_file,
        )

    def _find_next_file(self, file: LogObjectFile) -> LogObjectFile | None:
        """The log object of the next segment; None on errors, which its reader will report."""
        offset = file.segment.end_offset + 1
        try:
            segment = next(self._manifests.readable(self._recent.get(), from_offset=offset), None)
        except (ObjectNotFound, StoreUnavailable):
            return None
        return None if segment is None else self._file(segment)

    # Aborted transactions

    def _collect_aborted(
        self, segment: RemoteSegment, start_offset: int, end_offset: int
    ) -> tuple[tuple[AbortedTransaction, ...], bool]:
        """The aborted transactions in [start, end), and whether these are all.

        If the cached manifest gives an incomplete answer, the newest one is loaded: segments
        that were copied since may have been evicted from the local disk.
        """
        if not segment.has_aborted and segment.is_decided(end_offset):
            return (), True
        for manifest in (self._recent.get, self._recent.refresh):
            later_segments = self._manifests.readable(
                manifest(), from_offset=segment.end_offset + 1
            )
            aborted, is_complete = self._indexes.collect_aborted(
                self._path,
                chain((segment,), later_segments),
                start_offset=start_offset,
                end_offset=end_offset,
            )
            if is_complete:
                break
        return aborted, is_complete

    # By time

    def _search_time(
        self, timestamp: int, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        manifest = self._recent.get()
        if manifest.highest_offset + 1 < end_offset:
            manifest = self._recent.refresh()
        first = self._manifests.find_by_time(manifest, timestamp)
        if first is None:
            return None
        from_offset = max(first.base_offset, start_offset)
        for segment in self._manifests.readable(manifest, from_offset=from_offset):
            if segment.base_offset >= end_offset:
                break
            if segment.max_timestamp >= timestamp:
                offset = self._search_segment(segment, timestamp, start_offset)
                if offset is not None:
                    return offset if offset.offset < end_offset else None
        return None

    def _search_segment(
        self, segment: RemoteSegment, timestamp: int, start_offset: int
    ) -> TimestampOffset | None:
        """Searches from the indexed position on in growing steps: mostly the first is enough."""
        view = RemoteSegmentView(self._file(segment), self._path, self._indexes)
        offset = max(view.time_index().lookup(timestamp)[1], start_offset)
        position, step = view.offset_index().lookup(offset)[1], _TIME_STEP_BYTES
        while True:
            size = min(position + step, segment.size)
            timestamp_offset = find_offset_by_time(
                view, timestamp=timestamp, start_offset=start_offset, size=size
            )
            if timestamp_offset is not None or size == segment.size:
                return timestamp_offset
            step *= 4


def _index_step(segment: RemoteSegment) -> int:
    """The bytes of a segment from one entry of its offset index to the next, on average."""
    part = segment.find_part(INDEX_PART)
    entry_count = 0 if part is None else part.size // _INDEX_ENTRY_BYTES
    return segment.size // (entry_count + 1)
