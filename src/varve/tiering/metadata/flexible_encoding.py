"""Kafka's flexible encoding of messages: unsigned varints, compact strings and arrays, tags.

Layout     integers big-endian; the length of a compact string, of compact bytes or of a compact
           array is one more than it is, 0 for null, as an unsigned varint; a message ends with the
           number of its tagged fields. docs/formats/remote-log-metadata.md
"""

import struct
from typing import Final
from uuid import UUID

from varve.foundation.errors import Corrupt, InvalidRequest

_VARINT_BYTES_MAX: Final = 10
_INT8: Final = struct.Struct(">b")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")


class FieldWriter:
    """Writes the fields of one message behind each other; `what` names it in errors."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._out = bytearray()

    @property
    def data(self) -> bytes:
        return bytes(self._out)

    def int8(self, value: int) -> None:
        self._pack(_INT8, value)

    def int32(self, value: int) -> None:
        self._pack(_INT32, value)

    def uint32(self, value: int) -> None:
        self._pack(_UINT32, value)

    def int64(self, value: int) -> None:
        self._pack(_INT64, value)

    def uvarint(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise InvalidRequest(f"{self._what}: {value} is no unsigned number of 64 bits")
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def zigzag(self, value: int) -> None:
        """A signed number whose nearness to 0 makes it short."""
        self.uvarint(value << 1 if value >= 0 else (-value << 1) - 1)

    def uuid(self, value: UUID) -> None:
        self._out += value.bytes

    def compact(self, value: bytes | None) -> None:
        """Bytes, or a string in UTF-8, behind their length."""
        self.uvarint(0 if value is None else len(value) + 1)
        self._out += value or b""

    def raw(self, value: bytes) -> None:
        self._out += value

    def _pack(self, layout: struct.Struct, value: int) -> None:
        try:
            self._out += layout.pack(value)
        except struct.error as error:
            raise InvalidRequest(
                f"{self._what}: {value} does not fit a field of {layout.size} bytes"
            ) from error


class FieldReader:
    """Reads the fields of one message; anything that is not there raises Corrupt naming `where`."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._where = where
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def int8(self) -> int:
        return self._unpack(_INT8)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def uint32(self) -> int:
        return self._unpack(_UINT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def uvarint(self) -> int:
        data, start = self._data, self._position
        if start < len(data) and data[start] < 0x80:  # most are this small
            self._position = start + 1
            return data[start]
        value = 0
        for place, byte in enumerate(data[start : start + _VARINT_BYTES_MAX]):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self._position = start + place + 1
                return value
        raise self._broken(f"no unsigned varint of at most {_VARINT_BYTES_MAX} bytes")

    def zigzag(self) -> int:
        value = self.uvarint()
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def uuid(self) -> UUID:
        return UUID(bytes=self.raw(16))

    def compact(self) -> bytes | None:
        size = self.uvarint()
        return None if size == 0 else self.raw(size - 1)

    def compact_text(self) -> str:
        data = self.compact()
        if data is None:
            raise self._broken("null where a string must be")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._broken(f"a string that is not UTF-8: {error}") from error

    def compact_count(self) -> int:
        """The number of items of an array, of which each takes at least a byte."""
        count = self.uvarint() - 1
        if not 0 <= count <= self.left:
            raise self._broken(f"an array of {count} items in {self.left} bytes")
        return count

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a message; those that are not known are passed over."""
        count = self.uvarint()
        return {self.uvarint(): self.raw(self.uvarint()) for _ in range(count)} if count else {}

    def raw(self, size: int) -> bytes:
        start, end = self._position, self._position + size
        if end > len(self._data):
            raise self._broken(f"{size} bytes wanted, {self.left} are there")
        self._position = end
        return self._data[start:end]

    def end(self) -> None:
        """Raises Corrupt when something is left."""
        if self.left:
            raise self._broken(f"{self.left} bytes behind the end")

    def _unpack(self, layout: struct.Struct) -> int:
        start = self._position
        if start + layout.size > len(self._data):
            raise self._broken(f"{layout.size} bytes wanted, {self.left} are there")
        self._position = start + layout.size
        value: int = layout.unpack_from(self._data, start)[0]
        return value

    def _broken(self, problem: str) -> Corrupt:
        return Corrupt(f"{self._where}: position {self._position}: {problem}")
