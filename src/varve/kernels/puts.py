"""Bytes and numbers put one behind the other at an address, for use inside kernels.

Invariant  nothing is checked here: the caller has made room. Each gives the address behind.
"""

import numpy as np

from varve.kernels.batch_build import copy_bytes, store_byte
from varve.kernels.compile import inlined


@inlined
def put(at: int, source: int, size: int) -> int:
    copy_bytes(at, source, size)
    return at + size


@inlined
def put_byte(at: int, byte: int) -> int:
    store_byte(at, np.uint64(byte))
    return at + 1


@inlined
def put_number(at: int, number: int) -> int:
    """The decimal digits of a number that is not below 0."""
    count, rest = 1, number
    while rest >= 10:
        rest //= 10
        count += 1
    for step in range(count):
        store_byte(at + count - 1 - step, np.uint64(0x30 + number % 10))
        number //= 10
    return at + count
