"""Whether an erasure explains that a local segment and its cold copy differ.

Tiers are erased one at a time, and one of them perhaps never: a log directory was not given, or
records were still being written. The evidence of either side tells.

Invariant  reads only, and only where the two differ.
"""

from varve.cleaning.removals.removal import Removal, RemovalKind
from varve.cleaning.removals.removal_log import read_removal_log
from varve.commit_log import Log, Segment
from varve.disk import FileSystem
from varve.object_store import ObjectStore
from varve.tiering.cold_evidence import decode_evidence
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment

ERASURE_PREFIX = "erase-"
"""What the evidence of an erasure in the bucket is named by."""


def is_erased(
    fs: FileSystem,
    objects: ObjectStore,
    home: ColdPartition,
    log: Log,
    segment: Segment,
    copy: ColdSegment,
) -> bool:
    """Whether the local segment, or the cold one, is what an erasure on record has left."""
    local = [one.balance for one in read_removal_log(fs, log.directory).entries if one.is_intact]
    if any(_left(one, segment.base_offset, segment.size) for one in local):
        return True
    return any(_left(one, copy.base_offset, copy.size) for one in _read_cold(objects, home))


def _left(balance: Removal, base_offset: int, size: int) -> bool:
    return balance.kind is RemovalKind.ERASURE and any(
        (one.base_offset, one.size) == (base_offset, size) for one in balance.outputs
    )


def _read_cold(objects: ObjectStore, home: ColdPartition) -> list[Removal]:
    folder = f"{home.prefix}evidence/"
    keys = [info.key for info in objects.list(folder)]
    return [
        balance
        for key in keys
        if key.removeprefix(folder).startswith(ERASURE_PREFIX)
        for balance in decode_evidence(objects.get(key), key)
    ]
