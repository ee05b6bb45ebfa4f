"""The last persisted transaction: how far the log is durable.

Layout     metadata/pointer.bin: two slots in sectors of their own, each sequence (8), tx (8),
           op (8), CRC-32C (4); the sound slot of the higher sequence counts.
           Before the first transaction the place is the end of the snapshot, op all ones.
           docs/formats/shape-log.md
Crash      a write goes to the slot that does not count, so a torn one leaves the other.
"""

import posixpath
import struct
from typing import Final

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt, NotFound
from varve.shapes.offset import INFINITE_OP, Offset
from varve.shapes.storage.entry import checksum
from varve.shapes.storage.layout import metadata_directory

SLOT_DISTANCE: Final = 512
"""No write of one slot tears the other."""
_FIELDS: Final = struct.Struct(">QQQ")
_CRC: Final = struct.Struct(">I")
_SLOT_BYTES: Final = _FIELDS.size + _CRC.size
_ALL_ONES: Final = (1 << 64) - 1


def pointer_path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), "pointer.bin")


def encode_slot(sequence: int, offset: Offset) -> bytes:
    op = _ALL_ONES if offset.op == INFINITE_OP else offset.op
    data = _FIELDS.pack(sequence, offset.tx, op)
    return data + _CRC.pack(checksum(data))


def find_slot(data: bytes) -> tuple[int, Offset] | None:
    """Sequence and place; None for a slot that was torn or never written."""
    if len(data) < _SLOT_BYTES:
        return None
    fields = data[: _FIELDS.size]
    if _CRC.unpack_from(data, _FIELDS.size)[0] != checksum(fields):
        return None
    sequence, tx, op = _FIELDS.unpack(fields)
    return sequence, Offset(tx, INFINITE_OP if op == _ALL_ONES else op)


def read_pointer(file_system: FileSystem, directory: str) -> tuple[int, Offset]:
    """Sequence and place; raises NotFound and Corrupt."""
    path = pointer_path(directory)
    try:
        data = file_system.read(path)
    except FileNotFoundError:
        raise NotFound(f"{path} is missing: the shape cannot tell how far it is durable") from None
    slots = [find_slot(data[start : start + _SLOT_BYTES]) for start in (0, SLOT_DISTANCE)]
    sound = [slot for slot in slots if slot is not None]
    if not sound:
        raise Corrupt(f"{path}: neither slot matches its CRC-32C")
    return max(sound)


def write_pointer(file: File, sequence: int, offset: Offset) -> None:
    """Writes the slot of this sequence; not durable before the file is synced."""
    file.write_at(sequence % 2 * SLOT_DISTANCE, encode_slot(sequence, offset))
