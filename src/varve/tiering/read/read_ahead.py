"""Sequential readers of remote segments: where each continues, and what is fetched ahead of it.

Nothing is fetched ahead of a first read. Each time a later read had to wait for the store, the
window doubles: a reader that is slower than the store keeps little in memory and needs no other
thread, and a fast one keeps several requests in flight. What a reader has passed is dropped, unless
another reader follows.

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
_RECENT_MAX: Final = 2
_FILES_AHEAD_MAX: Final = 16
_STREAMS_MAX: Final = 64
_FOLLOWER_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentSizes:
    """How much is asked of the store at once: by a first read, and by those that continue.

    Without read-ahead it grows up to `near_max`. `index_slack` is for what lies between an entry of
    the offset index and the batch looked for.
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

    def ahead(self, window_bytes: int) -> int:
        """The extent for a window: a quarter of it, so that several requests are under way."""
        return min(max(window_bytes // 4, self.ahead_min), self.ahead_max, window_bytes)


DEFAULT_SIZES: Final = ExtentSizes()


class ReadAhead:
    """What is fetched ahead of one stream of reads; `next_file` gives the file behind another."""

    def __init__(
        self,
        source: ExtentSource,
        *,
        window_max: int,
        sizes: ExtentSizes,
        next_file: Callable[[LogObjectFile], LogObjectFile | None],
    ) -> None:
        self.recent_offsets: deque[int] = deque()
        self._is_shared = False  # a second reader was seen behind the first
        self._source = source
        self._window_max = min(window_max, source.ahead_max_bytes)
        self._sizes = sizes
        self._next_file = next_file
        self._window = 0
        self._step = 0
        self._extent: Extent | None = None
        self._lock = threading.Lock()  # taken without waiting: who comes second leaves it be
        self._files: deque[LogObjectFile] = deque()  # guarded by _lock; the reader's one first
        self._asked_end = 0  # guarded by _lock; within the last of the files

    def fetch_bytes(self, max_bytes: int) -> int:
        """What a read of this stream requests when nothing is cached."""
        return max(self._sizes.first(max_bytes), self._step)

    def record_wait(self, wait_ms: int, max_bytes: int) -> None:
        """Widens the window if the reader stood still for long, else what it fetches itself."""
        first = self._sizes.first(max_bytes)
        if wait_ms >= LONG_WAIT_MS:
            self._window = min(max(2 * self._window, first), self._window_max)
        far_step = self._sizes.ahead(self._window)
        near_step = min(2 * max(self._step, first), self._sizes.near_max)
        self._step = far_step if self._source.is_slow else near_step

    def move_to(self, file: LogObjectFile, extent: Extent) -> Extent | None:
        """Fetches ahead of a reader whose bytes are in the extent, unless it is its first one.

        Gives the extent that it has left behind, if any.
        """
        left, self._extent = self._extent, extent
        if left is None:
            return None
        self._reach_on(file, extent)
        if left is extent:
            return None
        # Keys are in the order of offsets.
        if (extent.key, extent.start) < (left.key, left.start):
            self._is_shared = True
        return None if self._is_shared else left

    def _reach_on(self, file: LogObjectFile, extent: Extent) -> None:
        if not self._window or not self._source.is_slow:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._stand_at(file, extent)
            while self._ask_next(extent):
                pass
        finally:
            self._lock.release()

    def _stand_at(self, file: LogObjectFile, extent: Extent) -> None:
        """Forgets the files behind the reader, and all when what was requested is gone again."""
        files = self._files
        while files and files[0].path != file.path:
            files.popleft()
        is_asked = len(files) > 1 or (len(files) == 1 and extent.start < self._asked_end)
        if is_asked and extent.data is None and not extent.is_ahead:
            # Others have pushed it out before it was read: there are too many for the cache.
            self._window = max(self._window // 2, min(self._sizes.ahead_min, self._window))
            files.clear()
        if not files:
            files.append(file)
            self._asked_end = extent.end
        elif len(files) == 1:
            self._asked_end = max(self._asked_end, extent.end)

    def _ask_next(self, extent: Extent) -> bool:
        """Asks for one extent more; False when the window is full or nothing is left."""
        files = self._files
        lead = sum(file.segment.size for file in files) - files[-1].segment.size - extent.end
        if lead + self._asked_end >= self._window:
            return False
        if self._asked_end >= files[-1].segment.size:
            next_file = self._next_file(files[-1]) if len(files) < _FILES_AHEAD_MAX else None
            if next_file is None:
                return False
            files.append(next_file)
            self._asked_end = 0
            return True
        file, size = files[-1], self._sizes.ahead(self._window)
        end = min(self._asked_end + size, file.segment.size)
        asked = self._source.read_ahead(file.path, self._asked_end, end)
        if asked is None:
            return False
        self._asked_end = asked.end
        return True


class ReadPosition(NamedTuple):
    """Where a read ended: the next batch begins here."""

    file: LogObjectFile
    position: int
    ahead: ReadAhead


class ReadPositions:
    """The ends of recent reads by the offset that comes next, the oldest dropped first.

    Of each stream the last few stay, so that a repeated read is found too.
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
        ahead = position.ahead
        recent_offsets = ahead.recent_offsets
        with self._lock:
            positions, streams = self._positions, self._streams
            positions.pop(offset, None)
            positions[offset] = position
            recent_offsets.append(offset)
            if len(recent_offsets) > 1:
                streams.pop(ahead, None)
                streams[ahead] = (offset, now_ms)
            if len(recent_offsets) > _RECENT_MAX:
                self._drop_locked(recent_offsets.popleft(), ahead)
            if len(positions) > _POSITIONS_MAX:
                del positions[next(iter(positions))]
            if len(streams) > _STREAMS_MAX:
                del streams[next(iter(streams))]

    def is_followed(self, ahead: ReadAhead, offset: int, *, now_ms: int) -> bool:
        """Whether another stream is about to reach an offset."""
        since_ms = now_ms - _FOLLOWER_MS
        with self._lock:
            return any(
                stream is not ahead and at_offset <= offset and at_ms >= since_ms
                for stream, (at_offset, at_ms) in self._streams.items()
            )

    def clear(self) -> None:
        with self._lock:
            self._positions.clear()
            self._streams.clear()

    def _drop_locked(self, offset: int, ahead: ReadAhead) -> None:
        position = self._positions.get(offset)
        if position is not None and position.ahead is ahead and offset not in ahead.recent_offsets:
            del self._positions[offset]
