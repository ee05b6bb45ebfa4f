"""What the manifests of a partition name: the newest, and the older versions that are kept.

Invariant  read after the objects were listed: a segment is announced before its first object is
           written, so one that was listed and that nothing names here never will be named.
"""

from dataclasses import dataclass, field

from varve.foundation.errors import ObjectNotFound
from varve.object_store import ObjectStore
from varve.tiering.manifest.manifest import Manifest, PageRef
from varve.tiering.manifest.pages import PageCache, PageStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.manifest.versions import ManifestVersions


@dataclass(slots=True, kw_only=True)
class NamedObjects:
    """Segments by id, pages by key, versions by number."""

    newest: Manifest
    segments: dict[str, RemoteSegment] = field(default_factory=dict)
    pages: set[str] = field(default_factory=set)
    older_segments: set[str] = field(default_factory=set)
    older_pages: set[str] = field(default_factory=set)
    left_over: set[int] = field(default_factory=set)


def collect_named(objects: ObjectStore, home: RemotePath, newest: Manifest) -> NamedObjects:
    """Reads every version that is kept, and every page that one of them names."""
    versions = ManifestVersions(objects, home)
    pages = PageStore(objects, home, PageCache())
    named = NamedObjects(newest=newest)
    named.segments = {segment.id: segment for segment in newest.segments}
    for segment in _walk(newest.pages, pages, named.pages):
        named.segments.setdefault(segment.id, segment)
    chain, left_over = versions.list_retained()
    named.left_over = set(left_over)
    for number in chain:
        manifest = versions.find(number) if number < newest.version else None
        if manifest is None:
            continue
        named.older_segments |= {segment.id for segment in manifest.segments}
        _read_older(manifest.pages, pages, named)
    named.older_segments -= named.segments.keys()
    named.older_pages -= named.pages
    # What the newest let go was named by the version before, which may be gone by now.
    named.older_pages |= {
        key
        for entry in newest.retired
        if (key := f"{home.prefix}{entry.key}").startswith(home.page_folder)
    } - named.pages
    return named


def _walk(refs: tuple[PageRef, ...], pages: PageStore, keys: set[str]) -> list[RemoteSegment]:
    found: list[RemoteSegment] = []
    waiting = list(refs)
    while waiting:
        ref = waiting.pop()
        keys.add(pages.key(ref))
        page = pages.read(ref)
        found += page.segments
        waiting += page.pages
    return found


def _read_older(refs: tuple[PageRef, ...], pages: PageStore, named: NamedObjects) -> None:
    """Older versions share most of their pages: each is read once."""
    waiting = list(refs)
    while waiting:
        ref = waiting.pop()
        key = pages.key(ref)
        if key in named.pages or key in named.older_pages:
            continue
        named.older_pages.add(key)
        try:
            page = pages.read(ref)
        except ObjectNotFound:
            continue  # It went with its version while this was read.
        named.older_segments |= {segment.id for segment in page.segments}
        waiting += page.pages


def find_now(manifests: ManifestStore, *, base_offset: int, id: str) -> RemoteSegment | None:
    """A segment as the newest manifest of this moment has it; None when it is not listed."""
    manifest = manifests.load()
    for segment in manifests.segments(manifest, from_offset=base_offset):
        if segment.base_offset > base_offset:
            return None
        if segment.id == id:
            return segment
    return None
