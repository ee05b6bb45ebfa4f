"""Reads pages, through a cache, and writes new ones.

Invariant  a page is written once, under an id of its own, and never changed: the cache is right.
Threads    any: the cache has a lock, which is not held during I/O.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Sequence
from uuid import UUID

from varve.foundation.errors import ObjectNotFound
from varve.object_store import ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment
from varve.tiering.manifest_json import decode_page, encode_page
from varve.tiering.manifest_page import Page, PageRef, refer_to_pages, refer_to_segments


class PageCache:
    """The pages used last, at most `page_count_max`; may be shared by all partitions."""

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

    def __init__(self, objects: ObjectStore, home: ColdPartition, cache: PageCache) -> None:
        self.home = home
        self._objects = objects
        self._cache = cache

    def key(self, ref: PageRef) -> str:
        return self.home.page_key(first_offset=ref.first_offset, id=ref.id)

    def read(self, ref: PageRef) -> Page:
        """The page; raises Corrupt when it is damaged or not what `ref` says.

        Raises ObjectNotFound when it is gone, as it may be when its manifest version is.
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
            page = decode_page(data, ref, self.home, where=f"{self._objects.name}: {key}")
            self._cache.put(key, page)
        return page

    def write(self, page: Page, ref: PageRef) -> None:
        """Stores a page, durably; before a manifest names it nobody sees it."""
        key = self.key(ref)
        self._objects.put(key, encode_page(page, self.home))
        self._cache.put(key, page)

    def remove(self, refs: Sequence[PageRef]) -> None:
        """Removes pages that no manifest names."""
        self._objects.delete([self.key(ref) for ref in refs])


class PageWriter:
    """Writes the pages of one attempt at a commit and remembers them."""

    def __init__(self, pages: PageStore, random: random.Random) -> None:
        self.pages = pages
        self.written: list[PageRef] = []
        self._random = random

    def write_segments(self, segments: Sequence[ColdSegment]) -> PageRef:
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
