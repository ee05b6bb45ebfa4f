"""Looks for records to be erased: in the data of a segment, and before that in its key index.

Invariant  a scan reads every data record, those of aborted transactions among them, and checks
           every checksum. A key index rules a segment out only if none of its batches was aborted,
           or these were scanned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.erasure import ErasedRecords
from varve.cleaning.key_index.key_index import BATCH_ABORTED, KeyIndex
from varve.jobs.erase.match import Matcher
from varve.jobs.source.record_blocks import ByteSource, RecordBlock, Stretch, Wanted, read_blocks
from varve.kernels.batch_layout import BatchColumn, RecordColumn

Integers = npt.NDArray[np.int64]

TASK_BYTES: Final = 256 << 20
"""About how much of a log one task reads."""
TASK_ITEMS: Final = 256

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in some data.

    `record_count` records were looked at in `read_bytes` bytes; `unread_count` values could not be
    read as JSON. `is_matched` also where a key index alone says so.
    """

    found: ErasedRecords
    record_count: int = 0
    read_bytes: int = 0
    unread_count: int = 0
    is_matched: bool = False

    @classmethod
    def of_nothing(cls, *, is_matched: bool = False) -> Self:
        return cls(ErasedRecords(_NONE, _NONE, _NONE, 0), is_matched=is_matched)


def scan_log(
    source: ByteSource,
    size: int,
    matcher: Matcher,
    *,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> Scan:
    """Reads all of a segment's data, or the batches in some ranges of it."""
    stretches = [Stretch(source, 0, start, end, Wanted()) for start, end in ranges or [(0, size)]]
    parts: list[tuple[Integers, Integers, Integers]] = []
    total_bytes = erased_bytes = records = unread = 0
    for block in read_blocks(one for one in stretches if one.start < one.end):
        matches, unread_here = matcher.find(block)
        records += len(block.records)
        unread += unread_here
        ends = block.records[:, RecordColumn.RECORD_END]
        sizes = ends - block.records[:, RecordColumn.RECORD_START]
        total_bytes += int(sizes.sum())
        chosen = np.flatnonzero(matches)
        if chosen.size:
            parts.append(_locate(block, chosen))
            erased_bytes += int(sizes[chosen].sum())
    columns = list(zip(*parts, strict=True))
    found = [np.concatenate(one) for one in columns] if columns else [_NONE, _NONE, _NONE]
    return Scan(
        ErasedRecords(found[0], found[1], found[2], erased_bytes, total_bytes - erased_bytes),
        records,
        sum(end - start for start, end in ranges or [(0, size)]),
        unread,
        bool(len(found[0])),
    )


def _locate(block: RecordBlock, chosen: Integers) -> tuple[Integers, Integers, Integers]:
    """Of chosen records: their offsets, the base offsets of their batches, and ranks in these."""
    owners = block.owners[chosen]
    ranks = chosen - np.searchsorted(block.owners, owners)
    return (
        block.records[chosen, RecordColumn.OFFSET],
        block.batches[owners, BatchColumn.BASE_OFFSET],
        ranks,
    )


def ask_index(index: KeyIndex, source: ByteSource, matcher: Matcher) -> Scan:
    """What a key index tells of keys, with the aborted batches read, which it leaves out.

    A match says that the segment holds a key; which records have it only a scan tells.
    """
    if matcher.is_listed(index):
        return Scan.of_nothing(is_matched=True)
    ranges = list(_aborted_ranges(index))
    if not ranges:
        return Scan.of_nothing()
    return scan_log(source, 0, matcher, ranges=ranges)


def _aborted_ranges(index: KeyIndex) -> Iterator[tuple[int, int]]:
    """Where batches lie that were aborted; those behind each other as one."""
    if not index.header.mark_count:
        return
    batches = index.batches()
    aborted = batches[batches["flags"] & BATCH_ABORTED != 0]
    starts = aborted["position"].astype(np.int64)
    ends = starts + aborted["size"].astype(np.int64)
    firsts = np.flatnonzero(np.concatenate([[True], starts[1:] != ends[:-1]]))
    if not len(starts):
        return
    lasts = np.concatenate([firsts[1:] - 1, [len(starts) - 1]])
    yield from zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
