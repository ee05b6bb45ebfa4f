"""Finds a hash among sorted key entries in a file, by a few reads.

Hashes are spread evenly, so the place of one is guessed from its value; each guess narrows the
range, and after some that missed, halving does.

Invariant  ends after a bounded number of reads, whatever the entries say.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from varve.disk import File
from varve.foundation.errors import Corrupt

Entries = npt.NDArray[np.uint64]

ENTRY_BYTES: Final = 32
_WORDS: Final = ENTRY_BYTES // 8
_BLOCK_ENTRIES: Final = 128
_GUESSES_MAX: Final = 6
_HASH_END: Final = 1 << 64


def read_entries_at(file: File, position: int, out: Entries) -> None:
    """Fills `out` from the file; raises Corrupt when the file is shorter."""
    if not len(out):
        return
    view = out.reshape(-1).view(np.uint8).data
    filled = file.read_into(position, view)
    if filled != view.nbytes:
        raise Corrupt(
            f"{file.path}: {filled} of {view.nbytes} bytes at position {position}, the file was cut"
            " while in use: delete it, it is built again"
        )


def find_lower_bound(file: File, position: int, start: int, end: int, hash_high: int) -> int:
    """The first of the entries [start, end) with a first word of at least `hash_high`, else `end`.

    Entry 0 lies at `position`.
    """
    if hash_high >= _HASH_END:
        return end
    low_hash, high_hash = 0, _HASH_END
    block = np.empty((_BLOCK_ENTRIES, _WORDS), np.uint64)
    guesses = 0
    while start < end:
        middle = (start + end) // 2
        if guesses < _GUESSES_MAX and low_hash <= hash_high < high_hash:
            middle = start + (hash_high - low_hash) * (end - start) // (high_hash - low_hash)
        guesses += 1
        first = max(start, min(middle - _BLOCK_ENTRIES // 2, end - _BLOCK_ENTRIES))
        rows = block[: min(end - first, _BLOCK_ENTRIES)]
        read_entries_at(file, position + first * ENTRY_BYTES, rows)
        hashes = rows[:, 0]
        if int(hashes[0]) >= hash_high:
            end, high_hash = first, int(hashes[0])
        elif int(hashes[-1]) < hash_high:
            start, low_hash = first + len(rows), int(hashes[-1])
        else:
            return first + int(np.searchsorted(hashes, np.uint64(hash_high)))
    return start
