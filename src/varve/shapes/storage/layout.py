"""The files of a shape: their paths, the manifest that names them, the pointer to the durable end.

Layout     <root>/<h1h2>/<h3h4>/<handle>/log/ with log.<suffix>.jsonfile.bin and
           log.<suffix>.chunk.bin, and the snapshot's own files; beside log/ the folder metadata/
           with manifest.json and pointer.bin. <root>/.tmp is scratch space of compactions,
           <root>/.trash/<handle> holds dropped shapes, with a number if that name exists.
           manifest.json: {"version": 2, "latest": suffix, "boundary": offset or null,
           "compacted": suffix or null}. pointer.bin: two slots in sectors of their own, each
           sequence (8), tx (8), op (8), CRC-32C (4); the valid slot of the higher sequence counts.
           Before the first transaction it is the end of the snapshot, op all ones.
           docs/reference/formats/shape-log.md
Invariant  entries up to the manifest's boundary are in the compacted log, all others in the latest
           one; log files that the manifest does not name are not part of the shape. Before the
           first compaction the latest log is `latest.0`; a compaction creates the files of another.
Crash      the manifest is written last when a shape is created: a directory without it is not a
           shape. The pointer is created with both slots; later a write goes to the slot that does
           not count, so a torn write leaves the other one. With one invalid slot the log may hold
           more than the pointer says, and is searched. A shape without the pointer is damaged. A
           dropped directory is at its path or in the trash, and until its parent is synced a crash
           may move it back.
"""

import posixpath
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from varve.disk import File, FileSystem, JsonDocument
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound
from varve.kernels.crc import crc32c_of
from varve.shapes.offset import BEFORE_ALL, INFINITE_OP, SNAPSHOT_END, ShapeOffset, parse_offset

HANDLE_TEXT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{3,199}", re.ASCII)
TRASH: Final = ".trash"
SCRATCH: Final = ".tmp"
FIRST_SUFFIX: Final = "latest.0"
LATEST: Final = "latest"
COMPACTED: Final = "compacted"
_LOG_FILE: Final = re.compile(
    r"log\.((?:latest|compacted)\.[0-9]+)\.(?:jsonfile|chunk)\.bin", re.ASCII
)


def check_handle(handle: str) -> None:
    """Raises InvalidRequest for a handle that could not name a directory."""
    if not HANDLE_TEXT.fullmatch(handle):
        raise InvalidRequest(
            f"handle {handle!r:.80} of a shape; it has 4 to 200 letters, digits, '_' and '-'"
        )


def shape_directory(root: str, handle: str) -> str:
    check_handle(handle)
    return posixpath.join(root, handle[:2], handle[2:4], handle)


def log_directory(directory: str) -> str:
    return posixpath.join(directory, "log")


def metadata_directory(directory: str) -> str:
    return posixpath.join(directory, "metadata")


def log_path(directory: str, suffix: str) -> str:
    return posixpath.join(directory, "log", f"log.{suffix}.jsonfile.bin")


def index_path(directory: str, suffix: str) -> str:
    return posixpath.join(directory, "log", f"log.{suffix}.chunk.bin")


def scratch_directory(root: str, handle: str) -> str:
    """The directory of temporary files of a shape's compaction."""
    check_handle(handle)
    return posixpath.join(root, SCRATCH, handle)


def find_suffix(name: str) -> str | None:
    """The suffix of a log's file of any kind; None for other files."""
    match = _LOG_FILE.fullmatch(name)
    return match[1] if match else None


def new_suffix(fs: FileSystem, directory: str, kind: str, now_ms: int) -> str:
    """A suffix that no log ever had: the time, or a number above those in use.

    The newest log of each kind exists until another one replaces it, so the number is new even if
    the clock was set back.
    """
    suffixes = map(find_suffix, fs.names(log_directory(directory)))
    numbers = [
        int(suffix.rpartition(".")[2]) for suffix in suffixes if suffix and suffix.startswith(kind)
    ]
    return f"{kind}.{max(now_ms, 1, *[number + 1 for number in numbers])}"


def list_handles(fs: FileSystem, root: str) -> Iterator[str]:
    """The handles of all directories three levels below the root."""
    for first in _folders(fs, root, 2):
        for second in _folders(fs, posixpath.join(root, first), 2):
            for info in fs.scan(posixpath.join(root, first, second)):
                if info.is_directory and info.name.startswith(first + second):
                    yield info.name


def _folders(fs: FileSystem, path: str, length: int) -> list[str]:
    return [info.name for info in fs.scan(path) if info.is_directory and len(info.name) == length]


_MANIFEST: Final = JsonDocument(version=2, version_name="version", indent=None)
"""Version 1 is the layout of the reference implementation, which has no checksums."""


class ShapeManifest(NamedTuple):
    """The live log, and the compacted log before it."""

    latest: str = FIRST_SUFFIX
    boundary: ShapeOffset = BEFORE_ALL
    compacted: str | None = None

    @property
    def suffixes(self) -> set[str]:
        return {self.latest} if self.compacted is None else {self.latest, self.compacted}


def manifest_path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), "manifest.json")


def write_manifest(fs: FileSystem, directory: str, manifest: ShapeManifest) -> None:
    """Replaces the manifest; durable on return."""
    boundary = None if manifest.compacted is None else str(manifest.boundary)
    _MANIFEST.write(fs, manifest_path(directory), manifest._asdict() | {"boundary": boundary})


def read_manifest(fs: FileSystem, directory: str) -> ShapeManifest:
    """Raises NotFound without a manifest, UnsupportedFormat for a later version, and Corrupt."""
    path = manifest_path(directory)
    document = _MANIFEST.read(fs, path)
    if document is None:
        raise NotFound(f"there is no shape in {directory}: it has no manifest")
    try:
        latest, boundary, compacted = (
            document[name] for name in ("latest", "boundary", "compacted")
        )
        if not isinstance(latest, str) or not isinstance(compacted, str | None):
            raise Corrupt(f"{path}: the name of a log is not a text")
        if (boundary is None) != (compacted is None):
            raise Corrupt(f"{path}: a compacted log has a name and a boundary, or neither")
        if compacted is None and latest != FIRST_SUFFIX:
            raise Corrupt(f"{path}: log {latest!r:.80} has no compacted log before it")
        offset = BEFORE_ALL if boundary is None else parse_offset(boundary)
    except (KeyError, TypeError, InvalidRequest) as error:
        raise Corrupt(f"{path}: not a manifest: {error!r:.200}") from error
    return ShapeManifest(latest, offset, compacted)


SLOT_DISTANCE: Final = 512
"""Bytes between the slots, one sector: a torn write of one slot leaves the other intact."""
_SLOT_FIELDS: Final = struct.Struct(">QQQ")
_SLOT_CRC: Final = struct.Struct(">I")
_SLOT_BYTES: Final = _SLOT_FIELDS.size + _SLOT_CRC.size
_ALL_ONES: Final = (1 << 64) - 1


def pointer_path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), "pointer.bin")


def encode_slot(sequence: int, offset: ShapeOffset) -> bytes:
    op = _ALL_ONES if offset.op == INFINITE_OP else offset.op
    data = _SLOT_FIELDS.pack(sequence, offset.tx, op)
    return data + _SLOT_CRC.pack(crc32c_of(data))


def find_slot(data: bytes) -> tuple[int, ShapeOffset] | None:
    """Sequence and offset; None for a slot that was torn or never written."""
    if len(data) < _SLOT_BYTES:
        return None
    fields = data[: _SLOT_FIELDS.size]
    if _SLOT_CRC.unpack_from(data, _SLOT_FIELDS.size)[0] != crc32c_of(fields):
        return None
    sequence, tx, op = _SLOT_FIELDS.unpack(fields)
    return sequence, ShapeOffset(tx, INFINITE_OP if op == _ALL_ONES else op)


def create_pointer(fs: FileSystem, directory: str) -> None:
    """Writes and syncs the pointer of a new shape; its directory is not synced. Raises OSError."""
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
    valid = [slot for slot in slots if slot is not None]
    if not valid:
        raise Corrupt(f"{path}: neither slot matches its CRC-32C: drop the shape")
    return Pointer(fs, path, *max(valid), is_certain=len(valid) == len(slots))


class Pointer:
    """The durable offset of one shape."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        sequence: int,
        offset: ShapeOffset,
        *,
        is_certain: bool,
    ) -> None:
        self.offset = offset
        self.is_certain = is_certain
        """Whether both slots are valid, so that no later offset was lost."""
        self._fs = fs
        self._path = path
        self._sequence = sequence

    def write(self, offset: ShapeOffset) -> File:
        """Writes another offset; if that or the sync fails, nothing more may be written.

        Returns the file, which the caller syncs and closes. Raises OSError.
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


def trash_directory(root: str) -> str:
    return posixpath.join(root, TRASH)


def move_to_trash(fs: FileSystem, root: str, handle: str) -> bool:
    """Moves a shape's directory to the trash; False without one. Raises OSError."""
    return _rename_to_trash(fs, root, shape_directory(root, handle), handle)


def discard_scratch(fs: FileSystem, root: str) -> bool:
    """Moves the scratch files of compactions to the trash; False without any. Raises OSError."""
    return _rename_to_trash(fs, root, posixpath.join(root, SCRATCH), SCRATCH)


def _rename_to_trash(fs: FileSystem, root: str, source: str, name: str) -> bool:
    trash = trash_directory(root)
    fs.make_directory(trash)
    # Probes names instead of listing the trash: thousands of shapes may be dropped at once.
    path, number = posixpath.join(trash, name), 0
    while fs.exists(path):
        number += 1
        path = posixpath.join(trash, f"{name}.{number}")
    try:
        fs.rename(source, path)
    except FileNotFoundError:
        return False
    return True


def sync_parent(fs: FileSystem, root: str, handle: str) -> None:
    """Makes durable that a shape's directory was moved away. Raises OSError."""
    with suppress(FileNotFoundError):  # without its parent there was no directory
        fs.sync_directory(posixpath.dirname(shape_directory(root, handle)))


def list_trash(fs: FileSystem, root: str) -> list[str]:
    """The paths in the trash. Raises OSError."""
    trash = trash_directory(root)
    names = fs.names(trash) if fs.exists(trash) else []
    return [posixpath.join(trash, name) for name in names]
