"""The file system interface: files by position, directories by path, and when each is durable.

Invariant  paths are plain strings joined by '/'; a handle outlives its name's rename or removal.
Crash      bytes are durable after `File.sync`, names (created, renamed, removed) only after
           `sync_directory` of their directory; a new directory needs its parent synced.
Threads    file systems and files may be shared; close a handle only when no call on it is in
           flight.
Errors     the operating system's own `OSError` family, naming the path; `Locked` from `lock`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

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
