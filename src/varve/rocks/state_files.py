"""The metadata and checkpoint files of a store: its settings, and its durable state.

Layout     `meta.json` and `checkpoint.json`, one JSON object each; the checkpoint has a CRC-32 of
           its other fields. docs/reference/formats/window-store.md
Invariant  `meta.json` is written before the first segment; a directory with segments and without
           it belongs to another program. A checkpoint is written after every segment was flushed,
           so everything it covers is on disk.
Crash      both are written to a temporary file and renamed. A damaged checkpoint is ignored: the
           restore then begins at the start of the changelog.
"""

import json
import logging
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from varve.disk import FileSystem, JsonDocument, to_store_error, write_atomically
from varve.foundation.errors import Corrupt

META_NAME: Final = "meta.json"
_META_FORMAT: Final = 1


class MetaChanged(Corrupt):
    """The directory was created with other settings: wipe it and restore from the changelog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMeta:
    """Settings that the stored bytes depend on; `layout` names the encoding of keys and values."""

    format: int = _META_FORMAT
    engine: str
    layout: str
    segment_ms: int
    retention_ms: int


def keep_meta(
    file_system: FileSystem, directory: str, expected: StoreMeta, *, is_empty: bool
) -> None:
    """Compares `meta.json` with the expected settings, or writes it to an empty directory.

    Raises `MetaChanged` for any difference.
    """
    path = posixpath.join(directory, META_NAME)
    meta = _read_meta(file_system, path)
    if meta == asdict(expected):
        return
    if meta is not None or not is_empty:
        raise MetaChanged(f"{path}: the store was created with {meta}, not with {asdict(expected)}")
    try:
        write_atomically(file_system, path, _encode(expected))
    except OSError as error:
        raise to_store_error(error, f"write of {path}") from error


def find_segment_ms(
    file_system: FileSystem, directory: str, *, engine: str, layout: str
) -> int | None:
    """The segment width of a directory; None if it is new or of another engine or layout."""
    meta = _read_meta(file_system, posixpath.join(directory, META_NAME))
    if not isinstance(meta, dict) or (meta.get("engine"), meta.get("layout")) != (
        engine,
        layout,
    ):
        return None
    width = meta.get("segment_ms")
    return width if isinstance(width, int) else None


def _encode(meta: StoreMeta) -> bytes:
    return json.dumps(asdict(meta), indent=2).encode() + b"\n"


def _read_meta(file_system: FileSystem, path: str) -> object:
    """The JSON value of the file; None without a file."""
    try:
        data = file_system.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise to_store_error(error, f"read of {path}") from error
    try:
        meta: object = json.loads(data)
    except ValueError:
        return data[:80]
    return meta


logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = "checkpoint.json"
NO_STREAM_TIME_MS: Final = -1
"""Stream time before the first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The durable state of a store: all of the changelog before `changelog_offset`.

    `changelog_mark` identifies the batch before that offset, in the owner's encoding; None if
    unknown.
    """

    stream_time_ms: int
    changelog_offset: int
    segment_starts_ms: tuple[int, ...] = ()
    changelog_mark: Mapping[str, int] | None = None


_CHECKPOINT: Final = JsonDocument(version=1, crc_name="crc", indent=2)


def write_checkpoint(file_system: FileSystem, directory: str, checkpoint: Checkpoint) -> None:
    path = posixpath.join(directory, CHECKPOINT_NAME)
    try:
        write_atomically(file_system, path, encode_checkpoint(checkpoint))
    except OSError as error:
        raise to_store_error(error, f"write of {path}") from error


def find_checkpoint(file_system: FileSystem, directory: str) -> Checkpoint | None:
    """The checkpoint; None if it is missing, or damaged, which is logged."""
    path = posixpath.join(directory, CHECKPOINT_NAME)
    try:
        return decode_checkpoint(file_system.read(path))
    except FileNotFoundError:
        return None
    except Corrupt as error:
        logger.warning("checkpoint is not usable", extra={"path": path, "error": str(error)})
        return None
    except OSError as error:
        raise to_store_error(error, f"read of {path}") from error


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return _CHECKPOINT.encode(
        {
            "stream_time_ms": checkpoint.stream_time_ms,
            "changelog_offset": checkpoint.changelog_offset,
            "segment_starts_ms": list(checkpoint.segment_starts_ms),
            "changelog_mark": checkpoint.changelog_mark and dict(checkpoint.changelog_mark),
        }
    )


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises `Corrupt` for anything that `encode_checkpoint` does not produce."""
    fields = _CHECKPOINT.decode(data, "checkpoint")
    try:
        return Checkpoint(
            stream_time_ms=int(fields["stream_time_ms"]),
            changelog_offset=int(fields["changelog_offset"]),
            segment_starts_ms=tuple(int(start) for start in fields["segment_starts_ms"]),
            changelog_mark=fields["changelog_mark"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"checkpoint's fields do not fit: {error!r:.80}") from None
