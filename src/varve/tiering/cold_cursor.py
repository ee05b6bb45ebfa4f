"""A reader's way through the cold tier: where it goes on, and what is fetched ahead of it.

Read-ahead begins with the second read of a row, in the place where the first one ended. Its window
begins with one small extent and doubles whenever the reader had to wait for bytes, so a reader that
is slower than the store holds little, and a fast one keeps several requests under way.

Invariant  a mark's position begins a batch, or is the end of its file.
Threads    any: readers that stand at the same offset share a mark and its window.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from varve.tiering.cold_file import ColdFile, ExtentSource
from varve.tiering.extent_cache import Extent

_MARKS_MAX: Final = 1024
_TRAIL_MAX: Final = 2
_FILES_AHEAD_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentSizes:
    """How much is asked of the store at once: by a first read, and by those that go on.

    `index_slack` is for what lies between an entry of the offset index and the batch looked for.
    """

    first_min: int = 64 << 10
    first_max: int = 8 << 20
    index_slack: int = 16 << 10
    ahead_min: int = 1 << 20
    ahead_max: int = 8 << 20

    def first(self, max_bytes: int) -> int:
        """What a read of so many bytes fetches where nothing is known of its reader."""
        return min(max(max_bytes, self.first_min), self.first_max)

    def ahead(self, window_bytes: int) -> int:
        """The extent for a window: a quarter of it, so that several requests are under way."""
        return min(max(window_bytes // 4, self.ahead_min), self.ahead_max, window_bytes)


DEFAULT_SIZES: Final = ExtentSizes()


class ReadAhead:
    """What is fetched ahead of one row of reads; `following` gives the file behind another."""

    def __init__(
        self,
        source: ExtentSource,
        *,
        window_max: int,
        sizes: ExtentSizes,
        following: Callable[[ColdFile], ColdFile | None],
    ) -> None:
        self.trail: deque[int] = deque()
        self._source = source
        self._window_max = min(window_max, source.ahead_max_bytes)
        self._sizes = sizes
        self._following = following
        self._window = 0
        self._lock = threading.Lock()  # taken without waiting: who comes second leaves it be
        self._files: deque[ColdFile] = deque()  # guarded by _lock; the reader's one first
        self._asked_end = 0  # guarded by _lock; within the last of the files

    def fetch_bytes(self, max_bytes: int) -> int:
        """What to ask for when a read of this row finds nothing."""
        return max(self._sizes.first(max_bytes), self._sizes.ahead(self._window))

    def begin(self, max_bytes: int) -> None:
        """Opens the window when a reader goes on for the first time."""
        if not self._window:
            self._window = min(self._sizes.first(max_bytes), self._window_max)

    def note_wait(self) -> None:
        """Widens the window: its reader stood still."""
        self._window = min(2 * self._window, self._window_max)

    def reach_on(self, file: ColdFile, extent: Extent) -> None:
        """Fetches ahead of a reader whose own bytes are in the extent."""
        if not self._window or not self._lock.acquire(blocking=False):
            return
        try:
            self._stand_at(file, extent)
            while self._ask_next(extent):
                pass
        finally:
            self._lock.release()

    def _stand_at(self, file: ColdFile, extent: Extent) -> None:
        files = self._files
        while files and files[0].path != file.path:
            files.popleft()
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
            following = self._following(files[-1]) if len(files) < _FILES_AHEAD_MAX else None
            if following is None:
                return False
            files.append(following)
            self._asked_end = 0
            return True
        file, size = files[-1], self._sizes.ahead(self._window)
        end = min(self._asked_end + size, file.segment.size)
        asked = self._source.read_ahead(file.path, self._asked_end, end)
        if asked is None:
            return False
        self._asked_end = asked.end
        return True


class Mark(NamedTuple):
    """Where a read ended: the next batch begins here."""

    file: ColdFile
    position: int
    ahead: ReadAhead


class Marks:
    """The ends of recent reads by the offset that comes next, the oldest dropped first.

    Of each row of reads the last few stay, so that a repeated read is found too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: dict[int, Mark] = {}  # guarded by _lock

    def find(self, offset: int) -> Mark | None:
        with self._lock:
            return self._marks.get(offset)

    def put(self, offset: int, mark: Mark) -> None:
        trail = mark.ahead.trail
        with self._lock:
            marks = self._marks
            marks.pop(offset, None)
            marks[offset] = mark
            trail.append(offset)
            if len(trail) > _TRAIL_MAX:
                self._drop_locked(trail.popleft(), mark.ahead)
            while len(marks) > _MARKS_MAX:
                del marks[next(iter(marks))]

    def clear(self) -> None:
        with self._lock:
            self._marks.clear()

    def _drop_locked(self, offset: int, ahead: ReadAhead) -> None:
        mark = self._marks.get(offset)
        if mark is not None and mark.ahead is ahead and offset not in ahead.trail:
            del self._marks[offset]
