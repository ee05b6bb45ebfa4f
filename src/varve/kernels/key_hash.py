"""SipHash-2-4 with 128 bits of output over record keys.

Keys come from outside and a crafted collision would remove somebody's data, so the hash is keyed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import byte_buffers, inlined, kernel
from varve.kernels.loads import Bytes
from varve.kernels.peeks import peek_little_u64, peek_u8, start_of
from varve.kernels.record_parse import RECORD_FIELD_COUNT, RecordField, Table

Hashes = npt.NDArray[np.uint64]

_KEY_START = int(RecordField.KEY_START)
_KEY_SIZE = int(RecordField.KEY_SIZE)

_START_0 = np.uint64(0x736F6D6570736575)
_START_1 = np.uint64(0x646F72616E646F6D)
_START_2 = np.uint64(0x6C7967656E657261)
_START_3 = np.uint64(0x7465646279746573)
_WIDE_START = np.uint64(0xEE)
_WIDE_FIRST = np.uint64(0xEE)
_WIDE_SECOND = np.uint64(0xDD)


@inlined
def _rotate(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> tuple[Any, Any, Any, Any]:
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 += v1
    v0 += v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined
def _last_word(start: int, size: int) -> Any:
    """The bytes behind the last whole word, with the size's low byte on top; reads no others."""
    rest = size & 7
    word = np.uint64(size & 0xFF) << np.uint64(56)
    if rest != 0:
        if size >= 8:
            tail = peek_little_u64(start + size - 8)
            word |= np.uint64(tail) >> np.uint64(64 - 8 * rest)
        else:
            for i in range(rest):
                word |= np.uint64(peek_u8(start + i)) << np.uint64(8 * i)
    return word


@inlined
def siphash(start: int, size: int, k0: Any, k1: Any) -> tuple[Any, Any]:
    """The hash of the `size` bytes at the address `start`; reads no others."""
    v0 = _START_0 ^ k0
    v1 = _START_1 ^ k1 ^ _WIDE_START
    v2 = _START_2 ^ k0
    v3 = _START_3 ^ k1
    for address in range(start, start + (size & -8), 8):
        word = peek_little_u64(address)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = _last_word(start, size)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _WIDE_FIRST
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _WIDE_SECOND
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel
def hash_keys(payload: Bytes, record_columns: Table, k0: Any, k1: Any, out: Hashes) -> None:
    """Hash each record's key under the secret (k0, k1); null keys give 0, 0.

    Pass k0 and k1 as np.uint64: the two little-endian halves of the sixteen key bytes. A row of
    `out` holds the hash likewise. Columns that point outside the payload raise IndexError.
    """
    if out.shape[0] < record_columns.shape[0] or out.shape[1] < 2:
        raise IndexError("out has too few rows or columns for the hashes")
    base = start_of(payload)
    for index in range(record_columns.shape[0]):
        start = record_columns[index, _KEY_START]
        size = record_columns[index, _KEY_SIZE]
        if size < 0:
            out[index, 0] = np.uint64(0)
            out[index, 1] = np.uint64(0)
            continue
        if start < 0 or start > payload.size or size > payload.size - start:
            raise IndexError("a key lies outside the payload")
        first, second = siphash(base + start, size, np.uint64(k0), np.uint64(k1))
        out[index, 0] = first
        out[index, 1] = second


@kernel
def hash_bytes(buffer: Bytes, start: int, end: int, k0: Any, k1: Any) -> tuple[int, int]:
    """The hash of a single key, buffer[start:end], as `hash_keys` gives it."""
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    return siphash(start_of(buffer) + start, end - start, np.uint64(k0), np.uint64(k1))


def warm() -> None:
    """Compile for the argument types in use."""
    secret = np.uint64(0)
    columns = np.zeros((1, RECORD_FIELD_COUNT), np.int64)
    for buffer in byte_buffers(b"key"):
        hash_keys(buffer, columns, secret, secret, np.empty((1, 2), np.uint64))
        hash_bytes(buffer, 0, 3, secret, secret)
