"""Ids of a deduplication as sixteen bytes and a kind.

Layout     two little-endian words and a byte. An id of at most sixteen bytes is itself, padded with
           zeros, and its kind is its size. A longer one is its 128-bit SipHash-2-4 under the secret
           of the job, and its kind is LONG. A null id is zeros and NO_ID.
Invariant  two ids of at most sixteen bytes are equal if and only if words and kind are.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import RECORD_COLUMN_COUNT, RecordColumn
from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.hashes import siphash
from varve.kernels.memory import Bytes, address_of, load_u8_at
from varve.kernels.record_parse import Table, record_table
from varve.kernels.varint import read_varint

Words = npt.NDArray[np.uint64]
Kinds = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]

EXACT_BYTES_MAX: Final = 16
LONG: Final = 17
NO_ID: Final = 31


@inlined
def _word(start: int, end: int) -> Any:
    """Up to eight bytes at an address as a little-endian word; reads no further bytes."""
    word = np.uint64(0)
    for i in range(min(end - start, 8)):
        word |= np.uint64(load_u8_at(start + i)) << np.uint64(8 * i)
    return word


@inlined
def _fold(start: int, size: int, k0: Any, k1: Any) -> tuple[Any, Any, int]:
    """The words and the kind of the id of `size` bytes at an address."""
    if size <= EXACT_BYTES_MAX:
        return _word(start, start + size), _word(start + 8, start + size), size
    first, second = siphash(start, size, np.uint64(k0), np.uint64(k1))
    return first, second, LONG


@kernel
def fold_ids(data: Bytes, ends: Ends, k0: Any, k1: Any, words: Words, kinds: Kinds) -> None:
    """Folds id i, data[ends[i]:ends[i + 1]], unless kinds[i] is NO_ID.

    Pass k0 and k1 as np.uint64. Ids that point outside the data raise IndexError.
    """
    if words.shape[0] < kinds.size or words.shape[1] < 2 or ends.size <= kinds.size:
        raise IndexError("words or ends have too few rows for the ids")
    base = address_of(data)
    for index in range(kinds.size):
        if kinds[index] == NO_ID:
            words[index, 0] = np.uint64(0)
            words[index, 1] = np.uint64(0)
            continue
        start, end = as_int(ends[index]), as_int(ends[index + 1])
        if start < 0 or end < start or end > data.size:
            raise IndexError("an id lies outside the data")
        words[index, 0], words[index, 1], kinds[index] = _fold(base + start, end - start, k0, k1)


@kernel
def fold_cells(
    data: Bytes, starts: Numbers, sizes: Numbers, k0: Any, k1: Any, words: Words, kinds: Kinds
) -> None:
    """Folds ids at any positions in the data; a size of -1 is no id. Pass k0, k1 as np.uint64.

    Starts and sizes may be columns of a table.
    """
    if words.shape[0] < kinds.size or words.shape[1] < 2:
        raise IndexError("words have too few rows for the ids")
    if starts.size < kinds.size or sizes.size < kinds.size:
        raise IndexError("starts or sizes are fewer than the ids")
    base = address_of(data)
    for index in range(kinds.size):
        start, size = starts[index], sizes[index]
        if size < 0:
            words[index, 0] = np.uint64(0)
            words[index, 1] = np.uint64(0)
            kinds[index] = NO_ID
            continue
        if start < 0 or start > data.size - size:
            raise IndexError("an id lies outside the data")
        words[index, 0], words[index, 1], kinds[index] = _fold(base + start, size, k0, k1)


@kernel
def find_headers(
    payload: Bytes, records: Table, name: Bytes, starts: Numbers, sizes: Numbers
) -> int:
    """Finds the value of each record's last header of a name; size -1 if it has none or null.

    Returns the first record with malformed headers, or -1.
    """
    if starts.size < records.shape[0] or sizes.size < records.shape[0]:
        raise IndexError("starts or sizes are fewer than the records")
    if records.shape[1] < RECORD_COLUMN_COUNT:
        raise IndexError("records have too few columns")
    base = address_of(payload)
    for row in range(records.shape[0]):
        starts[row], sizes[row] = 0, -1
        position, end = (
            records[row, RecordColumn.HEADERS_START],
            records[row, RecordColumn.RECORD_END],
        )
        if position < 0 or end > payload.size:
            raise IndexError("a record lies outside the payload")
        at, end = base + position, base + end
        for _ in range(records[row, RecordColumn.HEADERS_COUNT]):
            key_size, key = read_varint(at, end)
            if key < 0 or key_size < 0 or key_size > end - key:
                return row
            size, start = read_varint(key + key_size, end)
            if start < 0 or size > end - start:
                return row
            at = start + max(size, 0)
            is_named = key_size == name.size
            for index in range(name.size if is_named else 0):
                if load_u8_at(key + index) != name[index]:
                    is_named = False
                    break
            if is_named:
                starts[row], sizes[row] = start - base, max(size, -1)
    return -1


def warm() -> None:
    """Compile for the argument types in use."""
    secret = np.uint64(0)
    read_only = np.frombuffer(np.array([0, 2], np.int32).tobytes(), np.int32)
    words, kinds = np.empty((1, 2), np.uint64), np.zeros(1, np.uint8)
    for data in byte_buffers(b"id"):
        for ends in (read_only, read_only.copy()):
            fold_ids(data, ends, secret, secret, words, kinds)
    payload, cells = np.frombuffer(b"id", np.uint8), np.frombuffer(bytes(8), np.int64)
    fold_cells(payload, cells, cells, secret, secret, words, kinds)
    records = record_table(1)
    records[:] = 0
    fold_cells(payload, records[:, 0], records[:, 1], secret, secret, words, kinds)
    find_headers(payload, records, payload, np.zeros(1, np.int64), np.zeros(1, np.int64))
