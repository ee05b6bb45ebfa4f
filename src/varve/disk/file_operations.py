"""Operations on whole files that every package needs, over any file system.

Crash      `write_atomically` leaves the old file or the new one, complete, and perhaps a `.tmp`
           beside it. `write_file` may leave any mixture of old and new bytes.
"""

import contextlib
import posixpath
from typing import Final

from varve.disk.file_system import Buffer, File, FileSystem, Lock
from varve.foundation.errors import Corrupt, Locked
from varve.foundation.worker import StopSignal

TEMPORARY_SUFFIX: Final = ".tmp"
_COPY_BYTES: Final = 4 << 20
_LOCK_POLL_MS: Final = 50


def write_atomically(
    file_system: FileSystem, path: str, data: bytes, *, is_private: bool = False
) -> None:
    """Write a temporary file, sync it, rename it to the path, sync the directory.

    Only its owner can read a private file, whatever the mode of the file it replaces. After an
    `OSError` the file at the path is complete, old or new, and the temporary file is removed if
    possible.
    """
    temporary = path + TEMPORARY_SUFFIX
    open_file = file_system.open_private if is_private else file_system.open_writable
    try:
        with open_file(temporary) as file:
            if file.size():
                file.truncate(0)
            file.write_at(0, data)
            file.sync()
        file_system.rename(temporary, path)
        file_system.sync_directory(posixpath.dirname(path) or ".")
    except OSError:
        with contextlib.suppress(OSError):
            file_system.remove(temporary)
        raise


def write_file(file_system: FileSystem, path: str, data: Buffer, *, sync: bool) -> None:
    """Write `data` as the whole content of a file, in place; the directory is not synced."""
    with file_system.open_writable(path) as file:
        file.write_at(0, data)
        file.truncate(len(data))
        if sync:
            file.sync()


def copy_range(source: File, target: File, *, start: int, end: int, position: int = 0) -> None:
    """Copy the bytes [start, end) of `source` to `position` of `target`, in bounded chunks.

    Raises Corrupt when `source` ends before `end`. Does not sync.
    """
    source_position = start
    while source_position < end:
        data = source.read_at(source_position, min(_COPY_BYTES, end - source_position))
        if not data:
            raise Corrupt(
                f"{source.path} ends at position {source_position}, bytes up to {end} are needed"
            )
        target.write_at(position + source_position - start, data)
        source_position += len(data)


def make_durable_directory(file_system: FileSystem, path: str) -> None:
    """Create the directory and missing parents, and sync the directory above each new one.

    Accepts an existing directory. Raises OSError.
    """
    missing: list[str] = []
    parent = path
    while parent and not file_system.exists(parent):
        missing.append(parent)
        parent = posixpath.dirname(parent)
    file_system.make_directory(path)
    for created in reversed(missing):
        file_system.sync_directory(posixpath.dirname(created) or ".")


def hold_lock(
    file_system: FileSystem, path: str, *, wait_ms: int, stop: StopSignal | None = None
) -> Lock:
    """Lock the file, waiting up to `wait_ms` for its holder; raises Locked after that.

    Setting `stop` ends the wait early.
    """
    stop = stop or StopSignal()
    waited_ms = 0
    while True:
        try:
            return file_system.lock(path)
        except Locked as error:
            if waited_ms >= wait_ms or stop.wait_ms(_LOCK_POLL_MS):
                raise Locked(f"{error} (waited {waited_ms} ms)") from error
            waited_ms += _LOCK_POLL_MS
