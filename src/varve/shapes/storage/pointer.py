"""The last persisted transaction: how far the log is durable.

Layout     metadata/pointer.bin: two slots in sectors of their own, each sequence (8), tx (8),
           op (8), CRC-32C (4); the sound slot of the higher sequence counts.
           Before the first transaction the place is the end of the snapshot, op all ones.
           docs/formats/shape-log.md
Crash      the file is made whole, both slots at once; later a write goes to the slot that does not
           count, so a torn one leaves the other. With one slot that is not sound the log may hold
           more than the place says, and is asked. A shape without the file is damaged.
"""

import posixpath
import struct
from typing import Final

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.shapes.offset import INFINITE_OP, SNAPSHOT_END, Offset
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


def create_pointer(fs: FileSystem, directory: str) -> None:
    """Writes the pointer of a shape without a log; synced, but for its name. Raises OSError."""
    with fs.open_writable(pointer_path(directory)) as file:
        for sequence in (0, 1):
            file.write_at(sequence * SLOT_DISTANCE, encode_slot(sequence, SNAPSHOT_END))
        file.sync()


def read_pointer(fs: FileSystem, directory: str) -> "Pointer":
    """The pointer of a shape. Raises Corrupt."""
    path = pointer_path(directory)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        raise Corrupt(f"{path} is missing: how far the log goes is not known") from None
    slots = [find_slot(data[start : start + _SLOT_BYTES]) for start in (0, SLOT_DISTANCE)]
    sound = [slot for slot in slots if slot is not None]
    if not sound:
        raise Corrupt(f"{path}: neither slot matches its CRC-32C")
    return Pointer(fs, path, *max(sound), is_certain=len(sound) == len(slots))


class Pointer:
    """The durable place of one shape."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        sequence: int,
        offset: Offset,
        *,
        is_certain: bool,
    ) -> None:
        self.offset = offset
        self.is_certain = is_certain
        """Whether no later place can have been lost."""
        self._fs = fs
        self._path = path
        self._sequence = sequence

    def write(self, offset: Offset) -> File:
        """Moves the place on; when that or the sync fails, nothing may be written any more.

        Gives the file that is to be synced and closed. Raises OSError.
        """
        sequence = self._sequence + 1
        file = self._fs.open_writable(self._path)
        try:
            file.write_at(sequence % 2 * SLOT_DISTANCE, encode_slot(sequence, offset))
        except OSError:
            file.close()
            raise
        self._sequence, self.offset = sequence, offset
        return file
