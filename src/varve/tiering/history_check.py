"""Checks that the remote tier holds the history of this log, without gaps.

A log and its remote tier may diverge: two copies of a log directory write to one bucket, a
directory was restored from an old backup, segments in the bucket were lost. Then a copy or an
eviction could destroy the only good copy, so both check first:

- before a copy continues, `check_same_history` compares the newest remote segment with the local
  segment of the same offsets;
- before local segments are evicted, `check_copied` makes sure that remote segments cover them and
  hold the same bytes.

Separate compaction or erasure of the tiers makes their bytes differ legitimately. Segments below
the cleaned offset of either tier are not compared; elsewhere a recorded erasure must explain a
difference.

Invariant  read-only.
Threads    any; the caller lets no copy or expiry of the partition run meanwhile.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from varve.cleaning.removals.removal import Removal, RemovalKind
from varve.cleaning.removals.removal_log import read_removal_log
from varve.commit_log import Log, Segment
from varve.foundation.errors import Corrupt
from varve.tiering.evidence import decode_evidence
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import LOG_PART, Epochs, RemoteSegment, is_in_lineage
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.partition import TieredPartition, find_closed
from varve.tiering.segment_upload import crc32c_of_file

ERASURE_PREFIX = "erase-"
"""How the keys of an erasure's removal records in the bucket begin."""

# Gaps and lost ends, without an open log


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """The local part of a partition; a log start of None is unknown."""

    log_start_offset: int | None
    local_start_offset: int
    end_offset: int
    epochs: Epochs


def find_gaps(segments: Iterable[RemoteSegment], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges within [start, end) that no segment holds; the segments come by offset."""
    for segment in segments:
        if start >= end:
            return
        if segment.base_offset > start:
            yield start, min(segment.base_offset, end)
        start = max(start, segment.end_offset + 1)
    if start < end:
        yield start, end


def find_holes(
    manifests: ManifestStore, manifest: Manifest, local: LocalPart
) -> list[tuple[int, int]]:
    """Ranges [start, end) from the log start on that are in neither tier."""
    start = max(local.log_start_offset or 0, manifest.log_start_offset)
    # Offsets before the local start belong to the log, even if its end was truncated.
    end_offset = max(local.end_offset, local.local_start_offset)
    segments = _find_own(manifests, manifest, local.epochs, start, log_end_offset=end_offset)
    gaps = list(find_gaps(segments, start, local.local_start_offset))
    if local.log_start_offset is None and gaps and gaps[0][0] == start:
        # The log starts at its first segment.
        del gaps[0]
    return gaps


def find_lost(
    manifests: ManifestStore, manifest: Manifest, local: LocalPart
) -> tuple[int, int] | None:
    """The range [start, end) of the latest epoch that was copied and the local log has lost."""
    if manifest.highest_offset < local.end_offset or not local.epochs:
        return None
    newest = manifests.find(manifest, manifest.highest_offset)
    if newest is None or newest.epochs[-1][0] != local.epochs[-1][0]:
        return None
    return local.end_offset, manifest.highest_offset + 1


def is_same_history(manifests: ManifestStore, manifest: Manifest, log: Log) -> bool:
    """Whether all remote segments belong to this log, and none lies before its start."""
    return all(
        segment.end_offset >= log.log_start_offset
        and is_in_lineage(segment, log.epochs, log_end_offset=log.end_offset)
        for segment in manifests.readable(manifest)
    )


def _find_own(
    manifests: ManifestStore,
    manifest: Manifest,
    epochs: Epochs,
    from_offset: int,
    *,
    log_end_offset: int,
) -> Iterator[RemoteSegment]:
    """The readable segments that belong to the history of a log, by offset."""
    for segment in manifests.readable(manifest, from_offset=from_offset):
        if is_in_lineage(segment, epochs, log_end_offset=log_end_offset):
            yield segment


# Before a copy continues


def check_same_history(tiered: TieredPartition, manifest: Manifest) -> None:
    """Raises Corrupt if the newest remote segment differs from the local log at its offsets.

    Reads the local segment only if its size and timestamp do not decide.
    """
    log = tiered.log
    newest = tiered.manifests.find(manifest, manifest.highest_offset)
    if newest is None or not is_in_lineage(newest, log.epochs, log_end_offset=log.end_offset):
        return
    if newest.base_offset < _get_cleaned_offset(tiered, manifest):
        return
    for segment, next_offset in find_closed(log, newest.base_offset):
        if segment.base_offset != newest.base_offset:
            continue
        if not _may_continue(segment, next_offset, newest) and not _is_erased(
            tiered, segment, newest
        ):
            raise Corrupt(
                f"{log.topic_partition}: local segment {segment.base_offset} of {segment.size} "
                f"bytes differs from {newest} of {newest.size} bytes in the remote tier: most "
                "likely a copy of this log directory writes to the same object store. Nothing is "
                "copied, and what is local stays: let only one of them continue, the other with "
                "its own store after `varve tier restore`"
            )


def _may_continue(segment: Segment, next_offset: int, remote: RemoteSegment) -> bool:
    """Whether a local segment begins with the bytes of the remote one."""
    if next_offset <= remote.end_offset or segment.size < remote.size:
        return False
    if next_offset == remote.end_offset + 1:
        if segment.size != remote.size:
            return False
        if segment.max_timestamp == remote.max_timestamp:
            return True  # offsets, size and time agree: no need to read it
    return _has_bytes_of(segment, remote)


# Before local segments are evicted


def check_copied(tiered: TieredPartition, manifest: Manifest, before_offset: int) -> None:
    """Raises Corrupt unless the remote tier holds the local segments before an offset.

    Reads the segments whose bytes must be equal.
    """
    log = tiered.log
    evicted = [pair for pair in find_closed(log, 0) if pair[0].base_offset < before_offset]
    if not evicted:
        return
    start = max(evicted[0][0].base_offset, log.log_start_offset)
    own = _find_own(tiered.manifests, manifest, log.epochs, start, log_end_offset=log.end_offset)
    remote = list(takewhile(lambda segment: segment.base_offset < before_offset, own))
    for gap_start, gap_end in find_gaps(remote, start, before_offset):
        raise Corrupt(
            f"{log.topic_partition}: offsets {gap_start} to {gap_end - 1} are in no segment of the "
            "remote tier that belongs to this log, though later ones were copied; their local "
            "segments stay: run `varve tier fsck`"
        )
    by_range = {(segment.base_offset, segment.end_offset + 1): segment for segment in remote}
    cleaned_offset = _get_cleaned_offset(tiered, manifest)
    for segment, next_offset in evicted:
        copy = by_range.get((segment.base_offset, next_offset))
        if copy is not None and segment.base_offset >= cleaned_offset:
            _check_bytes(tiered, segment, copy)


def _check_bytes(tiered: TieredPartition, segment: Segment, copy: RemoteSegment) -> None:
    is_same = segment.size == copy.size and _has_bytes_of(segment, copy)
    if not is_same and not _is_erased(tiered, segment, copy):
        raise Corrupt(
            f"{tiered.log.topic_partition}: local segment {segment.base_offset} of {segment.size} "
            f"bytes differs from {copy} of {copy.size} bytes in the remote tier: one of them is of "
            "another history or damaged. The local segment stays; run `varve check` and "
            "`varve tier fsck --deep`"
        )


# Comparison


def _get_cleaned_offset(tiered: TieredPartition, manifest: Manifest) -> int:
    """The offset below which compaction may have rewritten segments of either tier."""
    local = tiered.directory.cleaner_offset(tiered.log.topic_partition) or 0
    return max(local, manifest.cleaned_up_to)


def _has_bytes_of(segment: Segment, remote: RemoteSegment) -> bool:
    """Whether a local segment begins with the bytes of a remote one, by their checksum."""
    part = remote.find_part(LOG_PART)
    return part is None or crc32c_of_file(segment.file(), remote.size) == part.crc32c


def _is_erased(tiered: TieredPartition, segment: Segment, remote: RemoteSegment) -> bool:
    """Whether a recorded erasure wrote the local segment or the remote one."""
    entries = read_removal_log(tiered.fs, tiered.log.directory).entries
    local = [entry.removal for entry in entries if entry.is_intact]
    return any(_is_output(removal, segment.base_offset, segment.size) for removal in local) or any(
        _is_output(removal, remote.base_offset, remote.size)
        for removal in _read_remote_erasures(tiered)
    )


def _is_output(removal: Removal, base_offset: int, size: int) -> bool:
    return removal.kind is RemovalKind.ERASURE and any(
        (output.base_offset, output.size) == (base_offset, size) for output in removal.outputs
    )


def _read_remote_erasures(tiered: TieredPartition) -> Iterator[Removal]:
    folder = f"{tiered.path.prefix}evidence/"
    for info in tiered.objects.list(folder):
        if info.key.startswith(f"{folder}{ERASURE_PREFIX}"):
            yield from decode_evidence(tiered.objects.get(info.key), info.key)
