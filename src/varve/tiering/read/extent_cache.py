"""A cache of extents: byte ranges of immutable objects, in memory or being fetched.

An extent is listed before it is fetched, so that it is fetched once: a reader waits for the fetch,
or starts it. Readers get views of the fetched buffer, which stay valid after its eviction.

Invariant  listed extents of one object do not overlap. The bytes held and in flight never exceed
           the limit, except for required reads while all other bytes are in flight; an extent
           larger than the limit is returned and not held. Unread read-ahead takes at most half of
           the limit: the oldest is evicted first, as its reader may have stopped.
Threads    any; one lock, not held during requests.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.read.read_pool import ReadPool

LONG_WAIT_MS: Final = 2
"""A shorter wait is not worth another thread."""

_RECENT_COUNT: Final = 8

Fetch = Callable[[str, int, int], memoryview]
"""Fetches all bytes [start, end) of the object with a key, or raises."""


class Extent:
    """Bytes [start, end) of an object; `data` is None until they are fetched.

    `is_ahead` if it was reserved by read-ahead, `is_unread` until a reader uses it.
    """

    __slots__ = (
        "data",
        "done",
        "end",
        "error",
        "is_ahead",
        "is_begun",
        "is_listed",
        "is_unread",
        "key",
        "start",
    )

    def __init__(self, key: str, start: int, end: int, *, is_ahead: bool) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.is_ahead = is_ahead
        self.is_unread = is_ahead
        self.is_begun = False
        self.is_listed = True
        self.data: memoryview | None = None
        self.error: Exception | None = None
        self.done = threading.Event()

    @property
    def size(self) -> int:
        return self.end - self.start

    def wait(self) -> memoryview:
        """Waits for the bytes; raises the error of the fetch."""
        if self.data is None:
            self.done.wait()
            error = self.error
            if error is not None:
                raise error.again() if isinstance(error, StoreError) else error
        assert self.data is not None
        return self.data


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The counters of a bounded cache."""

    hits: int
    misses: int
    evicted: int
    held_bytes: int
    limit_bytes: int


@dataclass(slots=True)
class _Row:
    """The extents of one object in order; `starts` beside them, to be searched."""

    starts: list[int]
    extents: list[Extent]


class ExtentCache:
    """Extents by object key; the least recently used are evicted first."""

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}  # guarded by _lock
        self._cached: OrderedDict[Extent, None] = OrderedDict()  # guarded by _lock, oldest first
        self._unread: dict[Extent, None] = {}  # guarded by _lock; those held, oldest first
        self._cached_bytes = 0  # guarded by _lock; with what is on its way
        self._unread_bytes = 0  # guarded by _lock
        self._hits = self._misses = self._evicted = 0  # guarded by _lock

    def reserve(self, key: str, start: int, end: int) -> Extent:
        """The extent that holds `start`; if there is none, a new one up to `end` or the next."""
        with self._lock:
            extent, is_new = self._reserve_range_locked(key, start, end, is_ahead=False)
            if is_new:
                self._misses += 1
                return extent
            self._hits += 1
            self._mark_read_locked(extent)
            if extent in self._cached:
                self._cached.move_to_end(extent)
            return extent

    def reserve_ahead(self, key: str, start: int, end: int) -> tuple[Extent, bool] | None:
        """An extent for read-ahead, and whether it is new.

        None when the unread bytes in flight have reached their limit.
        """
        with self._lock:
            while self._unread_bytes + end - start > self.limit_bytes // 2:
                if not self._unread:
                    return None
                self._evict_locked(next(iter(self._unread)))
            extent, is_new = self._reserve_range_locked(key, start, end, is_ahead=True)
            if is_new:
                self._unread_bytes += extent.size
            return extent, is_new

    def fill(self, extent: Extent, fetch: Fetch) -> None:
        """Fetches a reserved extent in this thread, unless another thread has started.

        `Extent.wait` raises errors; only exceptions that end this thread are raised here.
        """
        with self._lock:
            if extent.is_begun:
                return
            extent.is_begun = True
            self._reserve_locked(extent)
        try:
            data = fetch(extent.key, extent.start, extent.end)
        except Exception as error:
            self._fail(extent, error)
        except BaseException:
            self._fail(extent, Unavailable(f"{extent.key}: its fetch was broken off: try again"))
            raise
        else:
            with self._lock:
                extent.data = data
                self._hold_locked(extent)
            extent.done.set()

    def _fail(self, extent: Extent, error: Exception) -> None:
        with self._lock:
            extent.error = error
            self._release_locked(extent)
            self._unlist_locked(extent)
        extent.done.set()

    def cancel(self, extent: Extent) -> None:
        """Removes a reservation that no thread has started to fetch."""
        with self._lock:
            if not extent.is_begun:
                self._unlist_locked(extent)

    def leave(self, extent: Extent) -> None:
        """Drops an extent that is unlikely to be read again."""
        with self._lock:
            if extent in self._cached:
                self._drop_locked(extent)

    def usage(self) -> CacheUsage:
        """Counted in extents."""
        with self._lock:
            return CacheUsage(
                self._hits, self._misses, self._evicted, self._cached_bytes, self.limit_bytes
            )

    def _reserve_range_locked(
        self, key: str, start: int, end: int, *, is_ahead: bool
    ) -> tuple[Extent, bool]:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row([], [])
        slot = bisect_right(row.starts, start)
        if slot and start < row.extents[slot - 1].end:
            return row.extents[slot - 1], False
        if slot < len(row.starts):
            end = min(end, row.starts[slot])
        extent = Extent(key, start, end, is_ahead=is_ahead)
        row.starts.insert(slot, start)
        row.extents.insert(slot, extent)
        return extent, True

    def _mark_read_locked(self, extent: Extent) -> None:
        if extent.is_unread:
            extent.is_unread = False
            self._unread_bytes -= extent.size
            self._unread.pop(extent, None)

    def _unlist_locked(self, extent: Extent) -> None:
        if not extent.is_listed:
            return
        extent.is_listed = False
        self._mark_read_locked(extent)
        row = self._rows[extent.key]
        slot = bisect_right(row.starts, extent.start) - 1
        del row.starts[slot], row.extents[slot]
        if not row.starts:
            del self._rows[extent.key]

    def _is_kept(self, extent: Extent) -> bool:
        return extent.size <= self.limit_bytes

    def _reserve_locked(self, extent: Extent) -> None:
        """Evicts before the fetch, so that freed memory is reused for the response."""
        if self._is_kept(extent):
            self._cached_bytes += extent.size
            while self._cached and self._cached_bytes > self.limit_bytes:
                self._evict_locked(next(iter(self._cached)))

    def _release_locked(self, extent: Extent) -> None:
        if self._is_kept(extent):
            self._cached_bytes -= extent.size

    def _hold_locked(self, extent: Extent) -> None:
        if self._is_kept(extent) and extent.is_listed:
            self._cached[extent] = None
            if extent.is_unread:
                self._unread[extent] = None
            while self._cached and self._cached_bytes > self.limit_bytes:
                self._evict_locked(next(iter(self._cached)))
        else:
            self._release_locked(extent)
            self._unlist_locked(extent)

    def _evict_locked(self, extent: Extent) -> None:
        self._evicted += 1
        self._drop_locked(extent)

    def _drop_locked(self, extent: Extent) -> None:
        del self._cached[extent]
        self._release_locked(extent)
        self._unlist_locked(extent)


class FetchMeter:
    """Records the requests of remote reads; a subclass may also make them wait."""

    def __init__(self) -> None:
        self.request_count = 0

    def record_fetch(self, size: int) -> None:
        """Records the bytes of a request; may sleep to limit the rate."""
        self.request_count += 1

    def record_failure(self) -> None:
        """A read failed."""


class ExtentSource:
    """Loads extents from the cache or from the store.

    `meter` records each request, in any thread. The store is slow when none of the last few
    requests was answered at once: only then does it help to fetch ahead in other threads.
    """

    def __init__(
        self,
        objects: ObjectStore,
        extents: ExtentCache,
        pool: ReadPool,
        *,
        clock: Clock,
        meter: FetchMeter,
    ) -> None:
        self.name = objects.name
        self._objects = objects
        self.extents = extents
        self._pool = pool
        self._clock = clock
        self._meter = meter
        self._recent_ms: deque[int] = deque(maxlen=_RECENT_COUNT)
        self.is_slow = False

    @property
    def is_fast(self) -> bool:
        """Whether the store is known to answer at once."""
        return bool(self._recent_ms) and not self.is_slow

    @property
    def ahead_max_bytes(self) -> int:
        """The read-ahead limit of one reader: a share of the cache, as there are others."""
        return self.extents.limit_bytes // 4

    def load(self, extent: Extent) -> memoryview:
        """The bytes of a reserved extent, fetched in this thread if no fetch has started."""
        data = extent.data
        if data is not None:
            return data
        if not extent.is_begun:
            try:
                self._pool.run(lambda: self.extents.fill(extent, self._fetch))
            except BaseException:
                self.extents.cancel(extent)
                raise
        return extent.wait()

    def read_ahead(self, key: str, start: int, end: int) -> Extent | None:
        """Starts to fetch the extent that holds `start`; None when the cache is full."""
        reserved = self.extents.reserve_ahead(key, start, end)
        if reserved is None:
            return None
        extent, is_new = reserved
        if is_new:
            task = self._pool.try_submit(lambda: self.extents.fill(extent, self._fetch))
            if task is None:
                self.extents.cancel(extent)
                return None
        return extent

    def _fetch(self, key: str, start: int, end: int) -> memoryview:
        begin_ms = self._clock.now_ms()
        data = self._objects.get_range(key, start, end)
        self._recent_ms.append(self._clock.now_ms() - begin_ms)
        self.is_slow = min(self._recent_ms) >= LONG_WAIT_MS
        if len(data) != end - start:
            raise Corrupt(
                f"{self.name}: {key!r} ends at {start + len(data)}, by the manifest at {end} or "
                "later: restore the whole object, `varve tier fsck` lists such objects"
            )
        self._meter.record_fetch(len(data))
        return data
