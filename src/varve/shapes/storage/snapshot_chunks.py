"""The chunk files of a snapshot, and the note of them that says the snapshot is complete.

Layout     `<n>.jsonsnapshot`: rows as `<json>,\\n`, then the byte 0x04. `snapshot.json` names the
           bytes, rows and CRC-32C of each. docs/formats/shape-snapshot.md
Crash      the note is written last and whole; without it there is no snapshot.
"""

import json
from dataclasses import dataclass
from typing import Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, NotFound

END: Final = b"\x04"
"""The last byte of every chunk."""
ROW_END: Final = b",\n"
NOTE: Final = "snapshot.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A finished chunk: the size of its file, the messages in it, the checksum of all its bytes."""

    size: int
    rows: int
    crc: int


def chunk_path(directory: str, number: int) -> str:
    return f"{directory}/{number}.jsonsnapshot"


def write_note(fs: FileSystem, directory: str, chunks: list[SnapshotChunk]) -> None:
    """Says that the snapshot is complete; durable on return, with the names of the chunks."""
    document = {
        "version": VERSION,
        "chunks": [
            {"bytes": chunk.size, "rows": chunk.rows, "crc32c": chunk.crc} for chunk in chunks
        ],
    }
    data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    write_atomically(fs, f"{directory}/{NOTE}", data)


def read_note(fs: FileSystem, directory: str) -> list[SnapshotChunk]:
    """The chunks of a complete snapshot; raises NotFound when it never became so."""
    path = f"{directory}/{NOTE}"
    try:
        data = fs.read(path)
    except FileNotFoundError:
        raise NotFound(
            f"{path} is missing: the snapshot was never finished, drop the shape and make it again"
        ) from None
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}, known is {VERSION}")
        chunks = [
            SnapshotChunk(_number(chunk["bytes"]), _number(chunk["rows"]), _number(chunk["crc32c"]))
            for chunk in document["chunks"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path} is no note of a snapshot: {error!r:.200}") from None
    if not chunks:
        raise Corrupt(f"{path} names no chunk: every snapshot has one")
    return chunks


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.60} is no count")
    return value
