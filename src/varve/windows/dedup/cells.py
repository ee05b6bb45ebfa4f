"""Cells that records look into: which are asked for, once each, however many records share them."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.kernels.window_spans import NO_ROW, ROW_WORDS, Rows, find_cells
from varve.windows.dedup.ids import Arrivals, Numbers, Secret
from varve.windows.dedup.rules import DedupRules

_SLOTS_MIN: Final = 4


@dataclass(frozen=True, slots=True)
class CellRows:
    """One row for each cell; the rows of each record's own cell and of the other it looks into."""

    cells: Rows
    own: Numbers
    other: Numbers


def find_window_cells(
    arrivals: Arrivals, chosen: Numbers, rules: DedupRules, secret: Secret
) -> CellRows:
    """The cells that the windows of the chosen records touch."""
    return _find(arrivals, chosen, rules.before_ms, rules.after_ms, rules.cell_ms, secret)


def find_own_cells(arrivals: Arrivals, rules: DedupRules, secret: Secret) -> tuple[Rows, Numbers]:
    """The cells in which the records lie, and the row of each record's."""
    found = _find(arrivals, np.arange(len(arrivals)), 0, 0, rules.cell_ms, secret)
    return found.cells, found.own


def _find(
    arrivals: Arrivals, chosen: Numbers, before: int, after: int, width: int, secret: Secret
) -> CellRows:
    count = len(chosen)
    slots = np.full(max(_SLOTS_MIN, 1 << (3 * count).bit_length()), NO_ROW)
    cells = np.empty((2 * count, ROW_WORDS), np.int64)
    own, other = np.empty(count, np.int64), np.empty(count, np.int64)
    k0, k1 = (np.uint64(word) for word in secret)
    words, kinds, times = arrivals.words, arrivals.kinds, arrivals.times
    row_count = find_cells(
        words, kinds, times, chosen, before, after, width, k0, k1, slots, cells, own, other
    )
    return CellRows(cells[:row_count], own, other)
