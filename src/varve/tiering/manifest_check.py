"""What a change of a manifest may do; anything else would lose what another writer committed.

Invariant  every segment of the base is still there, or its deletion had started; a new one is
           announced first; pages go only by being unfolded; readable segments do not overlap.
"""

from itertools import pairwise

from varve.foundation.errors import InvalidRequest
from varve.tiering.cold_segment import (
    ColdSegment,
    SegmentState,
    check_segment,
    check_transition,
)
from varve.tiering.manifest import Manifest, in_order
from varve.tiering.manifest_page import PageRef
from varve.tiering.page_store import PageStore


def check_change(base: Manifest, changed: Manifest, pages: PageStore) -> bool:
    """Whether `changed` says anything else than `base`; no page of it may cover a segment.

    Raises InvalidRequest when it cannot follow `base`, naming what is wrong.
    """
    _check_partition(base, changed)
    return _check_segments(base, in_order(_expand(base, changed, pages)), changed)


def check_whole_change(base: Manifest, changed: Manifest) -> bool:
    """The same for manifests that have no pages and list all segments in order."""
    _check_partition(base, changed)
    if changed.pages or changed.retired:
        raise InvalidRequest(f"{base.home}: a manifest of this store has no pages, leave them out")
    return _check_segments(base, base.segments, changed)


def _check_partition(base: Manifest, changed: Manifest) -> None:
    if changed.home != base.home:
        raise InvalidRequest(
            f"{base.home}: a change must not turn the manifest into that of {changed.home}"
        )
    _check_not_lowered(base, "log start offset", base.log_start_offset, changed.log_start_offset)
    _check_not_lowered(base, "cleaned-up-to offset", base.cleaned_up_to, changed.cleaned_up_to)


def _check_not_lowered(base: Manifest, what: str, before: int, after: int) -> None:
    if after < before:
        raise InvalidRequest(
            f"{base.home}: the {what} of manifest version {base.version} is {before} and cannot be "
            f"lowered to {after}"
        )


def _expand(base: Manifest, changed: Manifest, pages: PageStore) -> list[ColdSegment]:
    """The base's segments outside of the pages that `changed` kept; checks what it kept."""
    if not changed.retired and changed.pages == base.pages:
        return list(base.segments)
    retired = {f"{base.home.prefix}{entry.key}" for entry in changed.retired}
    segments = list(base.segments)
    kept: list[PageRef] = []
    waiting = list(base.pages)
    while waiting:
        ref = waiting.pop()
        if pages.key(ref) not in retired:
            kept.append(ref)
            continue
        page = pages.read(ref)
        segments += page.segments
        waiting += page.pages
    if len(changed.pages) != len(kept) or set(changed.pages) != set(kept):
        raise InvalidRequest(
            f"{base.home}: a change of manifest version {base.version} must leave the pages as "
            "they are: unfold the offsets whose segments are to change"
        )
    return segments


def _check_segments(base: Manifest, before: tuple[ColdSegment, ...], changed: Manifest) -> bool:
    after = changed.segments
    left = {segment.id: segment for segment in after}
    if len(left) != len(after):
        raise InvalidRequest(f"{base.home}: a change lists a segment twice")
    for segment in before:
        following = left.pop(segment.id, None)
        if following is not segment:
            check_transition(segment, following)
            if following is not None:
                check_segment(following)
    for segment in left.values():
        check_transition(None, segment)
        check_segment(segment)
    return (
        before != after
        or base.log_start_offset != changed.log_start_offset
        or base.cleaned_up_to != changed.cleaned_up_to
    )


def check_overlaps(manifest: Manifest) -> None:
    """Raises InvalidRequest when two readable segments hold the same offset.

    No page may cover a segment outside of it, as is so once all such pages are unfolded.
    """
    if not manifest.pages and not _have_overlap(manifest.segments):
        return
    spans: list[tuple[int, int, ColdSegment | PageRef]] = [
        (segment.base_offset, segment.end_offset, segment)
        for segment in manifest.segments
        if segment.is_readable
    ]
    spans += [
        (ref.readable_first, ref.readable_end, ref) for ref in manifest.pages if ref.readable_count
    ]
    spans.sort(key=lambda span: span[:2])
    for (_, end, one), (first, _, other) in pairwise(spans):
        if first <= end:
            names = f"{_name(one)} and {_name(other)}"
            raise InvalidRequest(
                f"{manifest.home}: {names} would both be readable at offset {first}: "
                "start the deletion of the one that is replaced in the same change"
            )


def _have_overlap(segments: tuple[ColdSegment, ...]) -> bool:
    """Whether readable segments of a list in order overlap; a list may be long, so quick."""
    end = -1
    for segment in segments:
        if segment.state is SegmentState.COPY_FINISHED:
            if segment.base_offset <= end:
                return True
            end = segment.end_offset
    return False


def _name(one: ColdSegment | PageRef) -> str:
    return str(one) if isinstance(one, ColdSegment) else f"page {one.id}"
