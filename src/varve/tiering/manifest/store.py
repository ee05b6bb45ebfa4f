"""The manifest store of a partition: load, commit, read old versions, find segments.

A commit applies a change to the newest manifest and creates the next version if it is absent. A
writer that loses the race loads the new version and applies its change to that, so no update is
lost. A writer with a lower leader epoch is fenced.

Threads    any; a store may be shared, and a manifest is an immutable value.
"""

import heapq
import logging
import random
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound, StoreUnavailable
from varve.foundation.units import format_time
from varve.object_store import ObjectInfo, ObjectStore
from varve.tiering.manifest.commit import (
    DEFAULT_RETRY,
    Commit,
    Committer,
    ManifestEdit,
    RetryLimits,
)
from varve.tiering.manifest.manifest import Manifest, PageRef
from varve.tiering.manifest.pages import (
    DEFAULT_LAYOUT,
    ManifestLayout,
    PageCache,
    PageStore,
    inline_range,
    new_id,
)
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.versions import ManifestVersions, collect_named

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000


class ManifestStore(ABC):
    """The manifests of one partition, in any backend; segments and pages are in `objects`."""

    def __init__(
        self, objects: ObjectStore, path: RemotePath, *, cache: PageCache | None = None
    ) -> None:
        self.path = path
        self.objects = objects
        self._pages = PageStore(objects, path, cache or PageCache())

    @abstractmethod
    def load(self) -> Manifest:
        """The newest version; an empty manifest before the first commit."""

    @abstractmethod
    def find_known(self) -> Manifest | None:
        """The newest that was loaded or committed through this store, without a request."""

    @abstractmethod
    def commit(
        self, change: ManifestEdit, *, leader_epoch: int | None, writer: str, now_ms: int
    ) -> Manifest:
        """Commits the result of `change` on the newest manifest as the next version; returns it.

        The change may be applied several times, each time to a newer manifest. When it changes
        nothing, nothing is written. None for a leader epoch keeps the stored one.
        Raises Fenced for a leader epoch below the stored one, InvalidRequest for a change that
        breaks a rule, and Unavailable when the store fails or all attempts lose the race.
        """

    @abstractmethod
    def retire_versions(self, *, now_ms: int, retention_ms: int) -> None:
        """Removes versions past their retention, and the pages that only they refer to."""

    def segments(self, manifest: Manifest, *, from_offset: int = 0) -> Iterator[RemoteSegment]:
        """All segments, in any state, that end at or after an offset, in order; pages lazily."""
        paged = self._walk(manifest.pages, lambda ref: ref.end_offset >= from_offset)
        merged = heapq.merge(paged, manifest.segments, key=lambda segment: segment.sort_key)
        return (segment for segment in merged if segment.end_offset >= from_offset)

    def readable(self, manifest: Manifest, *, from_offset: int = 0) -> Iterator[RemoteSegment]:
        """The readable segments that end at or after an offset, in order; pages lazily."""
        segments = self.segments(manifest, from_offset=from_offset)
        return (segment for segment in segments if segment.is_readable)

    def pending(self, manifest: Manifest) -> Iterator[RemoteSegment]:
        """The unreadable segments: announced ones and those being deleted."""
        paged = self._walk(manifest.pages, lambda ref: ref.readable_count < ref.segment_count)
        merged = heapq.merge(paged, manifest.segments, key=lambda segment: segment.sort_key)
        return (segment for segment in merged if not segment.is_readable)

    def find(self, manifest: Manifest, offset: int) -> RemoteSegment | None:
        """The readable segment that holds an offset."""
        end = bisect_right(manifest.segments, offset, key=lambda segment: segment.base_offset)
        # Readable segments do not overlap, so only the last one that begins up to it can hold it.
        for index in range(end - 1, -1, -1):
            segment = manifest.segments[index]
            if segment.is_readable:
                if offset <= segment.end_offset:
                    return segment
                break
        for segment in self._walk(manifest.pages, lambda ref: ref.reads(offset)):
            if segment.is_readable and segment.base_offset <= offset <= segment.end_offset:
                return segment
        return None

    def find_listed(self, *, base_offset: int, id: str) -> RemoteSegment | None:
        """A segment as the newest manifest lists it now; None when it does not."""
        for segment in self.segments(self.load(), from_offset=base_offset):
            if segment.base_offset > base_offset:
                return None
            if segment.id == id:
                return segment
        return None

    def find_by_time(self, manifest: Manifest, timestamp: int) -> RemoteSegment | None:
        """The first readable segment from the log start on with a record of this time or later."""
        start = manifest.log_start_offset
        paged = self._walk(
            manifest.pages,
            lambda ref: ref.max_timestamp >= timestamp and ref.readable_end >= start,
        )
        for segment in heapq.merge(paged, manifest.segments, key=lambda segment: segment.sort_key):
            is_late = segment.max_timestamp >= timestamp and segment.end_offset >= start
            if is_late and segment.is_readable:
                return segment
        return None

    def unfold(self, manifest: Manifest, *, start_offset: int, end_offset: int) -> Manifest:
        """The manifest with the segments that touch [start, end) outside of its pages.

        Changes use it: a segment that was spilled into a page is not found otherwise.
        """
        return inline_range(manifest, self._pages, start=start_offset, end=end_offset)

    def _walk(
        self, refs: Iterable[PageRef], matches: Callable[[PageRef], bool]
    ) -> Iterator[RemoteSegment]:
        for _, page in self._pages.walk(refs, matches):
            yield from page.segments

    def remove(
        self,
        segments: Sequence[RemoteSegment],
        *,
        leader_epoch: int | None,
        writer: str,
        now_ms: int,
        only_unreadable: bool = True,
    ) -> list[RemoteSegment]:
        """Deletes the objects of segments, then takes the segments off the manifest.

        Returns the removed segments. Segments that are no longer listed are skipped, and with
        `only_unreadable` also those that became readable since: the version to which the deletion
        is committed decides. Objects are deleted after that commit, so the removal can be repeated
        after a crash at any point.
        """
        if not segments:
            return []
        start = min(segment.base_offset for segment in segments)
        end = max(segment.end_offset for segment in segments) + 1
        removable = {segment.id: segment for segment in segments}

        def start_delete(manifest: Manifest) -> Manifest:
            inlined = self.unfold(manifest, start_offset=start, end_offset=end)
            removable.clear()
            for segment in segments:
                listed = inlined.find_segment(segment.id)
                if listed is not None and not (only_unreadable and listed.is_readable):
                    removable[segment.id] = segment
            return inlined.start_delete(list(removable), at_ms=now_ms) if removable else manifest

        def forget(manifest: Manifest) -> Manifest:
            inlined = self.unfold(manifest, start_offset=start, end_offset=end)
            return inlined.forget(list(removable))

        def commit(change: ManifestEdit) -> None:
            self.commit(change, leader_epoch=leader_epoch, writer=writer, now_ms=now_ms)

        if any(segment.state is not SegmentState.DELETE_STARTED for segment in segments):
            commit(start_delete)
        if removable:
            self.objects.delete(
                [
                    self.path.part_key(segment, part.name)
                    for segment in removable.values()
                    for part in segment.parts
                ]
            )
            commit(forget)
        return list(removable.values())


class RecentManifest:
    """The manifest of one partition, at most `refresh_ms` old.

    Reads with an older manifest are safe, because the objects of a segment stay for a grace period
    after it was replaced or expired. One thread loads, others continue with the older manifest.
    """

    def __init__(self, manifests: ManifestStore, clock: Clock, *, refresh_ms: int) -> None:
        self._manifests = manifests
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._loading = threading.Lock()
        self._cached: tuple[Manifest, int] | None = None  # with the time it was loaded at

    def refresh(self) -> Manifest:
        """Loads the newest manifest."""
        with self._loading:
            return self._load_locked()

    def _load_locked(self) -> Manifest:
        now_ms = self._clock.now_ms()
        manifest = self._manifests.load()
        self._cached = (manifest, now_ms)
        return manifest

    def get(self) -> Manifest:
        """The cached manifest; loads it if it is too old and no other thread is loading.

        Commits of this process are visible immediately, because it evicts local segments after
        them.
        """
        cached = self._cached
        if cached is None:
            return self.refresh()
        manifest, loaded_ms = cached
        committed = self._manifests.find_known()
        if committed is not None and committed.version > manifest.version:
            manifest = committed
            self._cached = (committed, loaded_ms)
        now_ms = self._clock.now_ms()
        if now_ms - loaded_ms < self._refresh_ms or not self._loading.acquire(blocking=False):
            return manifest
        try:
            return self._load_locked()
        except StoreUnavailable as error:
            self._cached = (manifest, now_ms)
            logger.warning(
                "%(partition)s: newest manifest cannot be loaded, reads continue with an older "
                "one: %(error)s",
                {"partition": str(manifest.path), "error": str(error)},
            )
            return manifest
        finally:
            self._loading.release()


class ObjectManifestStore(ManifestStore):
    """The ManifestStore in an object store.

    `wait` sleeps for milliseconds. Ids come from `random`, so two writers must not share a seed.
    `grace_ms` is the minimum time a retired page stays.
    """

    def __init__(
        self,
        objects: ObjectStore,
        path: RemotePath,
        *,
        random: random.Random,
        wait: Callable[[float], object],
        layout: ManifestLayout = DEFAULT_LAYOUT,
        retry: RetryLimits = DEFAULT_RETRY,
        cache: PageCache | None = None,
        grace_ms: int = DAY_MS,
    ) -> None:
        super().__init__(objects, path, cache=cache)
        self._random = random
        self._versions = ManifestVersions(objects, path)
        self._committer = Committer(
            versions=self._versions,
            pages=self._pages,
            layout=layout,
            retry=retry,
            grace_ms=grace_ms,
            wait=wait,
            random=random,
        )

    def load(self) -> Manifest:
        return self._versions.load_newest()

    def find_known(self) -> Manifest | None:
        return self._versions.find_newest()

    def find_hinted(self) -> int:
        """The version in the hint; 0 without a hint."""
        return self._versions.read_hint()

    def commit(
        self, change: ManifestEdit, *, leader_epoch: int | None, writer: str, now_ms: int
    ) -> Manifest:
        return self._committer.run(
            Commit(
                id=new_id(self._random),
                change=change,
                leader_epoch=leader_epoch,
                writer=writer,
                now_ms=now_ms,
            )
        )

    def retire_versions(self, *, now_ms: int, retention_ms: int) -> None:
        self._versions.expire(now_ms=now_ms, retention_ms=retention_ms)

    def find_orphan_pages(self) -> list[ObjectInfo]:
        """Pages that no version in the chain refers to, including those of a commit in progress."""
        listed = list(self.objects.list(self.path.page_folder))
        return self._without_named(listed, self.load())

    def sweep_orphan_pages(self, *, writer: str, now_ms: int) -> list[ObjectInfo]:
        """Removes the pages of failed commits; returns them.

        A new version is committed first: a writer that wrote pages for that version number must
        start over, so a page that was listed before and has no reference now stays an orphan.
        """
        orphans = self.find_orphan_pages()
        if orphans:
            fence = Commit(
                id=new_id(self._random),
                change=lambda manifest: manifest,
                leader_epoch=None,
                writer=writer,
                now_ms=now_ms,
                is_forced=True,
            )
            orphans = self._without_named(orphans, self._committer.run(fence))
            self.objects.delete([entry.key for entry in orphans])
        return orphans

    def _without_named(self, pages: Sequence[ObjectInfo], newest: Manifest) -> list[ObjectInfo]:
        named = collect_named(self.objects, self.path, newest)
        return [
            entry
            for entry in pages
            if self.path.find_page_id(entry.key) is not None
            and entry.key not in named.pages
            and entry.key not in named.older_pages
        ]

    def at(self, *, version: int | None = None, time_ms: int | None = None) -> Manifest:
        """The version of this number, or the one that was the newest at this time.

        Raises NotFound for one that is not retained.
        """
        if version is not None and time_ms is None:
            return self._at_version(version)
        if time_ms is not None and version is None:
            return self._at_time(time_ms)
        raise InvalidRequest(f"{self.path}: give either a manifest version or a time")

    def _at_version(self, version: int) -> Manifest:
        chain, _ = self._versions.list_retained()
        manifest = self._versions.find(version) if version in chain else None
        if manifest is None:
            kept = f"{chain[0]} to {chain[-1]}" if chain else "none"
            raise NotFound(
                f"{self.path}: manifest version {version} is not retained; those there are: {kept}"
            )
        return manifest

    def _at_time(self, time_ms: int) -> Manifest:
        chain, _ = self._versions.list_retained()
        low, high = 0, len(chain)
        latest: Manifest | None = None
        while low < high:
            middle = (low + high) // 2
            manifest = self._versions.read(chain[middle])
            if manifest.at_ms <= time_ms:
                latest, low = manifest, middle + 1
            else:
                high = middle
        if latest is None and chain[:1] in ([], [1]):
            return Manifest(path=self.path)
        if latest is None:
            raise NotFound(
                f"{self.path}: what was the manifest at {format_time(time_ms)} is no longer "
                "retained; the "
                f"oldest version there is, {chain[0]}, is of a later time"
            )
        return latest


def open_manifests(objects: ObjectStore, path: RemotePath) -> ObjectManifestStore:
    """The manifests of a partition, for a command that reads them once."""
    pause = threading.Event()
    return ObjectManifestStore(
        objects, path, random=random.Random(), wait=lambda wait_ms: pause.wait(wait_ms / 1000)
    )
