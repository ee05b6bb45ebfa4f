"""The batch and mark tables of a key index, from a plain list of batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BATCH = np.dtype(
    [
        ("position", "<u4"),
        ("size", "<u4"),
        ("base", "<u4"),
        ("last", "<u4"),
        ("count", "<u4"),
        ("attributes", "<u2"),
        ("flags", "<u2"),
        ("horizon", "<i8"),
    ]
)
MARK = np.dtype(
    [("batch", "<u4"), ("epoch", "<i2"), ("control", "<i2"), ("producer_id", "<i8")],
)
DATA, EMPTY = -1, -2


class Mark(NamedTuple):
    """One batch of one offset; `control` is DATA, EMPTY or the type of the control record."""

    offset: int
    producer_id: int = -1
    control: int = DATA
    is_transactional: bool = True


def make_tables(
    base_offset: int, listed: Sequence[Mark]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Both tables of a segment; a batch that is neither transactional nor control has no mark."""
    batches = np.zeros(len(listed), BATCH)
    marks = []
    for number, mark in enumerate(listed):
        is_control = mark.control != DATA
        batches[number]["base"] = batches[number]["last"] = mark.offset - base_offset
        batches[number]["count"] = mark.control != EMPTY
        batches[number]["attributes"] = is_control << 5 | mark.is_transactional << 4
        if is_control or mark.is_transactional:
            marks.append((number, 0, mark.control, mark.producer_id))
    return batches, np.array(marks, MARK)
