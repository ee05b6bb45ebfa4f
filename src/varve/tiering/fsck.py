"""Checks every object of a cluster in the remote tier, and sweeps orphans.

The report has every object in one class, with bytes and cost.

Invariant  read-only, unless it sweeps. A sweep removes orphans, and objects of deleted segments
           past their grace period; the newest manifest is loaded again before each removal. Without
           a readable manifest nothing of its partition is removed.
Crash      a sweep may stop anywhere: the next one continues.
Threads    any, beside writers of the same partitions and other sweeps.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Final

from varve.foundation.errors import Corrupt, ObjectNotFound
from varve.kernels.crc import crc32c_of
from varve.object_store import ObjectInfo, ObjectStore, PriceTable, default_prices
from varve.tiering.manifest.paths import (
    PartKey,
    RemotePath,
    find_part,
    find_remote_path,
    is_of_topic,
)
from varve.tiering.manifest.segment import (
    EPOCHS_PART,
    LOG_PART,
    SNAPSHOT_PART,
    RemoteSegment,
    SegmentState,
)
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.manifest.versions import NamedObjects, collect_named


class ObjectClass(StrEnum):
    """Why an object exists."""

    LIVE = "live"
    """The newest manifest, its readable segments, evidence, records of outputs, receipts."""
    PENDING = "pending"
    """Belongs to an announced copy, or to a commit that may be in progress."""
    RETAINED = "retained"
    """Referenced by retained older versions, or part of a segment whose deletion has started."""
    ORPHAN = "orphan"
    """Has a key of varve's layout, but no manifest refers to it: left by a crash."""
    FOREIGN = "foreign"
    """Has a key outside of varve's layout; never touched."""


@dataclass(frozen=True, slots=True)
class Account:
    """Objects and bytes by class."""

    objects: Counter[ObjectClass] = field(default_factory=Counter)
    bytes: Counter[ObjectClass] = field(default_factory=Counter)

    def add(self, kind: ObjectClass, size: int) -> None:
        self.objects[kind] += 1
        self.bytes[kind] += size

    def include(self, other: "Account") -> None:
        self.objects.update(other.objects)
        self.bytes.update(other.bytes)


@dataclass(frozen=True, slots=True)
class Listed:
    """An object that is reported individually, with the reason."""

    key: str
    size: int
    kind: ObjectClass
    reason: str


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is missing, or differs from its description in the newest manifest.

    For a wrong size, `found_size` is the actual size, None if the object is missing.
    """

    key: str
    message: str
    expected_size: int | None = None
    found_size: int | None = None


@dataclass(slots=True, kw_only=True)
class PartitionAccount:
    """One partition: its account, its damage, and the removed objects."""

    path: RemotePath
    manifest_version: int = 0
    account: Account = field(default_factory=Account)
    listed: list[Listed] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    swept: list[Listed] = field(default_factory=list)
    is_readable: bool = True
    """Whether the manifest could be read; without it no object counts as an orphan."""


@dataclass(slots=True, kw_only=True)
class FsckReport:
    """The report of a cluster; `verified_bytes` were read and matched their checksums."""

    store: str
    cluster: str
    prices: PriceTable
    partitions: list[PartitionAccount] = field(default_factory=list)
    foreign: list[ObjectInfo] = field(default_factory=list)
    of_topics: Account = field(default_factory=Account)
    """Objects of topics outside of their partitions."""
    verified_bytes: int = 0

    @property
    def total(self) -> Account:
        total = Account()
        for partition in self.partitions:
            total.include(partition.account)
        total.include(self.of_topics)
        for entry in self.foreign:
            total.add(ObjectClass.FOREIGN, entry.size)
        return total

    @property
    def damage(self) -> list[Damage]:
        return [damage for partition in self.partitions for damage in partition.damage]

    @property
    def swept(self) -> list[Listed]:
        return [listed for partition in self.partitions for listed in partition.swept]

    @property
    def orphans(self) -> list[Listed]:
        """The orphans that were not swept."""
        swept_keys = {listed.key for listed in self.swept}
        return [
            listed
            for partition in self.partitions
            for listed in partition.listed
            if listed.kind is ObjectClass.ORPHAN and listed.key not in swept_keys
        ]

    @property
    def is_clean(self) -> bool:
        return not (self.damage or self.orphans or self.total.objects[ObjectClass.FOREIGN])

    def cost_per_month(self, kind: ObjectClass) -> float:
        return self.prices.stored_cost_per_month(self.total.bytes[kind])


CHUNK_BYTES: Final = 8 << 20
SETTLE_MS: Final = 3_600_000
"""How long an unreferenced page or part may belong to a commit in progress."""

Progress = Callable[[RemotePath, int, int], None]
"""Called with a partition, its bytes done so far, and all its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions:
    """`deep` reads all live objects; a sweep retires versions older than `retention_ms`, if set."""

    deep: bool = False
    sweep: bool = False
    retention_ms: int | None = None
    settle_ms: int = SETTLE_MS


def fsck(
    objects: ObjectStore,
    cluster: str,
    *,
    now_ms: int,
    options: FsckOptions,
    random: random.Random,
    wait: Callable[[float], object],
    prices: PriceTable | None = None,
    progress: Progress = lambda path, done_bytes, total_bytes: None,
) -> FsckReport:
    """Checks all objects of a cluster; `wait` sleeps for milliseconds."""
    report = FsckReport(
        store=objects.name, cluster=cluster, prices=prices or default_prices(objects.name)
    )
    for path, entries in groupby(
        objects.list(f"{cluster}/"), lambda entry: find_remote_path(entry.key)
    ):
        if path is None:
            _add_outside(report, entries)
            continue
        manifests = ObjectManifestStore(objects, path, random=random, wait=wait)
        check = _PartitionCheck(manifests, now_ms=now_ms, options=options)
        progress(path, 0, 0)
        check.run(list(entries))
        if options.deep:
            report.verified_bytes += check.verify(progress)
        if options.sweep:
            check.sweep()
        report.partitions.append(check.result)
    return report


def fsck_partition(
    manifests: ObjectManifestStore,
    *,
    now_ms: int,
    deep: bool,
    progress: Progress = lambda path, done_bytes, total_bytes: None,
) -> PartitionAccount:
    """Checks the objects of one partition; changes nothing."""
    check = _PartitionCheck(manifests, now_ms=now_ms, options=FsckOptions(deep=deep))
    check.run(list(manifests.objects.list(manifests.path.prefix)))
    if deep:
        check.verify(progress)
    return check.result


def _add_outside(report: FsckReport, entries: Iterable[ObjectInfo]) -> None:
    for entry in entries:
        if is_of_topic(entry.key):
            report.of_topics.add(ObjectClass.LIVE, entry.size)
        else:
            report.foreign.append(entry)


class _PartitionCheck:
    """The account of one partition."""

    def __init__(
        self, manifests: ObjectManifestStore, *, now_ms: int, options: FsckOptions
    ) -> None:
        self._objects = manifests.objects
        self._path = manifests.path
        self._manifests = manifests
        self._now_ms = now_ms
        self._options = options
        self._named: NamedObjects | None = None
        self._overdue: list[Listed] = []
        self.result = PartitionAccount(path=self._path)

    def run(self, entries: list[ObjectInfo]) -> None:
        """Classifies listed objects by manifests that are loaded after the listing."""
        self._named = self._read_named()
        self._check_lost_versions(entries)
        for entry in entries:
            kind, reason = self._classify(entry)
            if kind is ObjectClass.ORPHAN and not self._exists(entry.key):
                continue  # Deleted since the listing.
            self.result.account.add(kind, entry.size)
            listed = Listed(entry.key, entry.size, kind, reason)
            if kind in (ObjectClass.ORPHAN, ObjectClass.FOREIGN):
                self.result.listed.append(listed)
            elif reason == _OVERDUE:
                self._overdue.append(listed)
        if self._named is not None:
            sizes = {entry.key: entry.size for entry in entries}
            for segment in self._named.segments.values():
                if segment.is_readable:
                    self._check_parts(segment, sizes)

    def _read_named(self) -> NamedObjects | None:
        try:
            # Read the hint before the listing that finds the newest version.
            hinted = self._manifests.find_hinted()
            newest = self._manifests.load()
            if newest.version == 0:
                raise Corrupt(
                    f"{self._objects.name}: {self._path.manifest_folder} holds no version, so it "
                    "is unknown which of the partition's objects are needed: put the newest "
                    "version back, or remove the objects if the topic was deleted"
                )
            if hinted > newest.version:
                raise Corrupt(
                    f"{self._objects.name}: {self._path.hint_key} says that version {hinted} "
                    f"existed, and {newest.version} is the newest: the objects of lost versions "
                    "are unknown, and nothing is swept. Put the versions back, or remove the hint "
                    "if it is wrong"
                )
            self.result.manifest_version = newest.version
            return collect_named(self._objects, self._path, newest)
        except (Corrupt, ObjectNotFound) as error:
            self.result.is_readable = False
            self.result.damage.append(Damage(self._path.manifest_folder, str(error)))
            return None

    def _check_lost_versions(self, entries: list[ObjectInfo]) -> None:
        """Reports lost versions when complete segments after the end have no reference.

        A copy is announced before its objects are written, and the leftovers of an abandoned copy
        are never complete.
        """
        named = self._named
        if named is None:
            return
        referenced = named.segments.keys() | named.older_segments
        beyond: dict[tuple[int, str], dict[str, str]] = {}
        for entry in entries:
            part = find_part(self._path, entry.key)
            is_beyond = part is not None and part.base_offset > named.newest.highest_offset
            if part is not None and is_beyond and part.id not in referenced:
                beyond.setdefault((part.base_offset, part.id), {})[part.part] = entry.key
        complete_offsets = [
            base_offset
            for (base_offset, id), keys in beyond.items()
            if keys.keys() >= _REQUIRED_PARTS
            # Check again: it may have been announced or removed since the listing.
            and self._manifests.find_listed(base_offset=base_offset, id=id) is None
            and self._exists(keys[LOG_PART])
        ]
        if not complete_offsets:
            return
        self._named = None
        self.result.is_readable = False
        self.result.damage.append(
            Damage(
                self._path.manifest_folder,
                f"version {named.newest.version} is the newest and ends at offset "
                f"{named.newest.highest_offset}, but whole segments from offset "
                f"{min(complete_offsets)} on are there that no version names: newer versions were "
                "lost, and nothing is swept. Put them back, or remove the segments if they are "
                "of no use",
            )
        )

    def _exists(self, key: str) -> bool:
        try:
            self._objects.head(key)
        except ObjectNotFound:
            return False
        return True

    def _classify(self, entry: ObjectInfo) -> tuple[ObjectClass, str]:
        path, named, key = self._path, self._named, entry.key
        if key == path.removal_probe_key:
            return self._classify_unreferenced(entry, _PROBE)
        version, part = path.find_version(key), find_part(path, key)
        is_page = path.find_page_id(key) is not None
        is_evidence = key.startswith(f"{path.prefix}evidence/") and key.endswith(".json")
        is_single = key in (path.hint_key, path.lease_key)
        is_work = key.startswith(path.work_folder)
        if not (version or part or is_evidence or is_page or is_single or is_work):
            return ObjectClass.FOREIGN, "not a name that varve uses"
        if named is None:
            return ObjectClass.RETAINED, "its manifest cannot be read"
        if is_work:
            return ObjectClass.PENDING, "of a job in progress; the next compaction removes it"
        if is_evidence or is_single or key in named.pages:
            return ObjectClass.LIVE, ""
        if part is not None:
            return self._classify_part(entry, part, named)
        if version is None and key not in named.older_pages:
            return self._classify_unreferenced(entry, "a page that no version names")
        if version is None:
            return ObjectClass.RETAINED, "named by an older version"
        if version >= named.newest.version:
            return ObjectClass.LIVE, ""
        if version in named.leftovers:
            return ObjectClass.ORPHAN, "a version below a hole in the chain"
        return ObjectClass.RETAINED, "an older version"

    def _classify_part(
        self, entry: ObjectInfo, part: PartKey, named: NamedObjects
    ) -> tuple[ObjectClass, str]:
        segment = named.segments.get(part.id)
        if segment is None:
            if part.id in named.older_segments:
                return ObjectClass.RETAINED, "named by an older version"
            return ObjectClass.ORPHAN, "of a segment that no version names"
        if segment.base_offset != part.base_offset:
            return ObjectClass.ORPHAN, f"the segment of this id begins at {segment.base_offset}"
        if segment.state is SegmentState.COPY_STARTED:
            return ObjectClass.PENDING, "of an announced copy"
        if segment.state is SegmentState.DELETE_STARTED:
            return ObjectClass.RETAINED, _OVERDUE if self._is_overdue(segment) else "goes"
        if segment.find_part(part.part) is None:
            return self._classify_unreferenced(entry, "a part that its segment does not list")
        return ObjectClass.LIVE, ""

    def _classify_unreferenced(self, entry: ObjectInfo, reason: str) -> tuple[ObjectClass, str]:
        if entry.modified_ms > self._now_ms - self._options.settle_ms:
            return ObjectClass.PENDING, "may belong to a commit in progress"
        return ObjectClass.ORPHAN, reason

    def _is_overdue(self, segment: RemoteSegment) -> bool:
        until_ms = segment.replaced_until_ms
        return (segment.at_ms if until_ms is None else until_ms) <= self._now_ms

    def _check_parts(self, segment: RemoteSegment, sizes: dict[str, int]) -> None:
        for part in segment.parts:
            key = self._path.part_key(segment, part.name)
            if sizes.get(key) == part.size:
                continue
            # Check again: the listing may be older than the copy, or the segment deleted by now.
            size: int | None = None
            with suppress(ObjectNotFound):
                size = self._objects.head(key).size
            if size != part.size and self._is_still_live(segment):
                fault = "is missing" if size is None else f"has {size} bytes"
                message = f"{fault}, the manifest says {part.size}: {_RESTORE}"
                self.result.damage.append(Damage(key, message, part.size, size))

    def _is_still_live(self, segment: RemoteSegment) -> bool:
        listed = self._manifests.find_listed(base_offset=segment.base_offset, id=segment.id)
        return listed is not None and listed.is_readable

    # Reading everything again

    def verify(self, progress: Progress) -> int:
        """Reads all live parts and compares their checksums; returns the bytes that matched."""
        if self._named is None:
            return 0
        damaged = {damage.key for damage in self.result.damage}
        verified = done = 0
        readable = [segment for segment in self._named.segments.values() if segment.is_readable]
        total = sum(segment.stored_bytes for segment in readable)

        def advance(size: int) -> None:
            nonlocal done
            done += size
            progress(self._path, done, total)

        for segment in readable:
            for part in segment.parts:
                key = self._path.part_key(segment, part.name)
                if key in damaged:
                    continue
                crc = self._checksum(key, part.size, advance)
                if crc == part.crc32c:
                    verified += part.size
                elif self._is_still_live(segment):
                    actual = "none" if crc is None else f"{crc:08x}"
                    message = f"CRC-32C {actual}, the manifest says {part.crc32c:08x}: {_RESTORE}"
                    self.result.damage.append(Damage(key, message))
        return verified

    def _checksum(self, key: str, size: int, advance: Callable[[int], None]) -> int | None:
        crc = 0
        try:
            for start in range(0, size, CHUNK_BYTES):
                chunk = self._objects.get_range(key, start, min(start + CHUNK_BYTES, size))
                crc = crc32c_of(chunk, crc)
                advance(len(chunk))
        except ObjectNotFound:
            return None
        return crc

    # Sweeping

    def sweep(self) -> None:
        """Removes orphans and overdue objects, and versions past their retention, if one is set."""
        if self._named is None:
            return
        orphans = [listed for listed in self.result.listed if listed.kind is ObjectClass.ORPHAN]
        for listed in [*orphans, *self._overdue]:
            part = find_part(self._path, listed.key)
            if listed.reason == _PROBE or (part is not None and self._may_delete(part)):
                self._objects.delete([listed.key])
                self.result.swept.append(listed)
        if any(self._path.find_page_id(listed.key) is not None for listed in orphans):
            # The manifest store first fences commits that might use the pages.
            for entry in self._manifests.sweep_orphan_pages(writer="fsck", now_ms=self._now_ms):
                reason = "a page that no version names"
                self.result.swept.append(Listed(entry.key, entry.size, ObjectClass.ORPHAN, reason))
        versions = [listed for listed in orphans if self._path.find_version(listed.key) is not None]
        if versions or self._options.retention_ms is not None:
            self._retire(versions)

    def _may_delete(self, part: PartKey) -> bool:
        listed = self._manifests.find_listed(base_offset=part.base_offset, id=part.id)
        # An unlisted part of a live segment may be about to be listed.
        is_deleting = listed is not None and listed.state is SegmentState.DELETE_STARTED
        return listed is None or (is_deleting and self._is_overdue(listed))

    def _retire(self, leftovers: list[Listed]) -> None:
        retention_ms = self._options.retention_ms
        before = self._list_retirable()
        self._manifests.retire_versions(
            now_ms=self._now_ms, retention_ms=_FOREVER_MS if retention_ms is None else retention_ms
        )
        after = {entry.key for entry in self._list_retirable()}
        leftover_by_key = {listed.key: listed for listed in leftovers}
        for entry in before:
            if entry.key not in after:
                reason = "past its retention"
                listed = Listed(entry.key, entry.size, ObjectClass.RETAINED, reason)
                self.result.swept.append(leftover_by_key.get(entry.key, listed))

    def _list_retirable(self) -> list[ObjectInfo]:
        folders = (self._path.manifest_folder, self._path.page_folder)
        return [entry for folder in folders for entry in self._objects.list(folder)]


_OVERDUE: Final = "its deletion is overdue"
_RESTORE: Final = "restore it from a mirror or a copy"
_PROBE: Final = "left by the removal of a partition that was interrupted"
_REQUIRED_PARTS: Final = {LOG_PART, "index", "timeindex", SNAPSHOT_PART, EPOCHS_PART}
"""Parts that every segment has."""
_FOREVER_MS: Final = 1 << 62
