"""Open files and decoded indexes of closed segments: the least recently used go first.

Invariant  a file dropped from here stays open for the readers that hold it; it closes with its last
           reference.
Threads    any; one lock, never held during I/O.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX
from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.segment_scan import find_largest_timestamp
from varve.commit_log.time_index import TimeIndex
from varve.commit_log.txn_index import TransactionIndex
from varve.disk import File, FileSystem

if TYPE_CHECKING:
    from varve.commit_log.segment import Segment

DEFAULT_OPEN_SEGMENTS: Final = 256


class OpenSegment:
    """What is open of one closed segment; indexes are read when first asked for."""

    __slots__ = ("_fs", "_offset_index", "_segment", "_time_index", "_txn_index", "file")

    def __init__(self, fs: FileSystem, segment: "Segment") -> None:
        self._fs = fs
        self._segment = segment
        self.file: File = fs.open(segment.path(LOG))
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None

    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            path = self._segment.path(INDEX)
            data = self._fs.read(path)
            self._offset_index = OffsetIndex.decode(
                data, base_offset=self._segment.base_offset, max_bytes=len(data), where=path
            )
        return self._offset_index

    def time_index(self) -> TimeIndex:
        """The time index; one that was lost holds the largest timestamp only, found by a scan."""
        if self._time_index is None:
            path = self._segment.path(TIME_INDEX)
            data = self._read_if_there(path)
            index = TimeIndex.decode(
                data, base_offset=self._segment.base_offset, max_bytes=len(data), where=path
            )
            if not index.count:
                self._add_largest_timestamp(index)
            self._time_index = index
        return self._time_index

    def _add_largest_timestamp(self, index: TimeIndex) -> None:
        largest, offset = find_largest_timestamp(
            self.file, index, self.offset_index(), size=self._segment.size
        )
        if largest >= 0:
            index.append(largest, offset, skip_full_check=True)

    def txn_index(self) -> TransactionIndex:
        """The index of aborted transactions; no file means none was aborted."""
        if self._txn_index is None:
            path = self._segment.path(TXN_INDEX)
            self._txn_index = TransactionIndex.decode(
                self._read_if_there(path), base_offset=self._segment.base_offset, where=path
            )
        return self._txn_index

    def _read_if_there(self, path: str) -> bytes:
        try:
            return self._fs.read(path)
        except FileNotFoundError:
            return b""


class SegmentFiles:
    """A bounded set of `OpenSegment`, shared by all logs of a store."""

    def __init__(self, fs: FileSystem, capacity: int = DEFAULT_OPEN_SEGMENTS) -> None:
        self.fs = fs
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[Segment, OpenSegment] = OrderedDict()  # guarded by _lock

    def get(self, segment: "Segment") -> OpenSegment:
        """Raises FileNotFoundError when the segment has left the log.

        Take a new look at its segments.
        """
        with self._lock:
            found = self._open.get(segment)
            if found is not None:
                self._open.move_to_end(segment)
                return found
        opened = OpenSegment(self.fs, segment)
        with self._lock:
            self._open[segment] = opened
            while len(self._open) > self._capacity:
                self._open.popitem(last=False)
        return opened

    def forget(self, segment: "Segment") -> None:
        with self._lock:
            self._open.pop(segment, None)
