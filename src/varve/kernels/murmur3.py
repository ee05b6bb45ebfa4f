"""MurmurHash3 of 32 bits, by which Iceberg chooses the bucket of a key."""

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, byte_buffers, kernel
from varve.kernels.loads import Bytes, load_u8

_FIRST = 0xCC9E2D51
_SECOND = 0x1B873593
_MASK = 0xFFFFFFFF


@kernel
def hash_cells(data: Bytes, offsets: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint32]) -> None:
    """The hash of each cell of a binary column; `offsets` has one more entry than `hashes`."""
    for number in range(hashes.size):
        start = as_int(offsets[number])
        end = as_int(offsets[number + 1])
        value = 0
        whole = start + ((end - start) & ~3)
        for at in range(start, whole, 4):
            word = (
                load_u8(data, at)
                | load_u8(data, at + 1) << 8
                | load_u8(data, at + 2) << 16
                | load_u8(data, at + 3) << 24
            )
            word = word * _FIRST & _MASK
            word = ((word << 15 | word >> 17) & _MASK) * _SECOND & _MASK
            value ^= word
            value = (value << 13 | value >> 19) & _MASK
            value = (value * 5 + 0xE6546B64) & _MASK
        if whole != end:
            word = 0
            for at in range(whole, end):
                word |= load_u8(data, at) << 8 * (at - whole)
            word = word * _FIRST & _MASK
            value ^= ((word << 15 | word >> 17) & _MASK) * _SECOND & _MASK
        value ^= end - start
        value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
        value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
        hashes[number] = value ^ value >> 16


def warm() -> None:
    """Compile for the argument types in use."""
    for buffer in byte_buffers(b"key"):
        hash_cells(buffer, np.array([0, 3], np.int32), np.empty(1, np.uint32))
