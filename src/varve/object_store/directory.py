"""Objects as files of a directory: the embedded default, and safe between processes.

Layout     the key is the path below the root; `.varve-writing` holds files being written. It is
           created with the root, or by the first write if the root must exist.
Invariant  a file has its final name only when its bytes are complete and synced: put renames it
           there, create links it there, which fails if the name exists. A root that is missing, or
           empty as a mount point without its disk, is unavailable, not a store without objects.
Crash      file, then every directory from its own up to the root is synced before a write returns;
           leftovers of a crash are removed when the store is opened a day later or more.
Threads    any; nothing is shared in Python.
"""

import errno
import fcntl
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    StoreUnsupported,
)
from varve.object_store.obstore_store import CountedParts
from varve.object_store.protocol import (
    RESERVED,
    Buffer,
    ObjectInfo,
    check_key,
    check_prefix,
    check_range,
    failure,
)

WRITING: Final = f"{RESERVED}writing"
_LEFTOVER_AGE_MS: Final = 24 * 60 * 60 * 1000
_LOST_AND_FOUND: Final = "lost+found"
"""The directory that mkfs creates in the root of a file system."""
_ATTEMPTS_MAX: Final = 100
"""Attempts to create a name while other processes remove its empty directory."""
_CHUNK_BYTES: Final = 1 << 30
"""Linux reads and writes at most 2 GiB - 4096 at a time."""


class DirectoryObjectStore:
    """An ObjectStore below a directory, which is created if missing, unless it `must_exist`.

    With `is_created_late` the first write creates it; until then it is an empty store.
    """

    def __init__(
        self,
        root: str,
        *,
        clock: Clock | None = None,
        must_exist: bool = False,
        is_created_late: bool = False,
    ) -> None:
        self._root = os.path.abspath(root)
        self.name = f"file://{self._root}"
        self._writing = f"{self._root}/{WRITING}"
        self._may_be_missing = is_created_late and not os.path.lexists(self._root)
        with self._translated("open", ""):
            if must_exist:
                self._check_root("open", "")
                os.stat(f"{self._root}/.")  # Raises now unless it is a readable directory.
            elif not self._may_be_missing:
                self._make_root()
            if os.path.isdir(self._writing):
                self._remove_leftovers(clock or SystemClock())

    def _make_root(self) -> None:
        """Create the root with its parents, and sync every directory that got a new entry."""
        existing = self._root
        while not os.path.isdir(existing) and existing != os.path.dirname(existing):
            existing = os.path.dirname(existing)
        os.makedirs(self._writing, exist_ok=True)
        directory = self._root
        _sync_directory(directory)
        while directory != existing:
            directory = os.path.dirname(directory)
            _sync_directory(directory)

    def _check_root(self, operation: str, key: str) -> None:
        """Raise StoreUnavailable when the root is missing, or empty like an unmounted directory."""
        if self._may_be_missing or os.path.isdir(self._writing):
            return
        try:
            if set(os.listdir(self._root)) - {_LOST_AND_FOUND}:
                return
            cause = f"the directory {self._root} exists, but is empty"
        except FileNotFoundError:
            cause = f"the directory {self._root} is missing"
        except OSError:
            return  # The operation itself reports the error.
        raise failure(
            StoreUnavailable,
            store=self.name,
            operation=operation,
            key=key,
            cause=cause,
            remedy="mount or restore it; varve does not create an empty one",
        )

    # Writing

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        check_key(key, store=self.name, operation="put")
        return self._write("put", key, (data,))

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        check_key(key, store=self.name, operation="put parts")
        counted = CountedParts(parts, size=size, store=self.name, key=key)
        return self._write("put parts", key, counted)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        check_key(key, store=self.name, operation="create")
        return self._write("create", key, (data,))

    def _write(self, operation: str, key: str, parts: Iterable[Buffer]) -> ObjectInfo:
        temporary = f"{self._writing}/{secrets.token_hex(16)}"
        try:
            status = self._write_temporary(operation, key, temporary, parts)
            with self._translated(operation, key):
                self._publish(operation, key, temporary)
                self._sync_upwards(os.path.dirname(self._path(key)))
        finally:
            # A file that cannot be deleted is a leftover; the first error is the one to raise.
            with suppress(OSError):
                os.unlink(temporary)
        return _info(key, status)

    def _write_temporary(
        self, operation: str, key: str, temporary: str, parts: Iterable[Buffer]
    ) -> os.stat_result:
        with self._translated(operation, key):
            descriptor = self._open_temporary(operation, key, temporary)
        try:
            for part in parts:
                with self._translated(operation, key):
                    _write_all(descriptor, part)
            with self._translated(operation, key):
                _sync(descriptor)
                return os.fstat(descriptor)
        finally:
            with self._translated(operation, key):
                os.close(descriptor)

    def _open_temporary(self, operation: str, key: str, temporary: str) -> int:
        """A new temporary file; creates its directory if the root exists without it."""
        try:
            return _open_new(temporary)
        except FileNotFoundError:
            self._make_writing(operation, key)
            return _open_new(temporary)

    def _make_writing(self, operation: str, key: str) -> None:
        """Create the directory of temporary files; raises StoreUnavailable without the root."""
        self._check_root(operation, key)
        if self._may_be_missing:
            self._make_root()
            self._may_be_missing = False
            return
        try:
            os.mkdir(self._writing)
        except FileExistsError:
            return
        _sync_directory(self._root)

    def _publish(self, operation: str, key: str, temporary: str) -> None:
        """Rename or link to the path of the key; retry while a delete removes its directory."""
        path = self._path(key)
        for attempt in range(_ATTEMPTS_MAX):
            try:
                _make_directory(os.path.dirname(path))
                if operation == "create":
                    os.link(temporary, path)
                else:
                    os.replace(temporary, path)
                return
            except FileExistsError as error:
                if os.path.isdir(path):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from error
                raise
            except FileNotFoundError:
                if attempt == _ATTEMPTS_MAX - 1:
                    raise

    def _sync_upwards(self, directory: str) -> None:
        """Sync a directory and its parents: another process may just have created one of them.

        A directory that was removed meanwhile needs no sync.
        """
        while True:
            with suppress(FileNotFoundError):
                _sync_directory(directory)
            if directory == self._root:
                return
            directory = os.path.dirname(directory)

    # Reading

    def get(self, key: str) -> bytes:
        check_key(key, store=self.name, operation="get")
        with self._translated("get", key), self._opened(key) as descriptor:
            return bytes(_read(descriptor, 0, os.fstat(descriptor).st_size))

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        check_key(key, store=self.name, operation="get range")
        check_range(start, end, store=self.name, key=key)
        if start == end:
            return memoryview(b"")
        with self._translated("get range", key), self._opened(key) as descriptor:
            size = os.fstat(descriptor).st_size
            return memoryview(_read(descriptor, start, max(0, min(end, size) - start)))

    def head(self, key: str) -> ObjectInfo:
        check_key(key, store=self.name, operation="head")
        with self._translated("head", key):
            status = os.stat(self._path(key))
            if stat.S_ISDIR(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is a directory")
        return _info(key, status)

    # Listing

    def list_directories(self, prefix: str) -> list[str]:
        bare = check_prefix(prefix, store=self.name, operation="list directories")
        names = [name for name, is_directory in self._scan(bare) if is_directory]
        below = sorted(f"{bare}/{name}" if bare else name for name in names)
        return [directory for directory in below if any(self._walk(directory, ""))]

    def _scan(self, prefix: str) -> list[tuple[str, bool]]:
        """Names of a directory and whether they are directories, in key order; none if missing."""
        with self._translated("list", prefix):
            try:
                with os.scandir(self._path(prefix)) as entries:
                    names = [
                        (entry.name, entry.is_dir(follow_symlinks=False))
                        for entry in entries
                        if not entry.name.startswith(RESERVED)
                    ]
            except (FileNotFoundError, NotADirectoryError):
                self._check_root("list", prefix)
                return []
        if not names:
            self._check_root("list", prefix)
        names.sort(key=lambda name: f"{name[0]}/" if name[1] else name[0])
        return names

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        bare = check_prefix(prefix, store=self.name, operation="list")
        return self._walk(bare, start_after or "")

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """The files below a prefix in key order; a directory sorts as its name with a '/'."""
        for name, is_directory in self._scan(prefix):
            key = f"{prefix}/{name}" if prefix else name
            if is_directory:
                # Every key below begins with `key/`: skip all if that sorts before the start.
                if f"{key}/" >= start_after[: len(key) + 1]:
                    yield from self._walk(key, start_after)
            elif key > start_after:
                with self._translated("list", key):
                    try:
                        status = os.stat(self._path(key))
                    except FileNotFoundError:
                        continue
                yield _info(key, status)

    # Deleting

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key, store=self.name, operation="delete")
        if keys and not self._may_be_missing and not os.path.isdir(self._writing):
            # Without this directory an emptied root would look like an unmounted one.
            with self._translated("delete", keys[0]):
                self._make_writing("delete", keys[0])
        directories = set()
        for key in keys:
            with self._translated("delete", key):
                try:
                    os.unlink(self._path(key))
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._check_root("delete", key)
                    continue
            directories.add(os.path.dirname(self._path(key)))
        with self._translated("delete", keys[0] if keys else ""):
            for directory in sorted(directories, reverse=True):
                self._sync_upwards(self._remove_emptied(directory))

    def _remove_emptied(self, directory: str) -> str:
        """Remove empty directories upwards; returns the nearest one that remains."""
        while directory != self._root:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                break
            directory = os.path.dirname(directory)
        return directory

    def _remove_leftovers(self, clock: Clock) -> None:
        too_old_ms = clock.now_ms() - _LEFTOVER_AGE_MS
        with os.scandir(self._writing) as entries:
            for entry in entries:
                # Another process may clean up too, and a reader may lack the permission.
                with suppress(OSError):
                    if entry.stat().st_mtime_ns // 1_000_000 < too_old_ms:
                        os.unlink(entry.path)

    def close(self) -> None:
        """Does nothing: no file stays open between calls."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOENT and operation != "open":
                self._check_root(operation, key)
            raise self._translate(error, operation, key) from error

    def _translate(self, error: OSError, operation: str, key: str) -> StoreError:
        kind, remedy = _classify_error(error, operation)
        cause = error.strerror or str(error)
        return failure(
            kind, store=self.name, operation=operation, key=key, cause=cause, remedy=remedy
        )


_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_NOT_A_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.EEXIST})
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EROFS})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV})
_WRITES: Final = frozenset({"put", "put parts", "create"})
_RIGHTS: Final = "mount it for writing, and grant this user read and write permission below it"


def _classify_error(error: OSError, operation: str) -> tuple[type[StoreError], str]:
    if operation == "open" and error.errno in _NOT_A_DIRECTORY:
        return StoreUnavailable, "a file is where a directory has to be: mount it, or move the file"
    if isinstance(error, FileExistsError) and operation == "create":
        return ObjectExists, ""
    if operation in _WRITES and error.errno in _MISSING | {errno.EEXIST, errno.ENOTEMPTY}:
        return InvalidRequest, "no key may be the directory of another: choose another key"
    if error.errno in _MISSING:
        return ObjectNotFound, ""
    if error.errno in _DISK_FULL:
        return DiskFull, "free space or raise the quota"
    if operation == "create" and error.errno in _NO_LINKS:
        return StoreUnsupported, "creating needs hard links: choose another file system"
    if error.errno in _DENIED or isinstance(error, PermissionError):
        return StoreDenied, _RIGHTS
    return StoreUnavailable, "check the disk"


def _open_new(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError as error:
        if not os.path.lexists(path):
            # A delete removed the directory between mkdir and this check.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        if os.path.isdir(path):
            return  # Removed and created again between the two checks.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """Sync; on macOS by F_FULLFSYNC, since fsync there stops at the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _write_all(descriptor: int, part: Buffer) -> None:
    remaining = memoryview(part)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining[:_CHUNK_BYTES]) :]


def _read(descriptor: int, start: int, size: int) -> bytes:
    data = os.pread(descriptor, min(size, _CHUNK_BYTES), start)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1] and size > (count := sum(map(len, parts))):
        parts.append(os.pread(descriptor, min(size - count, _CHUNK_BYTES), start + count))
    return b"".join(parts)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000, etag, None)
