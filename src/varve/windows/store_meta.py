"""What a store's directory was made with, so that nobody reads it as something else.

Layout     `meta.json`: one JSON object. docs/formats/window-store.md
Invariant  written before the first segment; a directory with segments and without it is foreign.
Crash      written aside and renamed: it is there whole, or not at all.
"""

import json
import posixpath
from dataclasses import asdict, dataclass
from typing import Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt
from varve.windows.failure import store_failure

META_NAME: Final = "meta.json"
FORMAT: Final = 1


class MetaChanged(Corrupt):
    """The directory was made with other settings: wipe it and restore from the changelog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMeta:
    """All that decides which bytes stand where; `layout` names how keys and values are made."""

    format: int = FORMAT
    engine: str
    layout: str
    segment_ms: int
    retention_ms: int


def keep_meta(
    file_system: FileSystem, directory: str, wanted: StoreMeta, *, is_empty: bool
) -> None:
    """Compare with what is written there, or write it where there is no segment yet.

    Raises `MetaChanged` for any difference.
    """
    path = posixpath.join(directory, META_NAME)
    found = _read_meta(file_system, path)
    if found == asdict(wanted):
        return
    if found is not None or not is_empty:
        raise MetaChanged(
            f"{path}: the store was made with {found}, and {asdict(wanted)} is asked for"
        )
    try:
        write_atomically(file_system, path, _encode(wanted))
    except OSError as error:
        raise store_failure(error, f"write of {path}") from error


def find_segment_ms(
    file_system: FileSystem, directory: str, *, engine: str, layout: str
) -> int | None:
    """How wide the segments of a directory are; None where it was made otherwise, or not at all."""
    found = _read_meta(file_system, posixpath.join(directory, META_NAME))
    if not isinstance(found, dict) or (found.get("engine"), found.get("layout")) != (
        engine,
        layout,
    ):
        return None
    width = found.get("segment_ms")
    return width if isinstance(width, int) else None


def _encode(meta: StoreMeta) -> bytes:
    return json.dumps(asdict(meta), indent=2).encode() + b"\n"


def _read_meta(file_system: FileSystem, path: str) -> object:
    """What is written there; None without a file."""
    try:
        data = file_system.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_failure(error, f"read of {path}") from error
    try:
        found: object = json.loads(data)
    except ValueError:
        return data[:80]
    return found
