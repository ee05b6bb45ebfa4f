"""Walks the entries of a range, segment after segment.

Invariant  the segments are those that were there when it was made; the view of one is frozen when
           the walk reaches it. A segment that is dropped, or closed with its store, ends early and
           without an error.
Threads    the thread of its store.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from varve.foundation.errors import Closed
from varve.rocks.database import Scan
from varve.rocks.segments import Segment
from varve.windows.window_key import KeyRange, decode_window_key


class WindowEntry(NamedTuple):
    """An entry of a window store; the time is where its window starts."""

    key: bytes
    time_ms: int
    value: bytes


class WindowIterator:
    """Entries one by one. Use it as a context manager: left open it holds files of its segments."""

    def __init__(self, segments: Sequence[Segment], wanted: KeyRange, *, backward: bool) -> None:
        self._waiting = list(reversed(segments))
        self._wanted = wanted
        self._lower = wanted.lower()
        self._upper = wanted.upper()
        self._backward = backward
        self._scan: Scan | None = None
        self._next: WindowEntry | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WindowEntry:
        entry = self._look()
        if entry is None:
            raise StopIteration
        self._next = None
        return entry

    def has_next(self) -> bool:
        return self._look() is not None

    def close(self) -> None:
        """Release all it holds; it has no more entries then. Closing twice is harmless."""
        self._waiting.clear()
        self._next = None
        self._end_scan()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> WindowEntry | None:
        while self._next is None and (self._scan is not None or self._waiting):
            if self._scan is None:
                self._begin_scan(self._waiting.pop())
            else:
                self._advance(self._scan)
        return self._next

    def _begin_scan(self, segment: Segment) -> None:
        try:
            self._scan = segment.database.scan(self._lower, self._upper, backward=self._backward)
        except Closed:
            self._scan = None

    def _advance(self, scan: Scan) -> None:
        """Step to the next entry of the range, or end the scan."""
        for data, value in scan:
            key, time_ms, _ = decode_window_key(data)
            if self._wanted.contains(key, time_ms):
                self._next = WindowEntry(key, time_ms, value)
                return
        self._end_scan()

    def _end_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()
