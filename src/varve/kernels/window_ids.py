"""Ids of a deduplication as sixteen bytes and a kind.

Layout     two little-endian words and a byte. An id of at most sixteen bytes is itself, padded with
           zeros, and its kind is its size. A longer one is its SipHash-2-4 of 128 bits under the
           secret of the job, and its kind is LONG. A null id is zeros and NO_ID.
Invariant  ids of at most sixteen bytes are the same iff words and kind are.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.key_hash import siphash
from varve.kernels.loads import Bytes
from varve.kernels.peeks import peek_u8, start_of

Words = npt.NDArray[np.uint64]
Kinds = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int32]

EXACT_BYTES_MAX: Final = 16
LONG: Final = 17
NO_ID: Final = 31


@inlined
def _word(start: int, end: int) -> Any:
    """Up to eight bytes at an address as a little-endian word; reads no others."""
    word = np.uint64(0)
    for i in range(min(end - start, 8)):
        word |= np.uint64(peek_u8(start + i)) << np.uint64(8 * i)
    return word


@kernel
def fold_ids(data: Bytes, ends: Ends, k0: Any, k1: Any, words: Words, kinds: Kinds) -> None:
    """Folds id i, data[ends[i]:ends[i + 1]], unless kinds[i] says already that there is none.

    Pass k0 and k1 as np.uint64. Ids that point outside the data raise IndexError.
    """
    if words.shape[0] < kinds.size or words.shape[1] < 2 or ends.size <= kinds.size:
        raise IndexError("words or ends have too few rows for the ids")
    base = start_of(data)
    for index in range(kinds.size):
        if kinds[index] == NO_ID:
            words[index, 0] = np.uint64(0)
            words[index, 1] = np.uint64(0)
            continue
        start, end = as_int(ends[index]), as_int(ends[index + 1])
        if start < 0 or end < start or end > data.size:
            raise IndexError("an id lies outside the data")
        size = end - start
        if size <= EXACT_BYTES_MAX:
            words[index, 0] = _word(base + start, base + end)
            words[index, 1] = _word(base + start + 8, base + end)
            kinds[index] = size
        else:
            first, second = siphash(base + start, size, np.uint64(k0), np.uint64(k1))
            words[index, 0] = first
            words[index, 1] = second
            kinds[index] = LONG


def warm() -> None:
    """Compile for the argument types in use."""
    secret = np.uint64(0)
    read_only = np.frombuffer(np.array([0, 2], np.int32).tobytes(), np.int32)
    for data in byte_buffers(b"id"):
        for ends in (read_only, read_only.copy()):
            fold_ids(data, ends, secret, secret, np.empty((1, 2), np.uint64), np.zeros(1, np.uint8))
