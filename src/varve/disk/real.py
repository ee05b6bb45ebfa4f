"""The machine's own file system.

Threads    every call is one system call, or a loop of them; nothing is shared in Python.
           A handle closes with its last reference: where readers may be in flight, drop the
           reference instead of calling `close`, since the number of a closed descriptor is reused.
Crash      `sync` is fdatasync, which includes the size; on macOS F_FULLFSYNC, since fsync there
           stops at the drive's cache. Many files are synced by one syncfs on Linux.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Final

from varve.disk.file_system import Buffer, File, FileInfo, sync_each
from varve.foundation.closing import Closing
from varve.foundation.errors import Locked

OWNER_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A process, and for a server its command and the address of its listener."""

    pid: int
    program: str = ""
    address: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def decode(data: bytes) -> "LockOwner | None":
        """None for a file that varve did not write, such as Kafka's empty one."""
        try:
            fields = json.loads(data)
            return LockOwner(int(fields["pid"]), str(fields["program"]), str(fields["address"]))
        except (ValueError, TypeError, KeyError):
            return None

    def describe(self) -> str:
        """The owner and what to do about it."""
        if self.address:
            return f"`{self.program}` (pid {self.pid}, {self.address}); stop it first"
        if self.pid == os.getpid():
            return f"this process (pid {self.pid}), which has it open already; close that first"
        return f"process {self.pid}, which has it open with varve; stop it first"


_LOCK_LAYOUT: Final = "hhqqi0q"
"""Linux's `struct flock`: type, whence, start, length (0: to the end), pid (must be 0)."""
DIRECTORY_LOCK_FILE: Final = ".lock"
"""The lock file that stands for its directory, as Kafka names it."""
BUFFERS_PER_CALL_MAX = 1024
"""IOV_MAX of Linux and macOS."""
_PRIVATE_MODE = 0o600
_SYNCFS_FILES_MIN = 16
"""From this many files on, syncfs is faster, although it also writes unrelated files."""

# os.preadv and os.pwritev are preadv2 and pwritev2 on Linux, where position -1 means the
# descriptor's own cursor. Negative positions are therefore refused before those calls.


@contextlib.contextmanager
def _add_path_to_errors(path: str) -> Iterator[None]:
    """Adds the path to errors of system calls that take only a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


class RealFile(Closing):
    """A file descriptor; system calls by position."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def write_at(self, position: int, *buffers: Buffer) -> None:
        try:
            if len(buffers) == 1:
                written = os.pwrite(self._descriptor, buffers[0], position)
                if written == len(buffers[0]):
                    return
            elif position < 0:
                raise OSError(errno.EINVAL, f"{os.strerror(errno.EINVAL)}: position {position}")
            elif len(buffers) <= BUFFERS_PER_CALL_MAX:
                written = os.pwritev(self._descriptor, buffers, position)
                if written == sum(map(len, buffers)):
                    return
            else:
                written = 0
            self._write_remaining(position, buffers, written)
        except OSError as error:
            error.filename = self.path
            raise

    def _write_remaining(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        """Continue after a short write, buffer by buffer."""
        start = 0
        for buffer in buffers:
            end = start + len(buffer)
            while written < end:
                remaining = memoryview(buffer)[written - start :]
                count = os.pwrite(self._descriptor, remaining, position + written)
                if count == 0:
                    raise OSError(errno.EIO, f"write at {position + written} took no bytes")
                written += count
            start = end

    def read_at(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
            if len(data) == size:
                return data
            parts = [data]
            while parts[-1] and size > (count := sum(map(len, parts))):
                parts.append(os.pread(self._descriptor, size - count, position + count))
            return b"".join(parts)
        except OSError as error:
            error.filename = self.path
            raise

    def read_into(self, position: int, buffer: memoryview) -> int:
        try:
            if position < 0:
                raise OSError(errno.EINVAL, f"{os.strerror(errno.EINVAL)}: position {position}")
            count = os.preadv(self._descriptor, (buffer,), position)
            total = count
            while count and total < len(buffer):
                count = os.preadv(self._descriptor, (buffer[total:],), position + total)
                total += count
            return total
        except OSError as error:
            error.filename = self.path
            raise

    def size(self) -> int:
        with _add_path_to_errors(self.path):
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with _add_path_to_errors(self.path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with _add_path_to_errors(self.path):
            # os.fdatasync(-1) raises ValueError; a closed file must raise OSError.
            if self._descriptor < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if sys.platform == "darwin":
                fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
            else:
                os.fdatasync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class RealLock(Closing):
    """A locked descriptor; closing it, or the end of the process, unlocks.

    Kafka's `FileChannel.tryLock` takes a POSIX record lock. On Linux `flock` does not conflict with
    those, and a record lock would neither stop this process from locking twice nor survive the
    close of another descriptor of the file. An open file description lock conflicts with record
    locks and with its own kind, and belongs to the descriptor. On other systems `flock` and record
    locks already conflict.

    A file named `.lock` stands for its directory, which is locked as well: if the file is deleted,
    a new one admits no second owner.
    """

    __slots__ = ("_descriptor", "_directory", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = self._directory = -1
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_descriptor(descriptor)
            if os.path.basename(path) == DIRECTORY_LOCK_FILE:
                self._directory = _lock_directory(os.path.dirname(path))
        except OSError as error:
            try:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    error.filename = path
                    raise
                raise _describe_conflict(descriptor, path) from error
            finally:
                os.close(descriptor)
        self._descriptor = descriptor
        self._write_owner(LockOwner(os.getpid()))

    def describe_owner(self, program: str, address: str) -> None:
        if self._descriptor >= 0:
            self._write_owner(LockOwner(os.getpid(), program, address))

    def _write_owner(self, owner: LockOwner | None) -> None:
        # Only for the message to others: on a full disk the lock is held all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            if owner is not None:
                os.pwrite(self._descriptor, owner.encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            self._write_owner(None)
            _unlock_descriptor(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if self._directory >= 0:
            fcntl.flock(self._directory, fcntl.LOCK_UN)
            os.close(self._directory)
            self._directory = -1

    def close(self) -> None:
        self.release()


class RealFileSystem:
    """The operating system's files."""

    def open(self, path: str) -> RealFile:
        return _open_regular(path, os.O_RDONLY)

    def open_writable(self, path: str) -> RealFile:
        return _open_regular(path, os.O_RDWR | os.O_CREAT)

    def open_private(self, path: str) -> RealFile:
        file = _open_regular(path, os.O_RDWR | os.O_CREAT, _PRIVATE_MODE)
        with _add_path_to_errors(path):
            # open() keeps the mode of an existing file and applies the umask to a new one.
            os.fchmod(file._descriptor, _PRIVATE_MODE)
        return file

    def scan(self, path: str) -> list[FileInfo]:
        file_infos = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                file_infos.append(_file_info(entry.name, status))
        file_infos.sort(key=lambda info: info.name)
        return file_infos

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def info(self, path: str) -> FileInfo:
        return _file_info(os.path.basename(path.rstrip("/")), os.stat(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read(self, path: str) -> bytes:
        with _open_regular(path, os.O_RDONLY) as file:
            return file.read_at(0, file.size())

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _add_path_to_errors(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        """From `_SYNCFS_FILES_MIN` files on, syncs their whole file systems."""
        sync = find_system_sync()
        if sync is None or len(files) < _SYNCFS_FILES_MIN:
            return sync_each(files)
        synced: dict[int, bool] = {}
        errors: list[OSError | None] = []
        for file in files:
            descriptor = file._descriptor if type(file) is RealFile else -1
            device = -1 if descriptor < 0 else os.fstat(descriptor).st_dev
            if device not in synced:
                synced[device] = descriptor >= 0 and sync(descriptor)
            # If syncfs fails, syncing each file alone shows which ones are affected.
            errors += [None] if synced[device] else sync_each([file])
        return errors

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        modified_ns = modified_ms * 1_000_000
        with _add_path_to_errors(path):
            os.utime(path, ns=(modified_ns, modified_ns))

    def lock(self, path: str) -> RealLock:
        return RealLock(path)


def _open_regular(path: str, flags: int, mode: int = 0o644) -> RealFile:
    """Opens a file; raises OSError for anything else that has the name, such as a FIFO.

    The open of a FIFO would wait for its other end: O_NONBLOCK, without effect on files, prevents
    that.
    """
    file = RealFile(path, os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode))
    kind = os.fstat(file._descriptor).st_mode
    if stat.S_ISREG(kind):
        return file
    file.close()
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "Not a regular file; remove it or move it away", path)


def _file_info(name: str, status: os.stat_result) -> FileInfo:
    is_directory = stat.S_ISDIR(status.st_mode)
    return FileInfo(
        name=name,
        size=0 if is_directory else status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
        is_directory=is_directory,
    )


def _lock_descriptor(descriptor: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_directory(path: str) -> int:
    """A locked descriptor of a directory; -1 on file systems that cannot lock one."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise
        return -1
    return descriptor


def _describe_conflict(descriptor: int, path: str) -> Locked:
    """Who holds a lock: its owner by the file, or a process with a record lock, as Kafka's."""
    where = os.path.dirname(path) if os.path.basename(path) == DIRECTORY_LOCK_FILE else path
    owner = LockOwner.decode(os.pread(descriptor, OWNER_BYTES_MAX, 0))
    process_id = _find_record_lock_owner(descriptor)
    if process_id:
        holder = f"process {process_id}, which may be Kafka; stop it first"
    elif owner is None:
        holder = "another process, which may be Kafka; stop it first"
    else:
        holder = owner.describe()
    return Locked(f"{where} is in use by {holder}", address=owner.address if owner else "")


def _find_record_lock_owner(descriptor: int) -> int:
    """The process that holds a POSIX record lock; 0 for other locks and where it is unknown."""
    if sys.platform != "linux":
        return 0
    conflict = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    kind, _, _, _, process_id = struct.unpack(_LOCK_LAYOUT, conflict)
    return max(process_id, 0) if kind != fcntl.F_UNLCK else 0


def _unlock_descriptor(descriptor: int) -> None:
    """Unlock before closing: a forked child may still share the open file description."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _whole_file(kind: int) -> bytes:
    return struct.pack(_LOCK_LAYOUT, kind, os.SEEK_SET, 0, 0, 0)


# syncfs reports write-back errors since Linux 5.8.
_SYNCFS_KERNEL_MIN: Final = (5, 8)


@cache
def find_system_sync() -> Callable[[int], bool] | None:
    """A function that syncs the file system of a descriptor and returns whether it succeeded.

    None if the system lacks syncfs or does not report its errors.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or release is None:
        return None
    if (int(release[1]), int(release[2])) < _SYNCFS_KERNEL_MIN:
        return None
    call = getattr(ctypes.CDLL(None), "syncfs", None)
    if call is None:
        return None

    def sync(descriptor: int) -> bool:
        return int(call(descriptor)) == 0

    return sync
