"""Takes away what compactions left: outputs that were never finished, inputs whose time has come.

Invariant  objects go only after the manifest says that they do, and leave the manifest last.
Crash      whoever finds the work half done repeats it.
"""

from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.store import ManifestStore


def find_leftovers(
    manifests: ManifestStore, manifest: Manifest, *, now_ms: int
) -> list[RemoteSegment]:
    """Segments whose objects may go now.

    An announced one whose offsets are all readable is of a compaction: copies go on behind those.
    """
    found = []
    for one in manifests.pending(manifest):
        if one.state is SegmentState.COPY_STARTED:
            if one.end_offset <= manifest.highest_offset:
                found.append(one)
        elif one.may_be_deleted(now_ms):
            found.append(one)
    return found
