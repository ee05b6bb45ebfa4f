"""Reading zigzag variable-length integers, for use inside kernels.

Layout     little-endian groups of seven bits, high bit set while more follow; at most five bytes
           for 32 bits, ten for 64. Bits beyond the type's width in the last byte are dropped, as
           Kafka drops them.
"""

from typing import Any

import numpy as np

from varve.kernels.compile import as_int, inlined
from varve.kernels.loads import Bytes, load_u8

VARINT_OUT_OF_BYTES = -1
VARINT_TOO_LONG = -2


@inlined
def _read_groups(buffer: Bytes, position: int, end: int, byte_count_max: int) -> tuple[Any, int]:
    value = np.uint64(0)
    limit = min(end, position + byte_count_max)
    shift = np.uint64(0)
    at = position
    while at < limit:
        byte = load_u8(buffer, at)
        value |= np.uint64(byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += np.uint64(7)
    return value, VARINT_TOO_LONG if at - position == byte_count_max else VARINT_OUT_OF_BYTES


@inlined
def read_varint(buffer: Bytes, position: int, end: int) -> tuple[int, int]:
    """A 32-bit integer and the position behind it, or a negative position that tells the fault."""
    if position < end:
        byte = load_u8(buffer, position)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    groups, after = _read_groups(buffer, position, end, 5)
    bits = as_int(groups & np.uint64(0xFFFFFFFF))
    return (bits >> 1) ^ -(bits & 1), after


@inlined
def read_varlong(buffer: Bytes, position: int, end: int) -> tuple[int, int]:
    """A 64-bit integer and the position behind it, or a negative position that tells the fault."""
    if position < end:
        byte = load_u8(buffer, position)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    groups, after = _read_groups(buffer, position, end, 10)
    return as_int(groups >> np.uint64(1)) ^ -as_int(groups & np.uint64(1)), after
