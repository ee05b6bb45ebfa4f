"""The batch and mark tables of a key index, from a plain list of batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import BATCH, CONTROL_EMPTY, CONTROL_NONE, MARK

DATA, EMPTY = CONTROL_NONE, CONTROL_EMPTY


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
