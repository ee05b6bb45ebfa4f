"""Whether the two tiers of a partition join: no offset is missing between them.

Invariant  reads manifests only; the local side is given as values, so that no log need be open.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from varve.tiering.cold_segment import ColdSegment
from varve.tiering.lineage import Epochs, is_in_lineage
from varve.tiering.manifest import Manifest
from varve.tiering.manifest_store import ManifestStore


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
    readable = (one for one in manifests.segments(manifest) if one.is_readable)
    return all(
        one.end_offset >= start
        and is_in_lineage(one, local.epochs, log_end_offset=local.end_offset)
        for one in readable
    )


def _shared(
    manifests: ManifestStore, manifest: Manifest, local: LocalPart, from_offset: int
) -> Iterator[ColdSegment]:
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
