"""One version of what the cold tier holds for a partition, and the edits that lead to the next.

Layout     docs/formats/manifest.md
Invariant  never changed, only replaced. Every edit is idempotent: applied to a manifest that it has
           already shaped, it changes nothing. `segments` and `pages` stand in order of offsets;
           readable segments do not overlap; log start and cleaned-up-to offsets only grow.
Threads    any: a value.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from varve.foundation.errors import InvalidRequest
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import (
    ColdSegment,
    SegmentState,
    check_segment,
    check_transition,
)
from varve.tiering.manifest_page import PageRef

NO_EPOCH = -1
"""The leader epoch of a manifest that nobody has committed."""


@dataclass(frozen=True, slots=True)
class RetiredObject:
    """An object that a version no longer names and older ones do; the key is below the prefix.

    It goes with the last version that names it, and not before `removable_ms`; 0 in a change that
    is not committed yet.
    """

    key: str
    removable_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the cold tier holds for a partition, as of one commit; version 0 is before the first.

    `segments` are those that no page holds: the recent ones, and in a change also those whose pages
    were unfolded. `retired` are the objects that this very version let go.
    """

    home: ColdPartition
    version: int = 0
    commit_id: str = ""
    previous_commit_id: str = ""
    writer: str = ""
    leader_epoch: int = NO_EPOCH
    at_ms: int = 0
    log_start_offset: int = 0
    cleaned_up_to: int = 0
    segments: tuple[ColdSegment, ...] = ()
    pages: tuple[PageRef, ...] = ()
    retired: tuple[RetiredObject, ...] = ()

    @property
    def cluster(self) -> str:
        return self.home.cluster

    @property
    def topic(self) -> str:
        return self.home.topic

    @property
    def topic_id(self) -> str:
        return self.home.topic_id

    @property
    def partition(self) -> int:
        return self.home.partition

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
        """Log bytes of the readable segments: what counts for `retention.bytes`."""
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
        """Bytes of the objects of all segments in any state: what the object store charges for."""
        return sum(segment.stored_bytes for segment in self.segments) + sum(
            page.stored_bytes for page in self.pages
        )

    @property
    def highest_offset(self) -> int:
        """The last offset of the last readable segment, -1 when there is none."""
        ends = [segment.end_offset for segment in self.segments if segment.is_readable]
        ends += [page.readable_end for page in self.pages if page.readable_count]
        return max(ends, default=-1)

    def find_segment(self, id: str) -> ColdSegment | None:
        """The segment of this id among `segments`; one in a page must be unfolded first."""
        return next((segment for segment in self.segments if segment.id == id), None)

    def get_segment(self, id: str) -> ColdSegment:
        segment = self.find_segment(id)
        if segment is None:
            raise InvalidRequest(
                f"{self.home}: manifest version {self.version} does not list segment {id} among "
                f"the {len(self.segments)} outside of its pages: unfold its offsets first"
            )
        return segment

    def announce(self, segment: ColdSegment) -> "Manifest":
        """Lists a segment whose objects are about to be written (state COPY_STARTED)."""
        if segment.state is not SegmentState.COPY_STARTED:
            raise InvalidRequest(f"{segment}: only a segment whose copy starts can be announced")
        return self if self.find_segment(segment.id) == segment else self.update(segment)

    def finish(self, segment: ColdSegment) -> "Manifest":
        """Makes an announced segment readable: all its objects are there."""
        if segment.state is not SegmentState.COPY_FINISHED:
            raise InvalidRequest(f"{segment}: finish it in the state {SegmentState.COPY_FINISHED}")
        return self.update(segment)

    def update(self, segment: ColdSegment) -> "Manifest":
        """Puts what is known of a segment in the place of what was, within the rules of states.

        What was may stand in a page: then the commit finds it there and checks the rules.
        """
        check_segment(segment)
        old = self.find_segment(segment.id)
        if old is not None:
            check_transition(old, segment)
        if old == segment:
            return self
        others = [one for one in self.segments if one.id != segment.id]
        return replace(self, segments=in_order([*others, segment]))

    def start_delete(
        self, ids: Collection[str], *, at_ms: int, replaced_until_ms: int | None = None
    ) -> "Manifest":
        """Takes segments out of reading; their objects stay while others may rely on them."""
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
        """Takes segments off the list: their objects are gone. Those not listed are fine."""
        for segment in self.segments:
            if segment.id in ids:
                check_transition(segment, None)
        left = tuple(segment for segment in self.segments if segment.id not in ids)
        return self if len(left) == len(self.segments) else replace(self, segments=left)

    def raise_log_start(self, offset: int) -> "Manifest":
        """Moves the log start offset up; a lower one changes nothing."""
        return self if offset <= self.log_start_offset else replace(self, log_start_offset=offset)

    def raise_cleaned_up_to(self, offset: int) -> "Manifest":
        """Moves the offset below which the cold part is compacted up."""
        return self if offset <= self.cleaned_up_to else replace(self, cleaned_up_to=offset)


def in_order(segments: Iterable[ColdSegment]) -> tuple[ColdSegment, ...]:
    """By base offset, as a manifest and its pages list them."""
    return tuple(sorted(segments, key=lambda segment: segment.place))
