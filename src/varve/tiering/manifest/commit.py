"""Commits the next version of a manifest: apply the edit, spill into pages, create if absent.

A writer that comes second loads what the first has written and applies its edit to that.

Invariant  a commit that returned is in the chain exactly once, under an id of its own; one that
           raised anything but Unavailable is not there.
Invariant  of an edit: every segment of the base is still there, or its deletion had started; a new
           one is announced first; pages are only removed by being inlined; readable segments do not
           overlap. Anything else would lose what another writer committed.
Crash      pages first, then the version: before its creation nothing has changed, after it all has.
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
from varve.tiering.manifest.versions import ManifestVersions, NewestManifest


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
    """Whether `changed` lists anything else than `base`; no page of it may cover a segment.

    Raises InvalidRequest when it cannot follow `base`, naming what is wrong.
    """
    _check_partition(base, changed)
    return _check_segments(base, in_order(_expand(base, changed, pages)), changed)


def _check_partition(base: Manifest, changed: Manifest) -> None:
    if changed.path != base.path:
        raise InvalidRequest(
            f"{base.path}: a change must not turn the manifest into that of {changed.path}"
        )
    _check_not_lowered(base, "log start offset", base.log_start_offset, changed.log_start_offset)
    _check_not_lowered(base, "cleaned-up-to offset", base.cleaned_up_to, changed.cleaned_up_to)


def _check_not_lowered(base: Manifest, what: str, before: int, after: int) -> None:
    if after < before:
        raise InvalidRequest(
            f"{base.path}: the {what} of manifest version {base.version} is {before} and cannot be "
            f"lowered to {after}"
        )


def _expand(base: Manifest, changed: Manifest, pages: PageStore) -> list[RemoteSegment]:
    """The base's segments outside of the pages that `changed` kept; checks what it kept."""
    if not changed.retired and changed.pages == base.pages:
        return list(base.segments)
    retired = {f"{base.path.prefix}{entry.key}" for entry in changed.retired}
    segments = list(base.segments)
    kept: list[PageRef] = []
    waiting = list(base.pages)
    while waiting:
        ref = waiting.pop()
        if pages.key(ref) not in retired:
            kept.append(ref)
            continue
        page = pages.read(ref)
        segments += page.segments
        waiting += page.pages
    if len(changed.pages) != len(kept) or set(changed.pages) != set(kept):
        raise InvalidRequest(
            f"{base.path}: a change of manifest version {base.version} must leave the pages as "
            "they are: unfold the offsets whose segments are to change"
        )
    return segments


def _check_segments(base: Manifest, before: tuple[RemoteSegment, ...], changed: Manifest) -> bool:
    after = changed.segments
    left = {segment.id: segment for segment in after}
    if len(left) != len(after):
        raise InvalidRequest(f"{base.path}: a change lists a segment twice")
    for segment in before:
        following = left.pop(segment.id, None)
        if following is not segment:
            check_transition(segment, following)
            if following is not None:
                check_segment(following)
    for segment in left.values():
        check_transition(None, segment)
        check_segment(segment)
    return (
        before != after
        or base.log_start_offset != changed.log_start_offset
        or base.cleaned_up_to != changed.cleaned_up_to
    )


def check_overlaps(manifest: Manifest) -> None:
    """Raises InvalidRequest when two readable segments hold the same offset.

    No page may cover a segment outside of it, as is so once all such pages are unfolded.
    """
    if not manifest.pages and not _have_overlap(manifest.segments):
        return
    spans: list[tuple[int, int, RemoteSegment | PageRef]] = [
        (segment.base_offset, segment.end_offset, segment)
        for segment in manifest.segments
        if segment.is_readable
    ]
    spans += [
        (ref.readable_first, ref.readable_end, ref) for ref in manifest.pages if ref.readable_count
    ]
    spans.sort(key=lambda span: span[:2])
    for (_, end, before), (first, _, after) in pairwise(spans):
        if first <= end:
            names = f"{_name(before)} and {_name(after)}"
            raise InvalidRequest(
                f"{manifest.path}: {names} would both be readable at offset {first}: "
                "start the deletion of the one that is replaced in the same change"
            )


def _have_overlap(segments: tuple[RemoteSegment, ...]) -> bool:
    """Whether readable segments of a list in order overlap; a list may be long, so quick."""
    end = -1
    for segment in segments:
        if segment.state is SegmentState.COPY_FINISHED:
            if segment.base_offset <= end:
                return True
            end = segment.end_offset
    return False


def _name(entry: RemoteSegment | PageRef) -> str:
    return str(entry) if isinstance(entry, RemoteSegment) else f"page {entry.id}"


logger = logging.getLogger(__name__)

ManifestEdit = Callable[[Manifest], Manifest]
"""What a commit does: from the newest manifest to the wanted one. May be called several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How often a commit tries, and how long it waits before it tries again, at most."""

    attempts: int = 20
    first_wait_ms: float = 10.0
    longest_wait_ms: float = 2_000.0


DEFAULT_RETRY: Final = RetryLimits()


@dataclass(slots=True, kw_only=True)
class Commit:
    """A change on its way into the chain.

    Without a leader epoch it keeps the stored one, as work does that no leader is needed for.
    `pending` is a version that was sent and may have arrived.
    """

    id: str
    change: ManifestEdit
    leader_epoch: int | None
    writer: str
    now_ms: int
    is_forced: bool = False
    pending: tuple[Manifest, PageWriter] | None = None


class Committer:
    """Carries commits out; `wait` sleeps for a number of milliseconds."""

    def __init__(
        self,
        versions: ManifestVersions,
        pages: PageStore,
        newest: NewestManifest,
        *,
        layout: ManifestLayout,
        retry: RetryLimits,
        grace_ms: int,
        wait: Callable[[float], object],
        random: random.Random,
    ) -> None:
        self._versions = versions
        self._pages = pages
        self._newest = newest
        self._layout = layout
        self._retry = retry
        self._grace_ms = grace_ms
        self._wait = wait
        self._random = random

    def run(self, commit: Commit) -> Manifest:
        """The version that holds the change, or the newest when it changes nothing."""
        failure: Unavailable | None = None
        for attempt in range(self._retry.attempts):
            if attempt:
                self._wait(self._wait_ms(attempt))
            try:
                manifest = self._resolve_pending(commit) if commit.pending else None
                manifest = manifest or self._attempt(commit, is_first=attempt == 0)
            except Unavailable as error:
                failure = error
                continue
            if manifest is not None:
                return manifest
        raise self._give_up(commit, failure) from failure

    def _wait_ms(self, attempt: int) -> float:
        longest = min(self._retry.longest_wait_ms, self._retry.first_wait_ms * 2 ** (attempt - 1))
        return self._random.uniform(0, longest)

    def _give_up(self, commit: Commit, failure: Unavailable | None) -> Unavailable:
        cause = f"the last failure was: {failure}" if failure else "others were always first"
        outcome = (
            f"version {commit.pending[0].version} may still hold it, so load before you repeat it"
            if commit.pending
            else "nothing was changed"
        )
        return Unavailable(
            f"{self._versions.path}: commit {commit.id} of {commit.writer} was given up after "
            f"{self._retry.attempts} attempts; {cause}; {outcome}"
        )

    def _attempt(self, commit: Commit, *, is_first: bool) -> Manifest | None:
        """The version with the change; None when another writer was first."""
        base, changed = self._plan(commit, may_use_kept=is_first)
        if changed is None:
            return base
        writer = PageWriter(self._pages, self._random)
        try:
            folded = spill(changed, writer, self._layout)
        except Unavailable:
            self._discard(writer)
            raise
        except ObjectNotFound:
            self._discard(writer)
            if not is_first:
                raise
            return None  # a page of an older manifest, which its retention has removed
        commit.pending = (self._sign(commit, base, folded), writer)
        return self._create(commit)

    def _plan(self, commit: Commit, *, may_use_kept: bool) -> tuple[Manifest, Manifest | None]:
        """The base and the change of it, None when there is nothing to change.

        What is kept may be old: only a change of it is tried, a refusal is decided on the newest.
        """
        kept = self._newest.find_kept() if may_use_kept else None
        if kept is not None:
            try:
                changed = self._apply(commit, kept)
            except InvalidRequest:
                changed = None
            if changed is not None:
                return kept, changed
        base = self._newest.load()
        return base, self._apply(commit, base)

    def _apply(self, commit: Commit, base: Manifest) -> Manifest | None:
        edited, is_new = apply_edit(
            base,
            commit.change,
            self._pages,
            leader_epoch=commit.leader_epoch,
            writer=commit.writer,
        )
        return edited if is_new or commit.is_forced else None

    def _sign(self, commit: Commit, base: Manifest, folded: Manifest) -> Manifest:
        at_ms = max(commit.now_ms, base.at_ms)
        removable_ms = at_ms + self._grace_ms
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
            self._versions.create(manifest)
        except ObjectExists:
            return self._resolve_pending(commit, was_refused=True)
        return self._verify_tail(commit, manifest, writer)

    def _resolve_pending(self, commit: Commit, *, was_refused: bool = False) -> Manifest | None:
        """Finds out what became of a version that was sent: ours, another's, or not arrived.

        One that was just refused because it exists, and is not there, is asked for again later.
        """
        assert commit.pending is not None
        manifest, writer = commit.pending
        stored = self._versions.find(manifest.version)
        if stored is not None and stored.commit_id == commit.id:
            return self._verify_tail(commit, stored, writer)
        if stored is not None:
            self._drop_pending(commit, writer)
            return None
        if self._versions.list_after(manifest.version):
            raise Unavailable(
                f"{manifest.path}: manifest version {manifest.version} was written and removed "
                f"while {commit.writer} waited: whether it held commit {commit.id} is not known"
            )
        if was_refused:
            raise Unavailable(
                f"{manifest.path}: the store has no manifest version {manifest.version} and does "
                f"not let {commit.writer} create it as it exists: another write may be under way"
            )
        return self._create(commit)

    def _verify_tail(
        self, commit: Commit, manifest: Manifest, writer: PageWriter
    ) -> Manifest | None:
        """Makes sure that the version was created at the end of the chain.

        A writer that slept past the retention of versions may have created one where an older one
        had been removed: the chain continues elsewhere, and the version is taken back.
        """
        later = self._versions.list_after(manifest.version)
        if later:
            following = self._versions.find(manifest.version + 1)
            if following is None or following.previous_commit_id != commit.id:
                self._versions.remove([manifest.version])
                self._drop_pending(commit, writer)
                return None
        self._newest.keep(manifest)
        self._versions.write_hint(manifest.version)
        return manifest

    def _drop_pending(self, commit: Commit, writer: PageWriter) -> None:
        commit.pending = None
        self._discard(writer)

    def _discard(self, writer: PageWriter) -> None:
        """Removes pages that no version will ever name; those that stay are orphans."""
        if not writer.written:
            return
        try:
            self._pages.remove(writer.written)
        except Unavailable as error:
            logger.debug(
                "pages of a lost commit stay until swept",
                extra={"partition": str(self._versions.path), "error": str(error)},
            )
