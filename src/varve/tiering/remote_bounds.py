"""The border of the cold tier that local cleaning keeps to.

Invariant  an older manifest gives a border that is safe, only further behind.
"""

from varve.cleaning.compaction.cleanable_log import RemoteBounds
from varve.commit_log import TopicPartition
from varve.tiering.partition import TieredPartitions, get_copied_offset


def find_remote_bounds(
    partitions: TieredPartitions, partition: TopicPartition
) -> RemoteBounds | None:
    """The border of a partition, by a recent manifest; None for a topic that is not tiered.

    Where nothing is copied any more nothing waits for it. Raises StoreError when the store cannot
    tell.
    """
    log = partitions.store.get(partition)
    if not log.settings.remote_storage_enable:
        return None
    tiered = partitions.get(partition)
    manifest = tiered.recent(partitions.clock.now_ms())
    copied_offset = log.end_offset
    if log.settings.copies_to_tier:
        copied_offset = get_copied_offset(tiered)
    return RemoteBounds(copied_offset=copied_offset, cleaned_up_to=manifest.cleaned_up_to)
