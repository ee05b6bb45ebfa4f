"""Commits the next version of a manifest: apply the edit, spill into pages, create if absent.

A writer that loses the race loads the new version and applies its edit to that.

Invariant  a commit that returned is in the chain exactly once, under a unique id; a commit that
           raised anything but Unavailable is not in the chain.
Invariant  an edit keeps every segment whose deletion has not started, announces new segments first,
           removes pages only by inlining them, and leaves no overlap of readable segments.
           Otherwise it would lose the commit of another writer.
Crash      pages are written first, then the version, whose creation commits the edit atomically.
           Pages of a commit that failed are orphans (`ObjectManifestStore.sweep_orphan_pages`).
Threads    any; several commits at once contend like those of several processes.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from varve.foundation.errors import (
    Fenced,
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    Unavailable,
)
from varve.tiering.manifest.manifest import Manifest, PageRef, in_order
from varve.tiering.manifest.pages import (
    ManifestLayout,
    PageStore,
    PageWriter,
    inline_overlapping,
    spill,
)
from varve.tiering.manifest.segment import (
    RemoteSegment,
    SegmentState,
    check_segment,
    check_transition,
)
from varve.tiering.manifest.versions import ManifestVersions


def apply_edit(
    base: Manifest, edit: "ManifestEdit", pages: PageStore, *, leader_epoch: int | None, writer: str
) -> tuple[Manifest, bool]:
    """The edited manifest, and whether it differs from `base` in anything but its version.

    Raises Fenced for a leader epoch below the stored one, and InvalidRequest for an edit that
    cannot follow `base`, naming what is wrong.
    """
    if leader_epoch is not None and leader_epoch < base.leader_epoch:
        raise Fenced(
            f"{base.path}: {writer} commits in leader epoch {leader_epoch}, but {base.writer} "
            f"wrote manifest version {base.version} in {base.leader_epoch}: another leader has "
            "taken over"
        )
    start = replace(base, retired=())
    edited = inline_overlapping(edit(start), pages)
    if leader_epoch is not None:
        edited = replace(edited, leader_epoch=leader_epoch)
    is_new = check_edit(start, edited, pages)
    check_overlaps(edited)
    return edited, is_new or edited.leader_epoch != base.leader_epoch


def check_edit(base: Manifest, changed: Manifest, pages: PageStore) -> bool:
    """Whether `changed` differs from `base`; no page of it may cover an inline segment.

    Raises InvalidRequest when it cannot follow `base`, naming what is wrong.
    """
    if changed.path != base.path:
        raise InvalidRequest(
            f"{base.path}: a change must not turn the manifest into that of {changed.path}"
        )
    _check_not_lowered(base, "log start offset", base.log_start_offset, changed.log_start_offset)
    _check_not_lowered(base, "cleaned-up-to offset", base.cleaned_up_to, changed.cleaned_up_to)
    return _check_segments(base, in_order(_expand(base, changed, pages)), changed)


def _check_not_lowered(base: Manifest, what: str, before: int, after: int) -> None:
    if after < before:
        raise InvalidRequest(
            f"{base.path}: the {what} of manifest version {base.version} is {before} and cannot be "
            f"lowered to {after}"
        )


def _expand(base: Manifest, changed: Manifest, pages: PageStore) -> list[RemoteSegment]:
    """The segments of the base outside of pages that `changed` kept; checks the kept pages."""
    if not changed.retired and changed.pages == base.pages:
        return list(base.segments)
    retired = {f"{base.path.prefix}{entry.key}" for entry in changed.retired}
    segments = list(base.segments)
    kept: list[PageRef] = []
    unvisited = list(base.pages)
    while unvisited:
        ref = unvisited.pop()
        if pages.key(ref) not in retired:
            kept.append(ref)
            continue
        page = pages.read(ref)
        segments += page.segments
        unvisited += page.pages
    if len(changed.pages) != len(kept) or set(changed.pages) != set(kept):
        raise InvalidRequest(
            f"{base.path}: a change of manifest version {base.version} must leave the pages as "
            "they are: unfold the offsets whose segments are to change"
        )
    return segments


def _check_segments(base: Manifest, before: tuple[RemoteSegment, ...], changed: Manifest) -> bool:
    after = changed.segments
    remaining = {segment.id: segment for segment in after}
    if len(remaining) != len(after):
        raise InvalidRequest(f"{base.path}: a change lists a segment twice")
    for segment in before:
        successor = remaining.pop(segment.id, None)
        if successor is not segment:
            check_transition(segment, successor)
            if successor is not None:
                check_segment(successor)
    for segment in remaining.values():
        check_transition(None, segment)
        check_segment(segment)
    return (
        before != after
        or base.log_start_offset != changed.log_start_offset
        or base.cleaned_up_to != changed.cleaned_up_to
    )


def check_overlaps(manifest: Manifest) -> None:
    """Raises InvalidRequest when two readable segments hold the same offset.

    No page may cover an inline segment (see `inline_overlapping`).
    """
    if not manifest.pages and not _have_overlap(manifest.segments):
        return
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
    for (_, end, before), (first, _, after) in pairwise(sorted(spans)):
        if first <= end:
            raise InvalidRequest(
                f"{manifest.path}: {before} and {after} would both be readable at offset {first}: "
                "start the deletion of the one that is replaced in the same change"
            )


def _have_overlap(segments: tuple[RemoteSegment, ...]) -> bool:
    """Whether readable segments of an ordered list overlap; a fast path for long lists."""
    end = -1
    for segment in segments:
        if segment.state is SegmentState.COPY_FINISHED:
            if segment.base_offset <= end:
                return True
            end = segment.end_offset
    return False


logger = logging.getLogger(__name__)

ManifestEdit = Callable[[Manifest], Manifest]
"""Maps the newest manifest to the next one. May be called several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """The bounds of a commit: its attempts, and the waits between them, which double."""

    attempts: int = 20
    first_wait_ms: float = 10.0
    longest_wait_ms: float = 2_000.0


DEFAULT_RETRY: Final = RetryLimits()


@dataclass(slots=True, kw_only=True)
class Commit:
    """A commit in progress.

    A leader epoch of None keeps the stored one, for writers that are not leaders. `pending` is a
    version that was sent and may have been stored, and `base` the one before it.
    """

    id: str
    change: ManifestEdit
    leader_epoch: int | None
    writer: str
    now_ms: int
    is_forced: bool = False
    pending: tuple[Manifest, PageWriter] | None = None
    base: Manifest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Carries commits out; `wait` sleeps for a number of milliseconds."""

    versions: ManifestVersions
    pages: PageStore
    layout: ManifestLayout
    retry: RetryLimits
    grace_ms: int
    wait: Callable[[float], object]
    random: random.Random

    def run(self, commit: Commit) -> Manifest:
        """The version with the change, or the newest version when it changes nothing."""
        failure: Unavailable | None = None
        for attempt in range(self.retry.attempts):
            if attempt:
                self.wait(self._wait_ms(attempt))
            try:
                manifest = self._resolve_pending(commit) if commit.pending else None
                manifest = manifest or self._attempt(commit, is_first=attempt == 0)
            except Unavailable as error:
                failure = error
                continue
            if manifest is not None:
                return manifest
        raise self._exhausted(commit, failure) from failure

    def _wait_ms(self, attempt: int) -> float:
        longest = min(self.retry.longest_wait_ms, self.retry.first_wait_ms * 2 ** (attempt - 1))
        return self.random.uniform(0, longest)

    def _exhausted(self, commit: Commit, failure: Unavailable | None) -> Unavailable:
        cause = f"the last failure was: {failure}" if failure else "others were always first"
        outcome = (
            f"version {commit.pending[0].version} may still hold it, so load before you repeat it"
            if commit.pending
            else "nothing was changed"
        )
        return Unavailable(
            f"{self.versions.path}: commit {commit.id} of {commit.writer} was given up after "
            f"{self.retry.attempts} attempts; {cause}; {outcome}"
        )

    def _attempt(self, commit: Commit, *, is_first: bool) -> Manifest | None:
        """The version with the change; None when another writer was first."""
        base, changed = self._plan(commit, may_use_cached=is_first)
        if changed is None:
            return base
        writer = PageWriter(self.pages, self.random)
        try:
            folded = spill(changed, writer, self.layout)
        except Unavailable:
            self._discard(writer)
            raise
        except ObjectNotFound:
            self._discard(writer)
            if not is_first:
                raise
            return None  # a page of the cached manifest was removed after its retention
        commit.pending, commit.base = (self._sign(commit, base, folded), writer), base
        return self._create(commit)

    def _plan(self, commit: Commit, *, may_use_cached: bool) -> tuple[Manifest, Manifest | None]:
        """The base and the changed manifest, None when there is nothing to change.

        The cached manifest may be old: it is used only if the change applies, and the newest one
        decides whether there is nothing to change or the change is refused.
        """
        cached = self.versions.find_newest() if may_use_cached else None
        if cached is not None:
            try:
                changed = self._apply(commit, cached)
            except InvalidRequest:
                changed = None
            if changed is not None:
                return cached, changed
        base = self.versions.load_newest()
        return base, self._apply(commit, base)

    def _apply(self, commit: Commit, base: Manifest) -> Manifest | None:
        edited, is_new = apply_edit(
            base,
            commit.change,
            self.pages,
            leader_epoch=commit.leader_epoch,
            writer=commit.writer,
        )
        return edited if is_new or commit.is_forced else None

    def _sign(self, commit: Commit, base: Manifest, folded: Manifest) -> Manifest:
        at_ms = max(commit.now_ms, base.at_ms)
        removable_ms = at_ms + self.grace_ms
        return replace(
            folded,
            version=base.version + 1,
            commit_id=commit.id,
            previous_commit_id=base.commit_id,
            writer=commit.writer,
            at_ms=at_ms,
            retired=tuple(
                entry._replace(removable_ms=max(entry.removable_ms, removable_ms))
                for entry in folded.retired
            ),
        )

    def _create(self, commit: Commit) -> Manifest | None:
        assert commit.pending is not None
        manifest, writer = commit.pending
        try:
            self.versions.create(manifest)
        except ObjectExists:
            return self._resolve_pending(commit, was_refused=True)
        return self._verify_tail(commit, manifest, writer)

    def _resolve_pending(self, commit: Commit, *, was_refused: bool = False) -> Manifest | None:
        """Finds out whether a version that was sent is stored, lost, or taken by another writer.

        A version that was refused as existing and is missing raises Unavailable, for a retry.
        """
        assert commit.pending is not None
        manifest, writer = commit.pending
        stored = self.versions.find(manifest.version)
        if stored is not None and stored.commit_id == commit.id:
            return self._verify_tail(commit, stored, writer)
        if stored is not None:
            self._drop_pending(commit, writer)
            return None
        if self.versions.list_after(manifest.version):
            raise Unavailable(
                f"{manifest.path}: manifest version {manifest.version} was written and removed "
                f"while {commit.writer} waited: whether it held commit {commit.id} is not known"
            )
        if was_refused:
            raise Unavailable(
                f"{manifest.path}: the store has no manifest version {manifest.version} and does "
                f"not let {commit.writer} create it as it exists: another write may be in progress"
            )
        return self._create(commit)

    def _verify_tail(
        self, commit: Commit, manifest: Manifest, writer: PageWriter
    ) -> Manifest | None:
        """Checks that the version was created at the end of the chain; else removes it.

        A writer that slept longer than the retention of versions may create a version whose number
        was used and removed before. One that slept while the partition was removed from the tier
        may create a version after the last: the version before is missing then, which may be past
        its retention, and so is everything that it refers to, which never is.
        """
        base = commit.base
        listed = self.versions.list_after(max(0, manifest.version - 2))
        is_stray = False
        if listed[-1:] > [manifest.version]:
            following = self.versions.find(manifest.version + 1)
            is_stray = following is None or following.previous_commit_id != commit.id
        elif base is not None and base.version > 0 and base.version not in listed:
            is_stray = not self.versions.has_objects_of(base)
        if is_stray:
            self.versions.remove([manifest.version])
            self._drop_pending(commit, writer)
            return None
        self.versions.record_newest(manifest)
        self.versions.write_hint(manifest.version)
        return manifest

    def _drop_pending(self, commit: Commit, writer: PageWriter) -> None:
        commit.pending = None
        self._discard(writer)

    def _discard(self, writer: PageWriter) -> None:
        """Removes pages that no version refers to; pages that remain are orphans."""
        if not writer.written:
            return
        try:
            self.pages.remove(writer.written)
        except Unavailable as error:
            logger.debug(
                "pages of a failed commit remain until they are swept",
                extra={"partition": str(self.versions.path), "error": str(error)},
            )
