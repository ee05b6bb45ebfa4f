"""The index rule over tables of batches, and across them."""

import numpy as np
import numpy.typing as npt
import pytest

from varve.kernels.batch_layout import BatchColumn
from varve.kernels.batch_scan import (
    IndexBuildStatus,
    IndexState,
    batch_table,
    build_index_entries,
    initial_index_state,
)

Table = npt.NDArray[np.int64]
Rows = list[tuple[int, int, int]]


def build(
    rows: Rows, base: int = 0, interval: int = 100, state: Table | None = None
) -> tuple[list[list[int]], list[list[int]], int, int]:
    """Rows are (position, last offset, max timestamp)."""
    table = batch_table(len(rows))
    for row, (position, last_offset, timestamp) in enumerate(rows):
        table[row, BatchColumn.POSITION] = position
        table[row, [BatchColumn.BASE_OFFSET, BatchColumn.LAST_OFFSET]] = last_offset
        table[row, BatchColumn.MAX_TIMESTAMP] = timestamp
    offsets, times = np.empty((len(rows), 2), np.int64), np.empty((len(rows), 2), np.int64)
    state = initial_index_state(base) if state is None else state
    counts = build_index_entries(table, base, interval, state, offsets, times)
    return offsets[: counts[0]].tolist(), times[: counts[1]].tolist(), counts[2], counts[3]


def test_an_entry_needs_more_than_the_interval() -> None:
    rows: Rows = [(0, 0, 5), (100, 1, 5), (101, 2, 5), (201, 3, 6), (202, 4, 7)]
    offsets, times, status, done = build(rows)
    assert offsets == [[2, 101], [4, 202]]
    assert times == [[5, 0], [7, 4]]
    assert (status, done) == (IndexBuildStatus.DONE, 5)


def test_the_state_carries_over_to_the_next_table() -> None:
    rows: Rows = [(i * 60, i, i % 3) for i in range(20)]
    whole = build(rows)
    state = initial_index_state(0)
    parts = [build(rows[i : i + 3], state=state) for i in range(0, 20, 3)]
    assert [entry for part in parts for entry in part[0]] == whole[0]
    assert [entry for part in parts for entry in part[1]] == whole[1]
    assert state[IndexState.MAX_TIMESTAMP] == 2


@pytest.mark.parametrize("offset", [4, 5])
def test_an_offset_that_does_not_ascend_stops_the_build(offset: int) -> None:
    assert build([(0, 5, 1), (50, offset, 1), (90, 9, 1)])[2:] == (
        IndexBuildStatus.OFFSET_NOT_ASCENDING,
        1,
    )


def test_an_offset_below_the_base_does_not_ascend() -> None:
    assert build([(0, 7, 1)], base=10)[2:] == (IndexBuildStatus.OFFSET_NOT_ASCENDING, 0)


@pytest.mark.parametrize("base", [0, 1 << 40])
def test_an_offset_beyond_32_bits_overflows(base: int) -> None:
    fits, beyond = base + 2**31 - 1, base + 2**31
    assert build([(0, fits, 1)], base=base)[2] == IndexBuildStatus.DONE
    assert build([(0, base, 1), (70, beyond, 1)], base=base)[2:] == (
        IndexBuildStatus.OFFSET_OVERFLOW,
        1,
    )


def test_batches_without_a_timestamp_add_no_time_entry() -> None:
    offsets, times, _, _ = build([(0, 0, -1), (200, 1, -1)])
    assert (offsets, times) == ([[1, 200]], [])
