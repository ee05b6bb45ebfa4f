"""Keeps a manifest small: older segments spill into pages, and pages that change are inlined.

Invariant  a page is written once, under a unique id, and never changed: cached pages are valid.
Invariant  after `spill` a manifest has at most `inline_max` segments and `ref_max` references per
           level, whatever the history; levels descend from left to right, so a look-up reads one
           page per level; no inline segment lies in the offset range of a page.
Crash      writes only new pages, which are invisible until a manifest refers to them.
Threads    any; the cache has a lock, which is not held during I/O.
"""

import random
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

from varve.foundation.errors import ObjectNotFound
from varve.object_store import ObjectStore
from varve.tiering.manifest.codec import decode_page, encode_page
from varve.tiering.manifest.manifest import (
    Manifest,
    Page,
    PageRef,
    RetiredObject,
    in_order,
    refer_to_pages,
    refer_to_segments,
)
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment


class PageCache:
    """The most recently used pages, at most `page_count_max`; may be shared by all partitions."""

    def __init__(self, page_count_max: int = 64) -> None:
        self._page_count_max = page_count_max
        self._lock = threading.Lock()
        self._pages: OrderedDict[str, Page] = OrderedDict()  # guarded by _lock

    def find(self, key: str) -> Page | None:
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
            return page

    def put(self, key: str, page: Page) -> None:
        with self._lock:
            self._pages[key] = page
            self._pages.move_to_end(key)
            while len(self._pages) > self._page_count_max:
                self._pages.popitem(last=False)


class PageStore:
    """The pages of one partition."""

    def __init__(self, objects: ObjectStore, path: RemotePath, cache: PageCache) -> None:
        self.path = path
        self._objects = objects
        self._cache = cache

    def key(self, ref: PageRef) -> str:
        return self.path.page_key(first_offset=ref.first_offset, id=ref.id)

    def read(self, ref: PageRef) -> Page:
        """The page; raises Corrupt when it is damaged or not what `ref` says.

        Raises ObjectNotFound when it was deleted with its manifest version.
        """
        key = self.key(ref)
        page = self._cache.find(key)
        if page is None:
            try:
                data = self._objects.get(key)
            except ObjectNotFound as error:
                raise ObjectNotFound(
                    f"{self._objects.name}: page {key} is gone: its manifest version is past its "
                    "retention, so load the newest; if that names it too, restore the object"
                ) from error
            page = decode_page(data, ref, self.path, where=f"{self._objects.name}: {key}")
            self._cache.put(key, page)
        return page

    def walk(
        self, refs: Iterable[PageRef], matches: Callable[[PageRef], bool] = lambda ref: True
    ) -> Iterator[tuple[PageRef, Page]]:
        """The matching pages and those below them, in order; each is read when it is reached."""
        for ref in refs:
            if matches(ref):
                page = self.read(ref)
                yield ref, page
                yield from self.walk(page.pages, matches)

    def write(self, page: Page, ref: PageRef) -> None:
        """Stores a page durably; it is invisible until a manifest refers to it."""
        key = self.key(ref)
        self._objects.put(key, encode_page(page, self.path))
        self._cache.put(key, page)

    def remove(self, refs: Sequence[PageRef]) -> None:
        """Removes pages that no manifest refers to."""
        self._objects.delete([self.key(ref) for ref in refs])


class PageWriter:
    """Writes the pages of one commit attempt, and lists them in `written`."""

    def __init__(self, pages: PageStore, random: random.Random) -> None:
        self.pages = pages
        self.written: list[PageRef] = []
        self._random = random

    def write_segments(self, segments: Sequence[RemoteSegment]) -> PageRef:
        ref = refer_to_segments(new_id(self._random), segments)
        return self._write(Page(ref.id, ref.level, segments=tuple(segments)), ref)

    def write_pages(self, refs: Sequence[PageRef]) -> PageRef:
        ref = refer_to_pages(new_id(self._random), refs)
        return self._write(Page(ref.id, ref.level, pages=tuple(refs)), ref)

    def _write(self, page: Page, ref: PageRef) -> PageRef:
        self.written.append(ref)
        self.pages.write(page, ref)
        return ref


def new_id(random: random.Random) -> str:
    """A fresh id for a page or a commit."""
    return str(UUID(bytes=random.randbytes(16), version=4))


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLayout:
    """The bounds of a manifest and of a page.

    Segments above `inline_max` are spilled, `page_segments` at a time and oldest first, so that
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


def inline_range(manifest: Manifest, pages: PageStore, *, start: int, end: int) -> Manifest:
    """The manifest with all segments that touch the offsets [start, end) outside of pages.

    Their former pages are listed as retired; the next commit spills what exceeds the bounds. An
    inline segment is newer than one with the same id in a page.
    """
    kept: list[PageRef] = []
    inline_ids = {segment.id for segment in manifest.segments}
    segments = list(manifest.segments)
    retired = list(manifest.retired)
    unvisited = list(reversed(manifest.pages))
    while unvisited:
        ref = unvisited.pop()
        if ref.first_offset >= end or ref.end_offset < start:
            kept.append(ref)
            continue
        page = pages.read(ref)
        retired.append(_retire(ref, pages))
        segments += [segment for segment in page.segments if segment.id not in inline_ids]
        unvisited += reversed(page.pages)
    if len(retired) == len(manifest.retired):
        return manifest
    return replace(manifest, segments=in_order(segments), pages=tuple(kept), retired=tuple(retired))


def spill(manifest: Manifest, writer: PageWriter, layout: ManifestLayout) -> Manifest:
    """Writes pages until the manifest is within its bounds.

    No page may cover an inline segment (`inline_overlapping`).
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
    return RetiredObject(pages.key(ref).removeprefix(pages.path.prefix), 0)


def inline_overlapping(manifest: Manifest, pages: PageStore) -> Manifest:
    """Inlines the pages whose offset range covers an inline segment.

    An inlined segment may be covered by another page, which is then inlined too: segments with the
    same base offset, such as a copy and its retry, may be in two pages.
    """
    while (offset := _find_covered(manifest)) is not None:
        manifest = inline_range(manifest, pages, start=offset, end=offset + 1)
    return replace(manifest, segments=in_order(manifest.segments))


def _find_covered(manifest: Manifest) -> int | None:
    for segment in manifest.segments:
        offset = segment.base_offset
        following = bisect_right(manifest.pages, offset, key=lambda ref: ref.first_offset)
        if following and manifest.pages[following - 1].covers(offset):
            return offset
    return None


def _group(manifest: Manifest) -> list[list[RemoteSegment]]:
    """The inline segments before the first page, before the second, ..., and after the last."""
    groups: list[list[RemoteSegment]] = [[] for _ in range(len(manifest.pages) + 1)]
    firsts = [ref.first_offset for ref in manifest.pages]
    for segment in manifest.segments:
        groups[bisect_right(firsts, segment.base_offset)].append(segment)
    return groups


def _merge_small(manifest: Manifest, pages: PageStore, layout: ManifestLayout) -> Manifest:
    """Inlines small pages beside small groups, so that they are written as one page."""
    while (ref := _find_small_neighbour(manifest, layout)) is not None:
        page = pages.read(ref)
        joined = replace(
            manifest,
            segments=in_order((*manifest.segments, *page.segments)),
            pages=tuple(other for other in manifest.pages if other is not ref),
            retired=(*manifest.retired, _retire(ref, pages)),
        )
        manifest = inline_overlapping(joined, pages)
    return manifest


def _find_small_neighbour(manifest: Manifest, layout: ManifestLayout) -> PageRef | None:
    for index, group in enumerate(_group(manifest)[:-1]):
        if not 0 < len(group) < layout.page_segments // 2:
            continue
        for ref in manifest.pages[max(index - 1, 0) : index + 1]:
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
    """Moves references of a level to the next if a higher one follows, or if there are too many."""
    higher = max((index for index, ref in enumerate(refs) if ref.level > level), default=-1)
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
    """Splits items into the fewest parts of at most `size_max`, of about equal size."""
    count = -(-len(items) // size_max)
    for part in range(count):
        yield items[part * len(items) // count : (part + 1) * len(items) // count]
