"""Small JSON files with a format version and, optionally, a checksum.

Layout     one JSON object; a field holds the version, another may hold the CRC-32 of all others.
Crash      written atomically; a reader sees the old document or the new one.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from varve.disk.file_system import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, UnsupportedFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDocument:
    """The format of one kind of document: version, checksum, size limit, indentation.

    A document of a higher version raises UnsupportedFormat, damage raises Corrupt.
    """

    version: int
    version_name: str = "format"
    crc_name: str | None = None
    max_bytes: int = 1 << 20
    indent: int | None = 1

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        document = {self.version_name: self.version, **fields}
        if self.crc_name is not None:
            document[self.crc_name] = _checksum(document)
        separators = (",", ":") if self.indent is None else None
        return json.dumps(document, indent=self.indent, separators=separators).encode() + b"\n"

    def decode(self, data: bytes, where: str) -> dict[str, Any]:
        """The fields without version and checksum."""
        if len(data) > self.max_bytes:
            raise Corrupt(f"{where} has {len(data)} bytes, at most {self.max_bytes} are read")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"{where}: {len(data)} bytes are not JSON: {error!s:.200}") from None
        if not isinstance(document, dict):
            raise Corrupt(f"{where}: the document is not a JSON object")
        self._check_version(document, where)
        if self.crc_name is not None:
            stored, computed = document.pop(self.crc_name, None), _checksum(document)
            if stored != computed:
                raise Corrupt(f"{where}: {self.crc_name} is {stored!r:.20}, computed {computed}")
        del document[self.version_name]
        return document

    def read(self, file_system: FileSystem, path: str) -> dict[str, Any] | None:
        """The document's fields; None when there is no such file. Raises OSError."""
        try:
            with file_system.open(path) as file:
                data = file.read_at(0, self.max_bytes + 1)
        except FileNotFoundError:
            return None
        return self.decode(data, path)

    def write(self, file_system: FileSystem, path: str, fields: Mapping[str, Any]) -> None:
        """Replaces the document; durable on return. Raises OSError."""
        write_atomically(file_system, path, self.encode(fields))

    def _check_version(self, document: dict[str, Any], where: str) -> None:
        version = document.get(self.version_name)
        if type(version) is int and version > self.version:
            raise UnsupportedFormat(
                f"{where}: {self.version_name} {version} is newer than {self.version}, which this "
                "version of varve reads: use the newer varve"
            )
        if version != self.version or isinstance(version, bool):
            raise Corrupt(f"{where}: {self.version_name} is {version!r:.20}, not {self.version}")


def _checksum(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
