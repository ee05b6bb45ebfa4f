"""Finds the duplicates of a chunk by comparing records with the stored time spans of their ids.

Layout     a cell stands for an id within before + after + 1 milliseconds: the two words of the id,
           its kind, and the number of the time range. A span is the stored state of a cell: the
           least time and its offset, the largest time and its offset; ABSENT as the least time
           if nothing is stored. Both are rows of four int64. docs/reference/formats/dedup-ids.md
Invariant  between the least and the largest time every time is a duplicate, because the two are
           closer than the window is wide: the window of each such time includes one of them. The
           window around a time overlaps two cells at most.
           Records are judged in order: chunk boundaries do not affect the result.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.dedup.kernels.id_table import mix, spread
from varve.dedup.kernels.id_words import NO_ID, Kinds, Words
from varve.kernels.compile import as_int, inlined, kernel
from varve.kernels.memory import Bytes, address_of, load_little_u64_at

Numbers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

KEPT: Final = 0
DUPLICATE: Final = 1
LATE: Final = 2
FUTURE: Final = 3
MISSING: Final = 4
NO_ID_FOUND: Final = 5

ABSENT: Final = -1
NO_ROW: Final = -1
NO_WITNESS: Final = -1
ROW_WORDS: Final = 4
ONE_TIME_BYTES: Final = 16
TWO_TIMES_BYTES: Final = 32

_CELL_FACTOR = np.uint64(0xBF58476D1CE4E5B9)


@kernel
def classify(
    kinds: Kinds, times: Numbers, time_max: int, lateness: int, stream_time: int, verdicts: Kinds
) -> int:
    """Classifies the records that are not compared; the others are KEPT for now.

    Returns the stream time after the last record: the largest time so far that is not above
    `time_max`, whatever the verdict.
    """
    if times.size < kinds.size or verdicts.size < kinds.size:
        raise IndexError("there are fewer times or verdicts than ids")
    for index in range(kinds.size):
        time = times[index]
        verdict = KEPT
        if time < 0:
            verdict = MISSING
        elif time > time_max:
            verdict = FUTURE
        else:
            if time < stream_time - lateness:
                verdict = LATE
            stream_time = max(stream_time, time)
        verdicts[index] = NO_ID_FOUND if kinds[index] == NO_ID else verdict
    return stream_time


@inlined
def _find_row(
    slots: Numbers, cells: Rows, count: int, first: int, second: int, kind: int, cell: int, at: int
) -> int:
    """The row of a cell; a new cell becomes row `count`."""
    mask = slots.size - 1
    at &= mask
    while slots[at] != NO_ROW:
        row = slots[at]
        if (
            cells[row, 0] == first
            and cells[row, 1] == second
            and cells[row, 2] == kind
            and cells[row, 3] == cell
        ):
            return as_int(row)
        at = (at + 1) & mask
    slots[at] = count
    cells[count, 0] = first
    cells[count, 1] = second
    cells[count, 2] = kind
    cells[count, 3] = cell
    return count


@kernel
def find_cells(
    words: Words,
    kinds: Kinds,
    times: Numbers,
    chosen: Numbers,
    before: int,
    after: int,
    width: int,
    k0: Any,
    k1: Any,
    slots: Numbers,
    cells: Rows,
    own: Numbers,
    other: Numbers,
) -> int:
    """Finds, for each chosen record, the row of its own cell and of the other one in its window.

    A cell is `width` milliseconds, and no window is wider; `other` is NO_ROW if the window is in
    one cell. Every cell has one row; returns the number of rows. `slots` has a power of two of
    elements, more than the two rows of each chosen record, all NO_ROW. Pass k0 and k1 as np.uint64.
    """
    if cells.shape[0] < 2 * chosen.size or slots.size <= 2 * chosen.size:
        raise IndexError("there are too few rows or slots for the cells")
    if own.size < chosen.size or other.size < chosen.size:
        raise IndexError("own or other have too few elements")
    if before + after >= width:
        raise IndexError("the window is wider than two cells")
    count = 0
    for number in range(chosen.size):
        index = chosen[number]
        if index < 0 or index >= kinds.size or index >= times.size or index >= words.shape[0]:
            raise IndexError("chosen names a record that is not there")
        first, second = as_int(words[index, 0]), as_int(words[index, 1])
        kind, time = as_int(kinds[index]), times[index]
        hashed = spread(words[index, 0], words[index, 1], kind, k0, k1)
        low, high, cell = (time - before) // width, (time + after) // width, time // width
        at = as_int(mix(hashed ^ (np.uint64(cell) * _CELL_FACTOR)))
        own[number] = _find_row(slots, cells, count, first, second, kind, cell, at)
        if own[number] == count:
            count += 1
        other[number] = NO_ROW
        if low != high:
            cell = low + high - cell
            at = as_int(mix(hashed ^ (np.uint64(cell) * _CELL_FACTOR)))
            other[number] = _find_row(slots, cells, count, first, second, kind, cell, at)
            if other[number] == count:
                count += 1
    return count


@inlined
def _find_witness(spans: Rows, row: int, time: int, offset: int, before: int, after: int) -> int:
    """The offset of the kept record that `time` duplicates, or NO_WITNESS.

    Only records of lower offsets count: a record that is read again is no duplicate of itself.
    """
    least, largest = spans[row, 0], spans[row, 2]
    if least == ABSENT:
        return NO_WITNESS
    if time - before <= least <= time + after and spans[row, 1] < offset:
        return as_int(spans[row, 1])
    if time - before <= largest <= time + after and spans[row, 3] < offset:
        return as_int(spans[row, 3])
    return NO_WITNESS


@inlined
def _extend(spans: Rows, row: int, time: int, offset: int) -> bool:
    """Extends a span by a time; False if the span includes it already."""
    if spans[row, 0] != ABSENT and spans[row, 0] <= time <= spans[row, 2]:
        return False
    if spans[row, 0] == ABSENT or time < spans[row, 0]:
        if spans[row, 0] == ABSENT:
            spans[row, 2] = time
            spans[row, 3] = offset
        spans[row, 0] = time
        spans[row, 1] = offset
    else:
        spans[row, 2] = time
        spans[row, 3] = offset
    return True


@kernel
def need_other(
    times: Numbers,
    offsets: Numbers,
    chosen: Numbers,
    before: int,
    after: int,
    own: Numbers,
    other: Numbers,
    spans: Rows,
    is_needed: Flags,
) -> None:
    """Marks the other cells to read: those of records that their own cell does not decide."""
    if own.size < chosen.size or other.size < chosen.size or is_needed.size < spans.shape[0]:
        raise IndexError("there are fewer elements or flags than records or rows")
    for number in range(chosen.size):
        row, index = other[number], chosen[number]
        if row == NO_ROW or is_needed[row]:
            continue
        witness = _find_witness(spans, own[number], times[index], offsets[index], before, after)
        if witness == NO_WITNESS:
            is_needed[row] = True


@kernel
def judge_records(
    times: Numbers,
    offsets: Numbers,
    chosen: Numbers,
    before: int,
    after: int,
    is_refreshing: bool,
    own: Numbers,
    other: Numbers,
    spans: Rows,
    verdicts: Kinds,
    witnesses: Numbers,
    is_new: Flags,
    is_changed: Flags,
) -> None:
    """Judges the chosen records in order, and extends the spans by those that are kept.

    `is_new` marks chosen records to store, `is_changed` the spans that have changed.
    A copy that restarts the window is stored with the offset of the record that was kept.
    """
    if own.size < chosen.size or other.size < chosen.size or is_new.size < chosen.size:
        raise IndexError("there are fewer elements or flags than records")
    if is_changed.size < spans.shape[0]:
        raise IndexError("there are fewer flags than rows")
    for number in range(chosen.size):
        index, row = chosen[number], own[number]
        time, offset = times[index], offsets[index]
        witness = _find_witness(spans, row, time, offset, before, after)
        if witness == NO_WITNESS and other[number] != NO_ROW:
            witness = _find_witness(spans, other[number], time, offset, before, after)
        is_new[number] = False
        if witness != NO_WITNESS:
            verdicts[index] = DUPLICATE
            witnesses[index] = witness
        if witness == NO_WITNESS or is_refreshing:
            first = offset if witness == NO_WITNESS else witness
            if _extend(spans, row, time, first):
                is_new[number] = True
                is_changed[row] = True


@kernel
def extend_spans(
    times: Numbers, offsets: Numbers, own: Numbers, spans: Rows, is_changed: Flags
) -> None:
    """Extends spans by stored times, each in the row of its cell."""
    if times.size > own.size or times.size > offsets.size or is_changed.size < spans.shape[0]:
        raise IndexError("there are fewer rows, offsets or flags than times")
    for index in range(times.size):
        if _extend(spans, own[index], times[index], offsets[index]):
            is_changed[own[index]] = True


@kernel
def read_spans(
    data: Bytes,
    starts: Numbers,
    sizes: Numbers,
    rows: Numbers,
    cells: Rows,
    width: int,
    spans: Rows,
) -> int:
    """Decodes value i into row rows[i]; size -1 is none. Returns the first invalid one, or -1."""
    if starts.size < rows.size or sizes.size < rows.size or cells.shape[0] < spans.shape[0]:
        raise IndexError("there are fewer values or cells than rows")
    base = address_of(data)
    for index in range(rows.size):
        row, size, at = rows[index], sizes[index], starts[index]
        if row < 0 or row >= spans.shape[0]:
            raise IndexError("rows name one that is not there")
        if size < 0:
            continue
        if (size != ONE_TIME_BYTES and size != TWO_TIMES_BYTES) or at < 0 or at > data.size - size:
            return index
        behind = size - ONE_TIME_BYTES
        for half in range(2):
            spans[row, half] = as_int(load_little_u64_at(base + at + 8 * half))
            spans[row, 2 + half] = as_int(load_little_u64_at(base + at + behind + 8 * half))
        least, largest = spans[row, 0], spans[row, 2]
        if not (0 <= least <= largest and least // width == largest // width == cells[row, 3]):
            return index
    return -1


def make_spans(count: int) -> Rows:
    """Empty spans."""
    return np.full((count, ROW_WORDS), ABSENT, np.int64)


def warm() -> None:
    """Compile for the argument types in use."""
    k = np.uint64(1)
    zero, flags = np.zeros(1, np.int64), np.zeros(2, np.bool_)
    words, kinds, verdicts = np.zeros((1, 2), np.uint64), np.zeros(1, np.uint8), np.zeros(1, "u1")
    classify(kinds, zero, 1, 0, -1, verdicts)
    cells, spans = np.zeros((2, ROW_WORDS), np.int64), make_spans(2)
    own, other = zero.copy(), zero.copy()
    find_cells(words, kinds, zero, zero, 1, 1, 3, k, k, np.full(4, NO_ROW), cells, own, other)
    need_other(zero, zero, zero, 1, 1, own, other, spans, flags)
    judge_records(
        zero, zero, zero, 1, 1, False, own, other, spans, verdicts, zero.copy(), flags, flags.copy()
    )
    extend_spans(zero, zero, own, spans, flags)
    value = np.zeros(ONE_TIME_BYTES, np.uint8)
    read_spans(value, zero, np.full(1, ONE_TIME_BYTES), zero, cells, 3, spans)
