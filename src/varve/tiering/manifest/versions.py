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
Threads    any; the lock is not held during I/O.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.manifest.codec import decode_manifest, encode_manifest
from varve.tiering.manifest.manifest import Manifest, PageRef
from varve.tiering.manifest.pages import PageCache, PageStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART, RemoteSegment

logger = logging.getLogger(__name__)

HINT_INTERVAL: Final = 16
"""Versions between two updates of the hint; bounds the length of listings from it."""
RUN_VERSIONS_MAX: Final = 1_000
"""Versions that one expiry reads at most; each is one request."""
_LOAD_ATTEMPTS_MAX: Final = 8


class ManifestVersions:
    """Reads, lists, creates and expires the versions of one partition; caches the newest."""

    def __init__(self, objects: ObjectStore, path: RemotePath) -> None:
        self.path = path
        self._objects = objects
        self._lock = threading.Lock()
        self._newest: Manifest | None = None  # guarded by _lock

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

    def has_objects_of(self, manifest: Manifest) -> bool:
        """Whether anything is there of what a manifest refers to, or nothing to look for."""
        path = self.path
        keys = [path.page_key(first_offset=ref.first_offset, id=ref.id) for ref in manifest.pages]
        keys += [path.part_key(one, LOG_PART) for one in manifest.segments if one.is_readable]
        return not keys or any(map(self._has_object, keys))

    def _has_object(self, key: str) -> bool:
        try:
            self._objects.head(key)
        except ObjectNotFound:
            return False
        return True

    def find_newest(self) -> Manifest | None:
        """The newest version seen so far, without a request."""
        with self._lock:
            return self._newest

    def record_newest(self, manifest: Manifest) -> None:
        with self._lock:
            if self._newest is None or manifest.version > self._newest.version:
                self._newest = manifest

    def load_newest(self) -> Manifest:
        """The newest version; an empty manifest of version 0 when there is none."""
        for _ in range(_LOAD_ATTEMPTS_MAX):
            known = self.find_newest()
            version = self._list_newest(None if known is None else known.version)
            if known is not None and version <= known.version:
                # Another thread may have seen a version that is newer than this listing.
                if version < known.version and self.find(known.version) is None:
                    raise Corrupt(
                        f"{self.path}: manifest version {known.version} was there and now "
                        f"{version} is the newest: another program removed it; restore the object"
                    )
                return known
            if version == 0:
                return Manifest(path=self.path)
            manifest = self.find(version)
            if manifest is not None:
                self.record_newest(manifest)
                return manifest
        raise Unavailable(
            f"{self.path}: {_LOAD_ATTEMPTS_MAX} times the newest manifest version was "
            "removed before it could be read: give versions a longer retention, then try again"
        )

    def _list_newest(self, known_version: int | None) -> int:
        """The newest version, 0 without one; `known_version` is one that existed earlier.

        Raises Unavailable when a list without any version is contradicted by one that can be read:
        a partition would otherwise be taken for one that was never copied.
        """
        start = self.read_hint() if known_version is None else known_version
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
            digits = self._objects.get(self.path.hint_key).strip()
        except ObjectNotFound:
            return 0
        return int(digits) if digits.isdigit() and len(digits) < 20 else 0

    def expire(self, *, now_ms: int, retention_ms: int) -> None:
        """Removes versions that were superseded at least `retention_ms` ago.

        A version goes with the objects that its successor retired, and not before any of those.
        """
        chain, leftovers = self.list_retained()
        removable: list[int] = []
        keys: list[str] = []
        for version, next_version in pairwise(chain[: RUN_VERSIONS_MAX + 1]):
            following = self.find(next_version)
            if following is None or following.at_ms > now_ms - retention_ms:
                break
            if any(entry.removable_ms > now_ms for entry in following.retired):
                break
            removable.append(version)
            keys += [f"{self.path.prefix}{entry.key}" for entry in following.retired]
        if keys:
            self._objects.delete(keys)
        if removable or leftovers:
            self.remove([*leftovers, *removable])


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
    for ref, page in pages.walk(newest.pages):
        named.pages.add(pages.key(ref))
        for segment in page.segments:
            named.segments.setdefault(segment.id, segment)
    chain, leftovers = versions.list_retained()
    named.leftovers = set(leftovers)
    for number in chain:
        manifest = versions.find(number) if number < newest.version else None
        if manifest is not None:
            named.older_segments |= {segment.id for segment in manifest.segments}
            _collect_older(manifest.pages, pages, named)
    named.older_segments -= named.segments.keys()
    # The newest version retired objects of its predecessor, which may have been removed by now.
    retired = {f"{path.prefix}{entry.key}" for entry in newest.retired}
    named.older_pages |= {key for key in retired if key.startswith(path.page_folder)}
    named.older_pages -= named.pages
    return named


def _collect_older(refs: Sequence[PageRef], pages: PageStore, named: NamedObjects) -> None:
    """Adds the pages of an older version; each is read once, as versions share most pages."""
    for ref in refs:
        key = pages.key(ref)
        if key in named.pages or key in named.older_pages:
            continue
        named.older_pages.add(key)
        # A missing page was removed with its version meanwhile.
        with suppress(ObjectNotFound):
            page = pages.read(ref)
            named.older_segments |= {segment.id for segment in page.segments}
            _collect_older(page.pages, pages, named)
