"""Zigzag variable-length integers inside kernels, read and written by address.

Layout     little-endian groups of seven bits, high bit set while more follow; at most five bytes
           for 32 bits, ten for 64. Bits beyond the type's width in the last byte are dropped, as
           Kafka drops them.
Invariant  nothing at or after `end` is read. The caller of a writer checks that there is room.
"""

from typing import Any

import numpy as np

from varve.kernels.compile import as_int, inlined
from varve.kernels.memory import load_u8_at, store_u8_at

VARINT_OUT_OF_BYTES = -1
VARINT_TOO_LONG = -2


@inlined
def _read_groups(at: int, end: int, byte_count_max: int) -> tuple[Any, int]:
    """The bits of an integer, and the address after it or a negative fault."""
    value = np.uint64(0)
    limit = min(end, at + byte_count_max)
    shift = np.uint64(0)
    address = at
    while address < limit:
        byte = load_u8_at(address)
        value |= np.uint64(byte & 0x7F) << shift
        address += 1
        if byte < 0x80:
            return value, address
        shift += np.uint64(7)
    return value, VARINT_TOO_LONG if address - at == byte_count_max else VARINT_OUT_OF_BYTES


@inlined
def read_varint(at: int, end: int) -> tuple[int, int]:
    """A 32-bit integer and the address after it, or a negative address that encodes the fault."""
    if at < end:
        first = load_u8_at(at)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
        if at + 1 < end:
            second = load_u8_at(at + 1)
            if second < 0x80:
                bits = (first & 0x7F) | (second << 7)
                return (bits >> 1) ^ -(bits & 1), at + 2
    groups, after = _read_groups(at, end, 5)
    bits = as_int(groups & np.uint64(0xFFFFFFFF))
    return (bits >> 1) ^ -(bits & 1), after


@inlined
def read_varlong(at: int, end: int) -> tuple[int, int]:
    """A 64-bit integer and the address after it, or a negative address that encodes the fault."""
    if at < end:
        byte = load_u8_at(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    groups, after = _read_groups(at, end, 10)
    return as_int(groups >> np.uint64(1)) ^ -as_int(groups & np.uint64(1)), after


@inlined
def zigzag(value: int) -> Any:
    return np.uint64((np.int64(value) << 1) ^ (np.int64(value) >> 63))


@inlined
def varint_size(value: int) -> int:
    remaining_bits = zigzag(value)
    size = 1
    while remaining_bits >= np.uint64(128):
        remaining_bits >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varint(at: int, value: int) -> int:
    """Writes an integer at an address; returns the address after it."""
    remaining_bits = zigzag(value)
    while remaining_bits >= np.uint64(128):
        store_u8_at(at, remaining_bits | np.uint64(128))
        remaining_bits >>= np.uint64(7)
        at += 1
    store_u8_at(at, remaining_bits)
    return at + 1
