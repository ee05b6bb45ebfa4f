"""Read-ahead for sequential readers of remote segments, and their positions.

A first read fetches nothing ahead. Each time a later read has to wait for the store, the window
doubles: a reader that is slower than the store keeps little in memory and needs no other thread,
and a fast one keeps several requests in flight. Extents that a reader has passed are dropped,
unless another reader follows.

Invariant  a read position begins a batch, or is the end of its file.
Threads    any: readers at the same offset share a position and its window.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from varve.tiering.read.extent_cache import LONG_WAIT_MS, Extent, ExtentSource
from varve.tiering.read.object_file import LogObjectFile

_POSITIONS_MAX: Final = 1024
_POSITIONS_PER_STREAM_MAX: Final = 2
"""The position of the last read, and the one before it for a reader that repeats a read."""
_FILES_AHEAD_MAX: Final = 16
_STREAMS_MAX: Final = 64
_FOLLOWER_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentSizes:
    """The sizes of requests to the store: of a first read, and of reads that continue.

    Without read-ahead they grow up to `near_max`. `index_slack` covers the bytes between an entry
    of the offset index and the requested batch.
    """

    first_min: int = 64 << 10
    first_max: int = 8 << 20
    index_slack: int = 16 << 10
    near_max: int = 4 << 20
    ahead_min: int = 1 << 20
    ahead_max: int = 8 << 20

    def first(self, max_bytes: int) -> int:
        """Bytes that the first read of a reader fetches."""
        return min(max(max_bytes, self.first_min), self.first_max)

    def step(self, window_bytes: int) -> int:
        """The extent size for a window: a quarter, so that several requests are in flight."""
        return min(max(window_bytes // 4, self.ahead_min), self.ahead_max, window_bytes)


DEFAULT_SIZES: Final = ExtentSizes()


class ReadAhead:
    """The read-ahead of one stream of reads; `next_file` returns the file after another."""

    def __init__(
        self,
        source: ExtentSource,
        *,
        window_max: int,
        sizes: ExtentSizes,
        next_file: Callable[[LogObjectFile], LogObjectFile | None],
    ) -> None:
        self.recent_offsets: deque[int] = deque()
        self._is_shared = False  # a second reader follows the first
        self._source = source
        self._window_max = min(window_max, source.ahead_max_bytes)
        self._sizes = sizes
        self._next_file = next_file
        self._window = 0
        self._step = 0
        self._extent: Extent | None = None
        self._lock = threading.Lock()  # acquired without waiting: a second thread skips read-ahead
        self._files: deque[LogObjectFile] = deque()  # guarded by _lock; the reader's file first
        self._requested_end = 0  # guarded by _lock; within the last of the files

    def fetch_bytes(self, max_bytes: int) -> int:
        """The request size of a read of this stream when nothing is cached."""
        return max(self._sizes.first(max_bytes), self._step)

    def record_wait(self, wait_ms: int, max_bytes: int) -> None:
        """Widens the window if the reader waited long, and adapts its request size."""
        first = self._sizes.first(max_bytes)
        if wait_ms >= LONG_WAIT_MS:
            self._window = min(max(2 * self._window, first), self._window_max)
        far_step = self._sizes.step(self._window)
        near_step = min(2 * max(self._step, first), self._sizes.near_max)
        self._step = far_step if self._source.is_slow else near_step

    def move_to(self, file: LogObjectFile, extent: Extent) -> Extent | None:
        """Moves the reader to an extent and fetches ahead, except at its first extent.

        Returns the extent that the reader has passed and that may be dropped, if any.
        """
        passed, self._extent = self._extent, extent
        if passed is None:
            return None
        self._fetch_ahead(file, extent)
        if passed is extent:
            return None
        # Keys are in the order of offsets.
        if (extent.key, extent.start) < (passed.key, passed.start):
            self._is_shared = True
        return None if self._is_shared else passed

    def _fetch_ahead(self, file: LogObjectFile, extent: Extent) -> None:
        if not self._window or not self._source.is_slow:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._advance_to(file, extent)
            while self._request_next(extent):
                pass
        finally:
            self._lock.release()

    def _advance_to(self, file: LogObjectFile, extent: Extent) -> None:
        """Drops files that the reader passed, and all if requested extents were evicted unread."""
        files = self._files
        while files and files[0].path != file.path:
            files.popleft()
        is_requested = len(files) > 1 or (len(files) == 1 and extent.start < self._requested_end)
        if is_requested and extent.data is None and not extent.is_ahead:
            # It was evicted before it was read: the cache is too small for all windows.
            self._window = max(self._window // 2, min(self._sizes.ahead_min, self._window))
            files.clear()
        if not files:
            files.append(file)
            self._requested_end = extent.end
        elif len(files) == 1:
            self._requested_end = max(self._requested_end, extent.end)

    def _request_next(self, extent: Extent) -> bool:
        """Requests the next extent; False when the window is full or the log ends."""
        files = self._files
        lead = sum(file.segment.size for file in files) - files[-1].segment.size - extent.end
        if lead + self._requested_end >= self._window:
            return False
        if self._requested_end >= files[-1].segment.size:
            next_file = self._next_file(files[-1]) if len(files) < _FILES_AHEAD_MAX else None
            if next_file is None:
                return False
            files.append(next_file)
            self._requested_end = 0
            return True
        file, size = files[-1], self._sizes.step(self._window)
        end = min(self._requested_end + size, file.segment.size)
        requested = self._source.read_ahead(file.path, self._requested_end, end)
        if requested is None:
            return False
        self._requested_end = requested.end
        return True


class ReadPosition(NamedTuple):
    """Where a read ended: the next batch begins at `position`."""

    file: LogObjectFile
    position: int
    read_ahead: ReadAhead


class ReadPositions:
    """The ends of recent reads by their next offset; the oldest are dropped first.

    The last few of each stream are kept, so that a repeated read is found too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[int, ReadPosition] = {}  # guarded by _lock
        # Streams of at least two reads: their next offset and the time, the oldest first.
        self._streams: dict[ReadAhead, tuple[int, int]] = {}  # guarded by _lock

    def find(self, offset: int) -> ReadPosition | None:
        with self._lock:
            return self._positions.get(offset)

    def put(self, offset: int, position: ReadPosition, *, now_ms: int) -> None:
        read_ahead = position.read_ahead
        recent_offsets = read_ahead.recent_offsets
        with self._lock:
            positions, streams = self._positions, self._streams
            positions.pop(offset, None)
            positions[offset] = position
            recent_offsets.append(offset)
            if len(recent_offsets) > 1:
                streams.pop(read_ahead, None)
                streams[read_ahead] = (offset, now_ms)
            if len(recent_offsets) > _POSITIONS_PER_STREAM_MAX:
                self._drop_locked(recent_offsets.popleft(), read_ahead)
            if len(positions) > _POSITIONS_MAX:
                del positions[next(iter(positions))]
            if len(streams) > _STREAMS_MAX:
                del streams[next(iter(streams))]

    def is_followed(self, read_ahead: ReadAhead, offset: int, *, now_ms: int) -> bool:
        """Whether another stream is about to reach an offset."""
        since_ms = now_ms - _FOLLOWER_MS
        with self._lock:
            return any(
                stream is not read_ahead and at_offset <= offset and at_ms >= since_ms
                for stream, (at_offset, at_ms) in self._streams.items()
            )

    def clear(self) -> None:
        with self._lock:
            self._positions.clear()
            self._streams.clear()

    def _drop_locked(self, offset: int, read_ahead: ReadAhead) -> None:
        position = self._positions.get(offset)
        if (
            position is not None
            and position.read_ahead is read_ahead
            and offset not in read_ahead.recent_offsets
        ):
            del self._positions[offset]
