"""Producer state at an offset, as a file.

Layout     version (i16, 1), CRC-32C of what follows it (u32), count (i32), then 46-byte entries:
           producer id (i64), epoch (i16), last sequence (i32), last offset (i64), offset delta
           (i32), timestamp (i64), coordinator epoch (i32), first offset of the open transaction
           (i64, -1 none), big-endian. docs/formats/producer-snapshot.md
Crash      written in place; a torn file fails its checksum, is removed, and an older one is taken.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.crc import crc32c

VERSION = 1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6


class SnapshotEntry(NamedTuple):
    """One producer as the file holds it; -1 stands for whatever is not known."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def encode_producer_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The file's bytes, entries in the order given."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    data = b"".join([_HEADER.pack(VERSION, 0, len(packed)), *packed])
    return _HEADER.pack(VERSION, _crc_of(data), len(packed)) + data[_HEADER.size :]


def decode_producer_snapshot(
    data: bytes | bytearray | memoryview, where: str = "producer snapshot"
) -> list[SnapshotEntry]:
    """The entries of a file; raises Corrupt unless version, checksum and length are all right."""
    if len(data) < _HEADER.size:
        raise Corrupt(
            f"{where}: {len(data)} bytes are fewer than the header's {_HEADER.size}: "
            "remove the snapshot, producer state is rebuilt from an older one"
        )
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedFormat(
            f"{where}: snapshot version {version}, only {VERSION} is known: "
            "remove the snapshot, producer state is rebuilt from an older one"
        )
    _check_crc(data, crc, where)
    if count < 0 or len(data) != _HEADER.size + count * _ENTRY.size:
        raise Corrupt(
            f"{where}: {len(data)} bytes cannot hold {count} entries of {_ENTRY.size} bytes: "
            "remove the snapshot, producer state is rebuilt from an older one"
        )
    return [SnapshotEntry(*row) for row in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])]


def _check_crc(data: bytes | bytearray | memoryview, stored: int, where: str) -> None:
    computed = _crc_of(data)
    if computed != stored:
        raise Corrupt(
            f"{where}: checksum is {computed:#010x}, the header says {stored:#010x}: "
            "remove the snapshot, producer state is rebuilt from an older one"
        )


def _crc_of(data: bytes | bytearray | memoryview) -> int:
    return int(crc32c(np.frombuffer(data, np.uint8), _CRC_END, len(data)))
