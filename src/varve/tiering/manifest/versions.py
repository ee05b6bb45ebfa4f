"""The chain of a partition's manifest versions in an object store, the newest one, and expiry.

Layout     `manifest/<20-digit version>.json`, and `manifest/hint` with the number of a version that
           was the newest some time ago. docs/reference/formats/manifest.md
Invariant  a version is created once and never changed. Versions are counted from 1 without holes;
           versions below a hole are leftovers and never read. The newest version never expires, nor
           does a page that a remaining version refers to.
Invariant  manifests are read after the objects are listed: a segment is announced before its first
           object is written, so a listed object that no manifest refers to is an orphan.
Crash      a version exists completely or not at all. The hint may be old, missing or wrong: it is
           only the start of a listing. Pages are deleted before the versions that refer to them.
Threads    any: `NewestManifest` has a lock, which is not held during I/O.
"""

import logging
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.manifest.codec import decode_manifest, encode_manifest
from varve.tiering.manifest.manifest import Manifest, PageRef
from varve.tiering.manifest.pages import PageCache, PageStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment

logger = logging.getLogger(__name__)

HINT_INTERVAL: Final = 16
"""Versions between two updates of the hint; bounds the length of listings from it."""


class ManifestVersions:
    """Reads, lists and creates the versions of one partition."""

    def __init__(self, objects: ObjectStore, path: RemotePath) -> None:
        self.path = path
        self._objects = objects

    def read(self, version: int) -> Manifest:
        """Raises ObjectNotFound when the version does not exist, Corrupt when it is damaged."""
        key = self.path.manifest_key(version)
        manifest = decode_manifest(self._objects.get(key), where=f"{self._objects.name}: {key}")
        if manifest.version != version or manifest.path != self.path:
            raise Corrupt(
                f"{self._objects.name}: {key} holds version {manifest.version} of {manifest.path} "
                f"({manifest.topic_id}): the object was moved; restore it"
            )
        return manifest

    def find(self, version: int) -> Manifest | None:
        try:
            return self.read(version)
        except ObjectNotFound:
            return None

    def create(self, manifest: Manifest) -> None:
        """Creates a version; raises ObjectExists when it exists."""
        self._objects.create(self.path.manifest_key(manifest.version), encode_manifest(manifest))

    def list_after(self, version: int) -> list[int]:
        """All existing versions above this one, ascending."""
        listed = self._objects.list(
            self.path.manifest_folder, start_after=self.path.manifest_key(version)
        )
        numbers = (self.path.find_version(entry.key) for entry in listed)
        return [number for number in numbers if number is not None]

    def list_retained(self) -> tuple[list[int], list[int]]:
        """The versions up to the newest without a hole, and the leftovers below the hole."""
        versions = self.list_after(0)
        first = len(versions) - 1
        while first > 0 and versions[first - 1] == versions[first] - 1:
            first -= 1
        return versions[max(first, 0) :], versions[: max(first, 0)]

    def find_newest(self, *, cached_version: int | None) -> int:
        """The newest version, 0 without one; `cached_version` is one that existed earlier.

        Raises Unavailable when a list without any version is contradicted by one that can be read:
        a partition would otherwise be taken for one that was never copied.
        """
        start = self.read_hint() if cached_version is None else cached_version
        versions = self.list_after(start - 1) if start > 0 else []
        if not versions:
            versions = self.list_after(0)
        if not versions and start > 0 and self.find(start) is not None:
            raise Unavailable(
                f"{self._objects.name}: the list of {self.path.manifest_folder} shows no version, "
                f"but version {start} is there: the store lists wrongly; try again, and if it "
                "stays, look for a proxy in between"
            )
        return versions[-1] if versions else 0

    def write_hint(self, version: int) -> None:
        """Updates the hint every `HINT_INTERVAL` versions, best effort."""
        # Version 1 writes it too: a reader of a mirror cannot distinguish a hint that was never
        # written from one that the mirror lacks.
        if version % HINT_INTERVAL and version != 1:
            return
        try:
            self._objects.put(self.path.hint_key, b"%d\n" % version)
        except Unavailable as error:
            logger.debug(
                "manifest hint not written",
                extra={"partition": str(self.path), "version": version, "error": str(error)},
            )

    def remove(self, versions: list[int]) -> None:
        self._objects.delete([self.path.manifest_key(version) for version in versions])

    def read_hint(self) -> int:
        """The version in the hint; 0 without a hint or with a malformed one."""
        try:
            text = self._objects.get(self.path.hint_key)
        except ObjectNotFound:
            return 0
        digits = text.strip()
        return int(digits) if digits.isdigit() and len(digits) < 20 else 0


_LOAD_ATTEMPTS_MAX: Final = 8


class NewestManifest:
    """Loads the newest version, and caches it."""

    def __init__(self, versions: ManifestVersions) -> None:
        self._versions = versions
        self._lock = threading.Lock()
        self._cached: Manifest | None = None  # guarded by _lock

    def find_cached(self) -> Manifest | None:
        """The newest version seen so far, without a request."""
        with self._lock:
            return self._cached

    def cache(self, manifest: Manifest) -> None:
        with self._lock:
            if self._cached is None or manifest.version > self._cached.version:
                self._cached = manifest

    def load(self) -> Manifest:
        """The newest version; an empty manifest of version 0 when there is none."""
        for _ in range(_LOAD_ATTEMPTS_MAX):
            cached = self.find_cached()
            version = self._versions.find_newest(cached_version=cached.version if cached else None)
            if cached is not None and version <= cached.version:
                self._check_not_lost(cached, version)
                return cached
            if version == 0:
                return Manifest(path=self._versions.path)
            manifest = self._versions.find(version)
            if manifest is not None:
                self.cache(manifest)
                return manifest
        raise Unavailable(
            f"{self._versions.path}: {_LOAD_ATTEMPTS_MAX} times the newest manifest version was "
            "removed before it could be read: give versions a longer retention, then try again"
        )

    def _check_not_lost(self, cached: Manifest, version: int) -> None:
        # Another thread may have cached a version that is newer than this listing: read it again.
        if version < cached.version and self._versions.find(cached.version) is None:
            raise Corrupt(
                f"{self._versions.path}: manifest version {cached.version} was there and now "
                f"{version} is the newest: another program removed it; restore the object"
            )


RUN_VERSIONS_MAX: Final = 1_000
"""Versions that one run reads at most; each is one request."""


def expire_versions(
    objects: ObjectStore, versions: ManifestVersions, *, now_ms: int, retention_ms: int
) -> None:
    """Removes versions that were superseded at least `retention_ms` ago."""
    chain, leftovers = versions.list_retained()
    removable: list[int] = []
    keys: list[str] = []
    for version, next_version in pairwise(chain[: RUN_VERSIONS_MAX + 1]):
        following = versions.find(next_version)
        if following is None or not _is_removable(following, now_ms, retention_ms):
            break
        removable.append(version)
        keys += [f"{versions.path.prefix}{entry.key}" for entry in following.retired]
    if keys:
        objects.delete(keys)
    if removable or leftovers:
        versions.remove([*leftovers, *removable])


def _is_removable(following: Manifest, now_ms: int, retention_ms: int) -> bool:
    """Whether the predecessor may be removed, with the objects that this version retired."""
    return following.at_ms <= now_ms - retention_ms and all(
        entry.removable_ms <= now_ms for entry in following.retired
    )


def find_named_pages(newest: Manifest, versions: ManifestVersions, pages: PageStore) -> set[str]:
    """The keys of all pages that a version in the chain refers to."""
    named: set[str] = set()
    unvisited = list(newest.pages)
    while unvisited:
        ref = unvisited.pop()
        named.add(pages.key(ref))
        if ref.level:
            unvisited += pages.read(ref).pages
    chain, _ = versions.list_retained()
    for version in chain:
        manifest = versions.find(version)
        if manifest is not None:
            named |= {f"{versions.path.prefix}{entry.key}" for entry in manifest.retired}
    return named


@dataclass(slots=True, kw_only=True)
class NamedObjects:
    """What manifests refer to: segments by id, pages by key; and leftover versions by number."""

    newest: Manifest
    segments: dict[str, RemoteSegment] = field(default_factory=dict)
    pages: set[str] = field(default_factory=set)
    older_segments: set[str] = field(default_factory=set)
    older_pages: set[str] = field(default_factory=set)
    leftovers: set[int] = field(default_factory=set)


def collect_named(objects: ObjectStore, path: RemotePath, newest: Manifest) -> NamedObjects:
    """Reads every retained version, and every page that one of them refers to."""
    versions = ManifestVersions(objects, path)
    pages = PageStore(objects, path, PageCache())
    named = NamedObjects(newest=newest)
    named.segments = {segment.id: segment for segment in newest.segments}
    for segment in _collect_segments(newest.pages, pages, named.pages):
        named.segments.setdefault(segment.id, segment)
    chain, leftovers = versions.list_retained()
    named.leftovers = set(leftovers)
    for number in chain:
        manifest = versions.find(number) if number < newest.version else None
        if manifest is None:
            continue
        named.older_segments |= {segment.id for segment in manifest.segments}
        _collect_older(manifest.pages, pages, named)
    named.older_segments -= named.segments.keys()
    named.older_pages -= named.pages
    # The newest version retired objects of its predecessor, which may have been removed by now.
    named.older_pages |= {
        key
        for entry in newest.retired
        if (key := f"{path.prefix}{entry.key}").startswith(path.page_folder)
    } - named.pages
    return named


def _collect_segments(
    refs: tuple[PageRef, ...], pages: PageStore, keys: set[str]
) -> list[RemoteSegment]:
    segments: list[RemoteSegment] = []
    unvisited = list(refs)
    while unvisited:
        ref = unvisited.pop()
        keys.add(pages.key(ref))
        page = pages.read(ref)
        segments += page.segments
        unvisited += page.pages
    return segments


def _collect_older(refs: tuple[PageRef, ...], pages: PageStore, named: NamedObjects) -> None:
    """Adds the pages of an older version; each is read once, as versions share most pages."""
    unvisited = list(refs)
    while unvisited:
        ref = unvisited.pop()
        key = pages.key(ref)
        if key in named.pages or key in named.older_pages:
            continue
        named.older_pages.add(key)
        try:
            page = pages.read(ref)
        except ObjectNotFound:
            continue  # It was removed with its version meanwhile.
        named.older_segments |= {segment.id for segment in page.segments}
        unvisited += page.pages
