"""Hashes of record keys: SipHash for the key index, murmur for partitions and buckets.

SipHash-2-4 with 128 bits of output is keyed by the topic id: clients choose the record keys, and a
crafted collision would make compaction remove another key's record. Kafka's variant of MurmurHash2
chooses a record's partition, MurmurHash3 of 32 bits is Iceberg's bucket transform.

Invariant  no cell is read outside its column, whatever starts and sizes are.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import RECORD_COLUMN_COUNT, RecordColumn
from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.memory import Bytes, address_of, load_little_u64_at, load_u8, load_u8_at
from varve.kernels.record_parse import Table

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
# SipHash's initial state, and its constants for 128 bits of output.
_START_0 = np.uint64(0x736F6D6570736575)
_START_1 = np.uint64(0x646F72616E646F6D)
_START_2 = np.uint64(0x6C7967656E657261)
_START_3 = np.uint64(0x7465646279746573)
_WIDE_START = np.uint64(0xEE)
_WIDE_FIRST = np.uint64(0xEE)
_WIDE_SECOND = np.uint64(0xDD)
# Kafka's org.apache.kafka.common.utils.Utils.murmur2, and MurmurHash3_x86_32.
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_FACTOR = 0x5BD1E995
_WORD_MASK = 0xFFFFFFFF
_MURMUR3_FIRST = 0xCC9E2D51
_MURMUR3_SECOND = 0x1B873593
_POSITIVE = 0x7FFFFFFF


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
    """The bytes after the last whole word, with the size's low byte on top; reads no others."""
    tail_size = size & 7
    word = np.uint64(size & 0xFF) << np.uint64(56)
    if tail_size != 0:
        if size >= 8:
            tail = load_little_u64_at(start + size - 8)
            word |= np.uint64(tail) >> np.uint64(64 - 8 * tail_size)
        else:
            for i in range(tail_size):
                word |= np.uint64(load_u8_at(start + i)) << np.uint64(8 * i)
    return word


@inlined
def siphash(start: int, size: int, k0: Any, k1: Any) -> tuple[Any, Any]:
    """The hash of the `size` bytes at the address `start`; reads no others."""
    v0 = _START_0 ^ k0
    v1 = _START_1 ^ k1 ^ _WIDE_START
    v2 = _START_2 ^ k0
    v3 = _START_3 ^ k1
    for address in range(start, start + (size & -8), 8):
        word = load_little_u64_at(address)
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
    """Hashes each record's key under the secret (k0, k1); a null key gives (0, 0).

    Pass k0 and k1 as np.uint64: the two little-endian halves of the sixteen secret bytes. A row of
    `out` holds the two words of a hash. Columns that point outside the payload raise IndexError.
    """
    if out.shape[0] < record_columns.shape[0] or out.shape[1] < 2:
        raise IndexError("out has too few rows or columns for the hashes")
    base = address_of(payload)
    for index in range(record_columns.shape[0]):
        start = record_columns[index, RecordColumn.KEY_START]
        size = record_columns[index, RecordColumn.KEY_SIZE]
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
    """The hash of a single key, buffer[start:end], as by `hash_keys`."""
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    return siphash(address_of(buffer) + start, end - start, np.uint64(k0), np.uint64(k1))


@kernel
def murmur2(key: Bytes) -> int:
    """Kafka's murmur2 of a whole buffer, as an unsigned number of 32 bits."""
    size = key.size
    value = _MURMUR2_SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        word = (
            load_u8(key, start)
            | load_u8(key, start + 1) << 8
            | load_u8(key, start + 2) << 16
            | load_u8(key, start + 3) << 24
        )
        word = word * _MURMUR2_FACTOR & _WORD_MASK
        value = (value * _MURMUR2_FACTOR & _WORD_MASK) ^ (
            (word ^ word >> 24) * _MURMUR2_FACTOR & _WORD_MASK
        )
    if size != whole:
        for at in range(whole, size):
            value ^= load_u8(key, at) << 8 * (at - whole)
        value = value * _MURMUR2_FACTOR & _WORD_MASK
    value = (value ^ value >> 13) * _MURMUR2_FACTOR & _WORD_MASK
    return as_int(value ^ value >> 15)


@kernel
def murmur3_cells(
    data: Bytes, offsets: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint32]
) -> None:
    """MurmurHash3 of each cell of a binary column; `offsets` has one more entry than `hashes`."""
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
            word = word * _MURMUR3_FIRST & _WORD_MASK
            word = ((word << 15 | word >> 17) & _WORD_MASK) * _MURMUR3_SECOND & _WORD_MASK
            value ^= word
            value = (value << 13 | value >> 19) & _WORD_MASK
            value = (value * 5 + 0xE6546B64) & _WORD_MASK
        if whole != end:
            word = 0
            for at in range(whole, end):
                word |= load_u8(data, at) << 8 * (at - whole)
            word = word * _MURMUR3_FIRST & _WORD_MASK
            value ^= ((word << 15 | word >> 17) & _WORD_MASK) * _MURMUR3_SECOND & _WORD_MASK
        value ^= end - start
        value = (value ^ value >> 16) * 0x85EBCA6B & _WORD_MASK
        value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD_MASK
        hashes[number] = value ^ value >> 16


@kernel
def partition_keys(
    data: Bytes, starts: Integers, sizes: Integers, partition_count: int, out: Integers
) -> int:
    """Sets the partition of every non-null cell; returns -1, or the index of a bad cell."""
    if len(starts) != len(sizes) or len(out) != len(sizes) or partition_count < 1:
        return 0
    for index in range(len(sizes)):
        start, size = starts[index], sizes[index]
        if size < 0:
            continue
        if start < 0 or start > len(data) - size:
            return index
        out[index] = (murmur2(data[start : start + size]) & _POSITIVE) % partition_count
    return -1


def warm() -> None:
    """Compile for the argument types in use."""
    secret = np.uint64(0)
    columns = np.zeros((1, RECORD_COLUMN_COUNT), np.int64)
    for buffer in byte_buffers(b"key"):
        hash_keys(buffer, columns, secret, secret, np.empty((1, 2), np.uint64))
        hash_bytes(buffer, 0, 3, secret, secret)
        murmur2(buffer)
        murmur3_cells(buffer, np.array([0, 3], np.int32), np.empty(1, np.uint32))
    starts, sizes = np.zeros(1, np.int64), np.full(1, 3, np.int64)
    starts.flags.writeable = sizes.flags.writeable = False
    partition_keys(np.frombuffer(b"key", np.uint8), starts, sizes, 2, np.zeros(1, np.int64))
