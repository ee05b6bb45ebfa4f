"""Cold segments written from lists of batches, and a reader of them with caches of any size."""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.support.copied_log import HOME, make_parts, open_manifests
from tests.support.log_bench import NOW_MS, offsets_in
from varve.commit_log.log_reader import RemoteRead, RemoteReadRequest
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk.memory import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.records import Record, build_batch
from varve.testing import FaultyObjectStore
from varve.tiering.manifest.commit import ManifestEdit
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.read.extent_cache import ExtentCache, FetchMeter
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.read_ahead import ExtentSizes
from varve.tiering.read.read_pool import ReadPool
from varve.tiering.read.remote_log import ReadCaches, RemoteLog

T = TypeVar("T")

INDEX_BYTES = 1 << 20
TINY = ExtentSizes(
    first_min=40, first_max=2_000, near_max=300, index_slack=100, ahead_min=100, ahead_max=400
)
"""Extents so small that most batches lie in several of them."""


@dataclass(frozen=True)
class RemoteBatch:
    """Offsets [base, last] and a time; the records in between are those of `deltas`."""

    base_offset: int
    last_offset: int
    time: int = 0
    value_bytes: int = 10
    deltas: tuple[int, ...] | None = None

    @property
    def offsets(self) -> list[int]:
        deltas = self.deltas or tuple(range(self.last_offset - self.base_offset + 1))
        return [self.base_offset + delta for delta in deltas]

    def encode(self) -> bytes:
        count = len(self.offsets)
        value = random.Random(self.base_offset).randbytes(self.value_bytes)
        return build_batch(
            [Record(b"key", value, timestamp=NOW_MS + self.time)] * count,
            base_offset=self.base_offset,
            leader_epoch=0,
            offset_deltas=[offset - self.base_offset for offset in self.offsets],
            last_offset_delta=self.last_offset - self.base_offset,
        )


class FarObjectStore(FaultyObjectStore):
    """A store that takes `far_ms` by the clock to answer a request for a range."""

    def __init__(self, store: ObjectStore, clock: ManualClock) -> None:
        super().__init__(store)
        self.far_ms = 0
        self.under_way = 0
        self.under_way_max = 0
        self._clock = clock
        self._count = threading.Lock()

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        with self._count:
            self.under_way += 1
            self.under_way_max = max(self.under_way, self.under_way_max)
        try:
            return super().get_range(key, start, end)
        finally:
            self._clock.advance(self.far_ms)
            with self._count:
                self.under_way -= 1


class HeldPool(ReadPool):
    """Holds what is asked ahead until it is let go: a reader who comes before fetches himself."""

    def __init__(self) -> None:
        super().__init__(threads=1, max_pending=100)
        self._held: list[Callable[[], object]] = []

    def try_submit(self, work: Callable[[], T]) -> Future[T]:
        self._held.append(work)
        return Future()

    def let_go(self) -> None:
        held, self._held = self._held, []
        for work in held:
            work()


class ListingMeter(FetchMeter):
    """Lists the bytes of each fetch."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self._sizes = sizes

    def record_fetch(self, size: int) -> None:
        self._sizes.append(size)


def drop_extents(cache: ExtentCache) -> None:
    """Makes the cache forget all bytes."""
    for extent in list(cache._cached):
        cache.leave(extent)


@dataclass
class RemoteBench:
    """A partition in a bucket that can fail, and a reader of it."""

    bucket: ObjectStore = field(default_factory=MemoryObjectStore)
    cache_bytes: int = 1 << 20
    read_ahead_max_bytes: int = 1 << 16
    sizes: ExtentSizes = TINY
    threads: int = 4
    max_pending: int = 100
    far_ms: int = 0
    given_pool: ReadPool | None = None
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    observed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects = FarObjectStore(self.bucket, self.clock)
        self.objects.far_ms = self.far_ms
        self.writer = open_manifests(self.bucket, 1)
        self.segments: list[RemoteSegment] = []
        self.open()

    def open(self) -> None:
        """A reader that knows nothing yet."""
        self.pool = self.given_pool or ReadPool(threads=self.threads, max_pending=self.max_pending)
        self.extents = ExtentCache(limit_bytes=self.cache_bytes)
        self.indexes = IndexCache(
            MemoryFileSystem(self.clock),
            "cache",
            self.objects,
            pool=self.pool,
            limit_bytes=INDEX_BYTES,
        )
        self.reader = RemoteLog(
            HOME,
            open_manifests(self.objects, 2),
            ReadCaches(self.objects, self.clock, self.pool, self.extents, self.indexes),
            read_ahead_max_bytes=self.read_ahead_max_bytes,
            refresh_ms=60_000,
            meter=ListingMeter(self.observed),
            sizes=self.sizes,
        )

    def close(self) -> None:
        self.pool.close()
        self.indexes.close()

    def add(
        self,
        batches: Sequence[RemoteBatch],
        *,
        replaces: Sequence[RemoteSegment] = (),
        **segment: Any,
    ) -> RemoteSegment:
        """Writes a segment and makes it readable, in the place of others whose objects stay."""
        added = self.write(batches, **segment)
        self.finish([added], replaces)
        return added

    def write(
        self,
        batches: Sequence[RemoteBatch],
        *,
        base_offset: int | None = None,
        end_offset: int | None = None,
        id: str | None = None,
        aborted: Sequence[AbortedTransaction] = (),
        undecided_from: int | None = None,
        index_interval: int = 200,
    ) -> RemoteSegment:
        """Writes the objects of a segment."""
        base = batches[0].base_offset if base_offset is None else base_offset
        parts = encode_parts(batches, base, aborted, index_interval)
        segment = RemoteSegment(
            id=id or f"segment-{base}",
            base_offset=base,
            end_offset=batches[-1].last_offset if end_offset is None else end_offset,
            size=len(parts["log"]),
            record_count=sum(len(batch.offsets) for batch in batches),
            max_timestamp=NOW_MS + max((batch.time for batch in batches), default=0),
            append_ms=(NOW_MS, NOW_MS),
            epochs=((0, base),),
            parts=make_parts(parts),
            has_aborted=bool(aborted),
            state=SegmentState.COPY_FINISHED,
            at_ms=NOW_MS,
            undecided_from=undecided_from,
        )
        for name, data in parts.items():
            self.bucket.put(HOME.part_key(segment, name), data)
        return segment

    def finish(
        self, segments: Sequence[RemoteSegment], replaces: Sequence[RemoteSegment] = ()
    ) -> None:
        """Makes segments readable."""

        def announce(manifest: Manifest) -> Manifest:
            for segment in segments:
                manifest = manifest.announce(replace(segment, state=SegmentState.COPY_STARTED))
            return manifest

        def finish(manifest: Manifest) -> Manifest:
            for one in (*segments, *replaces):
                manifest = self.writer.unfold(
                    manifest, start_offset=one.base_offset, end_offset=one.end_offset + 1
                )
            manifest = manifest.start_delete([old.id for old in replaces], at_ms=NOW_MS)
            for segment in segments:
                manifest = manifest.finish(segment)
            return manifest

        self._commit(announce)
        self._commit(finish)
        self.segments = [one for one in self.segments if one not in replaces] + list(segments)

    def _commit(self, change: ManifestEdit) -> None:
        self.writer.commit(change, leader_epoch=0, writer="test", now_ms=NOW_MS)

    def key(self, segment: RemoteSegment, part: str = "log") -> str:
        return HOME.part_key(segment, part)

    def remove_objects(self, segment: RemoteSegment) -> None:
        self.bucket.delete([self.key(segment, part.name) for part in segment.parts])

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset + 1

    def read(
        self,
        start_offset: int,
        *,
        limit_offset: int | None = None,
        max_bytes: int = 1_000,
        min_one: bool = True,
        with_aborted: bool = False,
    ) -> RemoteRead | None:
        limit = self.end_offset if limit_offset is None else limit_offset
        request = RemoteReadRequest(start_offset, limit, max_bytes, min_one, with_aborted)
        return self.reader.read(request)

    def read_on(self, start_offset: int, max_bytes: int = 1_000) -> list[int]:
        """The offsets of all records that a reader sees who goes on to the end."""
        found: list[int] = []
        offset = start_offset
        while (run := self.read(offset, max_bytes=max_bytes)) is not None:
            assert run.next_offset > offset
            found += offsets_in(run.data)
            offset = run.next_offset
        return [one for one in found if one >= start_offset]

    def wait_idle(self) -> None:
        """Until all that was asked ahead has been fetched, if there is one thread."""
        last = self.pool.try_submit(lambda: None)
        assert last is not None
        last.result(10)

    def gets(self, part: str = "log") -> int:
        """How many requests were made for parts of this name."""
        names = ("get", "get range", "get ranges")
        return sum(
            step.operation in names and step.key.endswith(f"/{part}") for step in self.objects.trace
        )


def encode_parts(
    batches: Sequence[RemoteBatch],
    base_offset: int,
    aborted: Sequence[AbortedTransaction],
    index_interval: int,
) -> dict[str, bytes]:
    """The objects of a segment; every `index_interval` bytes an entry of each index."""
    offset_index = OffsetIndex(base_offset, INDEX_BYTES)
    time_index = TimeIndex(base_offset, INDEX_BYTES)
    txn_index = TransactionIndex(base_offset)
    data, indexed, newest = bytearray(), 0, (-1, base_offset)
    for batch in batches:
        if NOW_MS + batch.time > newest[0]:
            newest = (NOW_MS + batch.time, batch.last_offset)
        if len(data) - indexed >= index_interval:
            offset_index.append(batch.last_offset, len(data))
            time_index.append(*newest)
            indexed = len(data)
        data += batch.encode()
    if newest[0] >= 0:
        time_index.append(*newest, skip_full_check=True)
    for one in aborted:
        txn_index.append(one)
    parts = {"log": bytes(data), "index": offset_index.encode(), "timeindex": time_index.encode()}
    return parts | ({"txnindex": txn_index.encode()} if aborted else {})


def make_batches(
    first_offset: int, count: int, *, records: int = 2, value_bytes: int = 10, time: int = 0
) -> list[RemoteBatch]:
    """Batches without holes, each one a millisecond later."""
    return [
        RemoteBatch(offset, offset + records - 1, time + number, value_bytes)
        for number, offset in enumerate(
            range(first_offset, first_offset + count * records, records)
        )
    ]
