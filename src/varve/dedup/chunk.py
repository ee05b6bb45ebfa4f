"""What is judged and committed at a time: batches of the input, and their records as one table.

Invariant  rows are in the order of their offsets, none lies before the position that was read
           from, and all starts count within one payload.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.dedup.committed import CommittedBatch
from varve.kernels.batch_layout import RECORD_COLUMN_COUNT, RecordColumn
from varve.records import RecordColumns
from varve.records.columns import NO_BYTES, Integers, frozen_bytes

_STARTS: Final = (
    RecordColumn.KEY_START,
    RecordColumn.VALUE_START,
    RecordColumn.HEADERS_START,
    RecordColumn.RECORD_START,
    RecordColumn.RECORD_END,
)


@dataclass(frozen=True, slots=True)
class InputRead:
    """What a read gave: batches, where to go on, and where committed records end for now."""

    batches: Sequence[CommittedBatch]
    next_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Batches with their records; those of batch i are rows [ends[i - 1], ends[i])."""

    batches: Sequence[CommittedBatch]
    columns: RecordColumns
    ends: Integers

    def __len__(self) -> int:
        return len(self.columns)


def make_chunk(batches: Sequence[CommittedBatch], *, start_offset: int) -> Chunk:
    """The records at `start_offset` and behind; raises Corrupt for one that cannot be read."""
    tables, payloads, base = [], [], 0
    for one in batches:
        columns = one.batch.columns()
        table = columns.table
        if one.batch.header.base_offset < start_offset:
            table = table[columns.offsets >= start_offset]
        if base:
            table = table.copy()
            table[:, _STARTS] += base
        tables.append(table)
        payloads.append(columns.payload)
        base += len(columns.payload)
    ends = np.cumsum([len(table) for table in tables], dtype=np.int64)
    return Chunk(batches, _join(payloads, tables), ends)


def _join(payloads: list[np.ndarray], tables: list[np.ndarray]) -> RecordColumns:
    if not payloads:
        return RecordColumns(NO_BYTES, np.empty((0, RECORD_COLUMN_COUNT), np.int64))
    if len(payloads) == 1:
        return RecordColumns(payloads[0], np.ascontiguousarray(tables[0]))
    return RecordColumns(frozen_bytes(np.concatenate(payloads)), np.concatenate(tables))
