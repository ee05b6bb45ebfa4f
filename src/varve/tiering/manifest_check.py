"""What a change of a manifest may do; anything else would lose what another writer committed.

Invariant  every segment of the base is still there, or its deletion had started; a new one is
           announced first; pages go only by being unfolded; readable segments do not overlap.
"""

from collections.abc import Iterable
from itertools import pairwise

from varve.foundation.errors import InvalidRequest
from varve.tiering.cold_segment import ColdSegment, check_segment, check_transition
from varve.tiering.manifest import Manifest, in_order
from varve.tiering.manifest_page import PageRef
from varve.tiering.page_store import PageStore


def check_change(base: Manifest, changed: Manifest, pages: PageStore) -> bool:
    """Whether `changed` says anything else than `base`; no page of it may cover a segment.

    Raises InvalidRequest when it cannot follow `base`, naming what is wrong.
    """
    if changed.home != base.home:
        raise InvalidRequest(
            f"{base.home}: a change must not turn the manifest into that of {changed.home}"
        )
    _check_not_lowered(base, "log start offset", base.log_start_offset, changed.log_start_offset)
    _check_not_lowered(base, "cleaned-up-to offset", base.cleaned_up_to, changed.cleaned_up_to)
    before = _expand(base, changed, pages)
    _check_segments(base, before, changed.segments)
    return (
        in_order(before) != changed.segments
        or base.log_start_offset != changed.log_start_offset
        or base.cleaned_up_to != changed.cleaned_up_to
    )


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


def _check_segments(
    base: Manifest, before: Iterable[ColdSegment], after: tuple[ColdSegment, ...]
) -> None:
    left = {segment.id: segment for segment in after}
    if len(left) != len(after):
        raise InvalidRequest(f"{base.home}: a change lists a segment twice")
    for segment in before:
        check_transition(segment, left.pop(segment.id, None))
    for segment in left.values():
        check_transition(None, segment)
    for segment in after:
        check_segment(segment)


def check_overlaps(manifest: Manifest) -> None:
    """Raises InvalidRequest when two readable segments hold the same offset.

    No page may cover a segment outside of it, as is so once all such pages are unfolded.
    """
    spans = [
        (segment.base_offset, segment.end_offset, str(segment))
        for segment in manifest.segments
        if segment.is_readable
    ]
    spans += [
        (ref.readable_first, ref.readable_end, f"page {ref.id}")
        for ref in manifest.pages
        if ref.readable_count
    ]
    for (_, end, name), (first, _, other) in pairwise(sorted(spans)):
        if first <= end:
            raise InvalidRequest(
                f"{manifest.home}: {name} and {other} would both be readable at offset {first}: "
                "start the deletion of the one that is replaced in the same change"
            )
