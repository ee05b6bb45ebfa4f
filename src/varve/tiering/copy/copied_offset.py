"""Up to where a log is copied, as the manifest and the log's leader epochs tell it.

Invariant  what lies in front of the copied offset is in readable segments of the log's own history,
           but for what was in front of the log start when its turn came.
"""

from varve.commit_log import Log, Segment
from varve.foundation.errors import Corrupt
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import Epochs, is_in_lineage
from varve.tiering.manifest.store import ManifestStore


def find_copied_offset(manifests: ManifestStore, manifest: Manifest, log: Log) -> int:
    """The first offset that is not copied; at least the log start offset.

    Raises Corrupt when the log ends before what was copied of its own latest epoch.
    """
    end_offset, history = log.end_offset, log.epochs
    highest = manifest.highest_offset
    if highest < 0:
        return log.log_start_offset
    newest = manifests.find(manifest, highest)
    if newest is not None and is_in_lineage(newest, history, log_end_offset=end_offset):
        return max(highest + 1, log.log_start_offset)
    shared = _find_shared_end(manifests, manifest, history, log)
    return max(shared, log.log_start_offset)


def _find_shared_end(
    manifests: ManifestStore, manifest: Manifest, history: Epochs, log: Log
) -> int:
    """Where the log and what is copied part, as Kafka decides it: by the latest epoch they share.

    Reads every page: it is asked only after the log was cut.
    """
    highest_by_epoch: dict[int, int] = {}
    for segment in manifests.segments(manifest):
        if segment.is_readable:
            for epoch, _ in segment.epochs:
                known = highest_by_epoch.get(epoch, -1)
                highest_by_epoch[epoch] = max(known, segment.end_offset)
    epoch_end, is_latest = log.end_offset, True
    for epoch, start in reversed(history):
        highest = highest_by_epoch.get(epoch)
        if highest is not None:
            if is_latest and highest >= epoch_end:
                raise Corrupt(
                    f"{log.topic_partition}: the log ends at offset {epoch_end}, but offsets up to "
                    f"{highest} of its leader epoch {epoch} were copied to object storage: the "
                    "local log has lost records. Nothing is copied, so that the good copy stays; "
                    "restore the partition from it with `varve tier restore`"
                )
            return min(highest + 1, epoch_end)
        epoch_end, is_latest = start, False
    return 0


def find_closed(log: Log, copied_offset: int) -> list[tuple[Segment, int]]:
    """The closed segments that end behind an offset, each with the offset of the next one."""
    view = log.view
    ends = [one.base_offset for one in view.closed[1:]] + [view.active.base_offset]
    return [
        (segment, end)
        for segment, end in zip(view.closed, ends, strict=False)
        if end > copied_offset
    ]
