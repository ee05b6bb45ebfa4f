"""Entries of a shape's log as plain Python writes and reads them, to hold the kernels against.

Layout     docs/reference/formats/shape-log.md
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from varve.kernels.crc import crc32c_of
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.log_writer import ShapeEntry

_HEAD = struct.Struct(">QQI")
_MIDDLE = struct.Struct(">BBQ")
_CRC = struct.Struct(">I")


class StoredEntry(NamedTuple):
    """An entry as it lies in a log file."""

    entry: ShapeEntry
    flag: int
    position: int
    end: int


def encode_entry(entry: ShapeEntry) -> bytes:
    """The entry as a log holds it, as received."""
    head = _HEAD.pack(*entry.offset, len(entry.key))
    middle = _MIDDLE.pack(entry.operation, 0, len(entry.json))
    data = b"".join((head, entry.key, middle, entry.json))
    return data + _CRC.pack(crc32c_of(data))


def decode_entries(data: bytes) -> Iterator[StoredEntry]:
    """All entries of these bytes, which hold whole ones."""
    position = 0
    while position < len(data):
        tx, op, key_size = _HEAD.unpack_from(data, position)
        key = position + _HEAD.size
        operation, flag, json_size = _MIDDLE.unpack_from(data, key + key_size)
        json = key + key_size + _MIDDLE.size
        end = json + json_size + _CRC.size
        assert _CRC.unpack_from(data, json + json_size)[0] == crc32c_of(data[position : end - 4])
        entry = ShapeEntry(
            ShapeOffset(tx, op), data[key : key + key_size], operation, data[json : end - 4]
        )
        yield StoredEntry(entry, flag, position, end)
        position = end
