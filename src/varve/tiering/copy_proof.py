"""Makes sure that what is about to leave the local disk is in the cold tier, and is this log's.

Invariant  every offset lies in a readable segment of the log's own history. A local segment with
           the bounds of a cold one holds its very bytes, unless compaction has rewritten it here,
           or an erasure that is on record has rewritten either.
Threads    any; the caller keeps copies and expiry of the partition away.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NoReturn

import numpy as np

from varve.commit_log import Log, Segment
from varve.foundation.errors import Corrupt
from varve.kernels.crc import extend_crc32c
from varve.tiering.cold_segment import ColdSegment
from varve.tiering.copied_offset import find_closed
from varve.tiering.erased_copy import is_erased
from varve.tiering.lineage import is_in_lineage
from varve.tiering.manifest import Manifest
from varve.tiering.segment_parts import CHUNK_BYTES, LOG_PART
from varve.tiering.tiered_partition import TieredPartition


def check_same_history(tiered: TieredPartition, manifest: Manifest) -> None:
    """Raises Corrupt when the newest cold segment holds other records than the local log has there.

    So it is when a copy of the log directory writes to the same bucket. Reads the local segment
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


def _begins_alike(segment: Segment, next_offset: int, copy: ColdSegment) -> bool:
    """Whether a segment is what was copied, or has grown since."""
    if next_offset == copy.end_offset + 1:
        if segment.size != copy.size or segment.max_timestamp == copy.max_timestamp:
            return segment.size == copy.size
    elif next_offset <= copy.end_offset or segment.size < copy.size:
        return False
    part = copy.find_part(LOG_PART)
    return part is None or _crc(segment, copy.size) == part.crc32c


def _is_erased(tiered: TieredPartition, segment: Segment, copy: ColdSegment) -> bool:
    return is_erased(tiered.fs, tiered.objects, tiered.home, tiered.log, segment, copy)


def check_copied(tiered: TieredPartition, manifest: Manifest, before_offset: int) -> None:
    """Raises Corrupt unless the cold tier holds the local segments before an offset.

    Reads those whose bytes must be alike.
    """
    log = tiered.log
    leaving = [(one, end) for one, end in find_closed(log, 0) if one.base_offset < before_offset]
    if not leaving:
        return
    start = max(leaving[0][0].base_offset, log.log_start_offset)
    cold = _find_cold(tiered, manifest, start, before_offset)
    _check_covered(log, cold, start, before_offset)
    by_bounds = {(one.base_offset, one.end_offset + 1): one for one in cold}
    local = tiered.directory.cleaner_offset(log.topic_partition) or 0
    cleaned_up_to = max(local, manifest.cleaned_up_to)
    for segment, next_offset in leaving:
        copy = by_bounds.get((segment.base_offset, next_offset))
        if copy is not None and segment.base_offset >= cleaned_up_to:
            _check_alike(tiered, segment, copy)


def _find_cold(
    tiered: TieredPartition, manifest: Manifest, start: int, end: int
) -> list[ColdSegment]:
    log = tiered.log
    cold = tiered.manifests.segments(manifest, from_offset=start)
    near = takewhile(lambda one: one.base_offset < end, cold)
    return [
        one
        for one in near
        if one.is_readable and is_in_lineage(one, log.epochs, log_end_offset=log.end_offset)
    ]


def _check_covered(log: Log, cold: Sequence[ColdSegment], start: int, end: int) -> None:
    offset = start
    for segment in cold:
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


def _check_alike(tiered: TieredPartition, segment: Segment, copy: ColdSegment) -> None:
    log = tiered.log
    part = copy.find_part(LOG_PART)
    is_alike = segment.size == copy.size
    if is_alike and part is not None:
        is_alike = _crc(segment, segment.size) == part.crc32c
    if not is_alike and not _is_erased(tiered, segment, copy):
        raise Corrupt(
            f"{log.topic_partition}: local segment {segment.base_offset} of {segment.size} bytes "
            f"is not what the cold tier holds as {copy} of {copy.size} bytes: one of them is of "
            "another history or damaged. The local segment stays; run `varve check` and "
            "`varve tier fsck --deep`"
        )


def _crc(segment: Segment, size: int) -> int:
    crc, file = 0, segment.file()
    for position in range(0, size, CHUNK_BYTES):
        data = file.read_at(position, min(CHUNK_BYTES, size - position))
        crc = int(extend_crc32c(crc, np.frombuffer(data, np.uint8), 0, len(data)))
    return crc
