"""Counts the records of a segment that is about to leave the local disk."""

from dataclasses import dataclass, replace

from varve.cleaning.balance import FigureBuilder, SegmentFigure
from varve.commit_log.segment import Segment
from varve.commit_log.segment_scan import BatchWalk


@dataclass(frozen=True, slots=True)
class CountedSegment:
    """A segment's figure; `damage` says where the reading stopped, empty if it did not."""

    figure: SegmentFigure
    damage: str


def count_segment(segment: Segment) -> CountedSegment:
    """Counts by the batch headers; a damaged segment as far as it can be read."""
    builder = FigureBuilder(segment.base_offset)
    walk = BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=False)
    for table in walk:
        builder.add(table)
    if walk.position >= segment.size:
        return CountedSegment(builder.figure(), "")
    return CountedSegment(
        replace(builder.figure(), size=segment.size, log_crc=None),
        f"segment {segment.base_offset} is damaged at position {walk.position} of "
        f"{segment.size}, records behind that are not counted",
    )
