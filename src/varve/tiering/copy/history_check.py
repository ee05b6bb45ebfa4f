"""Whether the remote tier holds a log's own history, without gaps, up to where it is copied.

Checked before a copy continues and before local segments are evicted. Tiers are erased one at a
time, so a local segment and its copy may differ where an erasure on record explains it.

Invariant  reads only. Everything below the copied offset is in readable segments of the log's
           own history, except what was below the log start when it was due. A local segment
           with the bounds of a remote one holds the same bytes, unless compaction has rewritten it
           here, or an erasure on record has rewritten either.
Threads    any; the caller lets no copy or expiry of the partition run meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NoReturn

from varve.cleaning.removals.removal import Removal, RemovalKind
from varve.cleaning.removals.removal_log import read_removal_log
from varve.commit_log import Log, Segment
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.object_store import ObjectStore
from varve.tiering.copy.copied_offset import find_closed
from varve.tiering.copy.segment_upload import LOG_PART, crc32c_of_file
from varve.tiering.expiry import decode_evidence
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import Epochs, RemoteSegment, is_in_lineage
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.partition import TieredPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """What the local disk has of a partition; a log start of None is not known."""

    log_start_offset: int | None
    local_start_offset: int
    end_offset: int
    epochs: Epochs


def find_holes(
    manifests: ManifestStore, manifest: Manifest, local: LocalPart
) -> list[tuple[int, int]]:
    """Ranges [start, end) from the log start on that are in neither tier."""
    start = max(local.log_start_offset or 0, manifest.log_start_offset)
    holes: list[tuple[int, int]] = []
    is_first = local.log_start_offset is None
    for segment in _shared(manifests, manifest, local, start):
        if start >= local.local_start_offset:
            break
        if segment.base_offset > start and not is_first:
            holes.append((start, min(segment.base_offset, local.local_start_offset)))
        is_first = False
        start = max(start, segment.end_offset + 1)
    if start < local.local_start_offset and not is_first:
        holes.append((start, local.local_start_offset))
    return holes


def is_same_history(manifests: ManifestStore, manifest: Manifest, local: LocalPart) -> bool:
    """Whether all that is copied is of the local log, and none of it lies before its start."""
    start = local.log_start_offset or 0
    readable = (segment for segment in manifests.segments(manifest) if segment.is_readable)
    return all(
        segment.end_offset >= start
        and is_in_lineage(segment, local.epochs, log_end_offset=local.end_offset)
        for segment in readable
    )


def _shared(
    manifests: ManifestStore, manifest: Manifest, local: LocalPart, from_offset: int
) -> Iterator[RemoteSegment]:
    """The readable segments of the log's own history."""
    # What lies before the local start belongs to it, however the local end was cut.
    end_offset = max(local.end_offset, local.local_start_offset)
    for segment in manifests.segments(manifest, from_offset=from_offset):
        if segment.is_readable and is_in_lineage(segment, local.epochs, log_end_offset=end_offset):
            yield segment


def find_lost(
    manifests: ManifestStore, manifest: Manifest, local: LocalPart
) -> tuple[int, int] | None:
    """The range [start, end) that was copied of the latest epoch and the local log has lost."""
    if manifest.highest_offset < local.end_offset or not local.epochs:
        return None
    newest = manifests.find(manifest, manifest.highest_offset)
    if newest is None or newest.epochs[-1][0] != local.epochs[-1][0]:
        return None
    return local.end_offset, manifest.highest_offset + 1


ERASURE_PREFIX = "erase-"
"""How the keys of an erasure's removal records in the bucket begin."""


def is_erased(
    fs: FileSystem,
    objects: ObjectStore,
    path: RemotePath,
    log: Log,
    segment: Segment,
    copy: RemoteSegment,
) -> bool:
    """Whether a recorded erasure has written the local segment or the remote one."""
    local = [
        entry.removal for entry in read_removal_log(fs, log.directory).entries if entry.is_intact
    ]
    if any(_left(removal, segment.base_offset, segment.size) for removal in local):
        return True
    return any(
        _left(removal, copy.base_offset, copy.size) for removal in _read_remote(objects, path)
    )


def _left(balance: Removal, base_offset: int, size: int) -> bool:
    return balance.kind is RemovalKind.ERASURE and any(
        (summary.base_offset, summary.size) == (base_offset, size) for summary in balance.outputs
    )


def _read_remote(objects: ObjectStore, path: RemotePath) -> list[Removal]:
    folder = f"{path.prefix}evidence/"
    keys = [info.key for info in objects.list(folder)]
    return [
        balance
        for key in keys
        if key.removeprefix(folder).startswith(ERASURE_PREFIX)
        for balance in decode_evidence(objects.get(key), key)
    ]


def check_same_history(tiered: TieredPartition, manifest: Manifest) -> None:
    """Raises Corrupt if the newest remote segment differs from the local log at its offsets.

    This happens when a copy of the log directory writes to the same bucket. Reads the segment
    only where its size and times leave a doubt; what was compacted in either tier tells nothing.
    """
    log = tiered.log
    newest = tiered.manifests.find(manifest, manifest.highest_offset)
    if newest is None or not is_in_lineage(newest, log.epochs, log_end_offset=log.end_offset):
        return
    cleaned_up_to = tiered.directory.cleaner_offset(log.topic_partition) or 0
    if newest.base_offset < max(cleaned_up_to, manifest.cleaned_up_to):
        return
    closed = [one for one in find_closed(log, 0) if one[0].base_offset == newest.base_offset]
    for segment, next_offset in closed:
        if not _begins_alike(segment, next_offset, newest) and not _is_erased(
            tiered, segment, newest
        ):
            raise Corrupt(
                f"{log.topic_partition}: local segment {segment.base_offset} of {segment.size} "
                f"bytes is not what the cold tier holds as {newest} of {newest.size} bytes: most "
                "likely a copy of this log directory writes to the same object store. Nothing is "
                "copied, and what is local stays: let only one of them go on, the other with a "
                "store of its own after `varve tier restore`"
            )


def _begins_alike(segment: Segment, next_offset: int, copy: RemoteSegment) -> bool:
    """Whether a segment is what was copied, or has grown since."""
    if next_offset == copy.end_offset + 1:
        if segment.size != copy.size or segment.max_timestamp == copy.max_timestamp:
            return segment.size == copy.size
    elif next_offset <= copy.end_offset or segment.size < copy.size:
        return False
    part = copy.find_part(LOG_PART)
    return part is None or crc32c_of_file(segment.file(), copy.size) == part.crc32c


def _is_erased(tiered: TieredPartition, segment: Segment, copy: RemoteSegment) -> bool:
    return is_erased(tiered.fs, tiered.objects, tiered.path, tiered.log, segment, copy)


def check_copied(tiered: TieredPartition, manifest: Manifest, before_offset: int) -> None:
    """Raises Corrupt unless the cold tier holds the local segments before an offset.

    Reads those whose bytes must be alike.
    """
    log = tiered.log
    leaving = [(one, end) for one, end in find_closed(log, 0) if one.base_offset < before_offset]
    if not leaving:
        return
    start = max(leaving[0][0].base_offset, log.log_start_offset)
    remote = _find_remote(tiered, manifest, start, before_offset)
    _check_covered(log, remote, start, before_offset)
    by_bounds = {
        (remote_segment.base_offset, remote_segment.end_offset + 1): remote_segment
        for remote_segment in remote
    }
    local = tiered.directory.cleaner_offset(log.topic_partition) or 0
    cleaned_up_to = max(local, manifest.cleaned_up_to)
    for segment, next_offset in leaving:
        copy = by_bounds.get((segment.base_offset, next_offset))
        if copy is not None and segment.base_offset >= cleaned_up_to:
            _check_alike(tiered, segment, copy)


def _find_remote(
    tiered: TieredPartition, manifest: Manifest, start: int, end: int
) -> list[RemoteSegment]:
    log = tiered.log
    remote = tiered.manifests.segments(manifest, from_offset=start)
    near = takewhile(lambda one: one.base_offset < end, remote)
    return [
        segment
        for segment in near
        if segment.is_readable and is_in_lineage(segment, log.epochs, log_end_offset=log.end_offset)
    ]


def _check_covered(log: Log, remote: Sequence[RemoteSegment], start: int, end: int) -> None:
    offset = start
    for segment in remote:
        if segment.base_offset > offset:
            _raise_hole(log, offset, segment.base_offset)
        offset = max(offset, segment.end_offset + 1)
    if offset < end:
        _raise_hole(log, offset, end)


def _raise_hole(log: Log, start: int, end: int) -> NoReturn:
    raise Corrupt(
        f"{log.topic_partition}: offsets {start} to {end - 1} are in no segment of the cold tier "
        "that belongs to this log, though later ones were copied; their local segments stay: run "
        "`varve tier fsck`"
    )


def _check_alike(tiered: TieredPartition, segment: Segment, copy: RemoteSegment) -> None:
    log = tiered.log
    part = copy.find_part(LOG_PART)
    is_alike = segment.size == copy.size
    if is_alike and part is not None:
        is_alike = crc32c_of_file(segment.file(), segment.size) == part.crc32c
    if not is_alike and not _is_erased(tiered, segment, copy):
        raise Corrupt(
            f"{log.topic_partition}: local segment {segment.base_offset} of {segment.size} bytes "
            f"is not what the cold tier holds as {copy} of {copy.size} bytes: one of them is of "
            "another history or damaged. The local segment stays; run `varve check` and "
            "`varve tier fsck --deep`"
        )
