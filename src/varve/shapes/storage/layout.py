"""Where the files of shapes lie.

Layout     <root>/<h1h2>/<h3h4>/<handle>/log/ with log.<suffix>.jsonfile.bin and
           log.<suffix>.chunk.bin, and the snapshot's own files; beside log/ the folder metadata/
           with manifest.json and pointer.bin; <root>/.tmp and <root>/.trash.
           docs/formats/shape-log.md
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest

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
    """Where a shape's compaction may write what need not survive; named by the handle."""
    check_handle(handle)
    return posixpath.join(root, SCRATCH, handle)


def find_suffix(name: str) -> str | None:
    """The suffix of a log's file of any kind; None for other files."""
    found = _LOG_FILE.fullmatch(name)
    return found[1] if found else None


def new_suffix(fs: FileSystem, directory: str, kind: str, now_ms: int) -> str:
    """The time, or a number above those in use: one that no log ever had, if the clock goes back.

    The newest log of each kind is there until another one takes its place.
    """
    suffixes = map(find_suffix, fs.names(log_directory(directory)))
    taken = [int(one.rpartition(".")[2]) for one in suffixes if one and one.startswith(kind)]
    return f"{kind}.{max(now_ms, 1, *[number + 1 for number in taken])}"


def list_handles(fs: FileSystem, root: str) -> Iterator[str]:
    """The handles of all directories three levels below the root."""
    for first in _folders(fs, root, 2):
        for second in _folders(fs, posixpath.join(root, first), 2):
            for info in fs.scan(posixpath.join(root, first, second)):
                if info.is_directory and info.name.startswith(first + second):
                    yield info.name


def _folders(fs: FileSystem, path: str, length: int) -> list[str]:
    return [info.name for info in fs.scan(path) if info.is_directory and len(info.name) == length]
