"""One entry of a shape's log, and its bytes.

Layout     tx (8), op (8), key size (4), key, operation (1), flag (1), json size (8), json, then the
           CRC-32C (4) of all bytes before it; big-endian. docs/formats/shape-log.md
Invariant  without its last four bytes an entry is one of the reference's layout; the JSON begins
           30 bytes and a key behind the entry's start in both.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from varve.foundation.errors import Corrupt
from varve.kernels.crc import crc32c
from varve.kernels.shape_entries import NUMBER_MAX
from varve.shapes.offset import INFINITE_OP, Offset

INSERT, UPDATE, DELETE, CONTROL = b"iudc"
IS_RECEIVED: Final = 0
"""The flag of an entry that no compaction has rewritten."""

HEAD_BYTES: Final = 20
"""Before the key."""
FIXED_BYTES: Final = 30
"""Between an entry's start and its JSON, the key aside."""
CRC_BYTES: Final = 4
OVERHEAD_BYTES: Final = FIXED_BYTES + CRC_BYTES

_HEAD: Final = struct.Struct(">QQI")
_MIDDLE: Final = struct.Struct(">BBQ")
_CRC: Final = struct.Struct(">I")


class Entry(NamedTuple):
    """A message at its place; `operation` is the code of i, u, d or c, whose key is empty."""

    offset: Offset
    key: bytes
    operation: int
    json: bytes


class StoredEntry(NamedTuple):
    """An entry as it lies in a log file."""

    entry: Entry
    flag: int
    position: int
    size: int

    @property
    def end(self) -> int:
        return self.position + self.size


def encode_reference_entry(entry: Entry, flag: int = IS_RECEIVED) -> bytes:
    """The entry without a checksum."""
    head = _HEAD.pack(*entry.offset, len(entry.key))
    middle = _MIDDLE.pack(entry.operation, flag, len(entry.json))
    return b"".join((head, entry.key, middle, entry.json))


def encode_entry(entry: Entry, flag: int = IS_RECEIVED) -> bytes:
    """The entry as a log holds it."""
    data = encode_reference_entry(entry, flag)
    return data + _CRC.pack(checksum(data))


def entry_size(key_size: int, json_size: int) -> int:
    return OVERHEAD_BYTES + key_size + json_size


def decode_entry(data: bytes | memoryview, position: int = 0) -> StoredEntry:
    """The entry that begins at a position of these bytes; raises Corrupt.

    The place that it tells is within the bytes.
    """
    view = memoryview(data)[position:]
    if len(view) < HEAD_BYTES:
        raise _cut_off(position, len(view), HEAD_BYTES)
    tx, op, key_size = _HEAD.unpack_from(view)
    if len(view) < FIXED_BYTES + key_size:
        raise _cut_off(position, len(view), FIXED_BYTES + key_size)
    operation, flag, json_size = _MIDDLE.unpack_from(view, HEAD_BYTES + key_size)
    size = entry_size(key_size, json_size)
    if len(view) < size:
        raise _cut_off(position, len(view), size)
    if _CRC.unpack_from(view, size - CRC_BYTES)[0] != checksum(view[: size - CRC_BYTES]):
        raise Corrupt(f"entry {tx}_{op} at {position}: the CRC-32C does not match its bytes")
    json_start = FIXED_BYTES + key_size
    key = bytes(view[HEAD_BYTES : HEAD_BYTES + key_size])
    entry = Entry(Offset(tx, op), key, operation, bytes(view[json_start : json_start + json_size]))
    return StoredEntry(entry, flag, position, size)


def decode_entries(data: bytes | memoryview) -> Iterator[StoredEntry]:
    """All entries of these bytes, which end with an entry; raises Corrupt."""
    position = 0
    while position < len(data):
        stored = decode_entry(data, position)
        yield stored
        position = stored.end


def checksum(data: bytes | memoryview) -> int:
    """CRC-32C."""
    return crc32c(np.frombuffer(data, np.uint8), 0, len(data))


def kernel_offset(offset: Offset) -> tuple[int, int]:
    """A place in the kernels' numbers, where infinity is the highest there is."""
    if offset.tx > NUMBER_MAX:
        return NUMBER_MAX, NUMBER_MAX
    return offset.tx, min(offset.op, NUMBER_MAX)


def from_kernel_offset(tx: int, op: int) -> Offset:
    return Offset(tx, INFINITE_OP if op == NUMBER_MAX else op)


def _cut_off(position: int, size: int, needed: int) -> Corrupt:
    return Corrupt(
        f"entry at {position}: the bytes end after {size} of it, and it has {needed} at least"
    )
