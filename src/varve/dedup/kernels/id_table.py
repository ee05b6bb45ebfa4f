"""The ids of a window and the times at which they were kept, as an open hash table.

Layout     rows of four int64: the two words of an id; the least time; the span up to the largest
           time, shifted left by five bits, with the kind of the id below. FREE in the last column
           marks a free row. A row stands for an id in one cell of time; a cell is as wide as the
           window, before + after + 1 milliseconds.
Invariant  between the least and the largest time of a row every time is a duplicate, because the
           two are closer than the window is wide: the times between need not be stored. The window
           around a time overlaps two cells at most, so a lookup reads at most two rows.
           At least one row is free: the caller ensures it with `count_rows` and `move_rows`.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.dedup.kernels.id_words import Kinds, Words
from varve.kernels.compile import as_int, inlined, kernel

Rows = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ROW_WORDS: Final = 4
FREE: Final = -1
_KIND_BITS: Final = 5
_KIND_MASK: Final = 31
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


@inlined
def mix(word: Any) -> Any:
    word = (word ^ (word >> np.uint64(30))) * _FIRST_FACTOR
    word = (word ^ (word >> np.uint64(27))) * _SECOND_FACTOR
    return word ^ (word >> np.uint64(31))


@inlined
def spread(first: Any, second: Any, kind: int, k0: Any, k1: Any) -> Any:
    """A hash of an id; keyed, so that clients cannot choose ids that collide."""
    return mix(mix(np.uint64(first) ^ k0) ^ np.uint64(second) ^ k1 ^ np.uint64(kind))


@inlined
def _find(
    rows: Rows, first: int, second: int, kind: int, hashed: Any, cell: int, width: int
) -> int:
    """The row of an id in a cell, or ~row of the free row to use for it."""
    mask = rows.shape[0] - 1
    at: int = as_int(mix(hashed ^ (np.uint64(cell) * _FIRST_FACTOR))) & mask
    while rows[at, 3] != FREE:
        if (
            rows[at, 0] == first
            and rows[at, 1] == second
            and rows[at, 3] & _KIND_MASK == kind
            and rows[at, 2] // width == cell
        ):
            return at
        at = (at + 1) & mask
    return ~at


@inlined
def _add(rows: Rows, at: int, first: int, second: int, kind: int, time: int) -> bool:
    """Adds a time to the row `at`, or fills the free row ~at; False if nothing changed."""
    if at < 0:
        at = ~at
        rows[at, 0] = first
        rows[at, 1] = second
        rows[at, 2] = time
        rows[at, 3] = kind
        return True
    least = rows[at, 2]
    largest = least + (rows[at, 3] >> _KIND_BITS)
    if least <= time <= largest:
        return False
    least, largest = min(least, time), max(largest, time)
    rows[at, 2] = least
    rows[at, 3] = (largest - least) << _KIND_BITS | kind
    return True


@inlined
def _covers(rows: Rows, at: int, time: int, before: int, after: int) -> bool:
    if at < 0:
        return False
    least = rows[at, 2]
    largest = least + (rows[at, 3] >> _KIND_BITS)
    return bool(least - after <= time <= largest + before)


@kernel
def deal_ids(words: Words, kinds: Kinds, k0: Any, k1: Any, buckets: int, out: Kinds) -> None:
    """Chooses one of at most 256 buckets for each id. Pass k0 and k1 as np.uint64."""
    for index in range(kinds.size):
        hashed = spread(words[index, 0], words[index, 1], kinds[index], k0, k1)
        out[index] = (hashed >> np.uint64(32)) % np.uint64(buckets)


@kernel
def check_ids(
    rows: Rows,
    words: Words,
    kinds: Kinds,
    times: Times,
    k0: Any,
    k1: Any,
    before: int,
    after: int,
    is_refreshing: bool,
    is_duplicate: Flags,
    is_new: Flags,
) -> int:
    """Looks up ids in order, and adds those that are new in their window.

    `is_new` marks the times that changed the table and must be stored. Returns how many free rows
    were used. The table must have a free row for each id.
    """
    width = before + after + 1
    taken = 0
    for index in range(kinds.size):
        first, second = as_int(words[index, 0]), as_int(words[index, 1])
        kind, time = as_int(kinds[index]), times[index]
        hashed = spread(words[index, 0], words[index, 1], kind, k0, k1)
        low, high, cell = (time - before) // width, (time + after) // width, time // width
        own = _find(rows, first, second, kind, hashed, cell, width)
        is_found = _covers(rows, own, time, before, after)
        if not is_found and low != high:
            other = low + high - cell
            row = _find(rows, first, second, kind, hashed, other, width)
            is_found = _covers(rows, row, time, before, after)
        is_duplicate[index] = is_found
        is_new[index] = False
        if not is_found or is_refreshing:
            is_new[index] = _add(rows, own, first, second, kind, time)
            if own < 0:
                taken += 1
    return taken


@kernel
def add_ids(
    rows: Rows, words: Words, kinds: Kinds, times: Times, k0: Any, k1: Any, width: int
) -> int:
    """Adds stored times to the table; returns how many free rows were used."""
    taken = 0
    for index in range(kinds.size):
        first, second = as_int(words[index, 0]), as_int(words[index, 1])
        kind, time = as_int(kinds[index]), times[index]
        hashed = spread(words[index, 0], words[index, 1], kind, k0, k1)
        at = _find(rows, first, second, kind, hashed, time // width, width)
        _add(rows, at, first, second, kind, time)
        if at < 0:
            taken += 1
    return taken


@kernel
def count_rows(rows: Rows, floor: int) -> int:
    """The number of rows with a time at or above the floor."""
    count = 0
    for at in range(rows.shape[0]):
        if rows[at, 3] != FREE and rows[at, 2] + (rows[at, 3] >> _KIND_BITS) >= floor:
            count += 1
    return count


@kernel
def move_rows(rows: Rows, floor: int, k0: Any, k1: Any, width: int, target: Rows) -> None:
    """Copies the rows that have a time at or above the floor into an empty table."""
    for at in range(rows.shape[0]):
        meta = rows[at, 3]
        if meta == FREE or rows[at, 2] + (meta >> _KIND_BITS) < floor:
            continue
        kind = meta & _KIND_MASK
        first, second = rows[at, 0], rows[at, 1]
        hashed = spread(np.uint64(first), np.uint64(second), kind, k0, k1)
        to = ~_find(target, first, second, kind, hashed, rows[at, 2] // width, width)
        for word in range(ROW_WORDS):
            target[to, word] = rows[at, word]


def make_rows(count: int) -> Rows:
    """An empty table; its size is a power of two."""
    assert count & (count - 1) == 0
    rows = np.empty((count, ROW_WORDS), np.int64)
    rows[:, ROW_WORDS - 1] = FREE
    return rows


def warm() -> None:
    """Compile for the argument types in use."""
    k = np.uint64(1)
    rows = make_rows(4)
    flags, out = np.zeros(1, np.bool_), np.zeros(1, np.uint8)
    words, kinds, times = np.zeros((1, 2), np.uint64), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    deal_ids(words, kinds, k, k, 2, out)
    check_ids(rows, words, kinds, times, k, k, 1, 1, False, flags, flags.copy())
    add_ids(rows, words, kinds, times, k, k, 3)
    move_rows(rows, 0, k, k, 3, make_rows(4))
    count_rows(rows, 0)
