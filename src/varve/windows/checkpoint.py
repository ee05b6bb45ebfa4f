"""How much of a store is on disk: where a restore goes on.

Layout     `checkpoint.json`: one JSON object with a CRC-32 of its other fields.
           docs/formats/window-store.md
Invariant  written only after every segment was flushed, so it never claims more than is there.
Crash      written aside, synced and renamed. One that is torn or foreign counts as none: the
           restore then begins at the start of the changelog.
"""

import json
import logging
import posixpath
import zlib
from dataclasses import dataclass, field
from typing import Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt
from varve.windows.failure import store_failure
from varve.windows.position import Position, decode_position, encode_position

logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = "checkpoint.json"
FORMAT: Final = 1
NO_STREAM_TIME_MS: Final = -1
"""Stream time before the first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What was on disk; the changelog before `changelog_offset` is in it."""

    stream_time_ms: int
    changelog_offset: int
    segment_starts_ms: tuple[int, ...] = ()
    position: Position = field(default_factory=Position)


def write_checkpoint(file_system: FileSystem, directory: str, checkpoint: Checkpoint) -> None:
    path = posixpath.join(directory, CHECKPOINT_NAME)
    try:
        write_atomically(file_system, path, encode_checkpoint(checkpoint))
    except OSError as error:
        raise store_failure(error, f"write of {path}") from error


def find_checkpoint(file_system: FileSystem, directory: str) -> Checkpoint | None:
    """None without a usable one; one that is there and not usable is warned of."""
    path = posixpath.join(directory, CHECKPOINT_NAME)
    try:
        return decode_checkpoint(file_system.read(path))
    except FileNotFoundError:
        return None
    except Corrupt as error:
        logger.warning("checkpoint is not usable", extra={"path": path, "error": str(error)})
        return None
    except OSError as error:
        raise store_failure(error, f"read of {path}") from error


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    fields = {
        "format": FORMAT,
        "stream_time_ms": checkpoint.stream_time_ms,
        "changelog_offset": checkpoint.changelog_offset,
        "segment_starts_ms": list(checkpoint.segment_starts_ms),
        "position": encode_position(checkpoint.position),
    }
    return json.dumps({**fields, "crc": _checksum(fields)}, indent=2).encode() + b"\n"


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises `Corrupt` for anything that `encode_checkpoint` does not make."""
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise Corrupt(f"checkpoint of {len(data)} bytes is no JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise Corrupt(f"checkpoint {data[:40]!r} is not of format {FORMAT}")
    crc = fields.pop("crc", None)
    if crc != _checksum(fields):
        raise Corrupt(f"checkpoint's crc {crc!r:.20} is not {_checksum(fields)}")
    try:
        return Checkpoint(
            stream_time_ms=int(fields["stream_time_ms"]),
            changelog_offset=int(fields["changelog_offset"]),
            segment_starts_ms=tuple(int(start) for start in fields["segment_starts_ms"]),
            position=decode_position(fields["position"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"checkpoint's fields do not fit: {error!r:.80}") from None


def _checksum(fields: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
