"""The segments of a log, local and remote, as values that retention and compaction decide on.

Invariant  a list is taken from one view of the log and never changes. Times are read lazily, as
           that opens the files of a segment.
Threads    any; no lock. `times` of a segment that left the log since raises FileNotFoundError or
           Unavailable: `read_consistently` repeats the read then.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, TypeVar

from varve.commit_log import Log, LogSettings, TopicPartition
from varve.commit_log.segment_reader import ReadableSegment, first_batch_timestamp
from varve.foundation.errors import Corrupt, Unavailable

T = TypeVar("T")

NO_TIMESTAMP: Final = -1
EVENT_TIME: Final = "event"
APPEND_TIME: Final = "append"
_ATTEMPTS_MAX: Final = 8


class SegmentLocation(StrEnum):
    """Where a segment is, and whether it can be read there."""

    LOCAL = "local"
    BOTH = "both"
    """On the local disk, and copied."""
    REMOTE = "remote"
    """In object storage alone."""
    COPYING = "copying"
    """Announced in object storage, not readable there."""
    LEAVING = "leaving"
    """Expired or replaced in object storage; its objects are about to be deleted."""

    @property
    def is_readable(self) -> bool:
        return self not in (SegmentLocation.COPYING, SegmentLocation.LEAVING)


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """The record timestamps and the append times of a segment.

    `max_timestamp` is the largest record timestamp, -1 without any. The append times are of our
    clock; of a segment that Kafka wrote both are the modification time of its data file.
    """

    max_timestamp: int
    first_append_ms: int
    last_append_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment; `next_offset` is the next one's base offset, of the active one the log end."""

    base_offset: int
    next_offset: int
    size: int
    is_active: bool = False
    is_in_lineage: bool = True
    """False for a remote segment whose records the log, after a truncation, does not share."""

    location: SegmentLocation = SegmentLocation.LOCAL

    is_remote: ClassVar[bool] = False

    @property
    def stored_size(self) -> int:
        """Bytes of all its objects in object storage, or what they will be."""
        return self.size

    @abstractmethod
    def times(self) -> SegmentTimes: ...

    @abstractmethod
    def first_timestamp(self) -> int:
        """The first batch's timestamp, -1 where it has none or is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSegmentInfo(SegmentInfo):
    """A segment on the local disk."""

    log: Log
    segment: ReadableSegment

    def times(self) -> SegmentTimes:
        first_ms, last_ms = self.log.appended_ms(self.segment)
        return SegmentTimes(self.segment.max_timestamp, first_ms, last_ms)

    def first_timestamp(self) -> int:
        try:
            return first_batch_timestamp(self.segment, size=self.segment.size)
        except Corrupt:
            return NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegmentInfo(SegmentInfo):
    """A segment in object storage, as its manifest lists it.

    `stored_bytes` is the size of all its objects. Those of a segment that is `LEAVING` are deleted
    after `delete_after_ms`. `stale_bytes` is None until a compaction has counted them.
    """

    id: str
    known_times: SegmentTimes
    record_count: int
    stored_bytes: int
    location: SegmentLocation = SegmentLocation.REMOTE
    delete_after_ms: int | None = None
    stale_bytes: int | None = None

    is_remote: ClassVar[bool] = True

    @property
    def stored_size(self) -> int:
        return self.stored_bytes

    def times(self) -> SegmentTimes:
        return self.known_times

    def first_timestamp(self) -> int:
        return NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class RemoteSegments:
    """The remote segments of a log in any state, by offset.

    Offsets before `end_offset` are copied. The remote log is compacted before `clean_offset`. The
    objects of an expired segment are deleted after `delete_delay_ms`.
    """

    segments: tuple[RemoteSegmentInfo, ...]
    end_offset: int
    clean_offset: int
    delete_delay_ms: int


@dataclass(frozen=True, slots=True)
class SegmentList:
    """The local segments of a log at one moment; the active one is the last."""

    partition: TopicPartition
    settings: LogSettings
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    end_offset: int
    segments: tuple[SegmentInfo, ...]

    @property
    def active(self) -> SegmentInfo:
        return self.segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def find_segment(self, offset: int) -> SegmentInfo:
        """The segment that would hold the offset: the first one for offsets before it."""
        candidate = self.segments[0]
        for segment in self.segments:
            if segment.base_offset > offset:
                break
            candidate = segment
        return candidate

    def closed_from(self, offset: int) -> Iterator[SegmentInfo]:
        """The closed segments from the one that holds the offset on."""
        first = self.find_segment(offset)
        for segment in self.segments[:-1]:
            if segment.base_offset >= first.base_offset:
                yield segment


def list_segments(log: Log, settings: LogSettings | None = None) -> SegmentList:
    """The local segments of a log now, under its own settings or others."""
    # Read the bounds before the view, so that the segments include all offsets below them.
    high_watermark, stable = log.high_watermark, log.last_stable_offset
    view = log.view
    segments: list[ReadableSegment] = list(view)
    end_offset, active_size = view.active.extent
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    return SegmentList(
        partition=log.topic_partition,
        settings=settings or log.settings,
        log_start_offset=log.log_start_offset,
        last_stable_offset=stable,
        high_watermark=high_watermark,
        end_offset=end_offset,
        segments=tuple(
            LocalSegmentInfo(
                base_offset=segment.base_offset,
                next_offset=end,
                size=active_size if segment is view.active else segment.size,
                is_active=segment is view.active,
                log=log,
                segment=segment,
            )
            for segment, end in zip(segments, ends, strict=True)
        ),
    )


def read_consistently(log: Log, read: Callable[[], T]) -> T:
    """Calls `read`, and repeats it when a segment left the log meanwhile."""
    for _ in range(_ATTEMPTS_MAX):
        try:
            return read()
        except FileNotFoundError:
            continue
        except Unavailable as error:
            # The subclasses are errors of disks and directories: reading again would not help.
            if type(error) is not Unavailable:
                raise
    raise Unavailable(
        f"{log.topic_partition}: segments were replaced {_ATTEMPTS_MAX} times while they were "
        "read; try again"
    )


def lag_timestamp(times: SegmentTimes, settings: LogSettings) -> int:
    """When `min.compaction.lag.ms` starts; a timestamp in the future does not delay compaction."""
    event_ms, append_ms = times.max_timestamp, times.last_append_ms
    policy = settings.retention_time
    if policy == APPEND_TIME or event_ms < 0:
        return append_ms
    return event_ms if policy == EVENT_TIME else min(event_ms, append_ms)


def first_timestamp(segment: SegmentInfo, settings: LogSettings) -> int:
    """When `max.compaction.lag.ms` starts; 0 or less when it is unknown.

    The earlier of event time and append time; under `event` always the event time.
    """
    policy = settings.retention_time
    if policy == APPEND_TIME:
        return segment.times().first_append_ms
    event_ms = segment.first_timestamp()
    if policy == EVENT_TIME:
        return event_ms
    append_ms = segment.times().first_append_ms
    return min(event_ms, append_ms) if event_ms > 0 else append_ms
