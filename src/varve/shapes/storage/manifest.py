"""Which files are a shape's log: one document, replaced as a whole.

Layout     metadata/manifest.json: {"version": 2, "latest": suffix, "boundary": offset or null,
           "compacted": suffix or null}. docs/formats/shape-log.md
Invariant  entries up to the boundary are in the compacted log, all others in the latest one; files
           that the manifest does not name are no part of the shape.
Crash      written last when a shape is made: a directory without it is no shape.
"""

import json
import posixpath
from typing import Final, NamedTuple

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, UnsupportedFormat
from varve.shapes.offset import BEFORE_ALL, Offset, parse_offset
from varve.shapes.storage.layout import FIRST_SUFFIX, metadata_directory

VERSION: Final = 2
"""The reference's layout is 1; ours has checksums."""


class Manifest(NamedTuple):
    """The live log, and the compacted one that lies before it."""

    latest: str = FIRST_SUFFIX
    boundary: Offset = BEFORE_ALL
    compacted: str | None = None

    @property
    def suffixes(self) -> set[str]:
        return {self.latest} if self.compacted is None else {self.latest, self.compacted}


def manifest_path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), "manifest.json")


def encode_manifest(manifest: Manifest) -> bytes:
    is_compacted = manifest.compacted is not None
    document = {
        "version": VERSION,
        "latest": manifest.latest,
        "boundary": str(manifest.boundary) if is_compacted else None,
        "compacted": manifest.compacted,
    }
    return json.dumps(document).encode()


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Raises UnsupportedFormat for another version, and Corrupt."""
    try:
        document = json.loads(data)
        version = document["version"]
        if version != VERSION:
            raise UnsupportedFormat(f"{path} has version {version!r}, and only {VERSION} is read")
        latest, boundary = document["latest"], document["boundary"]
        compacted = document["compacted"]
        if not isinstance(latest, str) or not isinstance(compacted, str | None):
            raise Corrupt(f"{path}: a name of a log is no text")
        if (boundary is None) != (compacted is None):
            raise Corrupt(f"{path}: a compacted log has a name and a boundary, or neither")
        place = BEFORE_ALL if boundary is None else parse_offset(boundary)
    except (ValueError, KeyError, TypeError, InvalidRequest) as error:
        raise Corrupt(f"{path} is no manifest of a shape: {error}") from error
    return Manifest(latest, place, compacted)


def write_manifest(fs: FileSystem, directory: str, manifest: Manifest) -> None:
    """Replaces it; durable on return."""
    write_atomically(fs, manifest_path(directory), encode_manifest(manifest))


def read_manifest(fs: FileSystem, directory: str) -> Manifest:
    """Raises NotFound where no shape is."""
    path = manifest_path(directory)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        raise NotFound(f"there is no shape in {directory}: it has no manifest") from None
    return decode_manifest(data, path)
