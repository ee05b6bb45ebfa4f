"""The file system interface: files by position, directories by path, and when each is durable.

Invariant  paths are plain strings joined by '/'; a handle outlives its name's rename or removal.
Crash      bytes are durable after `File.sync`, names (created, renamed, removed) only after
           `sync_directory` of their directory; a new directory needs its parent synced.
           `write_atomically` leaves the old file or the new one, complete, and perhaps a `.tmp`
           beside it. `write_file` may leave any mixture of old and new bytes.
Threads    file systems and files may be shared; close a handle only when no call on it is in
           flight.
Errors     the operating system's own `OSError` family, naming the path; `Locked` from `lock`.
"""

import contextlib
import errno
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, Self

from varve.foundation.errors import Corrupt, DiskFull, Locked, Unavailable
from varve.foundation.worker import StopSignal

Buffer = bytes | bytearray | memoryview
"""Bytes to write; a memoryview is one-dimensional and counts bytes (format 'B')."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry; `size` is 0 for a directory."""

    name: str
    size: int
    modified_ms: int
    is_directory: bool


class File(Protocol):
    """An open file. There is no cursor: every call names its position."""

    path: str
    """The path it was opened by; a later rename does not change it."""

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write all buffers consecutively; after an error any prefix of them may be written.

        A position past the end leaves a gap of zeros.
        """

    def read_at(self, position: int, size: int) -> bytes:
        """Read `size` bytes; fewer only at the end of the file."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a writable buffer and return the bytes read; fewer only at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Shorten the file, or extend it with zeros."""

    def sync(self) -> None:
        """Make content and size durable. After a failure unsynced bytes may be lost for good."""

    def close(self) -> None:
        """Close the handle; closing twice is harmless. Does not sync."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Lock(Protocol):
    """An exclusive lock that is held until released or until the process ends."""

    path: str

    def describe_owner(self, program: str, address: str) -> None:
        """Name the program and its address in the error of others that want the lock."""

    def release(self) -> None:
        """Release the lock; releasing twice is harmless. The lock file stays."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class FileSystem(Protocol):
    """Files and directories by path."""

    def open(self, path: str) -> File:
        """Open an existing file for reading (and syncing)."""

    def open_writable(self, path: str) -> File:
        """Open for reading and writing; created empty if missing, never truncated."""

    def open_private(self, path: str) -> File:
        """As `open_writable`, with a mode that lets only the owner open the file."""

    def scan(self, path: str) -> list[FileInfo]:
        """The directory's entries sorted by name, without entries that vanish meanwhile."""

    def names(self, path: str) -> list[str]:
        """The directory's names, sorted; cheaper than `scan`."""

    def info(self, path: str) -> FileInfo: ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes:
        """The whole content of a file."""

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; an existing target file is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file's name."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below it, children first; not atomic."""

    def make_directory(self, path: str) -> None:
        """Create the directory and missing parents; accepts an existing one."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in this directory durable."""

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        """Sync many open files, much faster than one by one if the system supports it.

        Returns the error of each file, None for a file that is durable.
        """

    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...

    def lock(self, path: str) -> Lock:
        """Lock this file exclusively, creating it if missing.

        Raises `Locked` at once when anyone, this process included, holds it.
        """


def sync_each(files: Sequence[File]) -> list[OSError | None]:
    """Sync files one by one."""
    errors: list[OSError | None] = []
    for file in files:
        try:
            file.sync()
        except OSError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors


# Operations on whole files, over any file system

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
                raise Locked(f"{error} (waited {waited_ms} ms)", address=error.address) from error
            waited_ms += _LOCK_POLL_MS


# What an OSError means, by one table for every package


class DiskProblem(Enum):
    """What an OSError says about the disk; the value is the remedy."""

    FULL = "free some space"
    NO_DESCRIPTORS = "raise the limit on open files (ulimit -n)"
    FILE_TOO_LARGE = "raise the limit on the size of files (ulimit -f)"
    WRONG_KIND = "move away the file or directory that has this name"
    DENIED = "grant the permission to read and write, and mount the disk for writing"
    BROKEN = "repair the disk"

    @property
    def remedy(self) -> str:
        return self.value


_PROBLEMS: Final = {
    errno.ENOSPC: DiskProblem.FULL,
    errno.EDQUOT: DiskProblem.FULL,
    errno.EMFILE: DiskProblem.NO_DESCRIPTORS,
    errno.ENFILE: DiskProblem.NO_DESCRIPTORS,
    errno.EFBIG: DiskProblem.FILE_TOO_LARGE,
    errno.EISDIR: DiskProblem.WRONG_KIND,
    errno.ENOTDIR: DiskProblem.WRONG_KIND,
    errno.EACCES: DiskProblem.DENIED,
    errno.EPERM: DiskProblem.DENIED,
    errno.EROFS: DiskProblem.DENIED,
}


def classify_error(error: OSError) -> DiskProblem:
    """The problem that an OSError indicates; BROKEN for every errno that the table lacks."""
    return _PROBLEMS.get(error.errno or 0, DiskProblem.BROKEN)


def describe_error(error: OSError, path: str | None = None) -> str:
    """The file and the reason: `/data/t-0/0.log: No space left on device`."""
    reason = error.strerror or str(error)
    where = error.filename if isinstance(error.filename, str) else path
    return reason if where is None else f"{where}: {reason}"


def to_store_error(
    error: OSError, what: str, *, path: str | None = None, then: str = "try again"
) -> Unavailable:
    """The error to raise instead: DiskFull for a full disk, else Unavailable.

    `what` names the operation, `path` the file if the error names none, `then` the action after the
    remedy.
    """
    problem = classify_error(error)
    kind = DiskFull if problem is DiskProblem.FULL else Unavailable
    return kind(f"{what}: {describe_error(error, path)}; {problem.remedy} and {then}")
