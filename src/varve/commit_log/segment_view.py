"""The segments of a log at one moment.

Invariant  base offsets ascend; the active segment is the last. A view never changes: a log replaces
           it.
Threads    readers take the view once and need no lock.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from varve.commit_log.segment import ActiveSegment, Segment
from varve.commit_log.segment_reader import ReadableSegment


class SegmentView:
    """Closed segments by base offset, and the active one behind them."""

    __slots__ = ("_bases", "_with_aborted", "active", "closed")

    def __init__(self, closed: Sequence[Segment], active: ActiveSegment) -> None:
        self.closed = closed
        self.active = active
        self._bases = [segment.base_offset for segment in closed]
        self._with_aborted = [segment for segment in closed if segment.has_txn_index]

    def rolled(self, closed: Segment, active: ActiveSegment) -> "SegmentView":
        """The view after the active segment was closed and a new one begun."""
        return SegmentView([*self.closed, closed], active)

    def may_hold_aborted(self, offset: int = 0) -> Iterator[ReadableSegment]:
        """The segments with markers of aborted transactions at or behind an offset."""
        start = bisect_right(self._with_aborted, offset, key=lambda segment: segment.base_offset)
        yield from self._with_aborted[max(start - 1, 0) :]
        yield self.active

    @property
    def first_base_offset(self) -> int:
        return self._bases[0] if self._bases else self.active.base_offset

    def __len__(self) -> int:
        return len(self.closed) + 1

    def __iter__(self) -> Iterator[ReadableSegment]:
        yield from self.closed
        yield self.active

    def from_offset(self, offset: int) -> Iterator[ReadableSegment]:
        """The segment that would hold the offset, and all behind it."""
        if offset < self.active.base_offset:
            start = max(bisect_right(self._bases, offset) - 1, 0)
            for number in range(start, len(self.closed)):
                yield self.closed[number]
        yield self.active
