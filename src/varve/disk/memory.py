"""A file system in memory, for tests and short-lived stores.

Invariant  behaves as the real one, errors included; nothing is ever lost, so `sync` has no effect.
Threads    one lock per file system around every call.
"""

import errno
import threading
from collections.abc import Sequence

from varve.disk.file_system import Buffer, Closing, File, FileInfo, sync_each
from varve.disk.tree import (
    DirectoryNode,
    FileNode,
    Tree,
    overwrite,
    resize,
    system_error,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import Locked


class MemoryFile(Closing):
    """A handle on a file's content, which it keeps when the name goes."""

    __slots__ = ("_clock", "_lock", "_node", "_writable", "path")

    def __init__(
        self, path: str, node: FileNode, *, lock: threading.RLock, clock: Clock, writable: bool
    ) -> None:
        self.path = path
        self._node: FileNode | None = node
        self._lock = lock
        self._clock = clock
        self._writable = writable

    def write_at(self, position: int, *buffers: Buffer) -> None:
        with self._lock:
            node = self._get_node()
            if not self._writable:
                raise system_error(errno.EBADF, self.path)
            if position < 0:
                raise system_error(errno.EINVAL, self.path)
            overwrite(node.content, position, b"".join(buffers))
            node.modified_ms = self._clock.now_ms()

    def read_at(self, position: int, size: int) -> bytes:
        with self._lock:
            node = self._get_node()
            if position < 0 or size < 0:
                raise system_error(errno.EINVAL, self.path)
            return bytes(memoryview(node.content)[position : position + size])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def size(self) -> int:
        with self._lock:
            return len(self._get_node().content)

    def truncate(self, size: int) -> None:
        with self._lock:
            node = self._get_node()
            if size < 0 or not self._writable:
                raise system_error(errno.EINVAL, self.path)
            resize(node.content, size)
            node.modified_ms = self._clock.now_ms()

    def sync(self) -> None:
        with self._lock:
            self._get_node()

    def close(self) -> None:
        self._node = None

    def _get_node(self) -> FileNode:
        if self._node is None:
            raise system_error(errno.EBADF, self.path)
        return self._node


class HeldLocks:
    """The lock files held within one file system in memory."""

    def __init__(self) -> None:
        self._nodes: set[FileNode] = set()

    def take(self, path: str, node: FileNode) -> "MemoryLock":
        if node in self._nodes:
            raise Locked(
                f"lock file {path} is held by another owner of its directory: "
                "close the store that has it open"
            )
        self._nodes.add(node)
        return MemoryLock(path, node, self)

    def give_back(self, node: FileNode) -> None:
        self._nodes.discard(node)


class MemoryLock(Closing):
    """One held lock file."""

    __slots__ = ("_held", "_node", "path")

    def __init__(self, path: str, node: FileNode, held: HeldLocks) -> None:
        self.path = path
        self._node: FileNode | None = node
        self._held = held

    def release(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            self._held.give_back(node)

    def close(self) -> None:
        self.release()


class MemoryFileSystem:
    """Files in memory. The root exists; a relative path starts there too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._tree = Tree(DirectoryNode(clock.now_ms()))  # guarded by _lock
        self._held = HeldLocks()  # guarded by _lock

    def open(self, path: str) -> MemoryFile:
        with self._lock:
            return self._handle(path, self._tree.get_file(path), writable=False)

    def open_writable(self, path: str) -> MemoryFile:
        with self._lock:
            return self._handle(path, self._find_or_create_locked(path), writable=True)

    def open_private(self, path: str) -> MemoryFile:
        return self.open_writable(path)  # nobody else is there

    def scan(self, path: str) -> list[FileInfo]:
        with self._lock:
            return self._tree.scan(path)

    def names(self, path: str) -> list[str]:
        with self._lock:
            return self._tree.names(path)

    def info(self, path: str) -> FileInfo:
        with self._lock:
            return self._tree.info(path)

    def exists(self, path: str) -> bool:
        with self._lock:
            return self._tree.exists(path)

    def read(self, path: str) -> bytes:
        with self._lock:
            return bytes(self._tree.get_file(path).content)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._tree.apply(self._tree.plan_rename(source, target), self._clock.now_ms())

    def remove(self, path: str) -> None:
        with self._lock:
            self._tree.apply(self._tree.plan_remove(path), self._clock.now_ms())

    def remove_tree(self, path: str) -> None:
        with self._lock:
            for info in self._tree.scan(path):
                child = f"{path}/{info.name}"
                if info.is_directory:
                    self.remove_tree(child)
                else:
                    self.remove(child)
            self._tree.apply(self._tree.plan_remove_directory(path), self._clock.now_ms())

    def make_directory(self, path: str) -> None:
        with self._lock:
            now_ms = self._clock.now_ms()
            for missing in self._tree.missing_directories(path):
                change = self._tree.plan_link(missing, DirectoryNode(now_ms))
                self._tree.apply(change, now_ms)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._tree.get_directory(path)

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        return sync_each(files)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with self._lock:
            self._tree.get(path).modified_ms = modified_ms

    def lock(self, path: str) -> MemoryLock:
        with self._lock:
            return self._held.take(path, self._find_or_create_locked(path))

    def _find_or_create_locked(self, path: str) -> FileNode:
        node = self._tree.find_file(path)
        if node is None:
            now_ms = self._clock.now_ms()
            node = FileNode(now_ms)
            self._tree.apply(self._tree.plan_link(path, node), now_ms)
        return node

    def _handle(self, path: str, node: FileNode, *, writable: bool) -> MemoryFile:
        return MemoryFile(path, node, lock=self._lock, clock=self._clock, writable=writable)
