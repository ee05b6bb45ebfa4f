"""A manifest: the remote segments of a partition at one version, and the edits to the next.

Older entries spill into pages: immutable lists of segments, or of references to pages.

Layout     docs/reference/formats/manifest.md
Invariant  a manifest never changes, it is only replaced. Every edit is idempotent: applied to a
           manifest that it has already shaped, it changes nothing. `segments` and `pages` are in
           order of offsets; readable segments do not overlap; log start and cleaned-up-to offsets
           only grow.
Invariant  a page of level 0 holds segments in their order, one of level n holds references to pages
           of level n - 1 in the same order. No offset is readable in two pages of one level.
Threads    any: a value.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pydantic import Field

from varve.foundation.errors import InvalidRequest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    STRICT,
    Count,
    Id,
    Long,
    RemoteSegment,
    SegmentState,
    check_segment,
    check_transition,
)

Level = Annotated[int, Field(ge=0, le=16)]
NOTHING = -1
"""The offsets and timestamp of a page without a readable segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A reference to a page, with the fields that decide whether to read it.

    `first_offset` and `last_offset` are the base offsets of its first and last segment,
    `end_offset` is the largest end offset (inclusive). Fields that begin with `readable`,
    `log_bytes`, `record_count` and `max_timestamp` count only segments whose copy is finished.
    """

    __pydantic_config__ = STRICT

    id: Id
    level: Level
    first_offset: Count
    last_offset: Count
    end_offset: Count
    segment_count: Annotated[Count, Field(alias="segments")]
    stored_bytes: Count
    readable_count: Annotated[Count, Field(alias="readable")]
    readable_first: Long
    readable_end: Long
    log_bytes: Count
    record_count: Annotated[Count, Field(alias="records")]
    max_timestamp: Long

    def covers(self, base_offset: int) -> bool:
        """Whether the base offset lies in the range of the page's base offsets."""
        return self.first_offset <= base_offset <= self.last_offset

    def reads(self, offset: int) -> bool:
        """Whether the page may have a readable segment that holds the offset."""
        return self.readable_first <= offset <= self.readable_end


@dataclass(frozen=True, slots=True)
class Page:
    """A page's content: segments at level 0, else references to the pages one level down."""

    id: str
    level: int
    segments: tuple[RemoteSegment, ...] = ()
    pages: tuple[PageRef, ...] = ()


def refer_to_segments(id: str, segments: Sequence[RemoteSegment]) -> PageRef:
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


NO_EPOCH = -1
"""The leader epoch of a manifest before the first commit."""


class RetiredObject(NamedTuple):
    """An object that only older versions refer to; the key is relative to the prefix.

    It is deleted with the last version that refers to it, and not before `removable_ms`, which is
    0 in a change that is not committed yet.
    """

    key: Annotated[str, Field(pattern=r"^(page|segment)/[A-Za-z0-9._/-]{1,200}$")]
    removable_ms: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The remote segments of a partition as of one commit; version 0 is before the first.

    `segments` are the inline ones, which are in no page: recent segments, and in a change also
    those of inlined pages. `retired` are the objects that this version retired.
    """

    path: RemotePath
    version: int = 0
    commit_id: str = ""
    previous_commit_id: str = ""
    writer: str = ""
    leader_epoch: int = NO_EPOCH
    at_ms: int = 0
    log_start_offset: int = 0
    cleaned_up_to: int = 0
    segments: tuple[RemoteSegment, ...] = ()
    pages: tuple[PageRef, ...] = ()
    retired: tuple[RetiredObject, ...] = ()

    @property
    def cluster(self) -> str:
        return self.path.cluster

    @property
    def topic(self) -> str:
        return self.path.topic

    @property
    def topic_id(self) -> str:
        return self.path.topic_id

    @property
    def partition(self) -> int:
        return self.path.partition

    @property
    def segment_count(self) -> int:
        """Segments in any state, those in pages included."""
        return len(self.segments) + sum(page.segment_count for page in self.pages)

    @property
    def readable_count(self) -> int:
        return sum(segment.is_readable for segment in self.segments) + sum(
            page.readable_count for page in self.pages
        )

    @property
    def log_bytes(self) -> int:
        """Log bytes of the readable segments, which count for `retention.bytes`."""
        return sum(segment.size for segment in self.segments if segment.is_readable) + sum(
            page.log_bytes for page in self.pages
        )

    @property
    def record_count(self) -> int:
        """Records of the readable segments."""
        return sum(s.record_count for s in self.segments if s.is_readable) + sum(
            page.record_count for page in self.pages
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of the objects of all segments in any state, for which the object store charges."""
        return sum(segment.stored_bytes for segment in self.segments) + sum(
            page.stored_bytes for page in self.pages
        )

    @property
    def highest_offset(self) -> int:
        """The last offset of the last readable segment, -1 when there is none."""
        ends = [segment.end_offset for segment in self.segments if segment.is_readable]
        ends += [page.readable_end for page in self.pages if page.readable_count]
        return max(ends, default=-1)

    def find_segment(self, id: str) -> RemoteSegment | None:
        """The inline segment with this id; a segment in a page must be inlined first."""
        return next((segment for segment in self.segments if segment.id == id), None)

    def get_segment(self, id: str) -> RemoteSegment:
        segment = self.find_segment(id)
        if segment is None:
            raise InvalidRequest(
                f"{self.path}: manifest version {self.version} does not list segment {id} among "
                f"the {len(self.segments)} outside of its pages: unfold its offsets first"
            )
        return segment

    def announce(self, segment: RemoteSegment) -> "Manifest":
        """Lists a segment whose objects are about to be written (state COPY_STARTED)."""
        if segment.state is not SegmentState.COPY_STARTED:
            raise InvalidRequest(f"{segment}: only a segment whose copy starts can be announced")
        return self if self.find_segment(segment.id) == segment else self.update(segment)

    def finish(self, segment: RemoteSegment) -> "Manifest":
        """Makes an announced segment readable: all its objects exist."""
        if segment.state is not SegmentState.COPY_FINISHED:
            raise InvalidRequest(f"{segment}: finish it in the state {SegmentState.COPY_FINISHED}")
        return self.update(segment)

    def update(self, segment: RemoteSegment) -> "Manifest":
        """Replaces or adds a segment; raises InvalidRequest for a transition that is not allowed.

        If the old state is in a page, the commit checks the transition.
        """
        check_segment(segment)
        old = self.find_segment(segment.id)
        if old is not None:
            check_transition(old, segment)
        if old == segment:
            return self
        others = [
            remote_segment for remote_segment in self.segments if remote_segment.id != segment.id
        ]
        return replace(self, segments=in_order([*others, segment]))

    def start_delete(
        self, ids: Collection[str], *, at_ms: int, replaced_until_ms: int | None = None
    ) -> "Manifest":
        """Makes segments unreadable; their objects stay for readers of older manifests."""
        changed = self
        for id in ids:
            segment = self.get_segment(id)
            if segment.state is not SegmentState.DELETE_STARTED:
                changed = changed.update(
                    replace(
                        segment,
                        state=SegmentState.DELETE_STARTED,
                        at_ms=at_ms,
                        replaced_until_ms=replaced_until_ms,
                    )
                )
        return changed

    def forget(self, ids: Collection[str]) -> "Manifest":
        """Removes segments whose objects were deleted; unknown ids are ignored."""
        for segment in self.segments:
            if segment.id in ids:
                check_transition(segment, None)
        remaining = tuple(segment for segment in self.segments if segment.id not in ids)
        return self if len(remaining) == len(self.segments) else replace(self, segments=remaining)

    def raise_log_start(self, offset: int) -> "Manifest":
        """Raises the log start offset; a lower one changes nothing."""
        return self if offset <= self.log_start_offset else replace(self, log_start_offset=offset)

    def raise_cleaned_up_to(self, offset: int) -> "Manifest":
        """Raises the offset below which the remote segments are compacted."""
        return self if offset <= self.cleaned_up_to else replace(self, cleaned_up_to=offset)


def in_order(segments: Iterable[RemoteSegment]) -> tuple[RemoteSegment, ...]:
    """Sorts segments as a manifest and its pages list them: by base offset."""
    return tuple(sorted(segments, key=lambda segment: segment.sort_key))
