"""What retention and selection need to know of a log, as values: the decisions are made on these.

Invariant  facts are taken from one view of the segments and never change; what is costly to know
           (times, which open a segment's files) is read when first asked for.
Threads    any; no lock. A segment that left the log since raises FileNotFoundError or
           Unavailable when asked for its times: observe again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from varve.commit_log import Log, LogSettings, TopicPartition
from varve.commit_log.segment import ReadableSegment
from varve.commit_log.segment_reader import first_batch_timestamp
from varve.foundation.errors import Corrupt, Unavailable

T = TypeVar("T")

NO_TIMESTAMP: Final = -1
_LOOKS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """When a segment's records were made and when they were appended.

    `max_timestamp` is the largest record timestamp, -1 without any. The append times are of our
    clock; of a segment that Kafka wrote both are the modification time of its data file.
    """

    max_timestamp: int
    first_append_ms: int
    last_append_ms: int


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment; `next_offset` is the next one's base offset, of the active one the log end.

    `read_first_timestamp` gives the first batch's timestamp, -1 where it has none or is damaged.
    """

    base_offset: int
    next_offset: int
    size: int
    is_active: bool
    read_times: Callable[[], SegmentTimes]
    read_first_timestamp: Callable[[], int]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A log at one moment; the active segment is the last."""

    partition: TopicPartition
    settings: LogSettings
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    end_offset: int
    segments: tuple[SegmentFacts, ...]

    @property
    def active(self) -> SegmentFacts:
        return self.segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def find_segment(self, offset: int) -> SegmentFacts:
        """The segment that would hold the offset: the first one for offsets before it."""
        found = self.segments[0]
        for segment in self.segments:
            if segment.base_offset > offset:
                break
            found = segment
        return found

    def closed_from(self, offset: int) -> Iterator[SegmentFacts]:
        """The closed segments from the one that holds the offset on; none of an active one's."""
        first = self.find_segment(offset)
        for segment in self.segments[:-1]:
            if segment.base_offset >= first.base_offset:
                yield segment


def observe(log: Log, settings: LogSettings | None = None) -> LogFacts:
    """The facts of a log now, under its own settings or others."""
    # The bounds before the view: whatever they let through is then in the segments.
    high_watermark, stable = log.high_watermark, log.last_stable_offset
    view = log.view
    segments: list[ReadableSegment] = list(view)
    end_offset, active_size = view.active.extent
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    return LogFacts(
        partition=log.topic_partition,
        settings=settings or log.settings,
        log_start_offset=log.log_start_offset,
        last_stable_offset=stable,
        high_watermark=high_watermark,
        end_offset=end_offset,
        segments=tuple(
            SegmentFacts(
                base_offset=segment.base_offset,
                next_offset=end,
                size=active_size if segment is view.active else segment.size,
                is_active=segment is view.active,
                read_times=partial(_times_of, log, segment),
                read_first_timestamp=partial(_first_timestamp_of, segment),
            )
            for segment, end in zip(segments, ends, strict=True)
        ),
    )


def read_consistently(log: Log, look: Callable[[], T]) -> T:
    """The outcome of a look at the log; one during which a segment left the log is repeated."""
    for _ in range(_LOOKS_MAX):
        try:
            return look()
        except FileNotFoundError:
            continue
        except Unavailable as error:
            # The finer classes tell of disks and directories: looking again would not help.
            if type(error) is not Unavailable:
                raise
    raise Unavailable(
        f"{log.topic_partition}: segments were replaced {_LOOKS_MAX} times during one look; "
        "try again"
    )


def _times_of(log: Log, segment: ReadableSegment) -> SegmentTimes:
    first_ms, last_ms = log.appended_ms(segment)
    return SegmentTimes(segment.max_timestamp, first_ms, last_ms)


def _first_timestamp_of(segment: ReadableSegment) -> int:
    try:
        return first_batch_timestamp(segment, size=segment.size)
    except Corrupt:
        return NO_TIMESTAMP
