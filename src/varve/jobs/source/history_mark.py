"""The mark of a log's history: the batch in front of an offset, by which a later run knows it.

A log may lose its end, by a restore or a power loss, and go on with other records at the same
offsets. What was made of the lost ones must not be gone on from.

Layout     docs/formats/snapshot.md, docs/formats/table.md
Invariant  a batch that was only rewritten, by a compaction or an erasure, is never taken for
           another: a rewrite keeps offsets and leader epoch, and leaves fewer records or a delete
           horizon. Such a one is not compared any further.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from varve.foundation.settings import LONG_MAX
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.piece_stretches import open_objects, open_stretches, wanted_of
from varve.jobs.source.plan import PartitionSource
from varve.jobs.source.record_blocks import Table, read_batches
from varve.kernels.batch_layout import DELETE_HORIZON_BIT, BatchColumn

_BITS_32 = (1 << 32) - 1
_EPOCH_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMark:
    """A batch by its header; `crc` is the checksum that stands there."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int

    def is_of(self, next_offset: int) -> bool:
        """Whether it is the batch in front of an offset."""
        return self.base_offset < next_offset <= self.last_offset + 1

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> "HistoryMark":
        """Raises ValueError, KeyError or TypeError for what is none."""
        base_offset = _number(entry, "base_offset", 0, LONG_MAX)
        return cls(
            base_offset=base_offset,
            last_offset=_number(entry, "last_offset", base_offset, LONG_MAX),
            leader_epoch=_number(entry, "leader_epoch", -1, _EPOCH_MAX),
            crc=_number(entry, "crc", 0, _BITS_32),
        )


def find_mark(source: PartitionSource, next_offset: int) -> HistoryMark | None:
    """The mark of what lies in front of an offset; None where no batch is there to be read."""
    row = _find_batch(source, next_offset)
    return None if row is None else _mark_of(row)


def find_break(source: PartitionSource, next_offset: int, mark: HistoryMark | None) -> str | None:
    """What tells that the log is not the one that was read up to an offset; None for nothing.

    Without a mark, or where its batch has left the log, nothing can be compared.
    """
    end_offset = source.bounds()[1]
    if source.has_end and end_offset < next_offset:
        return f"the log ends at offset {end_offset}, and was read up to {next_offset} before"
    row = None if mark is None else _find_batch(source, next_offset)
    if mark is None or row is None:
        return None
    now = _mark_of(row)
    if now == mark or (_is_rewritten(row) and _place_of(now) == _place_of(mark)):
        return None
    return (
        f"the batch in front of offset {next_offset} was {_describe(mark)}, and is "
        f"{_describe(now)} now"
    )


def _find_batch(source: PartitionSource, next_offset: int) -> Table | None:
    """The row of the batch that holds the offset before this one."""
    offset = next_offset - 1
    start_offset, end_offset = source.bounds()
    if not start_offset <= offset < end_offset:
        return None
    pieces = source.pieces(start_offset=offset, end_offset=next_offset, filters=SourceFilters())
    objects = partial(open_objects, source.address)
    with ExitStack() as stack:
        stretches = [
            stretch
            for piece in pieces
            for stretch in open_stretches(piece, wanted_of(piece), objects, stack)
        ]
        for _, rows, _ in read_batches(stretches):
            holds = (rows[:, BatchColumn.BASE_OFFSET] <= offset) & (
                rows[:, BatchColumn.LAST_OFFSET] >= offset
            )
            if holds.any():
                row: Table = rows[int(np.argmax(holds))].copy()
                return row
    return None


def _mark_of(row: Table) -> HistoryMark:
    return HistoryMark(
        base_offset=int(row[BatchColumn.BASE_OFFSET]),
        last_offset=int(row[BatchColumn.LAST_OFFSET]),
        leader_epoch=int(row[BatchColumn.LEADER_EPOCH]),
        crc=int(row[BatchColumn.CRC]) & _BITS_32,
    )


def _is_rewritten(row: Table) -> bool:
    span = int(row[BatchColumn.LAST_OFFSET]) - int(row[BatchColumn.BASE_OFFSET]) + 1
    has_horizon = int(row[BatchColumn.ATTRIBUTES]) & DELETE_HORIZON_BIT != 0
    return has_horizon or int(row[BatchColumn.RECORD_COUNT]) < span


def _place_of(mark: HistoryMark) -> tuple[int, int, int]:
    return mark.base_offset, mark.last_offset, mark.leader_epoch


def _describe(mark: HistoryMark) -> str:
    return (
        f"{mark.base_offset} to {mark.last_offset} of epoch {mark.leader_epoch} with checksum "
        f"{mark.crc:08x}"
    )


def _number(entry: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = entry[name]
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} of a mark is {value!r:.80}, not a number from {low} to {high}")
    return value
