"""Takes away what compactions left: outputs that were never finished, inputs whose time has come.

Invariant  objects go only after the manifest says that they do, and leave the manifest last.
Crash      whoever finds the work half done repeats it.
"""

from collections.abc import Sequence

from varve.jobs.compact.settings import WRITER
from varve.object_store import ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment, SegmentState
from varve.tiering.manifest import Manifest
from varve.tiering.manifest_store import ManifestStore


def find_leftovers(
    manifests: ManifestStore, manifest: Manifest, *, now_ms: int
) -> list[ColdSegment]:
    """Segments whose objects may go now.

    An announced one whose offsets are all readable is of a compaction: copies go on behind those.
    """
    found = []
    for one in manifests.pending(manifest):
        if one.state is SegmentState.COPY_STARTED:
            if one.end_offset <= manifest.highest_offset:
                found.append(one)
        elif one.replaced_until_ms is None or one.replaced_until_ms <= now_ms:
            found.append(one)
    return found


def remove_leftovers(
    objects: ObjectStore,
    manifests: ManifestStore,
    home: ColdPartition,
    leftovers: Sequence[ColdSegment],
    *,
    now_ms: int,
    writer: str = WRITER,
) -> None:
    """Takes these out of the store, and then off the manifest."""
    if not leftovers:
        return
    ids = {one.id for one in leftovers}
    start = min(one.base_offset for one in leftovers)
    end = max(one.end_offset for one in leftovers) + 1
    going: dict[str, ColdSegment] = {}

    def begin(manifest: Manifest) -> Manifest:
        near = manifests.unfold(manifest, start_offset=start, end_offset=end)
        # One that became readable since it was looked at is left over no more.
        listed = {one.id: one for one in near.segments if one.id in ids and not one.is_readable}
        going.clear()
        going.update(listed)
        return near.start_delete(list(listed), at_ms=now_ms)

    def finish(manifest: Manifest) -> Manifest:
        near = manifests.unfold(manifest, start_offset=start, end_offset=end)
        return near.forget(list(going))

    manifests.commit(begin, leader_epoch=None, writer=writer, now_ms=now_ms)
    objects.delete([home.part_key(one, part.name) for one in going.values() for part in one.parts])
    manifests.commit(finish, leader_epoch=None, writer=writer, now_ms=now_ms)
