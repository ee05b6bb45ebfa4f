"""Pages of a manifest: immutable lists of segments, or of pages, that older entries spill into.

Layout     docs/formats/manifest.md
Invariant  a page of level 0 holds segments in the order of their places, one of level n holds
           references to pages of level n - 1 in the same order. Readable segments of a partition
           do not overlap, so no offset is readable in two pages of one level.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from varve.tiering.cold_segment import ColdSegment

NOTHING = -1
"""Stands for an offset or a timestamp where a page has no readable segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A page as seen from above: enough to know whether it must be read.

    `first_offset` and `last_offset` are the base offsets of its first and last segment,
    `end_offset` is the largest end offset (inclusive). What begins with `readable` counts only
    segments whose copy is finished; so do `log_bytes` and `max_timestamp`.
    """

    id: str
    level: int
    first_offset: int
    last_offset: int
    end_offset: int
    segment_count: int
    stored_bytes: int
    readable_count: int
    readable_first: int
    readable_end: int
    log_bytes: int
    record_count: int
    max_timestamp: int

    def covers(self, base_offset: int) -> bool:
        """Whether a segment of this base offset would stand among those of the page."""
        return self.first_offset <= base_offset <= self.last_offset

    def reads(self, offset: int) -> bool:
        """Whether the page may have a readable segment that holds the offset."""
        return self.readable_first <= offset <= self.readable_end


@dataclass(frozen=True, slots=True)
class Page:
    """A page's content: segments at level 0, else references to the pages one level down."""

    id: str
    level: int
    segments: tuple[ColdSegment, ...] = ()
    pages: tuple[PageRef, ...] = ()


def refer_to_segments(id: str, segments: Sequence[ColdSegment]) -> PageRef:
    """The reference to a page of level 0 that holds these segments, at least one."""
    readable = [segment for segment in segments if segment.is_readable]
    return PageRef(
        id=id,
        level=0,
        first_offset=segments[0].base_offset,
        last_offset=segments[-1].base_offset,
        end_offset=max(segment.end_offset for segment in segments),
        segment_count=len(segments),
        stored_bytes=sum(segment.stored_bytes for segment in segments),
        readable_count=len(readable),
        readable_first=readable[0].base_offset if readable else NOTHING,
        readable_end=readable[-1].end_offset if readable else NOTHING,
        log_bytes=sum(segment.size for segment in readable),
        record_count=sum(segment.record_count for segment in readable),
        max_timestamp=max((segment.max_timestamp for segment in readable), default=NOTHING),
    )


def refer_to_pages(id: str, pages: Sequence[PageRef]) -> PageRef:
    """The reference to a page that holds these references of one level, at least one."""
    readable = [page for page in pages if page.readable_count]
    return PageRef(
        id=id,
        level=pages[0].level + 1,
        first_offset=pages[0].first_offset,
        last_offset=pages[-1].last_offset,
        end_offset=max(page.end_offset for page in pages),
        segment_count=sum(page.segment_count for page in pages),
        stored_bytes=sum(page.stored_bytes for page in pages),
        readable_count=sum(page.readable_count for page in pages),
        readable_first=readable[0].readable_first if readable else NOTHING,
        readable_end=readable[-1].readable_end if readable else NOTHING,
        log_bytes=sum(page.log_bytes for page in pages),
        record_count=sum(page.record_count for page in pages),
        max_timestamp=max((page.max_timestamp for page in readable), default=NOTHING),
    )
