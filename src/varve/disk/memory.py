"""A file system in memory, for tests and short-lived stores.

Invariant  behaves as `RealFileSystem`, errors included; `sync` has no effect, as nothing is lost.
Threads    one lock per file system around every call.
"""

import contextlib
import errno
import posixpath
import threading
from collections.abc import Iterator, Sequence

from varve.disk.file_system import Buffer, File, FileInfo, sync_each
from varve.disk.tree import (
    Change,
    DirectoryNode,
    FileNode,
    Node,
    Tree,
    overwrite,
    resize,
    system_error,
)
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.foundation.errors import Locked


class MemoryFile(Closing):
    """An open file; the content stays readable after its name is removed."""

    __slots__ = ("_node", "_system", "_writable", "path")

    def __init__(
        self, path: str, node: FileNode, system: "MemoryFileSystem", *, writable: bool
    ) -> None:
        self.path = path
        self._node: FileNode | None = node
        self._system = system
        self._writable = writable

    def write_at(self, position: int, *buffers: Buffer) -> None:
        with self._system._lock:
            node = self._get_node()
            if not self._writable:
                raise system_error(errno.EBADF, self.path)
            if position < 0:
                raise system_error(errno.EINVAL, self.path)
            self._system._write_locked(self.path, node, position, b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        with self._system._lock:
            node = self._get_node()
            if position < 0 or size < 0:
                raise system_error(errno.EINVAL, self.path)
            return bytes(memoryview(node.content)[position : position + size])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def size(self) -> int:
        with self._system._lock:
            return len(self._get_node().content)

    def truncate(self, size: int) -> None:
        with self._system._lock:
            node = self._get_node()
            if size < 0 or not self._writable:
                raise system_error(errno.EINVAL, self.path)
            self._system._truncate_locked(self.path, node, size)

    def sync(self) -> None:
        with self._system._lock:
            if self._node is None:
                raise system_error(errno.EBADF, self.path)
            self._system._sync_locked(self.path, self._node)

    def close(self) -> None:
        self._node = None

    def _get_node(self) -> FileNode:
        self._system._check_locked(self.path)
        if self._node is None:
            raise system_error(errno.EBADF, self.path)
        return self._node


class HeldLocks:
    """The lock files held within one file system in memory."""

    def __init__(self) -> None:
        self._nodes: set[FileNode] = set()

    def acquire(self, path: str, node: FileNode) -> "MemoryLock":
        if node in self._nodes:
            raise Locked(
                f"{posixpath.dirname(path) or '/'} is in use by this process, which has it open "
                "already; close that first"
            )
        self._nodes.add(node)
        return MemoryLock(path, node, self)

    def release(self, node: FileNode) -> None:
        self._nodes.discard(node)


class MemoryLock(Closing):
    """One held lock file."""

    __slots__ = ("_locks", "_node", "path")

    def __init__(self, path: str, node: FileNode, locks: HeldLocks) -> None:
        self.path = path
        self._node: FileNode | None = node
        self._locks = locks

    def describe_owner(self, program: str, address: str) -> None:
        """Does nothing: only this process can want the lock."""

    def release(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            self._locks.release(node)

    def close(self) -> None:
        self.release()


class MemoryFileSystem:
    """Files in memory. The root exists; relative paths start there too.

    A subclass may reject any call in `_check_locked`, and count, reject or undo changes in the
    methods after it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._tree = Tree(self._new_directory())  # guarded by _lock
        self._locks = HeldLocks()  # guarded by _lock

    def open(self, path: str) -> MemoryFile:
        with self._checked(path):
            return MemoryFile(path, self._tree.get_file(path), self, writable=False)

    def open_writable(self, path: str) -> MemoryFile:
        with self._checked(path):
            return MemoryFile(path, self._find_or_create_locked(path), self, writable=True)

    def open_private(self, path: str) -> MemoryFile:
        return self.open_writable(path)  # no other user can open files in memory

    def scan(self, path: str) -> list[FileInfo]:
        with self._checked(path):
            return self._tree.scan(path)

    def names(self, path: str) -> list[str]:
        with self._checked(path):
            return self._tree.names(path)

    def info(self, path: str) -> FileInfo:
        with self._checked(path):
            return self._tree.info(path)

    def exists(self, path: str) -> bool:
        with self._checked(path):
            return self._tree.exists(path)

    def read(self, path: str) -> bytes:
        with self._checked(path):
            return bytes(self._tree.get_file(path).content)

    def rename(self, source: str, target: str) -> None:
        with self._checked(source), self._checked(target):
            change = self._tree.plan_rename(source, target)
            self._change_locked("rename", source, change, f"to {target}")

    def remove(self, path: str) -> None:
        with self._checked(path):
            self._change_locked("remove", path, self._tree.plan_remove(path))

    def remove_tree(self, path: str) -> None:
        with self._checked(path):
            for info in self._tree.scan(path):
                child = f"{path}/{info.name}"
                if info.is_directory:
                    self.remove_tree(child)
                else:
                    self.remove(child)
            change = self._tree.plan_remove_directory(path)
            self._change_locked("remove directory", path, change)

    def make_directory(self, path: str) -> None:
        with self._checked(path):
            for missing in self._tree.missing_directories(path):
                change = self._tree.plan_link(missing, self._new_directory())
                self._change_locked("make directory", missing, change)

    def sync_directory(self, path: str) -> None:
        with self._checked(path):
            self._sync_directory_locked(path, self._tree.get_directory(path))

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        return sync_each(files)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with self._checked(path):
            self._set_modified_locked(path, self._tree.get(path), modified_ms)

    def lock(self, path: str) -> MemoryLock:
        with self._checked(path):
            return self._locks.acquire(path, self._find_or_create_locked(path))

    @contextlib.contextmanager
    def _checked(self, path: str) -> Iterator[None]:
        with self._lock:
            self._check_locked(path)
            yield

    def _find_or_create_locked(self, path: str) -> FileNode:
        node = self._tree.find_file(path)
        if node is None:
            node = self._new_file()
            self._change_locked("create", path, self._tree.plan_link(path, node))
        return node

    def _check_locked(self, path: str) -> None:
        """Called before every operation on a path; a subclass raises here to reject it."""

    def _new_file(self) -> FileNode:
        return FileNode(self._clock.now_ms())

    def _new_directory(self) -> DirectoryNode:
        return DirectoryNode(self._clock.now_ms())

    def _write_locked(self, path: str, node: FileNode, position: int, data: bytes) -> None:
        overwrite(node.content, position, data)
        node.modified_ms = self._clock.now_ms()

    def _truncate_locked(self, path: str, node: FileNode, size: int) -> None:
        resize(node.content, size)
        node.modified_ms = self._clock.now_ms()

    def _sync_locked(self, path: str, node: FileNode) -> None:
        """Nothing here is ever lost."""

    def _sync_directory_locked(self, path: str, directory: DirectoryNode) -> None:
        """Nothing here is ever lost."""

    def _set_modified_locked(self, path: str, node: Node, modified_ms: int) -> None:
        node.modified_ms = modified_ms

    def _change_locked(self, operation: str, path: str, change: Change, detail: str = "") -> None:
        self._tree.apply(change, self._clock.now_ms())
