"""Rebuilds index entries from a table of scanned batches.

By the rule an appender of single batches follows.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_scan import Field, batch_table
from varve.kernels.compile import kernel

_POSITION = int(Field.POSITION)
_BASE_OFFSET = int(Field.BASE_OFFSET)
_LAST_OFFSET = int(Field.LAST_OFFSET)
_MAX_TIMESTAMP = int(Field.MAX_TIMESTAMP)
_INT_MAX = 2**31 - 1


class IndexState(IntEnum):
    """What the rule carries from one table to the next."""

    ENTRY_POSITION = 0
    PREVIOUS_OFFSET = 1
    MAX_TIMESTAMP = 2
    MAX_TIMESTAMP_OFFSET = 3
    INDEXED_TIMESTAMP = 4


class IndexBuildStatus(IntEnum):
    """Why building stopped; an offset below the segment's base does not ascend either."""

    DONE = 0
    OFFSET_OVERFLOW = 1
    OFFSET_NOT_ASCENDING = 2


_DONE = int(IndexBuildStatus.DONE)
_OVERFLOW = int(IndexBuildStatus.OFFSET_OVERFLOW)
_NOT_ASCENDING = int(IndexBuildStatus.OFFSET_NOT_ASCENDING)
_ENTRY_POSITION = int(IndexState.ENTRY_POSITION)
_PREVIOUS_OFFSET = int(IndexState.PREVIOUS_OFFSET)
_STATE_TIMESTAMP = int(IndexState.MAX_TIMESTAMP)
_STATE_TIMESTAMP_OFFSET = int(IndexState.MAX_TIMESTAMP_OFFSET)
_INDEXED_TIMESTAMP = int(IndexState.INDEXED_TIMESTAMP)


def initial_index_state(base_offset: int) -> npt.NDArray[np.int64]:
    return np.array([0, base_offset - 1, -1, base_offset, -1], np.int64)


@kernel
def build_index_entries(
    rows: npt.NDArray[np.int64],
    base_offset: int,
    interval_bytes: int,
    state: npt.NDArray[np.int64],
    offset_entries: npt.NDArray[np.int64],
    time_entries: npt.NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Fills both entry tables (at least as long as `rows`).

    Offset entries, time entries, status, rows done.
    """
    offset_count = 0
    time_count = 0
    for i in range(rows.shape[0]):
        last_offset = rows[i, _LAST_OFFSET]
        # The checksum does not cover the base offset, of which a torn write may leave a part.
        if rows[i, _BASE_OFFSET] <= state[_PREVIOUS_OFFSET] or last_offset < rows[i, _BASE_OFFSET]:
            return offset_count, time_count, _NOT_ASCENDING, i
        if last_offset - base_offset > _INT_MAX:
            return offset_count, time_count, _OVERFLOW, i
        state[_PREVIOUS_OFFSET] = last_offset
        if rows[i, _MAX_TIMESTAMP] > state[_STATE_TIMESTAMP]:
            state[_STATE_TIMESTAMP] = rows[i, _MAX_TIMESTAMP]
            state[_STATE_TIMESTAMP_OFFSET] = last_offset
        if rows[i, _POSITION] - state[_ENTRY_POSITION] <= interval_bytes:
            continue
        offset_entries[offset_count, 0] = last_offset
        offset_entries[offset_count, 1] = rows[i, _POSITION]
        offset_count += 1
        state[_ENTRY_POSITION] = rows[i, _POSITION]
        if state[_STATE_TIMESTAMP] > state[_INDEXED_TIMESTAMP]:
            time_entries[time_count, 0] = state[_STATE_TIMESTAMP]
            time_entries[time_count, 1] = state[_STATE_TIMESTAMP_OFFSET]
            time_count += 1
            state[_INDEXED_TIMESTAMP] = state[_STATE_TIMESTAMP]
    return offset_count, time_count, _DONE, rows.shape[0]


def warm() -> None:
    """Compile for the argument types in use."""
    entries = np.empty((0, 2), np.int64)
    build_index_entries(batch_table(0), 0, 0, initial_index_state(0), entries, entries)
