"""Verifies the manifests of one partition against its objects; a task of a verification.

Invariant  reads only. Objects are listed before the manifests are read, as fsck does, so that
           segments that a running store copies or removes are not reported as damage.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, ObjectNotFound
from varve.foundation.settings import LONG_MAX
from varve.foundation.units import format_time
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import RemoteInput, open_files
from varve.jobs.verify.result import VerifyFinding
from varve.object_store import ObjectStore
from varve.tiering.evidence import read_remote_removals
from varve.tiering.fsck import Damage, Listed, ObjectClass, fsck_partition
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    ANNOUNCEMENT_TIMEOUT_MS,
    TXN_INDEX_PART,
    RemoteSegment,
    SegmentState,
)
from varve.tiering.manifest.store import ObjectManifestStore

UNNAMED_MAX: Final = 1000
"""Findings about objects of one partition that no manifest names, for each rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """The newest manifest of a partition, compared with its objects.

    `damaged` are the keys of objects that are missing or have another size. From `trusted_end` on
    the aborted transactions are unknown: some of their markers are not in the tier, or cannot be
    read.
    """

    partition: RemotePath
    manifest_version: int
    log_start_offset: int = 0
    cleaned_up_to: int = 0
    readable: tuple[RemoteSegment, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    trusted_end: int = LONG_MAX
    damaged: frozenset[str] = frozenset()
    findings: tuple[VerifyFinding, ...] = ()
    objects: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ManifestTask:
    """Verifies the manifests of one partition."""

    bucket: BucketAccess
    partition: RemotePath
    now_ms: int

    def run(self, shared: None) -> PartitionView:
        objects, manifests = self.bucket.objects(), self.bucket.manifests(self.partition)
        assert isinstance(manifests, ObjectManifestStore), "jobs read manifests in object stores"
        account = fsck_partition(manifests, now_ms=self.now_ms, deep=False)
        if not account.account.objects:
            return PartitionView(partition=self.partition, manifest_version=0)
        findings = [
            *map(_find_damage, account.damage),
            *_list_unnamed(account.listed, self.partition),
        ]
        view = PartitionView(
            partition=self.partition,
            manifest_version=account.manifest_version,
            damaged=frozenset(damage.key for damage in account.damage),
            findings=tuple(findings),
            objects={str(kind): account.account.objects[kind] for kind in ObjectClass},
            bytes={str(kind): account.account.bytes[kind] for kind in ObjectClass},
        )
        return self._check_manifest(view, objects, manifests) if account.is_readable else view

    def _check_manifest(
        self, view: PartitionView, objects: ObjectStore, manifests: ObjectManifestStore
    ) -> PartitionView:
        manifest = manifests.load()
        segments = tuple(manifests.segments(manifest))
        readable = tuple(segment for segment in segments if segment.is_readable)
        chain = check_chain(self.partition, manifest, readable)
        aborted, is_complete = self._read_aborted(readable, view.damaged)
        findings = [
            *view.findings,
            *chain.findings,
            *self._check_others(segments, objects),
            *_check_evidence(objects, manifests),
        ]
        return replace(
            view,
            log_start_offset=manifest.log_start_offset,
            cleaned_up_to=manifest.cleaned_up_to,
            readable=readable,
            aborted=aborted,
            trusted_end=chain.decided_end if is_complete else 0,
            findings=tuple(findings),
        )

    def _read_aborted(
        self, readable: Sequence[RemoteSegment], damaged: frozenset[str]
    ) -> tuple[tuple[AbortedTransaction, ...], bool]:
        """Reads all transaction indexes; returns whether all of them are readable."""
        aborted: list[AbortedTransaction] = []
        is_complete = True
        with open_files(self.bucket.objects, self.partition, readable) as files:
            for segment in readable:
                if segment.find_part(TXN_INDEX_PART) is None:
                    continue
                try:
                    if self.partition.part_key(segment, TXN_INDEX_PART) in damaged:
                        is_complete = False
                        continue
                    remote = RemoteInput(self.partition, segment, files)
                    aborted += remote.read_txn_index().entries()
                except (Corrupt, ObjectNotFound):
                    is_complete = False
        return tuple(aborted), is_complete

    def _check_others(
        self, segments: Iterable[RemoteSegment], objects: ObjectStore
    ) -> Iterable[VerifyFinding]:
        for segment in segments:
            if (
                segment.state is SegmentState.COPY_STARTED
                and segment.at_ms < self.now_ms - ANNOUNCEMENT_TIMEOUT_MS
            ):
                yield VerifyFinding.of(
                    "abandoned",
                    self.partition.part_key(segment, ""),
                    f"announced at {format_time(segment.at_ms)} and not completed since",
                    base_offset=segment.base_offset,
                )
            if segment.state is SegmentState.DELETE_STARTED:
                yield from self._check_replaced(segment, objects)

    def _check_replaced(
        self, segment: RemoteSegment, objects: ObjectStore
    ) -> Iterable[VerifyFinding]:
        until_ms = segment.replaced_until_ms
        if until_ms is None or until_ms <= self.now_ms:
            return
        for part in segment.parts:
            key = self.partition.part_key(segment, part.name)
            try:
                objects.head(key)
            except ObjectNotFound:
                yield VerifyFinding.of(
                    "retained-missing",
                    key,
                    f"readers of older manifests may need it until {format_time(until_ms)}",
                    base_offset=segment.base_offset,
                    expected=f"{part.size} bytes",
                    found="nothing",
                )


@dataclass(frozen=True, slots=True)
class Chain:
    """The result of `check_chain`; all transactions that begin below `decided_end` are decided."""

    findings: tuple[VerifyFinding, ...]
    decided_end: int


def check_chain(
    partition: RemotePath, manifest: Manifest, readable: Sequence[RemoteSegment]
) -> Chain:
    """Finds gaps and overlaps of segments from the log start on; a diverged lineage is a note."""
    findings: list[VerifyFinding] = []

    def find(rule: str, segment: RemoteSegment, message: str, **details: Any) -> None:
        where = partition.part_key(segment, "")
        base = segment.base_offset
        findings.append(VerifyFinding.of(rule, where, message, base_offset=base, **details))

    last: RemoteSegment | None = None
    for segment in readable:
        base = segment.base_offset
        if segment.end_offset < manifest.log_start_offset:
            continue
        start = manifest.log_start_offset if last is None else last.end_offset + 1
        if last is not None and segment.epochs[0][0] < last.epochs[-1][0]:
            find(
                "chain-left",
                segment,
                f"the log has truncated the history from offset {base} on",
                offset=base,
                expected=f"leader epoch {last.epochs[-1][0]} or later",
                found=f"leader epoch {segment.epochs[0][0]}",
            )
            break
        if base > start:
            find(
                "chain-hole",
                segment,
                f"offsets {start} to {base - 1} are in no readable segment",
                offset=start,
                expected=f"a segment from offset {start} on",
                found=f"the next begins at {base}",
            )
        elif last is not None and base < start:
            find(
                "chain-overlap",
                segment,
                f"offsets {base} to {start - 1} are in the previous segment, too",
                offset=base,
                expected=f"a segment from offset {start} on",
                found=f"one from {base} on",
            )
        last = segment
    undecided_from = None if last is None else last.undecided_from
    return Chain(tuple(findings), LONG_MAX if undecided_from is None else undecided_from)


def _find_damage(damage: Damage) -> VerifyFinding:
    if damage.expected_size is None:
        return VerifyFinding.of("manifest-unreadable", damage.key, damage.message)
    is_missing = damage.found_size is None
    return VerifyFinding.of(
        "object-missing" if is_missing else "object-size",
        damage.key,
        "the object is missing" if is_missing else "the object has another size",
        base_offset=_base_of(damage.key),
        expected=f"{damage.expected_size} bytes",
        found="nothing" if is_missing else f"{damage.found_size} bytes",
    )


def _base_of(key: str) -> int | None:
    """Parses the base offset from the key of a segment's object; None for other keys."""
    digits = key.rpartition("/")[0].rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdigit() else None


def _list_unnamed(unnamed: Iterable[Listed], partition: RemotePath) -> Iterator[VerifyFinding]:
    """Yields the first UNNAMED_MAX findings of each rule, and one that counts the others."""
    counts: Counter[str] = Counter()
    for listed in unnamed:
        rule = "orphan" if listed.kind is ObjectClass.ORPHAN else "foreign"
        counts[rule] += 1
        if counts[rule] <= UNNAMED_MAX:
            yield VerifyFinding.of(rule, listed.key, f"{listed.reason}, {listed.size} bytes")
    for rule, count in counts.items():
        if count > UNNAMED_MAX:
            message = f"{count - UNNAMED_MAX} more such objects: `varve tier fsck` lists all"
            yield VerifyFinding.of(rule, partition.prefix, message)


def _check_evidence(
    objects: ObjectStore, manifests: ObjectManifestStore
) -> Iterable[VerifyFinding]:
    try:
        read_remote_removals(objects, manifests)
    except Corrupt as error:
        key, _, message = str(error).partition(": ")
        yield VerifyFinding.of("evidence-corrupt", key, message)
