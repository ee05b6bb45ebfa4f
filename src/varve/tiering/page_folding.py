"""Keeps a manifest small: folds older segments into pages, and unfolds those that change.

Invariant  after `fold` a manifest has at most `inline_max` segments and `ref_max` references per
           level, whatever the history; levels descend from left to right, so an offset is found by
           one page per level; no segment stands among those of a page it is not in.
Crash      writes only new pages, which nobody sees before a manifest names them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from varve.tiering.cold_segment import ColdSegment
from varve.tiering.manifest import Manifest, RetiredObject, in_order
from varve.tiering.manifest_page import PageRef
from varve.tiering.page_store import PageStore, PageWriter

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLayout:
    """How much stands in a manifest and in a page.

    What exceeds `inline_max` is spilled by `page_segments` at a time, oldest first, so that the
    segments that still change their state stay outside of pages; references likewise, `page_refs`
    at a time.
    """

    inline_max: int = 72
    page_segments: int = 64
    ref_max: int = 40
    page_refs: int = 32

    def __post_init__(self) -> None:
        assert 1 <= self.page_segments <= self.inline_max, "a spill must not empty the inline list"
        assert 2 <= self.page_refs <= self.ref_max, "a page of references must hold several"


DEFAULT_LAYOUT: Final = ManifestLayout()


def unfold(manifest: Manifest, pages: PageStore, *, start: int, end: int) -> Manifest:
    """The manifest with all segments that touch the offsets [start, end) outside of pages.

    The pages that held them are noted as retired; the next commit folds what is too much. A segment
    that stands in the manifest already, under the same id, is newer than the one in a page.
    """
    kept: list[PageRef] = []
    own = {segment.id for segment in manifest.segments}
    segments = list(manifest.segments)
    retired = list(manifest.retired)

    def visit(ref: PageRef) -> None:
        if ref.first_offset >= end or ref.end_offset < start:
            kept.append(ref)
            return
        page = pages.read(ref)
        retired.append(_retire(ref, pages))
        segments.extend(segment for segment in page.segments if segment.id not in own)
        for below in page.pages:
            visit(below)

    for ref in manifest.pages:
        visit(ref)
    if len(retired) == len(manifest.retired):
        return manifest
    return replace(manifest, segments=in_order(segments), pages=tuple(kept), retired=tuple(retired))


def fold(manifest: Manifest, writer: PageWriter, layout: ManifestLayout) -> Manifest:
    """The manifest within its bounds again; writes the pages that this takes.

    No page may cover a segment outside of it (`open_covering`).
    """
    manifest = _merge_small(manifest, writer.pages, layout)
    groups = _group(manifest)
    tail = groups.pop()
    refs: list[PageRef] = []
    for group, ref in zip(groups, manifest.pages, strict=True):
        refs += [writer.write_segments(chunk) for chunk in _split(group, layout.page_segments)]
        refs.append(ref)
    while len(tail) > layout.inline_max:
        refs.append(writer.write_segments(tail[: layout.page_segments]))
        tail = tail[layout.page_segments :]
    return replace(manifest, segments=tuple(tail), pages=tuple(_fold_levels(refs, writer, layout)))


def _retire(ref: PageRef, pages: PageStore) -> RetiredObject:
    return RetiredObject(pages.key(ref).removeprefix(pages.home.prefix), 0)


def open_covering(manifest: Manifest, pages: PageStore) -> Manifest:
    """Unfolds the pages among whose segments one of the manifest's own would have to stand.

    That may bring out segments for which another page must be unfolded: segments of one base
    offset, such as a copy and its repetition, may stand in two pages.
    """
    while (offset := _find_covered(manifest)) is not None:
        manifest = unfold(manifest, pages, start=offset, end=offset + 1)
    return replace(manifest, segments=in_order(manifest.segments))


def _find_covered(manifest: Manifest) -> int | None:
    for segment in manifest.segments:
        offset = segment.base_offset
        place = bisect_right(manifest.pages, offset, key=lambda ref: ref.first_offset)
        if place and manifest.pages[place - 1].covers(offset):
            return offset
    return None


def _group(manifest: Manifest) -> list[list[ColdSegment]]:
    """The manifest's segments by place: before the first page, the second, ..., behind the last."""
    groups: list[list[ColdSegment]] = [[] for _ in range(len(manifest.pages) + 1)]
    firsts = [ref.first_offset for ref in manifest.pages]
    for segment in manifest.segments:
        groups[bisect_right(firsts, segment.base_offset)].append(segment)
    return groups


def _merge_small(manifest: Manifest, pages: PageStore, layout: ManifestLayout) -> Manifest:
    """Unfolds small pages beside small groups, so that shrunken pages become fewer."""
    while (ref := _find_small_neighbour(manifest, layout)) is not None:
        page = pages.read(ref)
        joined = replace(
            manifest,
            segments=in_order((*manifest.segments, *page.segments)),
            pages=tuple(other for other in manifest.pages if other is not ref),
            retired=(*manifest.retired, _retire(ref, pages)),
        )
        manifest = open_covering(joined, pages)
    return manifest


def _find_small_neighbour(manifest: Manifest, layout: ManifestLayout) -> PageRef | None:
    for place, group in enumerate(_group(manifest)[:-1]):
        if not 0 < len(group) < layout.page_segments // 2:
            continue
        for ref in manifest.pages[max(place - 1, 0) : place + 1]:
            if ref.level == 0 and ref.segment_count + len(group) <= layout.page_segments:
                return ref
    return None


def _fold_levels(refs: list[PageRef], writer: PageWriter, layout: ManifestLayout) -> list[PageRef]:
    level = 0
    while refs and (
        max(ref.level for ref in refs) > level
        or sum(ref.level == level for ref in refs) > layout.ref_max
    ):
        refs = _fold_level(refs, level, writer, layout)
        level += 1
    return refs


def _fold_level(
    refs: list[PageRef], level: int, writer: PageWriter, layout: ManifestLayout
) -> list[PageRef]:
    """Puts references of a level that stand before a higher one, and those too many, a level up."""
    higher = max((place for place, ref in enumerate(refs) if ref.level > level), default=-1)
    folded: list[PageRef] = []
    run: list[PageRef] = []
    for ref in refs[: higher + 1]:
        if ref.level == level:
            run.append(ref)
            continue
        folded += [writer.write_pages(chunk) for chunk in _split(run, layout.page_refs)]
        folded.append(ref)
        run = []
    tail = [ref for ref in refs[higher + 1 :] if ref.level == level]
    lower = [ref for ref in refs[higher + 1 :] if ref.level < level]
    while len(tail) > layout.ref_max:
        folded.append(writer.write_pages(tail[: layout.page_refs]))
        tail = tail[layout.page_refs :]
    return [*folded, *tail, *lower]


def _split(items: Sequence[_Item], size_max: int) -> Iterator[Sequence[_Item]]:
    """As few parts of at most this size as it takes, of about equal size."""
    count = -(-len(items) // size_max)
    for part in range(count):
        yield items[part * len(items) // count : (part + 1) * len(items) // count]
