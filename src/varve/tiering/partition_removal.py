"""Takes a partition out of the cold tier for good: its topic was deleted, or left the tier.

Crash      segments are first taken out of reading, then go the objects, the newest manifest last:
           while it is there a repeated removal finds what is left.
Threads    one per partition; no copy or expiry of it may run meanwhile.
"""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from varve.tiering.tiered_partition import TieredPartition, TieredPartitions

logger = logging.getLogger(__name__)

_SEGMENTS_MAX: Final = 256
_KEYS_MAX: Final = 1000
_PROBE: Final = "removal"


def check_removable(partitions: TieredPartitions, tiered: TieredPartition) -> None:
    """Raises StoreError where the store could not be asked to remove a partition, or refuses it.

    Where there is something to remove, an object is written and deleted: a store may well be read
    and not be written to.
    """
    if tiered.manifests.load().version:
        probe = f"{tiered.home.prefix}{_PROBE}"
        partitions.objects.put(probe, b"")
        partitions.objects.delete([probe])


def remove_partition(partitions: TieredPartitions, tiered: TieredPartition, now_ms: int) -> int:
    """Removes every object of a partition; gives how many segments it had."""
    try:
        removed = _remove_segments(partitions, tiered, now_ms)
        _remove_objects(partitions, tiered)
    finally:
        # A manifest that was there and is gone would be a loss to who remembers it.
        partitions.forget(tiered.log.topic_partition)
    logger.info(
        "partition left the cold tier",
        extra={"partition": str(tiered.log.topic_partition), "segments": removed},
    )
    return removed


def _remove_segments(partitions: TieredPartitions, tiered: TieredPartition, now_ms: int) -> int:
    removed = 0
    while True:
        manifest = tiered.manifests.load()
        segments = list(islice(tiered.manifests.segments(manifest), _SEGMENTS_MAX))
        if not segments:
            return removed
        with partitions.counting_removal(tiered, segments):
            tiered.remove(segments, now_ms, only_unreadable=False)
        removed += len(segments)


def _remove_objects(partitions: TieredPartitions, tiered: TieredPartition) -> None:
    home = tiered.home
    in_chain = home.manifest_folder
    others = (key for key in _keys(partitions, home.prefix) if not key.startswith(in_chain))
    _delete(partitions, others)
    # In their order, the oldest version first: the newest stays to the end.
    _delete(partitions, _keys(partitions, in_chain))


def _keys(partitions: TieredPartitions, prefix: str) -> Iterator[str]:
    return (info.key for info in partitions.objects.list(prefix))


def _delete(partitions: TieredPartitions, keys: Iterator[str]) -> None:
    while chunk := list(islice(keys, _KEYS_MAX)):
        partitions.objects.delete(chunk)
